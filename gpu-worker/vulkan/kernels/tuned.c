/* Shapes of the kernels of a single row, and with rows of F16 of a few: how many panels a workgroup takes, how many
 * blocks are on their way at once (shaders/matmul/matvec.glsl); with rows of F16 how many segments each of its
 * subgroups takes, how many chunks are on their way, and how many groups of subgroups there are (matvec-f16.comp; only
 * shapes that are proven, proof/prove-f16.c). No shape changes a bit, so the fastest is taken: load/tune.c and
 * load/tune-rows.c measure them. */
#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/kernels/kernels.h"

static const struct tdm_vk_shape matvec_shapes[] = { { 4, 1, 1 }, { 2, 2, 1 }, { 2, 4, 1 }, { 1, 4, 1 },
                                                     { 1, 2, 2 }, { 1, 4, 2 }, { 2, 2, 2 }, { 1, 3, 1 },
                                                     { 1, 8, 1 }, { 2, 3, 1 }, { 2, 5, 1 }, { 3, 2, 1 } },
                                 gelu_shapes[] = { { 4, 1, 1 }, { 4, 2, 1 }, { 4, 3, 1 }, { 4, 1, 2 } },
                                 /* of matvec-f16.comp: panels (with GELU of both), rounds, sets, groups; those of
                                    the rule in kernels-f16.c among them */
        f16_shapes[] = { { 1, 1, 2, 1 }, { 2, 1, 2, 1 }, { 3, 1, 2, 1 }, { 1, 2, 2, 1 }, { 2, 2, 2, 1 }, { 1, 1, 1, 1 },
                         { 2, 1, 1, 1 }, { 1, 1, 3, 1 }, { 1, 2, 3, 1 }, { 1, 2, 4, 1 }, { 3, 2, 2, 1 }, { 1, 4, 3, 2 },
                         { 3, 2, 3, 1 }, { 2, 2, 3, 1 }, { 2, 7, 2, 4 }, { 1, 4, 3, 4 } },
                                 f16_gelu_shapes[] = { { 2, 1, 2, 1 },  { 2, 2, 2, 1 },  { 2, 1, 1, 1 },
                                                       { 2, 8, 2, 8 },  { 2, 2, 1, 1 },  { 2, 4, 2, 1 },
                                                       { 2, 4, 2, 2 },  { 2, 4, 3, 2 },  { 2, 8, 2, 4 },
                                                       { 2, 7, 2, 11 }, { 2, 7, 3, 11 }, { 2, 7, 2, 6 },
                                                       { 2, 7, 2, 4 },  { 2, 7, 1, 4 },  { 2, 14, 3, 11 },
                                                       { 2, 8, 2, 11 } };
/* Shapes for several rows: more of a workgroup's shared memory is rows, so there is less for segments. */
static const struct tdm_vk_shape rows_shapes[] = { { 1, 4, 3, 3 }, { 1, 4, 3, 4 }, { 1, 7, 3, 2 }, { 1, 4, 3, 2 },
                                                   { 1, 7, 4, 3 }, { 1, 7, 3, 4 }, { 1, 4, 4, 1 }, { 2, 4, 2, 2 },
                                                   { 1, 2, 3, 1 }, { 2, 7, 2, 2 }, { 1, 8, 3, 4 }, { 1, 14, 6, 4 } },
                                 rows_gelu_shapes[] = { { 2, 7, 2, 11 },  { 2, 14, 3, 11 }, { 2, 14, 2, 11 },
                                                        { 2, 14, 4, 11 }, { 2, 7, 2, 6 },   { 2, 7, 3, 4 },
                                                        { 2, 14, 3, 6 },  { 2, 8, 2, 8 },   { 2, 8, 2, 3 },
                                                        { 2, 7, 3, 11 },  { 2, 4, 2, 2 },   { 2, 2, 2, 1 } };
/* Shapes for up to eight rows that are not flagged. Those with one set are of matmul-f16.comp: panels (with GELU those
 * of both), rounds. Those with more are of matvec-f16.comp, for up to four rows: there all of a workgroup's panels read
 * the rows from shared memory. */
static const struct tdm_vk_shape tile_shapes[] = { { 3, 1, 1, 1 }, { 2, 1, 1, 1 }, { 1, 1, 1, 1 }, { 3, 2, 1, 1 },
                                                   { 2, 2, 1, 1 }, { 1, 2, 1, 1 }, { 2, 4, 1, 1 }, { 1, 4, 1, 1 } },
                                 tile_gelu_shapes[] = { { 2, 1, 1, 1 }, { 2, 2, 1, 1 },  { 2, 4, 1, 1 },
                                                        { 4, 2, 1, 1 }, { 4, 4, 1, 1 },  { 2, 7, 1, 1 },
                                                        { 4, 7, 1, 1 }, { 2, 7, 2, 11 }, { 2, 7, 3, 11 },
                                                        { 2, 7, 2, 5 }, { 2, 8, 2, 8 },  { 2, 4, 2, 2 } };
/* Shapes for the types of engine/weights/subblock.h, F16 and BF16. Their weights take more registers, so some shapes
 * have fewer sets or groups. */
static const struct tdm_vk_shape subblock_shapes[] = { { 1, 1, 2, 1 }, { 2, 1, 2, 1 }, { 1, 2, 2, 1 }, { 2, 2, 2, 1 },
                                                       { 1, 1, 1, 1 }, { 2, 1, 1, 1 }, { 1, 2, 1, 1 }, { 2, 2, 1, 1 },
                                                       { 1, 1, 3, 1 }, { 1, 2, 3, 1 }, { 3, 2, 2, 1 }, { 1, 4, 3, 2 },
                                                       { 1, 4, 2, 2 }, { 2, 7, 2, 4 }, { 1, 4, 3, 4 }, { 3, 1, 2, 1 } },
                                 subblock_gelu_shapes[] = { { 2, 1, 2, 1 }, { 2, 2, 2, 1 }, { 2, 1, 1, 1 },
                                                            { 2, 2, 1, 1 }, { 2, 4, 2, 1 }, { 2, 4, 1, 1 },
                                                            { 2, 4, 2, 2 }, { 2, 4, 1, 2 }, { 2, 8, 2, 4 },
                                                            { 2, 7, 2, 4 }, { 2, 7, 1, 4 }, { 2, 7, 2, 6 },
                                                            { 2, 7, 1, 6 }, { 2, 8, 1, 8 }, { 2, 7, 2, 11 },
                                                            { 2, 7, 1, 11 } };
static_assert(TDM_ARRAY_SIZE(subblock_shapes) <= TDM_VK_MAX_SHAPES &&
                      TDM_ARRAY_SIZE(subblock_gelu_shapes) <= TDM_VK_MAX_SHAPES &&
                      TDM_ARRAY_SIZE(tile_shapes) <= TDM_VK_MAX_SHAPES &&
                      TDM_ARRAY_SIZE(tile_gelu_shapes) <= TDM_VK_MAX_SHAPES &&
                      TDM_ARRAY_SIZE(rows_shapes) <= TDM_VK_MAX_SHAPES &&
                      TDM_ARRAY_SIZE(rows_gelu_shapes) <= TDM_VK_MAX_SHAPES,
              "there is room for those of sub-blocks and of a few rows");
static_assert(TDM_ARRAY_SIZE(matvec_shapes) <= TDM_VK_MAX_SHAPES && TDM_ARRAY_SIZE(gelu_shapes) <= TDM_VK_MAX_SHAPES &&
                      TDM_ARRAY_SIZE(f16_shapes) <= TDM_VK_MAX_SHAPES &&
                      TDM_ARRAY_SIZE(f16_gelu_shapes) <= TDM_VK_MAX_SHAPES,
              "there is room for each kernel's");

bool tdm_vk_tuned_is_of(const struct tdm_vk_tuned *a, uint32_t shader, const struct tdm_vk_matrix *matrix,
                        uint32_t n_panels)
{
        return a->shader == shader && a->type == matrix->type && a->act == matrix->act && a->cols == matrix->cols &&
               a->n_panels == n_panels;
}

const struct tdm_vk_tuned *tdm_vk_tuned(const struct tdm_vk_device *device, uint32_t shader,
                                        const struct tdm_vk_matrix *matrix, uint32_t n_panels)
{
        for (unsigned i = 0; i < device->n_tuned; i++)
                if (tdm_vk_tuned_is_of(&device->tuned[i], shader, matrix, n_panels))
                        return &device->tuned[i];
        return NULL;
}

unsigned tdm_vk_tuned_shapes(const struct tdm_vk_tuned *key, const struct tdm_vk_shape **ret)
{
        static const struct tdm_vk_shape is_used = { .panels = 1 };
        bool f16 = key->act >= TDM_VK_ACT_F16;

        if (TDM_VK_TUNED_SHADER(key->shader) == TDM_VK_ATTEND_F16) {
                *ret = &is_used;
                return 1;
        }
        if (TDM_VK_TUNED_SHADER(key->shader) == TDM_VK_MATMUL_F16) {
                bool gelu = key->shader & TDM_VK_TUNED_GELU;

                *ret = gelu ? tile_gelu_shapes : tile_shapes;
                return gelu ? TDM_ARRAY_SIZE(tile_gelu_shapes) : TDM_ARRAY_SIZE(tile_shapes);
        }
        if (key->shader > 0xffff) { /* TDM_VK_TUNED_ROWS of more than one */
                bool gelu = TDM_VK_TUNED_SHADER(key->shader) == TDM_VK_MATVEC_GELU;

                *ret = gelu ? rows_gelu_shapes : rows_shapes;
                return gelu ? TDM_ARRAY_SIZE(rows_gelu_shapes) : TDM_ARRAY_SIZE(rows_shapes);
        }
        if (f16 && (tdm_subblock_type(TDM_VK_FORM_TYPE(key->type)) || tdm_vk_type_plain(TDM_VK_FORM_TYPE(key->type)))) {
                *ret = key->shader == TDM_VK_MATVEC_GELU ? subblock_gelu_shapes : subblock_shapes;
                return key->shader == TDM_VK_MATVEC_GELU ? TDM_ARRAY_SIZE(subblock_gelu_shapes) :
                                                           TDM_ARRAY_SIZE(subblock_shapes);
        }
        if (key->shader == TDM_VK_MATVEC_GELU) {
                *ret = f16 ? f16_gelu_shapes : gelu_shapes;
                return f16 ? TDM_ARRAY_SIZE(f16_gelu_shapes) : TDM_ARRAY_SIZE(gelu_shapes);
        }
        *ret = f16 ? f16_shapes : matvec_shapes;
        return f16 ? TDM_ARRAY_SIZE(f16_shapes) : TDM_ARRAY_SIZE(matvec_shapes);
}

bool tdm_vk_tuned_sane(const struct tdm_vk_tuned *tuned)
{
        static const struct tdm_vk_shape none;
        const struct tdm_vk_shape *shapes;
        unsigned n = tdm_vk_tuned_shapes(tuned, &shapes);

        if (tuned->shader > 0xffff && memcmp(&tuned->shape, &none, sizeof(none)) == 0)
                return true;
        for (unsigned i = 0; i < n; i++)
                if (memcmp(&tuned->shape, &shapes[i], sizeof(shapes[i])) == 0)
                        return true;
        return false;
}
