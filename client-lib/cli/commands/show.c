/* tandem show: what a model file is, and what this machine can do with it. A daemon is asked only for where the file
 * is, if it is in none of the usual folders. */
#include "client-lib/cli/cli.h"
#include "client-lib/cli/model-file.h"
#include "client-lib/cli/projector-file.h"
#include "client-lib/cli/roofline.h"
#include "client-lib/store/folder.h"
#include "common/suggest.h"
#include "engine/chat/forms/forms.h"
#include "engine/chat/template/template.h"
#include "engine/sampling/recommended.h"
#include "engine/weights/memory.h"

#include <inttypes.h>
#include <sys/stat.h>

#define MAX_SETS 16u

struct show_options {
        const char *model;
        bool json;
};

extern const struct command command_show;

/* Tensors of one type, or of one set that the model does not use. */
struct tensor_set {
        char name[32];
        uint64_t n, bytes;
};

struct shown {
        char path[4096];
        uint64_t file_bytes;
        uint64_t more_bytes; /* that weights take in memory: some types are packed as larger ones */
        uint32_t n_parts;
        char architecture[64], title[128], tokenizer[32], pre[48];
        uint64_t n_pieces, n_template_bytes, n_weights, bytes_per_token, kv_bytes_per_token, kv_bytes_of_windows;
        struct tensor_set types[MAX_SETS], ignored[MAX_SETS];
        size_t n_types, n_ignored;
        bool runs;
        bool makes_text;
        bool makes_vectors; /* of texts, each read in one piece */
        bool ranks;         /* documents by a query, the same */
        uint32_t n_classes; /* of texts that it tells apart; 0: none */
        bool lacks_pooler;  /* the matrix before a head, which converters leave out */
        bool lacks_pair;    /* the matrices behind the pooling, which converters leave out unless told otherwise */
        struct projector_file projector; /* path NULL: there is none beside it */
        struct tdm_error projector_fault;
        bool wants_projector;
        struct tdm_hparams hparams;
        struct tdm_recommended recommended;
        struct tdm_error refusal;
        char template_fault[TDM_ERROR_MESSAGE_MAX]; /* why the chat template cannot be used */
        struct tdm_chat_form *form;                 /* what it shows of thinking and of calls; NULL: nothing is known */
        struct roofline machine;
};

/* ---- finding the file ---- */

/* A search for a name in one folder after another, and the folders that it went through. */
struct folder_search {
        const char *name;
        char *path; /* what was found */
        struct tdm_suggestion near;
        struct buf folders;
};

static void search_folder(struct folder_search *search, const char *folder, size_t size)
{
        char name[4200];
        struct stat st;

        if (search->path || size == 0 || size >= sizeof(name))
                return;
        snprintf(name, sizeof(name), "%.*s", (int)size, folder);
        if (stat(name, &st) < 0 && strcmp(name, SYSTEM_MODEL_FOLDER) != 0)
                return;
        buf_printf(&search->folders, "%s%s", search->folders.size ? ", " : "", name);
        search->path = folder_find(name, search->name, &search->near);
}

/* In an installed prefix and in a build folder models lie beside the programs. */
static void search_beside_program(struct folder_search *search, const char *sub)
{
        char exe[4096], folder[4200], *slash;
        ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

        if (n <= 0)
                return;
        exe[n] = '\0';
        for (int up = 0; up < 3 && (slash = strrchr(exe, '/')) && slash != exe; up++) {
                *slash = '\0';
                if (up == 0)
                        continue; /* that of the programs */
                snprintf(folder, sizeof(folder), "%s/%s", exe, sub);
                search_folder(search, folder, strlen(folder));
        }
}

/* The folders in which a tandemd that the same user starts looks, but for those of tandem.conf: so a name that it
 * listed is known without it. */
static void search_usual_folders(struct folder_search *search)
{
        const char *path = getenv("TANDEM_MODEL_PATH");
        _cleanup_(freep) char *own = NULL;
        struct tdm_error err;

        if (folder_of_user(&own, &err) == 0)
                search_folder(search, own, strlen(own));
        while (path && *path) {
                size_t n = strcspn(path, ":");

                search_folder(search, path, n);
                path += n + (path[n] == ':');
        }
        search_folder(search, SYSTEM_MODEL_FOLDER, strlen(SYSTEM_MODEL_FOLDER));
        search_beside_program(search, "share/tandem/models");
        search_beside_program(search, "models");
}

/* A path as it is; a name in the usual folders, and as the daemon lists it. */
static char *find_shown_file(struct cli *cli, const char *said)
{
        const char *model = cli_plain_name(said);
        struct folder_search search = { .name = model, .near = tdm_suggest_for(model) };
        bool answered = true;
        const char *meant;

        if (strchr(said, '/') || access(said, R_OK) == 0)
                return strdup(said);
        search_usual_folders(&search);
        if (!search.path)
                search.path = cli_listed_file(cli, model, &answered);
        meant = tdm_suggest_best(&search.near);
        buf_add(&search.folders, "", 1);
        if (!search.path && !search.folders.failed)
                complain("there is no model %s in %s%s%s%s%s", model, search.folders.data,
                         meant ? "; did you mean " : "", meant ? meant : "", meant ? "?" : "",
                         answered ? "" : "; no tandemd answers, which may know it from elsewhere");
        buf_free(&search.folders);
        return search.path;
}

/* ---- what it is ---- */

static void count_tensor(struct tensor_set *sets, size_t *n_sets, const char *name, size_t n_name, uint64_t bytes)
{
        size_t i;

        n_name = TDM_MIN(n_name, sizeof(sets->name) - 1);
        for (i = 0; i < *n_sets; i++)
                if (strncmp(sets[i].name, name, n_name) == 0 && sets[i].name[n_name] == '\0')
                        break;
        if (i == MAX_SETS)
                i--; /* the last one counts the rest */
        else if (i == *n_sets) {
                memcpy(sets[i].name, name, n_name);
                (*n_sets)++;
        }
        sets[i].n++;
        sets[i].bytes += bytes;
}

static int by_bytes(const void *a, const void *b)
{
        const struct tensor_set *x = a, *y = b;

        return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : 0;
}

/* The marks of sentences' ends, which the vocabulary has, are no part of what is shown here. */
static void take_template(struct shown *s, struct tdm_gguf_string source)
{
        _cleanup_(tdm_template_destroyp) struct tdm_template *template = NULL;
        struct tdm_error why;

        int r = tdm_template_new(&template, source.data, source.size, &why);

        if (r > 0)
                snprintf(s->template_fault, sizeof(s->template_fault), "%s", why.message);
        else if (r == 0 && tdm_chat_form_derive(&s->form, template, "<s>", "</s>") < 0)
                s->form = NULL;
}

static void take_model_text(char *to, size_t size, const struct tdm_gguf *gguf, const char *key)
{
        struct tdm_gguf_string s;

        if (tdm_gguf_get_string(gguf, key, &s) == 0)
                snprintf(to, size, "%.*s", (int)TDM_MIN(s.size, size - 1), s.data);
}

static bool is_used(const struct tdm_model_description *d, const struct tdm_gguf_tensor *tensor)
{
        for (uint32_t i = 0; i < d->n_tensors; i++)
                if (d->tensors[i].tensor == tensor)
                        return true;
        return false;
}

static bool name_has(const struct tdm_gguf_tensor *t, const char *text)
{
        return memmem(t->name.data, t->name.size, text, strlen(text)) != NULL;
}

/* Bytes of a tensor that one generated token reads: only the experts in use, and one row of the embedding, unless the
 * embedding is the head too. */
static uint64_t bytes_read(const struct tdm_gguf *gguf, const struct tdm_gguf_tensor *t)
{
        uint64_t n_experts = 0, n_used = 0;
        char key[128], architecture[64] = "";

        if (name_has(t, "token_embd.") && tdm_gguf_find_tensor(gguf, "output.weight"))
                return t->dims[1] ? t->size_bytes / t->dims[1] : 0;
        if (name_has(t, "per_layer_token_embd"))
                return t->dims[1] ? t->size_bytes / t->dims[1] : 0;
        if (!name_has(t, "_exps."))
                return t->size_bytes;
        take_model_text(architecture, sizeof(architecture), gguf, "general.architecture");
        snprintf(key, sizeof(key), "%s.expert_count", architecture);
        (void)tdm_gguf_get_u64(gguf, key, &n_experts);
        snprintf(key, sizeof(key), "%s.expert_used_count", architecture);
        (void)tdm_gguf_get_u64(gguf, key, &n_used);
        return n_experts && n_used ? t->size_bytes / n_experts * n_used : t->size_bytes;
}

/* Keys and values as f16. Layers with a window keep that many tokens, whatever the context. A text that runs has two
 * states. */
static void count_cache(struct shown *s)
{
        const struct tdm_hparams *hp = &s->hparams;

        for (uint32_t l = 0; l < hp->n_layers; l++) {
                const struct tdm_layer_sizes *z = &hp->layers[l];
                uint64_t bytes = UINT64_C(2) * 2 * z->n_kv_heads * z->head_dim;

                if (z->kv_layer != l)
                        continue;
                if (z->n_state)
                        s->kv_bytes_of_windows += UINT64_C(2) * z->n_state * sizeof(float);
                else if (z->window)
                        s->kv_bytes_of_windows += bytes * TDM_MIN(z->window, hp->n_ctx);
                else
                        s->kv_bytes_per_token += bytes;
        }
}

static void examine_model(struct shown *s, const struct tdm_gguf *gguf)
{
        struct tdm_model_description d = { 0 };
        struct tdm_notes passed_over = { 0 }; /* which the daemon tells of */
        struct tdm_gguf_string text;

        take_model_text(s->architecture, sizeof(s->architecture), gguf, "general.architecture");
        take_model_text(s->title, sizeof(s->title), gguf, "general.name");
        take_model_text(s->tokenizer, sizeof(s->tokenizer), gguf, "tokenizer.ggml.model");
        take_model_text(s->pre, sizeof(s->pre), gguf, "tokenizer.ggml.pre");
        (void)tdm_gguf_get_array_size(gguf, "tokenizer.ggml.tokens", &s->n_pieces);
        if (tdm_gguf_get_string(gguf, "tokenizer.chat_template", &text) == 0) {
                s->n_template_bytes = text.size;
                take_template(s, text);
        }
        tdm_recommended_read(gguf, &s->recommended, &passed_over);
        s->runs = tdm_model_describe(gguf, &d, &s->refusal) == 0;
        if (s->runs) {
                s->hparams = d.hparams;
                s->makes_text = d.recipe.pooling == TDM_POOLING_NONE;
                s->ranks = d.recipe.n_labels > 0 && !d.recipe.tells_classes;
                s->n_classes = d.recipe.tells_classes ? d.recipe.n_labels : 0;
                s->lacks_pooler = d.recipe.n_labels > 0 && d.recipe.is_bidirectional && !d.recipe.label_dense;
                s->makes_vectors = !s->makes_text && d.recipe.n_labels == 0;
                s->lacks_pair = strcmp(s->architecture, "gemma-embedding") == 0 && d.recipe.dense_width == 0;
                count_cache(s);
        }
        for (uint64_t i = 0; i < tdm_gguf_n_tensors(gguf); i++) {
                const struct tdm_gguf_tensor *t = tdm_gguf_tensor(gguf, i);
                const struct tdm_type_info *type = tdm_type_info(t->type);

                if (s->runs && !is_used(&d, t)) {
                        const char *set = tdm_model_set_of(gguf, &d, t);

                        if (!set) /* keys and values of a layer that has another's, a head before a pooling */
                                set = "spare";
                        count_tensor(s->ignored, &s->n_ignored, set, strlen(set), t->size_bytes);
                        continue;
                }
                count_tensor(s->types, &s->n_types, type->name, strlen(type->name), t->size_bytes);
                s->n_weights += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
                s->bytes_per_token += tdm_weights_memory_bytes(t->type, bytes_read(gguf, t));
                s->more_bytes += tdm_weights_memory_bytes(t->type, t->size_bytes) - t->size_bytes;
        }
        qsort(s->types, s->n_types, sizeof(s->types[0]), by_bytes);
        qsort(s->ignored, s->n_ignored, sizeof(s->ignored[0]), by_bytes);
        tdm_model_description_deinit(&d);
}

/* What lies beside the file, by which the model sees pictures. */
static void examine_projector(struct shown *s, const struct tdm_gguf *gguf)
{
        _cleanup_(freep) char *path = projector_file_beside(s->path);

        s->wants_projector = s->runs && projector_file_is_wanted(gguf);
        if (path && s->runs && access(path, F_OK) == 0 &&
            projector_file_open(&s->projector, path, false, gguf, &s->projector_fault) != 0)
                s->projector.path = steal_ptr(&path);
}

/* ---- what this machine can do with it ---- */

/* Without the cache of layers that see everything. */
static uint64_t bytes_needed(const struct shown *s)
{
        return s->file_bytes + s->more_bytes + s->projector.size_bytes + s->kv_bytes_of_windows;
}

/* Tokens of context for which memory is left beside the weights; 0: the weights do not fit. */
static uint64_t context_that_fits(const struct shown *s)
{
        uint64_t weights = bytes_needed(s), rest;

        if (weights > s->machine.available_bytes)
                return 0;
        rest = s->machine.available_bytes - weights;
        return s->kv_bytes_per_token ? TDM_MIN(rest / s->kv_bytes_per_token, s->hparams.n_ctx) : s->hparams.n_ctx;
}

static double tokens_per_second(const struct shown *s)
{
        return s->bytes_per_token ? s->machine.memory_bytes_per_s / (double)s->bytes_per_token : 0;
}

/* ---- telling it ---- */

struct recommended_value {
        const char *name; /* of the command's option */
        const char *json;
        double value;
};

#define MAX_RECOMMENDED 6u

static size_t list_recommended(const struct tdm_recommended *r, struct recommended_value ret[MAX_RECOMMENDED])
{
        const struct {
                uint32_t bit;
                struct recommended_value value;
        } all[MAX_RECOMMENDED] = {
                { TDM_OPEN_TEMPERATURE, { "temp", "temperature", (double)r->temperature } },
                { TDM_OPEN_TOP_K, { "top-k", "top_k", r->top_k } },
                { TDM_OPEN_TOP_P, { "top-p", "top_p", (double)r->top_p } },
                { TDM_OPEN_MIN_P, { "min-p", "min_p", (double)r->min_p } },
                { TDM_OPEN_REPEAT_PENALTY, { "repeat-penalty", "repeat_penalty", (double)r->repeat_penalty } },
                { TDM_OPEN_REPEAT_LAST, { "repeat-last", "repeat_last", r->repeat_last } },
        };
        size_t n = 0;

        for (size_t i = 0; i < MAX_RECOMMENDED; i++)
                if (r->has & all[i].bit)
                        ret[n++] = all[i].value;
        return n;
}

static void print_recommended(const struct tdm_recommended *r)
{
        struct recommended_value values[MAX_RECOMMENDED];
        size_t n = list_recommended(r, values);

        for (size_t i = 0; i < n; i++)
                out_printf(i == 0 ? "%-14s%s %g" : "%s%s %g", i == 0 ? "recommends" : ", ", values[i].name,
                           values[i].value);
        if (n > 0)
                out_puts(": what a request leaves open\n");
}

static void json_recommended(struct buf *b, const struct tdm_recommended *r)
{
        struct recommended_value values[MAX_RECOMMENDED];
        size_t n = list_recommended(r, values);

        json_key(b, "recommends");
        buf_puts(b, "{");
        for (size_t i = 0; i < n; i++)
                json_field_number(b, values[i].json, values[i].value);
        buf_puts(b, "}");
}

static void print_sets(const char *title, const struct tensor_set *sets, size_t n)
{
        for (size_t i = 0; i < n; i++)
                out_printf("%-14s%s: %" PRIu64 " tensor%s, %s\n", i == 0 ? title : "", term_safe(sets[i].name),
                           sets[i].n, sets[i].n == 1 ? "" : "s", human_bytes(sets[i].bytes));
}

static void print_fit(const struct shown *s)
{
        const struct roofline *m = &s->machine;
        uint64_t context = context_that_fits(s);
        char rate[16];

        format_rate(rate, sizeof(rate), tokens_per_second(s));
        if (context == 0)
                out_printf("%-14sno: it needs %s, and %s of %s are available\n", "fits here",
                           human_bytes(bytes_needed(s)), human_bytes(m->available_bytes), human_bytes(m->total_bytes));
        else
                out_printf("%-14syes, with a context of %" PRIu64 " tokens (%s of %s are available)\n", "fits here",
                           context, human_bytes(m->available_bytes), human_bytes(m->total_bytes));
        if (!s->makes_text) /* a text's tokens share a reading of the weights, so memory is not the limit */
                return;
        out_printf("%-14sabout %s tokens/s for one job, as far as memory is the limit: a token reads %s of "
                   "weights, and %u thread%s read %s/s just now. A model that fits the CPU's caches, and a card with "
                   "memory of its own, make more\n",
                   "speed", rate, human_bytes(s->bytes_per_token), m->n_threads, m->n_threads == 1 ? "" : "s",
                   human_bytes((uint64_t)m->memory_bytes_per_s));
}

/* In a word, and in a few of them. */
static const char *thinking_of(const struct tdm_chat_form *form, const char **ret_words)
{
        *ret_words = "no: the template has no form for thoughts";
        if (!form->think_begin)
                return "none";
        if (form->switch_variable) {
                *ret_words = form->prompt_default == TDM_FORM_PROMPT_CLOSED ?
                                     "can be switched on and off (--think), and is off" :
                                     "can be switched on and off (--think), and is on or the model's choice";
                return "switch";
        }
        *ret_words = form->effort_variable ? "always, with an effort that can be chosen (--think low, medium, high)" :
                                             "always, as the model likes";
        return form->effort_variable ? "effort" : "always";
}

static const char *tools_of(const struct tdm_chat_form *form, const char **ret_words)
{
        static const char *const words[TDM_FORM_N_CALLS] = {
                [TDM_FORM_CALLS_GENERIC] = "in a generic form",
                [TDM_FORM_CALLS_JSON] = "in the template's own form, with JSON",
                [TDM_FORM_CALLS_TAGGED] = "in the template's own form, with marks around each argument",
                [TDM_FORM_CALLS_CHANNELLED] = "in the template's own form, as messages in channels",
        };
        static const char *const names[TDM_FORM_N_CALLS] = { [TDM_FORM_CALLS_GENERIC] = "generic",
                                                             [TDM_FORM_CALLS_JSON] = "json",
                                                             [TDM_FORM_CALLS_TAGGED] = "tagged",
                                                             [TDM_FORM_CALLS_CHANNELLED] = "channels" };

        *ret_words = words[form->calls];
        return names[form->calls];
}

static void print_form(const struct tdm_chat_form *form)
{
        const char *words;

        if (!form)
                return;
        (void)thinking_of(form, &words);
        out_printf("%-14s%s\n", "thinking", words);
        (void)tools_of(form, &words);
        out_printf("%-14s%s%s%s\n", "tools", words, form->why[0] ? ": " : "", term_safe(form->why));
}

static void print_projector(const struct shown *s)
{
        const struct projector_file *p = &s->projector;

        if (p->path && s->projector_fault.message[0])
                out_printf("%-14sno: %s\n", "pictures", term_safe(s->projector_fault.message));
        else if (p->path)
                out_printf("%-14s%u tokens each; %s, %s\n", "pictures", p->n_rows, term_safe(p->path),
                           human_bytes(p->size_bytes));
        else if (s->wants_projector)
                out_printf("%-14snone: no mmproj-*.gguf of this name beside it\n", "pictures");
}

static void json_projector(struct buf *b, const struct shown *s)
{
        const struct projector_file *p = &s->projector;

        if (!p->path)
                return;
        json_field_string(b, "projector", p->path);
        if (s->projector_fault.message[0]) {
                json_field_string(b, "projector_fault", s->projector_fault.message);
        } else {
                json_field_u64(b, "projector_bytes", p->size_bytes);
                json_field_u64(b, "picture_tokens", p->n_rows);
        }
}

static const char *lacking(const struct shown *s)
{
        return s->lacks_pooler ? ". The file lacks the tensor cls.weight, BERT's pooler, so its scores are not those "
                                 "of its makers" :
                                 "";
}

static void print_shown(const struct shown *s)
{
        const struct tdm_hparams *hp = &s->hparams;
        char weights[32];

        if (s->n_weights >= 1000000000)
                snprintf(weights, sizeof(weights), "%.1f billion", (double)s->n_weights / 1e9);
        else
                snprintf(weights, sizeof(weights), "%.1f million", (double)s->n_weights / 1e6);
        out_printf("%-14s%s\n", "file", term_safe(s->path));
        out_printf("%-14s%s", "size", human_bytes(s->file_bytes));
        if (s->n_parts > 1)
                out_printf(" in %u parts", s->n_parts);
        out_printf(", %s weights\n", weights);
        if (s->title[0])
                out_printf("%-14s%s\n", "calls itself", term_safe(s->title));
        out_printf("%-14s%s", "architecture", term_safe(s->architecture));
        if (s->runs)
                out_printf(": %u layers, width %u, %u heads of %u, %u of keys and values", hp->n_layers, hp->d_model,
                           hp->n_heads, hp->head_dim, hp->n_kv_heads);
        out_puts("\n");
        print_sets("types", s->types, s->n_types);
        out_printf("%-14s%s%s%s%s, %" PRIu64 " pieces\n", "tokenizer",
                   s->tokenizer[0] ? term_safe(s->tokenizer) : "none", s->pre[0] ? " (" : "", term_safe(s->pre),
                   s->pre[0] ? ")" : "", s->n_pieces);
        out_printf("%-14s%s", "template", s->n_template_bytes ? human_bytes(s->n_template_bytes) : "none: no --chat");
        out_printf("%s%s\n", s->template_fault[0] ? ", no --chat: " : "", term_safe(s->template_fault));
        print_form(s->form);
        print_projector(s);
        if (s->makes_vectors)
                out_printf("%-14svectors of %u numbers (tandem embed), and no text%s\n", "makes", hp->d_model,
                           s->lacks_pair ? ". The file lacks the tensors dense_2 and dense_3, so its vectors are not "
                                           "those of its makers" :
                                           "");
        else if (s->ranks)
                out_printf("%-14sranks of documents (tandem rerank), and no text%s\n", "makes", lacking(s));
        else if (s->n_classes > 0)
                out_printf("%-14s%u classes of texts (tandem classify), and no text%s\n", "makes", s->n_classes,
                           lacking(s));
        else
                print_recommended(&s->recommended);
        print_sets("not used", s->ignored, s->n_ignored);
        if (!s->runs) {
                out_printf("%-14sno: %s\n", "runs", term_safe(s->refusal.message));
                return;
        }
        out_printf("%-14s%u tokens", "context", hp->n_ctx);
        if (hp->window)
                out_printf(", of which layers with a window see %u", hp->window);
        if (s->kv_bytes_per_token)
                out_printf("; %s a token", human_bytes(s->kv_bytes_per_token));
        out_printf("; %s for all of it\n", human_bytes(s->kv_bytes_per_token * hp->n_ctx + s->kv_bytes_of_windows));
        if (s->more_bytes)
                out_printf("%-14s%s: weights of IQ1, IQ2, IQ3, TQ1 and TQ2 are unpacked into larger blocks\n",
                           "in memory", human_bytes(s->file_bytes + s->more_bytes));
        print_fit(s);
}

static void json_sets(struct buf *b, const char *name, const struct tensor_set *sets, size_t n)
{
        json_key(b, name);
        buf_puts(b, "[");
        for (size_t i = 0; i < n; i++) {
                buf_puts(b, i ? ",{" : "{");
                json_field_string(b, "name", sets[i].name);
                json_field_u64(b, "tensors", sets[i].n);
                json_field_u64(b, "bytes", sets[i].bytes);
                buf_puts(b, "}");
        }
        buf_puts(b, "]");
}

static void json_form(struct buf *b, const struct tdm_chat_form *form)
{
        const char *words;

        if (!form)
                return;
        json_field_string(b, "thinking", thinking_of(form, &words));
        json_field_string(b, "tools", tools_of(form, &words));
        if (form->why[0])
                json_field_string(b, "tools_why", form->why);
}

static int print_as_json(const struct shown *s)
{
        _cleanup_(buf_freep) struct buf b = { 0 };

        buf_puts(&b, "{");
        json_field_string(&b, "path", s->path);
        json_field_u64(&b, "file_bytes", s->file_bytes);
        json_field_u64(&b, "parts", s->n_parts);
        json_field_u64(&b, "weights", s->n_weights);
        json_field_string(&b, "architecture", s->architecture);
        json_sets(&b, "types", s->types, s->n_types);
        json_sets(&b, "not_used", s->ignored, s->n_ignored);
        json_field_string(&b, "tokenizer", s->tokenizer);
        json_field_u64(&b, "pieces", s->n_pieces);
        json_field_u64(&b, "template_bytes", s->n_template_bytes);
        if (s->template_fault[0])
                json_field_string(&b, "template_fault", s->template_fault);
        json_form(&b, s->form);
        json_projector(&b, s);
        json_recommended(&b, &s->recommended);
        json_field_bool(&b, "runs", s->runs);
        if (s->runs) {
                json_field_u64(&b, "layers", s->hparams.n_layers);
                json_field_u64(&b, "width", s->hparams.d_model);
                json_field_u64(&b, "context", s->hparams.n_ctx);
                json_field_u64(&b, "kv_bytes_per_token", s->kv_bytes_per_token);
                json_field_u64(&b, "context_that_fits", context_that_fits(s));
                json_field_u64(&b, "memory_bytes", s->file_bytes + s->more_bytes);
                json_field_u64(&b, "bytes_per_token", s->bytes_per_token);
                json_field_number(&b, "memory_bytes_per_s", s->machine.memory_bytes_per_s);
                json_field_bool(&b, "makes_vectors", s->makes_vectors);
                json_field_bool(&b, "ranks_documents", s->ranks);
                json_field_u64(&b, "classes", s->n_classes);
                if (s->makes_text)
                        json_field_number(&b, "tokens_per_s", tokens_per_second(s));
        } else {
                json_field_string(&b, "reason", s->refusal.message);
        }
        buf_puts(&b, "}");
        return print_json(&b);
}

static int run_show(struct cli *cli, int argc, char **argv)
{
        struct show_options options = { 0 };
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *gguf = NULL;
        _cleanup_(freep) struct shown *s = NULL;
        _cleanup_(freep) char *path = NULL;
        const char *model = NULL;
        struct tdm_error err;
        uint32_t n_parts = 1;
        unsigned n;
        int status, r;

        if (cli_parse(cli, &command_show, argc, argv, &options, &model, 1, &n, &status))
                return status;
        if (n == 0)
                model = options.model;
        if (!model || (n == 1 && options.model))
                return args_usage_error(argv[0],
                                        model ? "MODEL was given twice" : "MODEL is missing: a name or a file");
        path = find_shown_file(cli, model);
        if (!path)
                return EXIT_FAILED;
        s = calloc(1, sizeof(*s));
        if (!s)
                return complain("no memory");
        r = model_file_open(path, &gguf, &n_parts, &s->file_bytes, &err);
        if (r != 0)
                return complain("%s", err.message);
        snprintf(s->path, sizeof(s->path), "%s", path);
        s->n_parts = n_parts;
        s->projector = PROJECTOR_FILE_NONE;
        examine_model(s, gguf);
        examine_projector(s, gguf);
        roofline_measure(&s->machine);
        if (options.json)
                status = print_as_json(s);
        else {
                out_lines(true);
                print_shown(s);
                out_lines(false);
                status = out_finish();
        }
        tdm_chat_form_destroy(s->form);
        projector_file_close(&s->projector);
        return status == EXIT_OK && !s->runs ? EXIT_FAILED : status;
}

static const struct arg args[] = {
        ARG_JSON(struct show_options, json, "one JSON object"),
        {
                .letter = 'm',
                .name = "model",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct show_options, model),
                .value = "MODEL",
                .brief = "the same as MODEL without -m",
                .offer = OFFER_MODELS,
        },
};

const struct command command_show = {
        .name = "show",
        .summary = "what a model is, and what this machine can do with it",
        .usage = "[--json] MODEL",
        .about =
                "Reads a model's file: architecture, weight types, tokenizer, template, how it thinks and calls tools, "
                "context, what it recommends for drawing, what a picture costs where the projector lies beside it, and "
                "tensors that are not used. Says whether it fits this "
                "machine's memory, and how many "
                "tokens per second the memory "
                "allows: each token reads all weights that it uses, so the speed of memory is the limit for one job, "
                "unless they fit the CPU's caches. An embedding model or a reranker reads a text in one piece and has "
                "no "
                "such limit. The memory is measured for a fifth of a second. No daemon is "
                "needed.\n"
                "\n"
                "The exit status is 1 for a model that Tandem cannot run; the reason is shown.",
        .examples = "  tandem show gemma3-1b\n"
                    "  tandem show --json ./model.gguf",
        COMMAND_ARGS(args),
        .offer = OFFER_MODELS,
        .run = run_show,
};
