/* The end of a file that includes kernels-matmul-subblock.h: a kernel for every type and form of activations out of its
 * tiles, and the function named by KERNELS_FILL that puts them into the table. Tiles are named by the size of a
 * sub-block, "_min" where the types have a minimum, "_table" where a quant may be any byte. FEW and SOME, where
 * defined, make struct kernel's few and some. */

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
                unpack_chunk(type, matrix, panel, c, n_blocks, to);                                                    \
        }                                                                                                              \
        FEW(name##_few_i8, type, TDM_ACT_I8)                                                                           \
        FEW(name##_few_i16, type, TDM_ACT_I16)                                                                         \
        SOME(name##_some_i8, type, TDM_ACT_I8)                                                                         \
        SOME(name##_some_i16, type, TDM_ACT_I16)                                                                       \
        MATMUL(name, type, f32, subs, NULL, NULL)                                                                      \
        MATMUL(name, type, i8, subs, FEW_NAME(name##_few_i8), SOME_NAME(name##_some_i8))                               \
        MATMUL(name, type, i16, subs, FEW_NAME(name##_few_i16), SOME_NAME(name##_some_i16))

MATMULS(q4_1, TDM_TYPE_Q4_1, 32_min)
MATMULS(q5_0, TDM_TYPE_Q5_0, 32)
MATMULS(q5_1, TDM_TYPE_Q5_1, 32_min)
MATMULS(q2_k, TDM_TYPE_Q2_K, 16_min)
MATMULS(q3_k, TDM_TYPE_Q3_K, 16)
MATMULS(q4_k, TDM_TYPE_Q4_K, 32_min)
MATMULS(q5_k, TDM_TYPE_Q5_K, 32_min)
MATMULS(q6_k, TDM_TYPE_Q6_K, 16)
MATMULS(iq4_nl, TDM_TYPE_IQ4_NL, 32_table)
MATMULS(iq4_xs, TDM_TYPE_IQ4_XS, 32_table)

static void fill(struct tdm_kernels *kernels, uint32_t type, tdm_matmul_fn f32, tdm_matmul_fn i8, tdm_matmul_fn i16)
{
        int i = tdm_kernels_type_index(type);

        kernels->matmul[TDM_ACT_F32][i] = f32;
        kernels->matmul[TDM_ACT_I8][i] = i8;
        kernels->matmul[TDM_ACT_I16][i] = i16;
}

#define FILL(name, type) fill(kernels, type, name##_f32, name##_i8, name##_i16)

void KERNELS_FILL(struct tdm_kernels *kernels)
{
        FILL(q4_1, TDM_TYPE_Q4_1);
        FILL(q5_0, TDM_TYPE_Q5_0);
        FILL(q5_1, TDM_TYPE_Q5_1);
        FILL(q2_k, TDM_TYPE_Q2_K);
        FILL(q3_k, TDM_TYPE_Q3_K);
        FILL(q4_k, TDM_TYPE_Q4_K);
        FILL(q5_k, TDM_TYPE_Q5_K);
        FILL(q6_k, TDM_TYPE_Q6_K);
        FILL(iq4_nl, TDM_TYPE_IQ4_NL);
        FILL(iq4_xs, TDM_TYPE_IQ4_XS);
}
