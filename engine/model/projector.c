/* The keys and the tensor table of a projector's file; see projector.h. */
#include "engine/model/projector.h"

#include <inttypes.h>
#include <math.h>
#include "engine/model/private.h"

#define VISION "clip.vision."
#define POOLED_BY_DEFAULT 4u /* Gemma 3: 4 x 4 patches make a row */

/* The text models that Gemma 3's projector belongs to. */
static const char projector_text[] = "gemma3";

static int check_kind(const struct tdm_gguf *g, struct tdm_error *err)
{
        struct tdm_gguf_string s;
        char buffer[64];
        bool vision = false;

        if (tdm_gguf_get_string(g, "general.architecture", &s) < 0 || !tdm_string_is(s, "clip"))
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "it is no projector: the key general.architecture is not \"clip\"");
        if (tdm_gguf_get_bool(g, "clip.has_vision_encoder", &vision) < 0 || !vision)
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "it has no vision tower (key clip.has_vision_encoder)");
        if (tdm_gguf_get_string(g, "clip.projector_type", &s) < 0 &&
            tdm_gguf_get_string(g, VISION "projector_type", &s) < 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key clip.projector_type is missing");
        if (!tdm_string_is(s, "gemma3"))
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its projector is \"%s\" (key clip.projector_type), only \"gemma3\" is supported",
                                     tdm_quote(s, buffer));
        return 0;
}

/* *ret is left alone where the key may be missing and is. */
static int get_size(const struct tdm_gguf *g, const char *key, bool needed, uint32_t most, uint32_t *ret,
                    struct tdm_error *err)
{
        uint64_t v;
        int r = tdm_gguf_get_u64(g, key, &v);

        if (r == -ENOENT && !needed)
                return 0;
        if (r < 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is %s", key,
                                     r == -ENOENT ? "missing" : "not a number");
        if (v < 1 || v > most)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is %" PRIu64 ", which is not 1 to %u", key, v,
                                     most);
        *ret = (uint32_t)v;
        return 0;
}

static int get_channels(const struct tdm_gguf *g, const char *key, double least, double ret[3], struct tdm_error *err)
{
        uint64_t n = 0;

        if (tdm_gguf_get_array_size(g, key, &n) < 0 || n != 3)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not an array of 3 numbers", key);
        for (unsigned i = 0; i < 3; i++)
                if (tdm_gguf_get_array_f64(g, key, i, &ret[i]) < 0 || !(ret[i] >= least) || !(ret[i] <= 1000))
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s has a number out of range", key);
        return 0;
}

static int read_numbers(const struct tdm_gguf *g, struct tdm_projector *p, struct tdm_error *err)
{
        const struct {
                const char *key;
                uint32_t most, *ret;
                bool optional;
        } sizes[] = {
                { VISION "image_size", 16384, &p->image.side, false },
                { VISION "patch_size", 128, &p->image.patch, false },
                { VISION "projector.scale_factor", 64, &p->image.merge, true },
                { VISION "embedding_length", TDM_WIDTH_MAX, &p->d_model, false },
                { VISION "feed_forward_length", TDM_WIDTH_MAX, &p->d_ff, false },
                { VISION "block_count", TDM_PROJECTOR_LAYERS_MAX, &p->n_layers, false },
                { VISION "attention.head_count", TDM_WIDTH_MAX, &p->n_heads, false },
                { VISION "projection_dim", TDM_WIDTH_MAX, &p->n_out, false },
        };
        double eps;
        int r = 0;

        for (size_t i = 0; r == 0 && i < TDM_ARRAY_SIZE(sizes); i++)
                r = get_size(g, sizes[i].key, !sizes[i].optional, sizes[i].most, sizes[i].ret, err);
        if (r == 0)
                r = get_channels(g, VISION "image_mean", -1000, p->image.mean, err);
        if (r == 0)
                r = get_channels(g, VISION "image_std", 1e-3, p->image.std, err);
        if (r != 0)
                return r;
        if (tdm_gguf_get_f64(g, VISION "attention.layer_norm_epsilon", &eps) < 0 || !(eps > 0) || !(eps < 1))
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "the key " VISION "attention.layer_norm_epsilon is missing or not 0 to 1");
        p->norm_eps = (float)eps;
        return 0;
}

static int check_numbers(const struct tdm_gguf *g, struct tdm_projector *p, struct tdm_error *err)
{
        bool gelu = false;

        if (tdm_gguf_get_bool(g, "clip.use_gelu", &gelu) < 0 || !gelu)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its activation is not GELU (key clip.use_gelu), which alone is supported");
        if (p->image.side % p->image.patch || p->image.side / p->image.patch % p->image.merge)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "its pictures of %u pixels are no whole number of %u patches of %u pixels",
                                     p->image.side, p->image.merge, p->image.patch);
        p->grid = p->image.side / p->image.patch;
        if (p->grid * p->grid > TDM_PROJECTOR_PATCHES_MAX)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its pictures have %u x %u patches, at most %u in all are "
                                     "supported",
                                     p->grid, p->grid, TDM_PROJECTOR_PATCHES_MAX);
        p->head_dim = p->d_model / p->n_heads;
        if (p->d_model % p->n_heads || p->head_dim < 16 || p->head_dim > TDM_HEAD_DIM_MAX || p->head_dim % 4)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its %u numbers in %u heads are not supported: a head has 16 to %u, a multiple of "
                                     "4",
                                     p->d_model, p->n_heads, TDM_HEAD_DIM_MAX);
        return 0;
}

/* dims: the fastest first; 0 from the first that is not there. */
static int check_shape(const struct tdm_gguf *g, const char *name, const uint64_t dims[4], struct tdm_error *err)
{
        const struct tdm_gguf_tensor *tensor = tdm_gguf_find_tensor(g, name);

        if (!tensor)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "tensor %s is missing", name);
        for (unsigned i = 0; i < 4; i++)
                if (tensor->dims[i] != TDM_MAX(dims[i], UINT64_C(1)))
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "tensor %s is %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                                             ", which the file's keys do not say",
                                             name, tensor->dims[0], tensor->dims[1], tensor->dims[2], tensor->dims[3]);
        return 0;
}

static int check_tower_layer(const struct tdm_gguf *g, const struct tdm_projector *p, uint32_t layer,
                             struct tdm_error *err)
{
        const struct {
                const char *name;
                uint32_t cols, rows; /* rows 0: a vector alone */
        } tensors[] = {
                { "ln1", p->d_model, 0 },
                { "ln2", p->d_model, 0 },
                { "attn_q", p->d_model, p->d_model },
                { "attn_k", p->d_model, p->d_model },
                { "attn_v", p->d_model, p->d_model },
                { "attn_out", p->d_model, p->d_model },
                { "ffn_up", p->d_model, p->d_ff },
                { "ffn_down", p->d_ff, p->d_model },
        };
        char name[64];
        int r = 0;

        for (size_t i = 0; r == 0 && i < TDM_ARRAY_SIZE(tensors); i++) {
                uint32_t n_bias = tensors[i].rows ? tensors[i].rows : tensors[i].cols;

                snprintf(name, sizeof(name), "v.blk.%u.%s.weight", layer, tensors[i].name);
                r = check_shape(g, name, (uint64_t[4]){ tensors[i].cols, tensors[i].rows }, err);
                snprintf(name, sizeof(name), "v.blk.%u.%s.bias", layer, tensors[i].name);
                if (r == 0)
                        r = check_shape(g, name, (uint64_t[4]){ n_bias }, err);
        }
        return r;
}

static int check_tensors(const struct tdm_gguf *g, const struct tdm_projector *p, struct tdm_error *err)
{
        const struct {
                const char *name;
                uint64_t dims[4];
        } tensors[] = {
                { "v.patch_embd.weight", { p->image.patch, p->image.patch, 3, p->d_model } },
                { "v.patch_embd.bias", { p->d_model } },
                { "v.position_embd.weight", { p->d_model, (uint64_t)p->grid * p->grid } },
                { "v.post_ln.weight", { p->d_model } },
                { "v.post_ln.bias", { p->d_model } },
                { "mm.soft_emb_norm.weight", { p->d_model } },
                { "mm.input_projection.weight", { p->n_out, p->d_model } }, /* in x out */
        };
        int r = 0;

        for (size_t i = 0; r == 0 && i < TDM_ARRAY_SIZE(tensors); i++)
                r = check_shape(g, tensors[i].name, tensors[i].dims, err);
        for (uint32_t layer = 0; r == 0 && layer < p->n_layers; layer++)
                r = check_tower_layer(g, p, layer, err);
        return r;
}

int tdm_projector_describe(struct tdm_projector *ret, const struct tdm_gguf *g, struct tdm_error *err)
{
        struct tdm_projector p = {
                .image = { .rule = TDM_IMAGE_STRETCH, .filter = TDM_RESIZE_BILINEAR, .merge = POOLED_BY_DEFAULT }
        };
        int r = check_kind(g, err);

        if (r == 0)
                r = read_numbers(g, &p, err);
        if (r == 0)
                r = check_numbers(g, &p, err);
        if (r == 0)
                r = check_tensors(g, &p, err);
        if (r == 0)
                *ret = p;
        return r;
}

int tdm_projector_check_text(const struct tdm_projector *projector, const char *architecture, uint32_t d_model,
                             struct tdm_error *err)
{
        if (strcmp(architecture, projector_text) != 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "this projector belongs to a model of the architecture \"%s\", not \"%s\"",
                                     projector_text, architecture);
        if (projector->n_out != d_model)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "this projector makes rows of %u numbers and the model has %u: they do not belong "
                                     "together",
                                     projector->n_out, d_model);
        return 0;
}

int tdm_projector_describe_for(struct tdm_projector *ret, const struct tdm_gguf *gguf,
                               const struct tdm_model_description *model, const char *architecture, uint32_t *ret_rows,
                               struct tdm_error *err)
{
        struct tdm_image_size fitted;
        int r = tdm_projector_describe(ret, gguf, err);

        if (r == 0)
                r = tdm_projector_check_text(ret, architecture, model->hparams.d_model, err);
        if (r == 0 && !tdm_recipe_takes_pictures(&model->recipe, &model->hparams))
                r = tdm_error_set(err, TDM_E_UNSUPPORTED, "a %s model like this takes no pictures", architecture);
        if (r == 0) /* every picture is stretched to the same size */
                r = tdm_image_fit(&ret->image, (struct tdm_image_size){ 1, 1 }, &fitted, err);
        if (r == 0)
                *ret_rows = tdm_image_rows(&ret->image, fitted);
        return r;
}
