/* Recipes: what a peer may hand over is checked field by field, and what a recipe asks of a device has a name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "engine/model/model.h"

static struct tdm_hparams hp;
static struct tdm_recipe good;

static int setup(void **state)
{
        hp = (struct tdm_hparams){ .n_layers = 4,
                                   .d_model = 64,
                                   .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .head_dim = 32,
                                   .d_ff = 96,
                                   .n_vocab = 100,
                                   .n_ctx = 256,
                                   .window = 16 };
        tdm_hparams_all_layers(&hp);
        hp.layers[3].window = 0;
        tdm_gemma3_recipe(&good, &hp);
        assert_int_equal(tdm_hparams_check(&hp, NULL), 0);
        assert_int_equal(tdm_recipe_check(&good, &hp, NULL), 0);
        return 0;
}

#define REFUSED(change)                                                                                                \
        do {                                                                                                           \
                struct tdm_recipe r = good;                                                                            \
                struct tdm_error err = { 0 };                                                                          \
                change;                                                                                                \
                if (tdm_recipe_check(&r, &hp, &err) <= 0 || !err.message[0])                                           \
                        fail_msg("accepted: %s", #change);                                                             \
        } while (0)

static void hostile_numbers(void **state)
{
        struct tdm_recipe reranker = good;

        reranker.pooling = TDM_POOLING_LAST;
        reranker.n_labels = 2;
        reranker.label = 1;
        assert_int_equal(tdm_recipe_check(&reranker, &hp, NULL), 0);
        reranker.label = 0;
        reranker.tells_classes = 1;
        reranker.n_labels = hp.d_model;
        reranker.label_dense = TDM_LABEL_DENSE_RELU;
        assert_int_equal(tdm_recipe_check(&reranker, &hp, NULL), 0);
        REFUSED(r.architecture[0] = 0);
        REFUSED(memset(r.architecture, 'x', sizeof(r.architecture)));
        REFUSED(r.norm_eps = 0);
        REFUSED(r.n_labels = 1);
        REFUSED((r.pooling = TDM_POOLING_MEAN, r.n_labels = 1));
        REFUSED((r.pooling = TDM_POOLING_LAST, r.n_labels = 3));
        REFUSED((r.pooling = TDM_POOLING_LAST, r.n_labels = 1, r.label = 1));
        REFUSED((r.pooling = TDM_POOLING_LAST, r.n_labels = 2, r.label = UINT32_MAX));
        REFUSED((r.pooling = TDM_POOLING_LAST, r.n_labels = 1, r.label_dense = 3));
        REFUSED((r.pooling = TDM_POOLING_LAST, r.label_dense = 1));
        REFUSED((r.pooling = TDM_POOLING_LAST, r.n_labels = 1, r.tells_classes = 1));
        REFUSED((r.pooling = TDM_POOLING_LAST, r.n_labels = 2, r.tells_classes = 2));
        REFUSED((r.pooling = TDM_POOLING_LAST, r.n_labels = 3, r.tells_classes = 1, r.label = 1));
        REFUSED((r.pooling = TDM_POOLING_LAST, r.n_labels = hp.d_model + 1, r.tells_classes = 1));
        REFUSED((r.pooling = TDM_POOLING_MEAN, r.n_labels = 3, r.tells_classes = 1));
        REFUSED(r.tells_classes = 1);
        REFUSED((r.pooling = TDM_POOLING_LAST, r.n_labels = 1, r.dense_width = 32));
        REFUSED(r.norm_eps = NAN);
        REFUSED(r.embed_scale = INFINITY);
        REFUSED(r.embed_scale = 0);
        REFUSED(r.logit_softcap = -1);
        REFUSED(r.logit_scale = -1);
        REFUSED(r.logit_scale = NAN);
        REFUSED(r.logit_scale = 1e-9f);
        REFUSED(r.query_growth = 0.1f); /* every how many positions? */
        REFUSED(r.query_growth_every = 64);
        REFUSED((r.query_growth = -0.1f, r.query_growth_every = 64));
        REFUSED((r.query_growth = NAN, r.query_growth_every = 64));
        REFUSED((r.query_growth = 0.1f, r.query_growth_every = UINT32_MAX));
        REFUSED(r.n_ropes = 0); /* its layers name two */
        REFUSED(r.n_ropes = 1);
        REFUSED(r.n_ropes = 3); /* the third is empty */
        REFUSED(r.n_ropes = TDM_MAX_ROPES + 1);
        REFUSED(r.n_ropes = UINT32_MAX);
        for (uint32_t i = 0; i < 2; i++) {
                REFUSED(r.ropes[i].style = 0);
                REFUSED(r.ropes[i].style = 3);
                REFUSED(r.ropes[i].n_dims = 0);
                REFUSED(r.ropes[i].n_dims = 31);
                REFUSED(r.ropes[i].n_dims = 34); /* of 32 */
                REFUSED(r.ropes[i].n_dims = UINT32_MAX - 1);
                REFUSED(r.ropes[i].scaling = 0);
                REFUSED(r.ropes[i].scaling = 3);
                REFUSED(r.ropes[i].scaling = TDM_ROPE_YARN); /* without its numbers */
                REFUSED(r.ropes[i].has_divisors = TDM_DIVISORS_SHORT + 1);
                REFUSED(r.ropes[i].base = 0);
                REFUSED(r.ropes[i].base = INFINITY);
                REFUSED(r.ropes[i].factor = 0);
                REFUSED(r.ropes[i].factor = NAN);
                REFUSED(r.ropes[i].magnitude = 0);
                REFUSED(r.ropes[i].magnitude = NAN);
                REFUSED(r.ropes[i].yarn_beta_fast = 32);
                REFUSED(r.ropes[i].yarn_n_ctx = 4096);
        }
        REFUSED(r.ropes[2].factor = 1);
        REFUSED(r.residual = 0);
        REFUSED(r.residual = 4);
        REFUSED(r.residual = TDM_RESIDUAL_PARALLEL); /* for which the residual is too narrow */
        REFUSED(r.n_streams = 0);
        REFUSED(r.n_streams = 4);
        REFUSED(r.residual = TDM_RESIDUAL_ALTUP);
        REFUSED((r.residual = TDM_RESIDUAL_ALTUP, r.n_streams = 4)); /* for which the residual is too narrow */
        REFUSED((r.residual = TDM_RESIDUAL_ALTUP, r.n_streams = UINT32_MAX));
        REFUSED(r.active_stream = 1);
        REFUSED(r.laurel_rank = 65);
        REFUSED(r.per_layer_width = 65537);
        REFUSED(r.ropes[0].yarn_is_rounded = 1); /* without YaRN */
        REFUSED((r.ropes[0].scaling = TDM_ROPE_YARN, r.ropes[0].yarn_beta_fast = 32, r.ropes[0].yarn_beta_slow = 1,
                 r.ropes[0].yarn_n_ctx = 4096, r.ropes[0].yarn_is_rounded = 2));
        REFUSED((r.ropes[0].scaling = TDM_ROPE_YARN, r.ropes[0].yarn_beta_fast = 32, r.ropes[0].yarn_beta_slow = 1,
                 r.ropes[0].yarn_n_ctx = 4096, r.ropes[0].base = 1)); /* whose logarithm is divided by */
        REFUSED((r.ropes[0].style = r.ropes[1].style = TDM_ROPE_NEIGHBOURS, r.layers[1].v_is_k = 1));
        REFUSED((r.ropes[1].n_dims = 16, r.layers[1].v_is_k = 1)); /* their rows are packed in another order */
        REFUSED(r.ropes[0].n_still = 1);
        REFUSED(r.ropes[0].n_still = r.ropes[0].n_dims);
        REFUSED(r.layers[4].norms = 1);
        REFUSED(r.layers[TDM_MAX_LAYERS - 1].has_output_scale = 1);
}

static void hostile_layers(void **state)
{
        for (uint32_t i = 0; i < 4; i++) {
                REFUSED(r.layers[i].norms |= 1u << 10);
                REFUSED(r.layers[i].norms |= TDM_NORM_QK_WIDE | TDM_NORM_QK_LATE);
                REFUSED(r.layers[i].norms |= TDM_NORM_QK_WIDE | TDM_NORM_V);
                REFUSED(r.layers[i].norms = TDM_NORM_QK_WIDE | TDM_NORM_Q);
                REFUSED(r.layers[i].norms = TDM_NORM_QK_LATE);
                REFUSED((r.layers[i].norms |= TDM_NORM_QK_LATE, r.ropes[r.layers[i].rope].magnitude = 1.1f));
                REFUSED(r.layers[i].biases = 1u << 31);
                REFUSED(r.layers[i].rope = 2);
                REFUSED(r.layers[i].rope = UINT32_MAX - 1);
                REFUSED(r.layers[i].query_scale = 0);
                REFUSED(r.layers[i].query_scale = -NAN);
                REFUSED(r.layers[i].attention_softcap = -1);
                REFUSED(r.layers[i].has_sinks = 2);
                REFUSED(r.layers[i].v_is_k = 2);
                REFUSED((r.layers[i].v_is_k = 1, r.layers[i].biases = TDM_BIAS_V));
                REFUSED(r.layers[i].activation = 0);
                REFUSED(r.layers[i].activation = 4);
                REFUSED(r.layers[i].is_sparse = 2);
                REFUSED(r.layers[i].sparsity_scale = 1); /* in a dense layer */
                REFUSED((r.layers[i].is_sparse = 1, r.layers[i].sparsity_scale = -INFINITY));
                REFUSED((r.layers[i].is_sparse = 1, r.layers[i].sparsity_scale = NAN));
                REFUSED(r.layers[i].n_experts = 8); /* of which none is used */
                REFUSED(r.layers[i].n_experts = TDM_MAX_EXPERTS + 1);
                REFUSED(r.layers[i].n_experts_used = 1);
                REFUSED(r.layers[i].d_expert = 32);
                REFUSED(r.layers[i].router = TDM_ROUTER_SOFTMAX_ALL);
                REFUSED(r.layers[i].has_dense_beside = 1);
                REFUSED(r.layers[i].biases = TDM_BIAS_ROUTER);
                REFUSED(r.layers[i].biases = TDM_BIAS_CHOICE);
                REFUSED(r.layers[i].has_input = 1); /* of no width */
                REFUSED(r.layers[i].has_output_scale = 2);
                REFUSED(r.layers[i].mixer = TDM_MIXER_SHORT_CONV);  /* without taps or a state */
                REFUSED(r.layers[i].mixer = TDM_MIXER_GATED_DELTA); /* without heads */
                REFUSED(r.layers[i].mixer = 3);
                REFUSED(r.layers[i].conv_taps = 3);
#define EXPERTS(n, used, width, how)                                                                                   \
        (r.layers[i].n_experts = n, r.layers[i].n_experts_used = used, r.layers[i].d_expert = width,                   \
         r.layers[i].router = how)
                REFUSED(EXPERTS(8, 9, 32, TDM_ROUTER_SOFTMAX_ALL));
                REFUSED(EXPERTS(8, 0, 32, TDM_ROUTER_SOFTMAX_ALL));
                REFUSED(EXPERTS(8, 2, 33, TDM_ROUTER_SOFTMAX_ALL));
                REFUSED(EXPERTS(8, 2, 0, TDM_ROUTER_SOFTMAX_ALL));
                REFUSED(EXPERTS(8, 2, 1u << 20, TDM_ROUTER_SOFTMAX_ALL));
                REFUSED(EXPERTS(8, 2, 32, TDM_ROUTER_NONE));
                REFUSED(EXPERTS(128, TDM_MAX_EXPERTS_USED + 1, 32, TDM_ROUTER_SOFTMAX_ALL));
                REFUSED(EXPERTS(8, 2, 32, TDM_ROUTER_SIGMOID + 1));
                REFUSED((EXPERTS(8, 2, 32, TDM_ROUTER_SOFTMAX_ALL), r.layers[i].biases = TDM_BIAS_CHOICE));
                REFUSED(r.layers[i].d_shared = 32); /* without experts that are chosen */
                REFUSED(r.layers[i].has_shared_gate = 1);
                REFUSED(r.layers[i].delta_in_groups = 1);
#define SHARED(width, gate)                                                                                            \
        (EXPERTS(8, 2, 32, TDM_ROUTER_SOFTMAX_ALL), r.layers[i].d_shared = width, r.layers[i].has_shared_gate = gate)
                REFUSED(SHARED(33, 0));
                REFUSED(SHARED(1u << 20, 1));
                REFUSED(SHARED(0, 1));
                REFUSED(SHARED(32, 2));
                REFUSED((SHARED(32, 1), r.layers[i].has_dense_beside = 1));
        }
}

/* A layer with a state in place of attention has nothing of attention, and a state of its size. */
static void states(void **state)
{
        const uint32_t n_state = 2 * hp.d_model;

        good.layers[3].mixer = TDM_MIXER_SHORT_CONV;
        good.layers[3].conv_taps = 3;
        good.layers[3].rope = TDM_ROPE_NONE;
        good.layers[3].norms &= ~(uint32_t)(TDM_NORM_Q | TDM_NORM_K);
        hp.layers[3].n_state = n_state;
        assert_int_equal(tdm_hparams_check(&hp, NULL), 0);
        assert_int_equal(tdm_recipe_check(&good, &hp, NULL), 0);
        assert_true(tdm_recipe_has_state(&good, &hp));
        assert_true(tdm_recipe_share_read(&good, &hp, 1) == 1);
        for (uint32_t kind = TDM_TENSOR_SHORT_CONV; kind <= TDM_TENSOR_SHORT_CONV_OUT; kind++)
                for (uint32_t i = 0; i < 4; i++)
                        assert_int_equal(tdm_tensor_presence((enum tdm_tensor_kind)kind, &good, &hp, i),
                                         i == 3 ? TDM_TENSOR_REQUIRED : TDM_TENSOR_ABSENT);
        for (uint32_t i = 0; i < 4; i++)
                assert_int_equal(tdm_tensor_presence(TDM_TENSOR_Q, &good, &hp, i),
                                 i < 3 ? TDM_TENSOR_REQUIRED : TDM_TENSOR_ABSENT);
        REFUSED(r.layers[3].conv_taps = 2);
        REFUSED(r.layers[3].conv_taps = 1);
        REFUSED(r.layers[3].conv_taps = UINT32_MAX);
        REFUSED(r.layers[3].conv_taps = TDM_MAX_CONV_TAPS + 1);
        REFUSED(r.layers[3].mixer = TDM_MIXER_ATTENTION);
        REFUSED(r.layers[3].norms |= TDM_NORM_K);
        REFUSED(r.layers[3].biases |= TDM_BIAS_V);
        REFUSED(r.layers[3].rope = 0);
        REFUSED(r.layers[3].has_sinks = 1);
        REFUSED(r.pooling = TDM_POOLING_MEAN);
        hp.layers[3].n_state = n_state - 1;
        REFUSED((void)r);
        hp.layers[3].n_state = TDM_STATE_MAX + 1;
        assert_int_equal(tdm_hparams_check(&hp, NULL), TDM_E_BAD_MODEL);
        hp.layers[3].n_state = n_state;
        hp.layers[3].kv_layer = 2;
        assert_int_equal(tdm_hparams_check(&hp, NULL), TDM_E_BAD_MODEL);
}

/* A gated delta net has heads that go together, and a state of its size; its attention layers may have gates. */
static void delta_nets(void **state)
{
        good.layers[3].mixer = TDM_MIXER_GATED_DELTA;
        good.layers[3].conv_taps = 4;
        good.layers[3].delta_size = 48;
        good.layers[3].delta_k_heads = 2;
        good.layers[3].delta_v_heads = 6;
        good.layers[3].rope = TDM_ROPE_NONE;
        good.layers[3].norms &= ~(uint32_t)(TDM_NORM_Q | TDM_NORM_K);
        good.layers[0].has_gate = 1;
        hp.layers[3].n_state = 3 * (2 + 2 + 6) * 48 + 6 * 48 * 48;
        assert_int_equal(tdm_hparams_check(&hp, NULL), 0);
        assert_int_equal(tdm_recipe_check(&good, &hp, NULL), 0);
        assert_true(tdm_recipe_has_state(&good, &hp));
        for (uint32_t kind = TDM_TENSOR_DELTA_QKV; kind <= TDM_TENSOR_DELTA_OUT; kind++)
                for (uint32_t i = 0; i < 4; i++)
                        assert_int_equal(tdm_tensor_presence((enum tdm_tensor_kind)kind, &good, &hp, i),
                                         i == 3 ? TDM_TENSOR_REQUIRED : TDM_TENSOR_ABSENT);
        for (uint32_t i = 0; i < 2; i++) {
                uint32_t rows, cols;

                tdm_tensor_shape(TDM_TENSOR_Q, &good, &hp, i, &rows, &cols);
                assert_true(rows == (i == 0 ? 256 : 128) && cols == 64);
        }
        for (uint32_t i = 0; i < 2; i++) { /* of a head of keys three betas, then three alphas */
                struct tdm_tensor_cut cut;
                char name[TDM_TENSOR_NAME_MAX];

                assert_true(tdm_tensor_fused(i ? TDM_TENSOR_DELTA_ALPHA : TDM_TENSOR_DELTA_BETA, TDM_FUSED_DELTA, &good,
                                             &hp, 3, name, &cut));
                assert_string_equal(name, "blk.3.ssm_ba.weight");
                assert_true(cut.first == 3 * i && cut.apart == 1 && cut.rows == 3 && cut.part_rows == 6);
        }
        REFUSED(r.layers[3].delta_size = 0);
        REFUSED(r.layers[3].delta_size = 40);
        REFUSED(r.layers[3].delta_size = UINT32_MAX & ~15u);
        REFUSED(r.layers[3].delta_k_heads = 0);
        REFUSED(r.layers[3].delta_k_heads = 4);
        REFUSED(r.layers[3].delta_k_heads = 12);
        REFUSED(r.layers[3].delta_v_heads = 8);
        REFUSED(r.layers[3].delta_v_heads = UINT32_MAX - 1);
        REFUSED(r.layers[3].delta_in_groups = 2);
        REFUSED(r.layers[3].conv_taps = 3);
        REFUSED(r.layers[3].mixer = TDM_MIXER_SHORT_CONV);
        REFUSED(r.layers[3].mixer = TDM_MIXER_ATTENTION);
        REFUSED(r.layers[3].norms |= TDM_NORM_Q);
        REFUSED(r.layers[3].has_gate = 1);
        REFUSED(r.layers[0].has_gate = 2);
        REFUSED(r.layers[0].delta_size = 16);
        REFUSED(r.layers[0].biases = TDM_BIAS_Q);
        REFUSED(r.pooling = TDM_POOLING_MEAN);
}

/* A change that a recipe can say, and how it is called. */
#define ASKS(feature, change)                                                                                          \
        do {                                                                                                           \
                struct tdm_recipe r = good;                                                                            \
                struct tdm_hparams sizes = hp;                                                                         \
                struct tdm_error err = { 0 };                                                                          \
                change;                                                                                                \
                tdm_hparams_take_largest(&sizes);                                                                      \
                if (tdm_hparams_check(&sizes, &err) || tdm_recipe_check(&r, &sizes, &err))                             \
                        fail_msg("%s: %s", #change, err.message);                                                      \
                assert_int_equal(tdm_recipe_features(&r, &sizes), TDM_FEATURE_BIT(feature));                           \
                assert_int_equal(tdm_recipe_check_device(&r, &sizes, TDM_FEATURE_BIT(feature), "test", &err), 0);      \
                assert_int_equal(tdm_recipe_check_device(&r, &sizes, ~TDM_FEATURE_BIT(feature), "test", &err),         \
                                 TDM_E_UNSUPPORTED);                                                                   \
                assert_non_null(strstr(err.message, tdm_feature_name(feature)));                                       \
                assert_non_null(strstr(err.message, "test device: "));                                                 \
                seen |= TDM_FEATURE_BIT(feature);                                                                      \
        } while (0)

#define ASKS_ACTIVATION(name, number, words, largest)                                                                  \
        ASKS(TDM_FEATURE_##name, r.layers[2].activation = (number));                                                   \
        assert_string_equal(tdm_feature_name(TDM_FEATURE_##name), words);                                              \
        all_activations &= ~TDM_FEATURE_BIT(TDM_FEATURE_##name);

static void no_windows(struct tdm_hparams *sizes, struct tdm_recipe *r)
{
        for (uint32_t i = 0; i < sizes->n_layers; i++)
                sizes->layers[i].window = 0, r->layers[i].rope = r->layers[0].rope;
}

static void odd_heads(struct tdm_hparams *sizes, struct tdm_recipe *r)
{
        for (uint32_t i = 0; i < sizes->n_layers; i++)
                sizes->layers[i].n_heads = sizes->layers[i].n_kv_heads = 1, sizes->layers[i].head_dim = 48;
        r->ropes[0].n_dims = r->ropes[1].n_dims = 48;
}

/* They come with no other norms, and with a pooling: features of their own. Returns that of these norms. */
static uint64_t norms_of_sums(void)
{
        struct tdm_recipe r = good;
        struct tdm_error err = { 0 };

        r.norm_kind = TDM_NORMS_OF_SUMS;
        r.pooling = TDM_POOLING_MEAN;
        assert_int_equal(tdm_recipe_check(&r, &hp, &err), TDM_E_BAD_MODEL);
        for (uint32_t i = 0; i < hp.n_layers; i++)
                r.layers[i].norms = TDM_NORM_ATTN_AFTER | TDM_NORM_FFN_AFTER;
        assert_int_equal(tdm_recipe_check(&r, &hp, &err), 0);
        r.pooling = TDM_POOLING_NONE;
        assert_int_equal(tdm_recipe_check(&r, &hp, &err), TDM_E_BAD_MODEL);
        return tdm_recipe_features(&r, &hp) & TDM_FEATURE_BIT(TDM_FEATURE_NORMS_OF_SUMS);
}

/* They come with none behind blocks, and of heads with gains of each one's own: features of their own. Returns that of
 * these norms. */
static uint64_t norms_centered(void)
{
        struct tdm_recipe r = good;
        struct tdm_error err = { 0 };

        r.norm_kind = TDM_NORMS_CENTERED;
        assert_int_equal(tdm_recipe_check(&r, &hp, &err), TDM_E_BAD_MODEL);
        for (uint32_t i = 0; i < hp.n_layers; i++)
                r.layers[i].norms = TDM_NORM_ATTN_BEFORE | TDM_NORM_FFN_BEFORE;
        assert_int_equal(tdm_recipe_check(&r, &hp, &err), 0);
        r.layers[1].norms |= TDM_NORM_Q | TDM_NORM_K;
        assert_int_equal(tdm_recipe_check(&r, &hp, &err), TDM_E_BAD_MODEL);
        r.layers[1].norms |= TDM_NORM_QK_EACH;
        assert_int_equal(tdm_recipe_check(&r, &hp, &err), 0);
        r.laurel_rank = 64;
        assert_int_equal(tdm_recipe_check(&r, &hp, &err), TDM_E_BAD_MODEL);
        r.laurel_rank = 0;
        r.pooling = TDM_POOLING_LAST;
        assert_int_equal(tdm_recipe_check(&r, &hp, &err), TDM_E_BAD_MODEL);
        r.pooling = TDM_POOLING_NONE;
        r.layers[1].norms &= ~(uint32_t)(TDM_NORM_Q | TDM_NORM_K | TDM_NORM_QK_EACH);
        return tdm_recipe_features(&r, &hp) & TDM_FEATURE_BIT(TDM_FEATURE_CENTERED);
}

#define TAKES_NO_PICTURES(change)                                                                                      \
        do {                                                                                                           \
                struct tdm_recipe r = good;                                                                            \
                struct tdm_hparams sizes = hp;                                                                         \
                change;                                                                                                \
                assert_false(tdm_recipe_takes_pictures(&r, &sizes));                                                   \
        } while (0)

/* Windows and experts are no matter; what makes keys or rows in another way is. */
static void pictures(void **state)
{
        assert_true(tdm_recipe_takes_pictures(&good, &hp));
        TAKES_NO_PICTURES(sizes.layers[2].kv_layer = 1);
        TAKES_NO_PICTURES(r.layers[3].v_is_k = 1);
        TAKES_NO_PICTURES(r.layers[3].mixer = TDM_MIXER_SHORT_CONV);
        TAKES_NO_PICTURES(r.layers[1].has_gate = 1);
        TAKES_NO_PICTURES(r.layers[1].has_input = 1);
        TAKES_NO_PICTURES(r.per_layer_width = 32);
        TAKES_NO_PICTURES(r.laurel_rank = 64);
        TAKES_NO_PICTURES(r.residual = TDM_RESIDUAL_ALTUP);
        TAKES_NO_PICTURES(r.pooling = TDM_POOLING_LAST);
        TAKES_NO_PICTURES(r.norm_kind = TDM_NORMS_OF_SUMS);
        TAKES_NO_PICTURES(r.has_positions = 1);
        TAKES_NO_PICTURES(r.n_token_types = 2);
}

static void features(void **state)
{
        uint64_t seen = 0, all_activations = TDM_ACTIVATION_FEATURES;

        assert_int_equal(tdm_recipe_features(&good, &hp), 0);
        assert_int_equal(tdm_recipe_check_device(&good, &hp, 0, "test", NULL), 0);
        ASKS(TDM_FEATURE_NO_NORM_BEFORE, r.layers[3].norms &= ~(uint32_t)TDM_NORM_FFN_BEFORE);
        ASKS(TDM_FEATURE_NO_NORM_AFTER, r.layers[2].norms &= ~(uint32_t)TDM_NORM_ATTN_AFTER);
        ASKS(TDM_FEATURE_NO_QK_NORM, r.layers[1].norms &= ~(uint32_t)TDM_NORM_K);
        ASKS(TDM_FEATURE_QK_NORM_WIDE, r.layers[1].norms |= TDM_NORM_QK_WIDE);
        ASKS(TDM_FEATURE_QK_NORM_LATE, r.layers[1].norms |= TDM_NORM_QK_LATE);
        ASKS(TDM_FEATURE_QK_NORM_EACH, r.layers[1].norms |= TDM_NORM_QK_EACH);
        ASKS(TDM_FEATURE_V_NORM, r.layers[0].norms |= TDM_NORM_V);
        ASKS(TDM_FEATURE_BIASES, r.layers[0].biases = TDM_BIAS_Q);
        for (int i = 0; i < 3; i++)
                good.layers[i].rope = TDM_ROPE_NONE; /* a single layer of its kind would also differ from its fellows */
        ASKS(TDM_FEATURE_NO_ROPE, (void)r);
        setup(NULL);
        ASKS(TDM_FEATURE_ROPE_NEIGHBOURS, r.ropes[1].style = TDM_ROPE_NEIGHBOURS);
        ASKS(TDM_FEATURE_ROPE_STILL, r.ropes[1].n_still = 2);
        ASKS(TDM_FEATURE_ROPE_PARTIAL, r.ropes[0].n_dims = 16);
        ASKS(TDM_FEATURE_ROPE_DIVISORS, r.ropes[0].has_divisors = 1);
        ASKS(TDM_FEATURE_ROPE_YARN, (r.ropes[0].scaling = TDM_ROPE_YARN, r.ropes[0].yarn_beta_fast = 32,
                                     r.ropes[0].yarn_beta_slow = 1, r.ropes[0].yarn_n_ctx = 4096));
        ASKS(TDM_FEATURE_ROPE_MAGNITUDE, r.ropes[1].magnitude = 1.3f);
        ASKS(TDM_FEATURE_ROPE_BY_LAYER, r.layers[1].rope = 0);
        ASKS(TDM_FEATURE_ATTENTION_SOFTCAP, r.layers[1].attention_softcap = 50);
        ASKS(TDM_FEATURE_SINKS, r.layers[3].has_sinks = 1);
        ASKS(TDM_FEATURE_V_IS_K, r.layers[3].v_is_k = 1);
        ASKS(TDM_FEATURE_SHARED_KV, sizes.layers[2].kv_layer = 1);
        ASKS(TDM_FEATURE_HEADS_BY_LAYER, sizes.layers[2].n_kv_heads = 1);
        ASKS(TDM_FEATURE_FF_BY_LAYER, sizes.layers[2].d_ff = 64);
        ASKS(TDM_FEATURE_WINDOW_BY_LAYER, sizes.layers[2].window = 32);
        TDM_ACTIVATIONS(ASKS_ACTIVATION)
        assert_int_equal(all_activations, 0);
        ASKS(TDM_FEATURE_SPARSITY, (r.layers[0].is_sparse = 1, r.layers[0].sparsity_scale = 1.64f));
        ASKS(TDM_FEATURE_EXPERTS, (r.layers[1].n_experts = 8, r.layers[1].n_experts_used = 2, r.layers[1].d_expert = 32,
                                   r.layers[1].router = TDM_ROUTER_SOFTMAX_CHOSEN));
        ASKS(TDM_FEATURE_DENSE_BESIDE,
             (r.layers[1].n_experts = 8, r.layers[1].n_experts_used = 2, r.layers[1].d_expert = 32,
              r.layers[1].router = TDM_ROUTER_SOFTMAX_ALL, r.layers[1].has_dense_beside = 1));
        ASKS(TDM_FEATURE_SHARED_EXPERT,
             (r.layers[1].n_experts = 8, r.layers[1].n_experts_used = 2, r.layers[1].d_expert = 32,
              r.layers[1].router = TDM_ROUTER_SOFTMAX_ALL, r.layers[1].d_shared = 64));
        ASKS(TDM_FEATURE_ROUTER_SIGMOID,
             (r.layers[1].n_experts = 8, r.layers[1].n_experts_used = 2, r.layers[1].d_expert = 32,
              r.layers[1].router = TDM_ROUTER_SIGMOID, r.layers[1].biases = TDM_BIAS_CHOICE));
        ASKS(TDM_FEATURE_STREAMS, (r.residual = TDM_RESIDUAL_ALTUP, r.n_streams = 4, sizes.residual_width = 320));
        ASKS(TDM_FEATURE_LAUREL, r.laurel_rank = 64);
        ASKS(TDM_FEATURE_PER_LAYER_INPUT, (r.per_layer_width = 32, r.layers[1].has_input = 1));
        ASKS(TDM_FEATURE_OUTPUT_SCALE, r.layers[1].has_output_scale = 1);
        ASKS(TDM_FEATURE_PARALLEL, (r.residual = TDM_RESIDUAL_PARALLEL, sizes.residual_width = 128));
        seen |= norms_centered();
        ASKS(TDM_FEATURE_QUERY_GROWTH, (r.query_growth = 0.1f, r.query_growth_every = 64));
        ASKS(TDM_FEATURE_LOGIT_SCALE, r.logit_scale = 0.25f);
        ASKS(TDM_FEATURE_POOLING, r.pooling = TDM_POOLING_LAST);
        ASKS(TDM_FEATURE_FFN_GELU, r.ffn = TDM_FFN_GELU);
        ASKS(TDM_FEATURE_POSITIONS, r.has_positions = 1);
        ASKS(TDM_FEATURE_POSITIONS, r.n_token_types = 2);
        seen |= norms_of_sums();
        ASKS(TDM_FEATURE_SHORT_CONV,
             (r.layers[3].mixer = TDM_MIXER_SHORT_CONV, r.layers[3].conv_taps = 3, r.layers[3].rope = TDM_ROPE_NONE,
              r.layers[3].norms &= ~(uint32_t)(TDM_NORM_Q | TDM_NORM_K), sizes.layers[3].n_state = 2 * sizes.d_model));
        ASKS(TDM_FEATURE_GATED_DELTA,
             (r.layers[3].mixer = TDM_MIXER_GATED_DELTA, r.layers[3].conv_taps = 2, r.layers[3].rope = TDM_ROPE_NONE,
              r.layers[3].delta_size = 32, r.layers[3].delta_k_heads = r.layers[3].delta_v_heads = 1,
              r.layers[3].norms &= ~(uint32_t)(TDM_NORM_Q | TDM_NORM_K), sizes.layers[3].n_state = 3 * 32 + 32 * 32));
        ASKS(TDM_FEATURE_ATTENTION_GATE, r.layers[1].has_gate = 1);
        ASKS(TDM_FEATURE_ODD_HEADS, odd_heads(&sizes, &r));
        ASKS(TDM_FEATURE_BIDIRECTIONAL, (r.pooling = TDM_POOLING_MEAN, r.is_bidirectional = 1, no_windows(&sizes, &r)));
        seen |= TDM_FEATURE_BIT(TDM_FEATURE_PICTURES);               /* asked for by the limits of steps */
        assert_int_equal(seen, TDM_FEATURE_BIT(TDM_N_FEATURES) - 1); /* none was forgotten */
        assert_string_equal(tdm_feature_name(TDM_N_FEATURES), "an unknown feature");
}

/* Largest values of rows in f16 follow from these bounds. 7 sigmoid(11.9) (7 + 1) is the clamped SwiGLU's. */
static void activations(void **state)
{
        assert_true(tdm_activation_largest(TDM_ACTIVATION_GELU_TANH, 1000) == 1000);
        assert_true(tdm_activation_largest(TDM_ACTIVATION_SILU, 0x1p30f) == 0x1p30f);
        assert_true(tdm_activation_largest(TDM_ACTIVATION_SWIGLU_CLAMPED, 1000) == 56);
        assert_true(tdm_activation_largest(TDM_ACTIVATION_SWIGLU_CLAMPED, 1) == 56); /* u + 1, not u */
}

/* The tensors that a layer has follow from its recipe. */
static void presence(void **state)
{
        char name[TDM_TENSOR_NAME_MAX];
        uint32_t rows, cols;

        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_POST_FFW_NORM, &good, &hp, 2), TDM_TENSOR_REQUIRED);
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_OUTPUT, &good, &hp, 0), TDM_TENSOR_OPTIONAL);
        good.layers[2].norms &= ~(uint32_t)TDM_NORM_FFN_AFTER;
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_POST_FFW_NORM, &good, &hp, 2), TDM_TENSOR_ABSENT);
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_POST_FFW_NORM, &good, &hp, 1), TDM_TENSOR_REQUIRED);
        hp.layers[1].d_ff = 64;
        tdm_tensor_shape(TDM_TENSOR_GATE, &good, &hp, 1, &rows, &cols);
        assert_true(rows == 64 && cols == 64);
        tdm_tensor_shape(TDM_TENSOR_DOWN, &good, &hp, 2, &rows, &cols);
        assert_true(rows == 64 && cols == 96);
        tdm_tensor_name(TDM_TENSOR_DOWN_EXPS, 255, name);
        assert_string_equal(name, "blk.255.ffn_down_exps.weight");
        tdm_tensor_name(TDM_TENSOR_ROUTER_BIAS, 1, name);
        assert_string_equal(name, "blk.1.ffn_gate_inp.bias");
        tdm_tensor_name(TDM_TENSOR_DOWN, 255, name);
        assert_string_equal(name, "blk.255.ffn_down.weight");
        tdm_tensor_name(TDM_TENSOR_OUTPUT_NORM, 0, name);
        assert_string_equal(name, "output_norm.weight");

        /* Layer 0 gets experts, layer 3 both. */
        for (uint32_t i = 0; i < 4; i += 3) {
                good.layers[i].n_experts = 8;
                good.layers[i].n_experts_used = 2;
                good.layers[i].d_expert = 32;
                good.layers[i].biases = TDM_BIAS_ROUTER | TDM_BIAS_UP;
                good.layers[i].has_dense_beside = i == 3;
        }
        for (uint32_t i = 0; i < 4; i++) {
                bool has_experts = i % 3 == 0;

                assert_int_equal(tdm_tensor_presence(TDM_TENSOR_GATE, &good, &hp, i),
                                 i ? TDM_TENSOR_REQUIRED : TDM_TENSOR_ABSENT);
                assert_int_equal(tdm_tensor_presence(TDM_TENSOR_UP_BIAS, &good, &hp, i), TDM_TENSOR_ABSENT);
                assert_int_equal(tdm_tensor_presence(TDM_TENSOR_ROUTER, &good, &hp, i),
                                 has_experts ? TDM_TENSOR_REQUIRED : TDM_TENSOR_ABSENT);
                assert_int_equal(tdm_tensor_presence(TDM_TENSOR_DOWN_EXPS, &good, &hp, i),
                                 has_experts ? TDM_TENSOR_REQUIRED : TDM_TENSOR_ABSENT);
                assert_int_equal(tdm_tensor_presence(TDM_TENSOR_ROUTER_BIAS, &good, &hp, i),
                                 has_experts ? TDM_TENSOR_REQUIRED : TDM_TENSOR_ABSENT);
                assert_int_equal(tdm_tensor_presence(TDM_TENSOR_UP_EXPS_BIAS, &good, &hp, i),
                                 has_experts ? TDM_TENSOR_REQUIRED : TDM_TENSOR_ABSENT);
                assert_int_equal(tdm_tensor_presence(TDM_TENSOR_DOWN_EXPS_BIAS, &good, &hp, i), TDM_TENSOR_ABSENT);
                assert_int_equal(tdm_tensor_presence(TDM_TENSOR_SINKS, &good, &hp, i), TDM_TENSOR_ABSENT);
        }
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_CHOICE_BIAS, &good, &hp, 0), TDM_TENSOR_ABSENT);
        good.layers[0].biases |= TDM_BIAS_CHOICE;
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_CHOICE_BIAS, &good, &hp, 0), TDM_TENSOR_REQUIRED);
        tdm_tensor_name(TDM_TENSOR_CHOICE_BIAS, 0, name);
        assert_string_equal(name, "blk.0.exp_probs_b.bias");
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_DOWN_SHEXP, &good, &hp, 0), TDM_TENSOR_ABSENT);
        good.layers[0].d_shared = 96;
        for (uint32_t has_gate = 0; has_gate < 2; has_gate++) {
                good.layers[0].has_shared_gate = has_gate;
                assert_int_equal(tdm_tensor_presence(TDM_TENSOR_GATE_SHEXP, &good, &hp, 0), TDM_TENSOR_REQUIRED);
                assert_int_equal(tdm_tensor_presence(TDM_TENSOR_SHARED_GATE, &good, &hp, 0),
                                 has_gate ? TDM_TENSOR_REQUIRED : TDM_TENSOR_ABSENT);
        }
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_DOWN_SHEXP, &good, &hp, 3), TDM_TENSOR_ABSENT);
        tdm_tensor_shape(TDM_TENSOR_DOWN_SHEXP, &good, &hp, 0, &rows, &cols);
        assert_true(rows == 64 && cols == 96);
        tdm_tensor_shape(TDM_TENSOR_SHARED_GATE, &good, &hp, 0, &rows, &cols);
        assert_true(rows == 1 && cols == 64);
        tdm_tensor_shape(TDM_TENSOR_DOWN_EXPS, &good, &hp, 3, &rows, &cols);
        assert_true(rows == 8 * 64 && cols == 32 && tdm_tensor_n_parts(TDM_TENSOR_DOWN_EXPS, &good, 3) == 8);
        tdm_tensor_shape(TDM_TENSOR_UP_EXPS, &good, &hp, 0, &rows, &cols);
        assert_true(rows == 8 * 32 && cols == 64);
        tdm_tensor_shape(TDM_TENSOR_UP_EXPS_BIAS, &good, &hp, 0, &rows, &cols);
        assert_true(rows == 8 && cols == 32 && tdm_tensor_n_parts(TDM_TENSOR_UP_EXPS_BIAS, &good, 0) == 1);
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_K_BIAS, &good, &hp, 1), TDM_TENSOR_ABSENT);
        good.layers[1].biases = TDM_BIAS_K;
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_K_BIAS, &good, &hp, 1), TDM_TENSOR_REQUIRED);
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_Q_BIAS, &good, &hp, 1), TDM_TENSOR_ABSENT);
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_K_BIAS, &good, &hp, 2), TDM_TENSOR_ABSENT);
        tdm_tensor_name(TDM_TENSOR_K_BIAS, 1, name);
        assert_string_equal(name, "blk.1.attn_k.bias");
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_ROPE_FREQS, &good, &hp, 0), TDM_TENSOR_ABSENT);
        good.ropes[1].has_divisors = TDM_DIVISORS_LONG; /* the file's other set is passed over */
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_ROPE_FREQS, &good, &hp, 0), TDM_TENSOR_REQUIRED);
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_ROPE_SHORT, &good, &hp, 0), TDM_TENSOR_UNUSED);
        assert_true(tdm_tensor_alias(TDM_TENSOR_ROPE_FREQS, &good, 0, name));
        assert_string_equal(name, "rope_factors_long.weight");
        good.ropes[1].n_still = 8; /* pairs that are not turned have no divisor */
        tdm_tensor_shape(TDM_TENSOR_ROPE_FREQS, &good, &hp, 0, &rows, &cols);
        assert_true(rows == 1 && cols == (good.ropes[1].n_dims - 8) / 2);
        good.ropes[1].has_divisors = TDM_DIVISORS_FREQS;
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_ROPE_FREQS, &good, &hp, 0), TDM_TENSOR_REQUIRED);
        assert_int_equal(tdm_tensor_presence(TDM_TENSOR_ROPE_SHORT, &good, &hp, 0), TDM_TENSOR_ABSENT);
        assert_false(tdm_tensor_alias(TDM_TENSOR_ROPE_FREQS, &good, 0, name));
        good.layers[1].norms |= TDM_NORM_QK_WIDE;
        tdm_tensor_shape(TDM_TENSOR_Q_NORM, &good, &hp, 1, &rows, &cols);
        assert_true(rows == 1 && cols == hp.n_heads * hp.head_dim);
        tdm_tensor_shape(TDM_TENSOR_K_NORM, &good, &hp, 1, &rows, &cols);
        assert_true(cols == hp.n_kv_heads * hp.head_dim);
        tdm_tensor_shape(TDM_TENSOR_K_NORM, &good, &hp, 2, &rows, &cols);
        assert_true(cols == hp.head_dim);
        tdm_tensor_name(TDM_TENSOR_ROPE_FREQS, 0, name);
        assert_string_equal(name, "rope_freqs.weight");
        assert_false(tdm_tensor_alias(TDM_TENSOR_FFN_NORM, &good, 2, name)); /* there it is another tensor */
        good.layers[2].norms &= ~(uint32_t)TDM_NORM_ATTN_AFTER;
        assert_true(tdm_tensor_alias(TDM_TENSOR_FFN_NORM, &good, 2, name));
        assert_string_equal(name, "blk.2.post_attention_norm.weight");
        assert_false(tdm_tensor_alias(TDM_TENSOR_ATTN_NORM, &good, 2, name));
}

/* A step of more rows reads more experts, at last all of them; without experts every step reads all. */
static void share_read(void **state)
{
        double kept = 100 + 4 * 2.0 * 6 * 32, experts = 4 * 3.0 * 8 * 32;

        assert_true(tdm_recipe_share_read(&good, &hp, 1) == 1 && tdm_recipe_share_read(&good, &hp, 64) == 1);
        for (uint32_t i = 0; i < 4; i++) {
                good.layers[i].n_experts = 8;
                good.layers[i].n_experts_used = 2;
                good.layers[i].d_expert = 32;
        }
        assert_true(fabs(tdm_recipe_share_read(&good, &hp, 1) - (kept + experts / 4) / (kept + experts)) < 1e-9);
        assert_true(fabs(tdm_recipe_share_read(&good, &hp, 2) - (kept + experts * 7 / 16) / (kept + experts)) < 1e-9);
        assert_true(tdm_recipe_share_read(&good, &hp, 64) > 0.999 && tdm_recipe_share_read(&good, &hp, 64) <= 1);
        for (uint32_t i = 0; i < 4; i++)
                good.layers[i].d_shared = 64;
        kept += 4 * 3.0 * 64;
        assert_true(fabs(tdm_recipe_share_read(&good, &hp, 1) - (kept + experts / 4) / (kept + experts)) < 1e-9);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(hostile_numbers, setup),
                cmocka_unit_test_setup(hostile_layers, setup),
                cmocka_unit_test_setup(features, setup),
                cmocka_unit_test_setup(pictures, setup),
                cmocka_unit_test(activations),
                cmocka_unit_test_setup(states, setup),
                cmocka_unit_test_setup(delta_nets, setup),
                cmocka_unit_test_setup(presence, setup),
                cmocka_unit_test_setup(share_read, setup),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
