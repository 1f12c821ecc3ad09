/* Models, and a device run in variants: see variants.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu-worker/vulkan/tests/random-model.h"
#include "gpu-worker/vulkan/tests/variants.h"
#include "gpu-worker/vulkan/vulkan.h"

_Atomic uint64_t heartbeat;

static uint32_t ids[8][N_IDS];
static const struct tdm_sampling sampling = {
        .temperature = 0.9f, .top_p = 0.95f, .min_p = 0.01f, .repeat_penalty = 1, .top_k = 40, .n_top = 4, .seed = 7
};

uint8_t *model_new_mixed(const char *size, uint32_t type, uint32_t more_type)
{
        struct tdm_hparams hp;
        uint8_t *weights;

        assert_true(random_model_hparams(size, &hp));
        for (unsigned s = 0; s < TDM_ARRAY_SIZE(ids); s++)
                for (uint32_t i = 0; i < N_IDS; i++)
                        ids[s][i] = 3 + (i * 7919 + s * 104729 + i * i % 101) % (hp.n_vocab - 3);
        weights = random_model_new_mixed(&hp, type, more_type, type);
        assert_non_null(weights);
        return weights;
}

uint8_t *model_new(const char *size, uint32_t type)
{
        return model_new_mixed(size, type, type);
}

struct drive_part part(uint32_t table, uint32_t first, uint32_t n)
{
        return (struct drive_part){ .table = table,
                                    .ids = ids[table],
                                    .n_ids = N_IDS,
                                    .first = first,
                                    .n = n,
                                    .n_logits = TDM_MIN(n, 4u),
                                    .sampling = sampling };
}

#define FEW_ROWS "up to 2 flagged, 4 flagged, 8 apart" /* what plans say then */

/* A device as a variant wants it, with the model: loading it is what takes long on a GPU. */
struct drive *drive_of(const uint8_t *weights, const struct variant *v)
{
        const struct drive_options options = { .ops = { &tdm_vulkan_device_ops },
                                               .max_rows = STEP_ROWS,
                                               .n_tables = 8,
                                               .max_positions = 512,
                                               .kv = v->kv,
                                               .see_hidden = true,
                                               .run_blocks = v->run_blocks,
                                               .anywhere = v->anywhere,
                                               .in_pieces = v->in_pieces,
                                               .dmabuf = v->dmabuf };
        struct drive *drive;

        setenv("TANDEM_VULKAN_MEMORY", v->memory, 1);
        if (v->submission)
                setenv("TANDEM_VULKAN_SUBMISSION", v->submission, 1);
        if (v->logits)
                setenv("TANDEM_VULKAN_LOGITS", v->logits, 1);
        if (v->rows)
                setenv("TANDEM_VULKAN_ROWS", v->rows, 1);
        drive = drive_new(weights, &options);
        unsetenv("TANDEM_VULKAN_SUBMISSION");
        unsetenv("TANDEM_VULKAN_LOGITS");
        if (v->rows)
                unsetenv("TANDEM_VULKAN_ROWS");
        if (v->rows && strcmp(v->rows, "on") == 0 && !strstr(drive_describe(drive, 0), FEW_ROWS))
                fail_msg("not as wanted: %s", drive_describe(drive, 0));
        return drive;
}

/* On drive_of(v), or on that of a variant that differs in rows, chunks and sampling alone. */
struct outcome run_on(struct drive *drive, const uint8_t *weights, const struct variant *v)
{
        uint32_t d = tdm_weights_header(weights)->hparams.d_model, others_at[8] = {}, n_rows = v->n_rows;
        struct outcome o = { .hidden = calloc(n_rows, d * sizeof(float)) };
        float *hidden = calloc(STEP_ROWS, d * sizeof(float));
        struct tdm_vulkan_counters counters;
        struct tdm_result results[32];
        bool restarted = false;
        uint64_t blocks_before;

        tdm_vulkan_counters(drive_device(drive, 0), &counters);
        blocks_before = counters.logit_blocks;
        setenv("TANDEM_VULKAN_MEMORY", v->memory, 1); /* of a restart */
        drive_forget(drive, 0);
        if (v->rows)
                setenv("TANDEM_VULKAN_ROWS", v->rows, 1);
        for (uint32_t first = 0, n, turn = 0; first < n_rows; first += n, turn++) {
                struct drive_part parts[8];
                uint32_t row = 0, logits = 0, n_parts = 0, at;
                bool single = v->single_from && first >= v->single_from;

                n = single ? TDM_MIN(TDM_MAX(v->few, 1u), n_rows - first) :
                             TDM_MIN(v->chunk, (v->single_from ? v->single_from : n_rows) - first);
                if (v->restart_at && first >= v->restart_at && !restarted) {
                        drive_restart(drive);
                        restarted = true;
                }
                for (uint32_t i = 1; i <= v->n_others; i++) {
                        parts[n_parts] = part(i, others_at[i],
                                              single ? TDM_MIN(TDM_MAX(v->few, 1u), N_IDS - others_at[i]) :
                                                       TDM_MIN(1 + (i * 5 + turn * 3) % 11, N_IDS - others_at[i]));
                        parts[n_parts].n_logits = i % 2;
                        if (others_at[i] == 0)
                                drive_forget(drive, i);
                        others_at[i] = (others_at[i] + parts[n_parts].n) % N_IDS;
                        n_parts++;
                }
                at = turn % (n_parts + 1); /* ours: everywhere in turn */
                for (uint32_t i = n_parts; i > at; i--)
                        parts[i] = parts[i - 1];
                parts[at] = part(0, first, n);
                if (v->top_k)
                        parts[at].sampling.top_k = v->top_k;
                if (v->sampling)
                        parts[at].sampling = *v->sampling;
                if (v->greedy)
                        parts[at].sampling = (struct tdm_sampling){ .top_p = 1, .repeat_penalty = 1 };
                for (uint32_t i = 0; i < at; i++) {
                        row += parts[i].n;
                        logits += parts[i].n_logits;
                }
                drive_step(drive, parts, n_parts + 1, hidden, results);
                memcpy(o.hidden + (size_t)first * d, hidden + (size_t)row * d, (size_t)n * d * sizeof(float));
                for (uint32_t i = 0; i < parts[at].n_logits; i++) {
                        o.results[first + n - parts[at].n_logits + i] = results[logits + i];
                        o.has_result[first + n - parts[at].n_logits + i] = true;
                }
        }
        tdm_vulkan_counters(drive_device(drive, 0), &counters);
        o.logit_blocks = counters.logit_blocks - (restarted ? 0 : blocks_before);
        unsetenv("TANDEM_VULKAN_MEMORY");
        if (v->rows)
                unsetenv("TANDEM_VULKAN_ROWS");
        free(hidden);
        return o;
}

struct outcome run_variant(const uint8_t *weights, const struct variant *v)
{
        struct drive *drive = drive_of(weights, v);
        struct outcome o = run_on(drive, weights, v);

        drive_destroy(drive);
        return o;
}

/* Whether the device has units for rows of F16. */
bool has_f16_units(void)
{
        struct tdm_device_config config = { .n_threads = 1, .heartbeat = &heartbeat };
        struct tdm_device *device;
        bool there;

        assert_int_equal(tdm_vulkan_device_ops.open(&device, &config, NULL), 0);
        there = strstr(tdm_vulkan_device_ops.describe(device), "f16 matrices") != NULL;
        tdm_vulkan_device_ops.close(device);
        if (!there)
                print_message("no matrix units for f16 here\n");
        return there;
}

struct choosers choosers_new(const uint8_t *weights)
{
        return (struct choosers){ .weights = weights,
                                  .few = drive_of(weights, &(struct variant){ "copy" }),
                                  .whole = drive_of(weights, &(struct variant){ "copy", .logits = "whole" }) };
}

void choosers_deinit(struct choosers *c)
{
        drive_destroy(c->few);
        drive_destroy(c->whole);
}

static void check_outcome(const struct variant *base, unsigned i, uint32_t d, uint32_t n, const struct outcome *want,
                          const struct outcome *got)
{
        for (uint32_t row = 0; row < n; row++) {
                const struct tdm_result *a = &want->results[row], *b = &got->results[row];

                if (memcmp(want->hidden + (size_t)row * d, got->hidden + (size_t)row * d, d * sizeof(float)) != 0)
                        fail_msg("%s, variant %u: hidden row of position %u differs", base->kv ? "q8_0" : "f16", i,
                                 row);
                if (want->has_result[row] && got->has_result[row] &&
                    (a->token != b->token || a->n_top != b->n_top ||
                     memcmp(&a->logprob, &b->logprob, sizeof(float)) != 0 ||
                     memcmp(a->top, b->top, b->n_top * sizeof(struct tdm_top)) != 0))
                        fail_msg("variant %u: result of position %u differs", i, row);
        }
}

/* A comparison of nothing with nothing would pass. */
static void check_differs(const struct outcome *o, uint32_t d, uint32_t n_rows)
{
        bool differ = false;

        for (uint32_t i = 1; i < n_rows; i++)
                differ |= memcmp(o->hidden, o->hidden + (size_t)i * d, d * sizeof(float)) != 0;
        assert_true(differ && isfinite(o->hidden[0]));
}

/* Returns how many blocks of logits came to the host of the first. */
uint64_t same_bits(const uint8_t *weights, const struct variant *base, const struct variant *variants,
                   unsigned n_variants)
{
        uint32_t d = tdm_weights_header(weights)->hparams.d_model;
        struct outcome want = run_variant(weights, base);

        check_differs(&want, d, base->n_rows);
        for (unsigned i = 0; i < n_variants; i++) {
                struct outcome got = run_variant(weights, &variants[i]);

                check_outcome(base, i, d, variants[i].n_rows, &want, &got);
                free(got.hidden);
        }
        free(want.hidden);
        return want.logit_blocks;
}

/* The same of two drives that have the model already. */
uint64_t same_results(const struct choosers *c, const struct variant *v)
{
        uint32_t d = tdm_weights_header(c->weights)->hparams.d_model;
        struct outcome few = run_on(c->few, c->weights, v), whole = run_on(c->whole, c->weights, v);

        check_differs(&few, d, v->n_rows);
        check_outcome(v, 0, d, v->n_rows, &few, &whole);
        free(few.hidden);
        free(whole.hidden);
        return few.logit_blocks;
}
