/* The end of a file that includes kernels-matmul-subblock.h: a kernel for every type and form of activations out of its
 * tiles, and the function named by KERNELS_FILL that puts them into the table. Tiles are named by the kinds of
 * TDM_SUBBLOCK_TYPES. FEW and SOME, where defined, make struct kernel's few and some. */

#ifdef FEW
#define FEW_NAME(name) name
#else
#define FEW(name, type, act)
#define FEW_NAME(name) NULL
#endif
#ifdef SOME
#define SOME_NAME(name) name
#else
#define SOME(name, type, act)
#define SOME_NAME(name) NULL
#endif

#define MATMUL(name, type, act, subs, few_, some_)                                                                     \
        static void name##_##act(const struct tdm_matrix *matrix, const struct tdm_act_row *rows, uint32_t n_rows,     \
                                 uint32_t first_panel, uint32_t n_panels, float *y, size_t y_stride)                   \
        {                                                                                                              \
                const struct kernel kernel = { few_, some_, name##_unpack, tiles_##act##_##subs,                       \
                                               tdm_subblock_info(type).offset };                                       \
                                                                                                                       \
                run(&kernel, matrix, rows, n_rows, first_panel, n_panels, y, y_stride);                                \
        }
#define MATMULS(name, type, subs)                                                                                      \
        static void name##_unpack(const struct tdm_matrix *matrix, uint32_t panel, uint32_t c, uint32_t n_blocks,      \
                                  struct chunk *to)                                                                    \
        {                                                                                                              \
                unpack_chunk(TDM_TYPE_##type, matrix, panel, c, n_blocks, to);                                         \
        }                                                                                                              \
        FEW(name##_few_i8, TDM_TYPE_##type, TDM_ACT_I8)                                                                \
        FEW(name##_few_i16, TDM_TYPE_##type, TDM_ACT_I16)                                                              \
        SOME(name##_some_i8, TDM_TYPE_##type, TDM_ACT_I8)                                                              \
        SOME(name##_some_i16, TDM_TYPE_##type, TDM_ACT_I16)                                                            \
        MATMUL(name, TDM_TYPE_##type, f32, subs, NULL, NULL)                                                           \
        MATMUL(name, TDM_TYPE_##type, i8, subs, FEW_NAME(name##_few_i8), SOME_NAME(name##_some_i8))                    \
        MATMUL(name, TDM_TYPE_##type, i16, subs, FEW_NAME(name##_few_i16), SOME_NAME(name##_some_i16))

TDM_SUBBLOCK_TYPES(MATMULS)

static void fill(struct tdm_kernels *kernels, uint32_t type, tdm_matmul_fn f32, tdm_matmul_fn i8, tdm_matmul_fn i16)
{
        int i = tdm_kernels_type_index(type);

        kernels->matmul[TDM_ACT_F32][i] = f32;
        kernels->matmul[TDM_ACT_I8][i] = i8;
        kernels->matmul[TDM_ACT_I16][i] = i16;
}

#define FILL(name, type, kind) fill(kernels, TDM_TYPE_##type, name##_f32, name##_i8, name##_i16);

void KERNELS_FILL(struct tdm_kernels *kernels)
{
        TDM_SUBBLOCK_TYPES(FILL)
}
