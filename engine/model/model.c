/* From a file's keys and tensor table to the description of a model.
 *
 * Nothing is guessed from a model's name. What each architecture consists of is its own file; what all of them share is
 * here: finding the architecture, the vocabulary's size, and the tensors. Whether a tensor's type can be computed with
 * is decided by engine/weights/weights.h. */
#include <inttypes.h>
#include "engine/model/labels.h"
#include "engine/model/private.h"

#define ADDRESS(name) &tdm_architecture_##name,
static const struct tdm_architecture *const architectures[] = { TDM_ARCHITECTURES(ADDRESS) };

/* Parts of a model that computing text does not touch: the towers that see and hear with what ties them to the model,
 * and heads that draft tokens. The first prefix that fits counts. */
static const struct {
        const char *prefix, *set;
} harmless[] = {
        { "mm.a.", "audio" },
        { "a.", "audio" },
        { "v.", "vision" },
        { "mm.", "vision" },
        { "nextn.", "draft head" },
        { "mtp.", "draft head" },
        { "model.vision_tower.", "vision" },
};

#define MORE_PIECES_MAX 1024u /* 256 in a released file */
#define POOLING_RANK 4u       /* in files; a recipe has labels */

/* A file's string for a message: printable, of bounded length. */
const char *tdm_quote(struct tdm_gguf_string s, char buffer[static 64])
{
        size_t n = TDM_MIN(s.size, (size_t)60);

        for (size_t i = 0; i < n; i++)
                buffer[i] = s.data[i] >= 0x20 && s.data[i] < 0x7f ? s.data[i] : '?';
        memcpy(buffer + n, s.size > n ? "..." : "", s.size > n ? 4 : 1);
        return buffer;
}

bool tdm_string_is(struct tdm_gguf_string s, const char *text)
{
        return s.size == strlen(text) && memcmp(s.data, text, s.size) == 0;
}

/* "gemma3" or "gemma3", "llama" … */
static const char *list_architectures(char *buffer, size_t size)
{
        size_t n = 0;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(architectures) && n < size; i++)
                n += (size_t)snprintf(buffer + n, size - n, "%s\"%s\"", i ? ", " : "", architectures[i]->name);
        return buffer;
}

/* Adapters, projectors and matrices of importance are written as GGUF files too. */
static int check_type(const struct tdm_gguf *g, struct tdm_error *err)
{
        struct tdm_gguf_string type;
        char buffer[64];

        if (tdm_gguf_get_string(g, "general.type", &type) < 0 || tdm_string_is(type, "model"))
                return 0;
        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                             "it is no model, but of the type \"%s\" (key general.type); use the model that it belongs "
                             "to",
                             tdm_quote(type, buffer));
}

static int find_architecture(const struct tdm_gguf *g, const struct tdm_architecture **ret, struct tdm_error *err)
{
        struct tdm_gguf_string s;
        char buffer[64], known[512];
        int r = tdm_gguf_get_string(g, "general.architecture", &s);

        if (r < 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key general.architecture is %s",
                                     r == -ENOENT ? "missing" : "not a string");
        for (size_t i = 0; i < TDM_ARRAY_SIZE(architectures); i++)
                if (tdm_string_is(s, architectures[i]->name)) {
                        *ret = architectures[i];
                        return 0;
                }
        return tdm_error_set(err, TDM_E_UNSUPPORTED, "its architecture is \"%s\", only %s is supported",
                             tdm_quote(s, buffer), list_architectures(known, sizeof(known)));
}

static int check_parts(const struct tdm_gguf *g, struct tdm_error *err)
{
        uint32_t no, n;
        int r = tdm_gguf_part(g, &no, &n, err);

        if (r == 0 && n != tdm_gguf_n_parts(g))
                r = tdm_error_set(err, TDM_E_UNSUPPORTED,
                                  "it is part %u of %u, and the others did not come with it; put all of them into a "
                                  "model directory and use the model by its name",
                                  no + 1, n);
        return r;
}

/* The embedding's rows rule: files may lack the key. */
static int get_vocab(const struct tdm_gguf *g, const struct tdm_architecture *a, const struct tdm_recipe *recipe,
                     struct tdm_hparams *hp, struct tdm_error *err)
{
        const struct tdm_gguf_tensor *embd = tdm_gguf_find_tensor(g, "token_embd.weight"), *second;
        char name[TDM_TENSOR_NAME_MAX];
        uint64_t n_tokens = 0;

        if (!embd)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "tensor token_embd.weight is missing");
        if (embd->dims[1] > TDM_VOCAB_MAX)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "tensor token_embd.weight has %" PRIu64 " rows, at most %u are allowed",
                                     embd->dims[1], TDM_VOCAB_MAX);
        if (hp->n_vocab != 0 && hp->n_vocab != embd->dims[1])
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "the key %s.vocab_size is %u, but tensor token_embd.weight has %" PRIu64 " rows",
                                     a->name, hp->n_vocab, embd->dims[1]);
        hp->n_vocab = (uint32_t)embd->dims[1];
        /* In some files of Gemma 3n the second embedding has no rows for pictures and sound, the first one has. */
        tdm_tensor_name(TDM_TENSOR_PER_LAYER_EMBD, 0, name);
        second = recipe->per_layer_width > 0 ? tdm_gguf_find_tensor(g, name) : NULL;
        if (second)
                hp->n_vocab = (uint32_t)TDM_MIN(second->dims[1], embd->dims[1]);
        /* A few pieces that stand for pictures and sound have no row in some files: the tokenizer leaves them. */
        if (tdm_gguf_get_array_size(g, "tokenizer.ggml.tokens", &n_tokens) == 0 &&
            n_tokens > hp->n_vocab + MORE_PIECES_MAX)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "its tokenizer has %" PRIu64
                                     " pieces, but tensor token_embd.weight has only %u rows",
                                     n_tokens, hp->n_vocab);
        return 0;
}

static const struct tdm_gguf_tensor *find_kind(const struct tdm_gguf *g, enum tdm_tensor_kind kind)
{
        char name[TDM_TENSOR_NAME_MAX];

        tdm_tensor_name(kind, 0, name);
        return tdm_gguf_find_tensor(g, name);
}

/* Which of a head's two numbers is the one of "yes"; -1: they are called otherwise. */
static int find_yes(const struct tdm_gguf *g, const struct tdm_architecture *a)
{
        struct tdm_gguf_string labels[2];
        char key[96];

        snprintf(key, sizeof(key), "%s.classifier.output_labels", a->name);
        for (uint64_t i = 0; i < 2; i++)
                if (tdm_gguf_get_array_string(g, key, i, &labels[i]) < 0)
                        return -1;
        for (int yes = 0; yes < 2; yes++)
                if (tdm_string_is(labels[yes], "yes") && tdm_string_is(labels[!yes], "no"))
                        return yes;
        return -1;
}

static int get_classes(const struct tdm_gguf *g, const struct tdm_architecture *a, struct tdm_model_description *d,
                       uint64_t n, struct tdm_error *err)
{
        struct tdm_labels *labels = NULL;
        int r;

        if (!d->recipe.is_bidirectional)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its head tells %" PRIu64
                                     " classes apart, in models that make text only rerankers' heads are supported: of "
                                     "one number, or of \"yes\" and \"no\" (key %s.classifier.output_labels)",
                                     n, a->name);
        if (n < 2 || n > d->hparams.d_model)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its head tells %" PRIu64
                                     " classes apart, 2 to %u are supported, which is the model's width (tensor "
                                     "cls.output.weight)",
                                     n, d->hparams.d_model);
        r = tdm_labels_new(&labels, g, a->name, (uint32_t)n, err); /* whether they can be told */
        tdm_labels_unref(labels);
        d->recipe.tells_classes = 1;
        return r;
}

/* The head of a reranker or of one that tells classes apart. It reads the first row of a text, or the last one where
 * rows do not see those behind them. Of DistilBERT's files there is no embedding of token types, which BERT and RoBERTa
 * have, and their classifier has another activation; no key says so. */
static int get_labels(const struct tdm_gguf *g, const struct tdm_architecture *a, struct tdm_model_description *d,
                      struct tdm_error *err)
{
        const struct tdm_gguf_tensor *head = find_kind(g, TDM_TENSOR_LABELS);
        struct tdm_recipe *recipe = &d->recipe;
        struct tdm_gguf_string form;
        int yes = 0, r = 0;

        if (!head)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "its pooling is a reranker's (key %s.pooling_type), and its head is not there: "
                                     "tensor cls.output.weight is missing",
                                     a->name);
        if (head->dims[1] == 2)
                yes = find_yes(g, a);
        if (head->dims[1] < 1 || head->dims[1] > 2 || yes < 0)
                r = get_classes(g, a, d, head->dims[1], err);
        if (r != 0)
                return r;
        if (!recipe->is_bidirectional && tdm_gguf_get_string(g, "tokenizer.chat_template.rerank", &form) < 0)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "the key tokenizer.chat_template.rerank is missing, which says how a query and a "
                                     "document are put together");
        recipe->pooling = recipe->is_bidirectional ? TDM_POOLING_FIRST : TDM_POOLING_LAST;
        recipe->n_labels = (uint32_t)head->dims[1];
        recipe->label = (uint32_t)TDM_MAX(yes, 0);
        if (find_kind(g, TDM_TENSOR_LABEL_DENSE))
                recipe->label_dense = recipe->is_bidirectional && recipe->n_token_types == 0 ? TDM_LABEL_DENSE_RELU :
                                                                                               TDM_LABEL_DENSE_TANH;
        else if (recipe->is_bidirectional)
                tdm_note_add(&d->notes, "its head has no tensor cls.weight, since converters leave the pooler of BERT "
                                        "out; scores are then not those of its makers");
        return 0;
}

/* A file with a pooling is one of vectors, whatever its architecture. Converters write no pooling for rerankers of
 * BERT's kind, which have a head. */
static int get_pooling(const struct tdm_gguf *g, const struct tdm_architecture *a, struct tdm_model_description *d,
                       struct tdm_error *err)
{
        struct tdm_recipe *recipe = &d->recipe;
        uint32_t pooling = TDM_POOLING_NONE;
        char name[TDM_TENSOR_NAME_MAX];
        const struct tdm_gguf_tensor *pair;
        int r = tdm_key_get_u32(g, a->name, "pooling_type", &pooling, err);

        if (r)
                return r;
        if (pooling == POOLING_RANK ||
            (pooling == TDM_POOLING_NONE && recipe->is_bidirectional && find_kind(g, TDM_TENSOR_LABELS)))
                return get_labels(g, a, d, err);
        if (pooling > TDM_POOLING_LAST)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its pooling is of type %u, only mean (1), first (2), last (3) and a reranker's "
                                     "(4) are supported (key %s.pooling_type)",
                                     pooling, a->name);
        if (pooling == TDM_POOLING_NONE && recipe->is_bidirectional)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s.pooling_type is missing", a->name);
        recipe->pooling = pooling;
        tdm_tensor_name(TDM_TENSOR_DENSE_2, 0, name);
        pair = tdm_gguf_find_tensor(g, name);
        if (!pair && tdm_tensor_alias(TDM_TENSOR_DENSE_2, recipe, 0, name))
                pair = tdm_gguf_find_tensor(g, name);
        if (pooling == TDM_POOLING_NONE || !pair)
                return 0;
        if (pair->dims[1] > TDM_WIDTH_MAX)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "tensor %s has far too many rows", name);
        recipe->dense_width = (uint32_t)pair->dims[1];
        return 0;
}

static int get_recipe(const struct tdm_gguf *g, const struct tdm_architecture *a, struct tdm_model_description *d,
                      struct tdm_error *err)
{
        struct tdm_hparams *hp = &d->hparams;
        struct tdm_recipe *recipe = &d->recipe;
        int r;

        if ((r = tdm_keys_read_sizes(g, a, hp, err)) || (r = a->begin(g, hp, recipe, err)) ||
            (r = tdm_keys_read_recipe(g, a, hp, recipe, err)) || (a->end && (r = a->end(g, hp, recipe, err))) ||
            (r = tdm_refuse_unfollowed(g, a, hp, recipe, err)) || (r = get_pooling(g, a, d, err)) ||
            (r = get_vocab(g, a, recipe, hp, err)))
                return r;
        tdm_hparams_take_largest(hp);
        r = tdm_hparams_check(hp, err);
        return r ? r : tdm_recipe_check(recipe, hp, err);
}

/* Whether a fused form has the tensor's own name, and this file means that form: by its rows. */
static bool name_is_fused(const struct tdm_gguf_tensor *tensor, const struct tdm_architecture *a,
                          const struct tdm_model_description *d, const struct tdm_tensor_ref *ref, const char *name)
{
        enum tdm_tensor_kind kind = (enum tdm_tensor_kind)ref->kind;
        struct tdm_tensor_cut cut;
        char other[TDM_TENSOR_NAME_MAX];

        return tdm_tensor_fused(kind, a->fused, &d->recipe, &d->hparams, ref->layer, other, &cut) &&
               strcmp(name, other) == 0 && tensor->dims[1] == cut.part_rows;
}

/* name: as the file has it, as it is called otherwise where the file lacks it. */
static void find_tensor(const struct tdm_gguf *g, const struct tdm_architecture *a,
                        const struct tdm_model_description *d, struct tdm_tensor_ref *ref,
                        char name[static TDM_TENSOR_NAME_MAX])
{
        enum tdm_tensor_kind kind = (enum tdm_tensor_kind)ref->kind;
        struct tdm_tensor_cut cut;
        char other[TDM_TENSOR_NAME_MAX];

        tdm_tensor_name(kind, ref->layer, name);
        ref->tensor = tdm_gguf_find_tensor(g, name);
        if (ref->tensor && name_is_fused(ref->tensor, a, d, ref, name))
                ref->tensor = NULL;
        if (!ref->tensor && tdm_tensor_alias(kind, &d->recipe, ref->layer, other))
                ref->tensor = tdm_gguf_find_tensor(g, other);
        if (ref->tensor && kind == TDM_TENSOR_TOKEN_EMBD && ref->tensor->dims[1] > d->hparams.n_vocab)
                ref->cut = (struct tdm_tensor_cut){ .apart = 1,
                                                    .rows = d->hparams.n_vocab,
                                                    .part_rows = (uint32_t)ref->tensor->dims[1] };
        if (ref->tensor || !tdm_tensor_fused(kind, a->fused, &d->recipe, &d->hparams, ref->layer, other, &cut))
                return;
        ref->tensor = tdm_gguf_find_tensor(g, other);
        if (!ref->tensor)
                return;
        ref->cut = cut;
        memcpy(name, other, sizeof(other));
}

static int check_shape(const struct tdm_tensor_ref *ref, const struct tdm_recipe *recipe, const char *name,
                       struct tdm_error *err)
{
        enum tdm_tensor_kind kind = (enum tdm_tensor_kind)ref->kind;
        uint32_t n_parts = tdm_tensor_n_parts(kind, recipe, ref->layer);
        uint64_t wanted[4] = { ref->cols, ref->rows / n_parts, n_parts, 1 };
        const uint64_t *dims = ref->tensor->dims;

        if (ref->cut.apart && tdm_tensor_role(kind) == TDM_ROLE_VECTOR)
                wanted[0] = ref->cut.part_rows;
        else if (ref->cut.apart)
                wanted[1] = wanted[1] / ref->cut.rows * ref->cut.part_rows;
        if (memcmp(dims, wanted, sizeof(wanted)) == 0)
                return 0;
        return tdm_error_set(err, TDM_E_BAD_MODEL,
                             "tensor %s has the shape %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                             ", the model's keys want %" PRIu64 " x %" PRIu64 " x %" PRIu64,
                             name, dims[0], dims[1], dims[2], dims[3], wanted[0], wanted[1], wanted[2]);
}

/* known: a flag for each tensor of the file. */
static int add_tensor(struct tdm_model_description *d, const struct tdm_gguf *g, const struct tdm_architecture *a,
                      struct tdm_tensor_ref ref, uint8_t *known, struct tdm_error *err)
{
        enum tdm_tensor_kind kind = (enum tdm_tensor_kind)ref.kind;
        enum tdm_tensor_presence presence = tdm_tensor_presence(kind, &d->recipe, &d->hparams, ref.layer);
        char name[TDM_TENSOR_NAME_MAX];
        int r;

        if (presence == TDM_TENSOR_ABSENT)
                return 0;
        find_tensor(g, a, d, &ref, name);
        if (!ref.tensor && presence != TDM_TENSOR_REQUIRED)
                return 0;
        if (!ref.tensor)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "tensor %s is missing", name);
        known[ref.tensor - tdm_gguf_tensor(g, 0)] = 1;
        if (presence == TDM_TENSOR_UNUSED)
                return 0;
        tdm_tensor_shape(kind, &d->recipe, &d->hparams, ref.layer, &ref.rows, &ref.cols);
        r = check_shape(&ref, &d->recipe, name, err);
        if (r == 0)
                d->tensors[d->n_tensors++] = ref;
        return r;
}

/* The layer of a name blk.N.*, and the rest of the name in *ret_rest. -ENOENT: it is none of these. */
static int block_of(const struct tdm_gguf_tensor *t, uint32_t *ret, struct tdm_gguf_string *ret_rest)
{
        const char *p = t->name.data + strlen("blk."), *end = t->name.data + t->name.size;
        uint32_t n = 0;

        if (t->name.size <= strlen("blk.") || memcmp(t->name.data, "blk.", strlen("blk.")) != 0 || *p < '0' ||
            *p > '9' || (*p == '0' && p + 1 < end && p[1] != '.'))
                return -ENOENT;
        for (; p < end && *p >= '0' && *p <= '9' && n < TDM_WIDTH_MAX; p++)
                n = n * 10 + (uint32_t)(*p - '0');
        if (p == end || *p != '.')
                return -ENOENT;
        *ret = n;
        *ret_rest = (struct tdm_gguf_string){ .data = p + 1, .size = (size_t)(end - p) - 1 };
        return 0;
}

/* Blocks behind the last layer are a draft head's where a key counts them as such, or where they have its projection.
 * The key: in block_count they were counted, from which it was taken (keys.c). */
static bool block_drafts(const struct tdm_gguf *g, const struct tdm_model_description *d, uint32_t block)
{
        uint32_t n_draft = 0;
        char name[TDM_TENSOR_NAME_MAX];

        if (block < d->hparams.n_layers)
                return false;
        if (tdm_key_get_u32(g, d->recipe.architecture, "nextn_predict_layers", &n_draft, NULL) == 0 &&
            block - d->hparams.n_layers < n_draft)
                return true;
        snprintf(name, sizeof(name), "blk.%u.nextn.eh_proj.weight", block);
        return tdm_gguf_find_tensor(g, name) != NULL;
}

const char *tdm_model_set_of(const struct tdm_gguf *g, const struct tdm_model_description *d,
                             const struct tdm_gguf_tensor *t)
{
        struct tdm_gguf_string rest;
        uint32_t block;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(harmless); i++) {
                size_t n = strlen(harmless[i].prefix);

                if (t->name.size > n && memcmp(t->name.data, harmless[i].prefix, n) == 0)
                        return harmless[i].set;
        }
        return block_of(t, &block, &rest) == 0 && block_drafts(g, d, block) ? "draft head" : NULL;
}

/* A draft head's tensor in a block that the file counts as one of the model's layers. */
static bool is_draft_in_layer(const struct tdm_gguf_tensor *t, const struct tdm_model_description *d)
{
        struct tdm_gguf_string rest = { 0 };
        uint32_t block = 0;

        return block_of(t, &block, &rest) == 0 && block < d->hparams.n_layers && rest.size > strlen("nextn.") &&
               memcmp(rest.data, "nextn.", strlen("nextn.")) == 0;
}

/* Every tensor of the file is one that the description has, or harmless. */
static int check_unknown(const struct tdm_model_description *d, const struct tdm_gguf *g, const uint8_t *known,
                         struct tdm_error *err)
{
        const struct tdm_gguf_tensor *first = tdm_gguf_tensor(g, 0);

        for (uint64_t i = 0; i < tdm_gguf_n_tensors(g); i++) {
                const struct tdm_gguf_tensor *t = &first[i];

                if (known[i] || tdm_model_set_of(g, d, t))
                        continue;
                if (is_draft_in_layer(t, d))
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "tensor %.*s is a draft head's, but the key %s.block_count counts its "
                                             "block as a layer, and the key %s.nextn_predict_layers does not say that "
                                             "it is none",
                                             (int)t->name.size, t->name.data, d->recipe.architecture,
                                             d->recipe.architecture);
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "tensor %.*s is not part of a %s model of %u layers as it is known here",
                                     (int)t->name.size, t->name.data, d->recipe.architecture, d->hparams.n_layers);
        }
        return 0;
}

static int describe(const struct tdm_gguf *g, struct tdm_model_description *d, struct tdm_error *err)
{
        _cleanup_(freep) uint8_t *known = calloc(tdm_gguf_n_tensors(g) + 1, 1);
        const struct tdm_architecture *architecture = NULL;
        int r;

        if (!known)
                return tdm_error_set(err, -ENOMEM, "out of memory");

        if ((r = check_type(g, err)) || (r = find_architecture(g, &architecture, err)) || (r = check_parts(g, err)) ||
            (r = get_recipe(g, architecture, d, err)))
                return r;
        d->tensors = calloc((size_t)TDM_N_TENSOR_KINDS * d->hparams.n_layers, sizeof(*d->tensors));
        if (!d->tensors)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        for (uint32_t kind = 0; kind < TDM_N_TENSOR_KINDS; kind++) {
                uint32_t n = tdm_tensor_n((enum tdm_tensor_kind)kind, &d->hparams);

                for (uint32_t layer = 0; layer < n; layer++) {
                        r = add_tensor(d, g, architecture, (struct tdm_tensor_ref){ .kind = kind, .layer = layer },
                                       known, err);
                        if (r)
                                return r;
                }
        }
        return check_unknown(d, g, known, err);
}

int tdm_model_describe(const struct tdm_gguf *gguf, struct tdm_model_description *ret, struct tdm_error *err)
{
        struct tdm_model_description d = { 0 };
        struct tdm_error local;
        int r;

        if (!err)
                err = &local;
        r = describe(gguf, &d, err);
        if (r) {
                tdm_model_description_deinit(&d);
                tdm_error_prefix(err, "cannot use model %s", tdm_gguf_name(gguf));
                return r;
        }
        *ret = d;
        return 0;
}

void tdm_model_description_deinit(struct tdm_model_description *description)
{
        free(description->tensors);
        description->tensors = NULL;
        description->n_tensors = 0;
}
