/* Steps: a good one is copied whole; every single lie in one is refused; random bytes never get past the check with
 * anything that could be indexed with. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>

#include "engine/step/step.h"

static const struct tdm_steps_limits limits = { .max_rows = 40,
                                                .max_seqs = 6,
                                                .max_logits = 8,
                                                .n_tables = 9,
                                                .table_entries = 12,
                                                .mask_words = 1,
                                                .max_pictures = 3 };
static struct tdm_steps_layout layout;
static struct tdm_hparams hp;
static struct tdm_kv_geometry kv;
static uint8_t *base;
static struct tdm_step *step;
static uint64_t state = 88172645463325252u;

static uint32_t rnd(void)
{
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return (uint32_t)(state >> 16);
}

static const struct tdm_step_picture pictures[] = { { 6, 5 }, { 21, 3 } };

/* Three sequences: a prefill chunk far into its context, a decode row, a prefill from 0. Both prefills have a picture.
 */
static void write_step(void)
{
        static const struct {
                uint32_t table, first, n;
        } seqs[] = { { 4, 100, 20 }, { 0, 383, 1 }, { 8, 0, 7 } };
        static const struct tdm_sampling sampling = { .top_p = 1, .repeat_penalty = 1, .n_top = 3 };
        struct tdm_step_head *head = tdm_steps_head(base, &layout, 2);
        struct tdm_step_row *rows = tdm_steps_rows(base, &layout, 2);
        struct tdm_step_logits *logits = tdm_steps_logits(base, &layout, 2);

        memset(base, 0xff, layout.size_bytes);
        tdm_steps_format(base, &layout);
        *head = (struct tdm_step_head){
                .step_id = 77, .epoch = 5, .n_seqs = 3, .n_logits = 2, .n_history = 6, .n_biases = 3, .n_pictures = 2
        };
        for (uint32_t b = 1; b < 2 * hp.n_layers + 1; b += 2)
                head->plan[b] = TDM_WORKER_NPU;
        for (uint32_t s = 0; s < 3; s++) {
                tdm_steps_seqs(base, &layout, 2)[s] =
                        (struct tdm_step_seq){ seqs[s].table, head->n_rows, seqs[s].n, 0 };
                for (uint32_t i = 0; i < seqs[s].n; i++)
                        rows[head->n_rows++] = (struct tdm_step_row){ 11 * s + i, seqs[s].first + i, s, UINT32_MAX };
                for (int group = 0; group < TDM_KV_GROUPS; group++)
                        for (uint32_t i = tdm_window_first(&hp, (enum tdm_kv_group)group, seqs[s].first) /
                                          TDM_KV_PAGE_TOKENS;
                             i <= (seqs[s].first + seqs[s].n - 1) / TDM_KV_PAGE_TOKENS; i++)
                                tdm_steps_table(base, &layout, seqs[s].table, (enum tdm_kv_group)group)[i] = 10 * s + i;
        }
        for (uint32_t p = 0; p < head->n_pictures; p++) {
                tdm_steps_pictures(base, &layout, 2)[p] = pictures[p];
                for (uint32_t i = 0; i < pictures[p].n_rows; i++) {
                        rows[pictures[p].first_row + i].token = 0;
                        rows[pictures[p].first_row + i].picture = p + 1;
                }
        }
        rows[20].logits = 0;
        rows[27].logits = 1;
        logits[0] = (struct tdm_step_logits){ 20, UINT32_MAX, sampling, 0, 4, .n_repeated = 4, .n_biases = 3 };
        logits[1] = (struct tdm_step_logits){ 27, 49, sampling, 4, 2, 6, 1, 2, 1, 2, 0 };
        for (uint32_t i = 0; i < head->n_biases; i++)
                tdm_steps_biases(base, &layout, 2)[i] = (struct tdm_logit_bias){ 10 * i + 9, -1.5f };
        for (uint32_t i = 0; i < head->n_history; i++)
                tdm_steps_history(base, &layout, 2)[i] = 40 + i;
}

static int read_step(struct tdm_error *err)
{
        return tdm_step_read(step, base, &layout, 2, 77, 5, &hp, &kv, err);
}

static void test_good(void **unused)
{
        struct tdm_error err = {};

        write_step();
        assert_int_equal(read_step(&err), 0);
        assert_int_equal(step->head.n_rows, 28);
        assert_memory_equal(step->rows, tdm_steps_rows(base, &layout, 2), 28 * sizeof(*step->rows));
        assert_memory_equal(step->seqs, tdm_steps_seqs(base, &layout, 2), 3 * sizeof(*step->seqs));
        assert_memory_equal(step->pictures, pictures, sizeof(pictures));
        assert_memory_equal(step->logits, tdm_steps_logits(base, &layout, 2), 2 * sizeof(*step->logits));
        assert_memory_equal(step->history, tdm_steps_history(base, &layout, 2), 6 * sizeof(uint32_t));
        assert_int_equal(step->tables[TDM_KV_FULL][0], 0);
        assert_int_equal(step->tables[TDM_KV_FULL][3], 3);
        assert_int_equal(step->tables[TDM_KV_WINDOW][3], 3);
        assert_int_equal(step->tables[TDM_KV_FULL][12 + 11], 21);
        assert_int_equal(step->tables[TDM_KV_WINDOW][12 + 11], 21);
}

/* Each changes one value of the good step. */
static const struct lie {
        const char *what;
        enum { HEAD, ROW, SEQ, PICTURE, LOGITS, HISTORY, BIAS, FULL_TABLE, WINDOW_TABLE } where;
        uint32_t index; /* of the element; for tables: of the entry, in the first sequence's */
        size_t field;
        uint32_t value;
} lies[] = {
        { "step id", HEAD, 0, offsetof(struct tdm_step_head, step_id), 78 },
        { "epoch", HEAD, 0, offsetof(struct tdm_step_head, epoch), 4 },
        { "no rows", HEAD, 0, offsetof(struct tdm_step_head, n_rows), 0 },
        { "fewer rows", HEAD, 0, offsetof(struct tdm_step_head, n_rows), 27 },
        { "more rows", HEAD, 0, offsetof(struct tdm_step_head, n_rows), 29 },
        { "too many rows", HEAD, 0, offsetof(struct tdm_step_head, n_rows), 41 },
        { "all rows", HEAD, 0, offsetof(struct tdm_step_head, n_rows), UINT32_MAX },
        { "no sequences", HEAD, 0, offsetof(struct tdm_step_head, n_seqs), 0 },
        { "fewer sequences", HEAD, 0, offsetof(struct tdm_step_head, n_seqs), 2 },
        { "too many sequences", HEAD, 0, offsetof(struct tdm_step_head, n_seqs), 7 },
        { "fewer logits", HEAD, 0, offsetof(struct tdm_step_head, n_logits), 1 },
        { "more logits", HEAD, 0, offsetof(struct tdm_step_head, n_logits), 3 },
        { "too many logits", HEAD, 0, offsetof(struct tdm_step_head, n_logits), 9 },
        { "less history", HEAD, 0, offsetof(struct tdm_step_head, n_history), 5 },
        { "too much history", HEAD, 0, offsetof(struct tdm_step_head, n_history), 8 * TDM_HISTORY_MAX + 1 },
        { "unknown worker", HEAD, 0, offsetof(struct tdm_step_head, plan), 2 },
        { "head and sample apart", HEAD, 0, offsetof(struct tdm_step_head, plan) + 5, 1 },
        { "token", ROW, 3, offsetof(struct tdm_step_row, token), 50 },
        { "position past the context", ROW, 20, offsetof(struct tdm_step_row, position), 384 },
        { "position at the end of numbers", ROW, 20, offsetof(struct tdm_step_row, position), UINT32_MAX },
        { "gap in positions", ROW, 4, offsetof(struct tdm_step_row, position), 105 },
        { "row of another sequence", ROW, 4, offsetof(struct tdm_step_row, seq), 1 },
        { "row of no sequence", ROW, 4, offsetof(struct tdm_step_row, seq), 3 },
        { "logits of another row", ROW, 4, offsetof(struct tdm_step_row, logits), 0 },
        { "logits of nobody", ROW, 20, offsetof(struct tdm_step_row, logits), 2 },
        { "logits dropped", ROW, 20, offsetof(struct tdm_step_row, logits), UINT32_MAX },
        { "table", SEQ, 1, offsetof(struct tdm_step_seq, table), 9 },
        { "shared table", SEQ, 1, offsetof(struct tdm_step_seq, table), 4 },
        { "first row", SEQ, 1, offsetof(struct tdm_step_seq, first_row), 19 },
        { "first row at the end of numbers", SEQ, 1, offsetof(struct tdm_step_seq, first_row), UINT32_MAX },
        { "second type behind its rows", SEQ, 1, offsetof(struct tdm_step_seq, second_from), UINT32_MAX },
        { "sequence without rows", SEQ, 1, offsetof(struct tdm_step_seq, n_rows), 0 },
        { "sequence of all rows", SEQ, 2, offsetof(struct tdm_step_seq, n_rows), UINT32_MAX },
        { "fewer pictures", HEAD, 0, offsetof(struct tdm_step_head, n_pictures), 1 },
        { "more pictures", HEAD, 0, offsetof(struct tdm_step_head, n_pictures), 3 },
        { "too many pictures", HEAD, 0, offsetof(struct tdm_step_head, n_pictures), 4 },
        { "picture that begins late", PICTURE, 0, offsetof(struct tdm_step_picture, first_row), 7 },
        { "picture that begins early", PICTURE, 0, offsetof(struct tdm_step_picture, first_row), 5 },
        { "picture past all rows", PICTURE, 1, offsetof(struct tdm_step_picture, first_row), 28 },
        { "picture at the end of numbers", PICTURE, 1, offsetof(struct tdm_step_picture, first_row), UINT32_MAX },
        { "picture over another", PICTURE, 1, offsetof(struct tdm_step_picture, first_row), 8 },
        { "picture without rows", PICTURE, 1, offsetof(struct tdm_step_picture, n_rows), 0 },
        { "picture that ends early", PICTURE, 0, offsetof(struct tdm_step_picture, n_rows), 4 },
        { "picture that ends late", PICTURE, 0, offsetof(struct tdm_step_picture, n_rows), 6 },
        { "picture of all rows", PICTURE, 1, offsetof(struct tdm_step_picture, n_rows), UINT32_MAX },
        { "row of no picture within one", ROW, 8, offsetof(struct tdm_step_row, picture), 0 },
        { "row of another picture", ROW, 8, offsetof(struct tdm_step_row, picture), 2 },
        { "row of a picture that is not there", ROW, 3, offsetof(struct tdm_step_row, picture), 3 },
        { "row behind its picture", ROW, 11, offsetof(struct tdm_step_row, picture), 1 },
        { "token of a picture", ROW, 8, offsetof(struct tdm_step_row, token), 7 },
        { "row of logits", LOGITS, 0, offsetof(struct tdm_step_logits, row), 28 },
        { "row of logits past all", LOGITS, 0, offsetof(struct tdm_step_logits, row), 4000 },
        { "target", LOGITS, 1, offsetof(struct tdm_step_logits, target), 50 },
        { "history offset", LOGITS, 1, offsetof(struct tdm_step_logits, history_offset), 5 },
        { "history offset at the end of numbers", LOGITS, 1, offsetof(struct tdm_step_logits, history_offset),
          UINT32_MAX },
        { "history length", LOGITS, 1, offsetof(struct tdm_step_logits, n_history), 3 },
        { "history longer than allowed", LOGITS, 1, offsetof(struct tdm_step_logits, n_history), TDM_HISTORY_MAX + 1 },
        { "less biases", HEAD, 0, offsetof(struct tdm_step_head, n_biases), 2 },
        { "too many biases", HEAD, 0, offsetof(struct tdm_step_head, n_biases), 8 * TDM_MAX_BIASES + 1 },
        { "repeated past", LOGITS, 1, offsetof(struct tdm_step_logits, n_repeated), 3 },
        { "counted past", LOGITS, 1, offsetof(struct tdm_step_logits, n_counted), UINT32_MAX },
        { "bias offset", LOGITS, 1, offsetof(struct tdm_step_logits, bias_offset), 2 },
        { "bias offset at the end of numbers", LOGITS, 1, offsetof(struct tdm_step_logits, bias_offset), UINT32_MAX },
        { "more biases than there are", LOGITS, 1, offsetof(struct tdm_step_logits, n_biases), 3 },
        { "token of a bias", BIAS, 2, offsetof(struct tdm_logit_bias, id), 50 },
        { "bias NaN", BIAS, 0, offsetof(struct tdm_logit_bias, bias), 0x7fc00000 },
        { "bias without end", BIAS, 0, offsetof(struct tdm_logit_bias, bias), 0x7f800000 },
        { "bias above 100", BIAS, 0, offsetof(struct tdm_logit_bias, bias), 0x42c80001 },
        { "bias below -100", BIAS, 0, offsetof(struct tdm_logit_bias, bias), 0xc2c80001 },
        { "temperature NaN", LOGITS, 1, offsetof(struct tdm_step_logits, sampling.temperature), 0x7fc00000 },
        { "mask past the last", LOGITS, 0, offsetof(struct tdm_step_logits, mask), 7 },
        { "alternatives", LOGITS, 1, offsetof(struct tdm_step_logits, sampling.n_top), TDM_MAX_TOP + 1 },
        { "token of the history", HISTORY, 5, 0, 50 },
        { "page", FULL_TABLE, 0, 0, 80 },
        { "missing page", FULL_TABLE, 3, 0, TDM_KV_NO_PAGE },
        { "page of a window layer", WINDOW_TABLE, 3, 0, 70 },
        { "missing page of a window layer", WINDOW_TABLE, 2, 0, TDM_KV_NO_PAGE },
};

static uint8_t *place(const struct lie *lie)
{
        switch (lie->where) {
        case HEAD:
                return (uint8_t *)tdm_steps_head(base, &layout, 2) + lie->field;
        case ROW:
                return (uint8_t *)&tdm_steps_rows(base, &layout, 2)[lie->index] + lie->field;
        case SEQ:
                return (uint8_t *)&tdm_steps_seqs(base, &layout, 2)[lie->index] + lie->field;
        case PICTURE:
                return (uint8_t *)&tdm_steps_pictures(base, &layout, 2)[lie->index] + lie->field;
        case LOGITS:
                return (uint8_t *)&tdm_steps_logits(base, &layout, 2)[lie->index] + lie->field;
        case HISTORY:
                return (uint8_t *)&tdm_steps_history(base, &layout, 2)[lie->index];
        case BIAS:
                return (uint8_t *)&tdm_steps_biases(base, &layout, 2)[lie->index] + lie->field;
        default:
                return (uint8_t *)&tdm_steps_table(base, &layout, 4,
                                                   lie->where == FULL_TABLE ? TDM_KV_FULL : TDM_KV_WINDOW)[lie->index];
        }
}

/* One picture's rows are one sequence's. */
static void test_picture_of_two(void **unused)
{
        struct tdm_error err = {};

        write_step();
        tdm_steps_rows(base, &layout, 2)[20].picture = 2;
        tdm_steps_rows(base, &layout, 2)[20].token = 0;
        tdm_steps_pictures(base, &layout, 2)[1] = (struct tdm_step_picture){ 20, 4 };
        assert_int_equal(read_step(&err), TDM_E_PROTOCOL);
        assert_non_null(strstr(err.message, "row 21 is no row of picture 1"));
}

static void test_lies(void **unused)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(lies); i++) {
                struct tdm_error err = {};
                bool is_byte = lies[i].where == HEAD && lies[i].field >= offsetof(struct tdm_step_head, plan);

                write_step();
                memcpy(place(&lies[i]), &lies[i].value, is_byte ? 1 : 4);
                if (read_step(&err) != TDM_E_PROTOCOL || !err.message[0])
                        fail_msg("accepted: %s", lies[i].what);
        }
}

/* What is not looked at may be anything: pages that have slid out of the window, other slots. */
static void test_not_looked_at(void **unused)
{
        write_step();
        assert_int_equal(tdm_steps_table(base, &layout, 4, TDM_KV_WINDOW)[0], TDM_KV_NO_PAGE);
        assert_int_equal(tdm_steps_table(base, &layout, 0, TDM_KV_WINDOW)[9], TDM_KV_NO_PAGE);
        memset(tdm_steps_head(base, &layout, 1), 0, layout.slot_bytes);
        assert_int_equal(read_step(NULL), 0);
        assert_int_equal(tdm_step_read(step, base, &layout, TDM_STEP_SLOTS, 77, 5, &hp, &kv, NULL), TDM_E_PROTOCOL);
}

/* All that a device indexes with. */
static void assert_safe(void)
{
        uint32_t row = 0;

        assert_true(step->head.n_rows >= 1 && step->head.n_rows <= limits.max_rows);
        assert_true(step->head.n_seqs >= 1 && step->head.n_seqs <= limits.max_seqs);
        assert_true(step->head.n_logits <= limits.max_logits);
        for (uint32_t s = 0; s < step->head.n_seqs; s++) {
                assert_int_equal(step->seqs[s].first_row, row);
                for (uint32_t i = 0; i < step->seqs[s].n_rows; i++, row++) {
                        const struct tdm_step_row *r = &step->rows[row];

                        assert_true(row < step->head.n_rows && r->seq == s && r->token < hp.n_vocab &&
                                    r->position < hp.n_ctx);
                        assert_true(r->logits == UINT32_MAX || r->logits < step->head.n_logits);
                        for (int group = 0; group < TDM_KV_GROUPS; group++)
                                for (uint32_t p = tdm_window_first(&hp, (enum tdm_kv_group)group, r->position) /
                                                  TDM_KV_PAGE_TOKENS;
                                     p <= r->position / TDM_KV_PAGE_TOKENS; p++)
                                        assert_true(step->tables[group][s * step->table_entries + p] <
                                                    kv.n_pages[group]);
                }
        }
        assert_int_equal(row, step->head.n_rows);
        for (row = 0; row < step->head.n_rows; row++) {
                uint32_t p = step->rows[row].picture - 1;

                if (step->rows[row].picture == 0)
                        continue;
                assert_true(p < step->head.n_pictures && row >= step->pictures[p].first_row &&
                            row - step->pictures[p].first_row < step->pictures[p].n_rows);
        }
        for (uint32_t i = 0; i < step->head.n_logits; i++) {
                const struct tdm_step_logits *l = &step->logits[i];

                assert_true(l->row < step->head.n_rows && step->rows[l->row].logits == i);
                assert_true(l->target == UINT32_MAX || l->target < hp.n_vocab);
                assert_true(l->n_history <= TDM_HISTORY_MAX &&
                            (uint64_t)l->history_offset + l->n_history <= step->head.n_history);
                for (uint32_t h = 0; h < l->n_history; h++)
                        assert_true(step->history[l->history_offset + h] < hp.n_vocab);
        }
}

static void test_random(void **unused)
{
        uint32_t n_accepted = 0;

        for (int round = 0; round < 60000; round++) {
                uint64_t slot_bytes = layout.history_offset + 32;

                write_step();
                for (uint32_t n = 1 + rnd() % 3; n > 0; n--) {
                        bool in_table = rnd() % 4 == 0;
                        uint64_t offset = in_table ? layout.tables_offset +
                                                             rnd() % (layout.size_bytes - layout.tables_offset - 4) :
                                                     layout.slot_offset[2] + rnd() % slot_bytes;

                        switch (rnd() % 3) {
                        case 0:
                                base[offset] ^= (uint8_t)(1u << rnd() % 8);
                                break;
                        case 1:
                                base[offset] = (uint8_t)rnd();
                                break;
                        default:
                                *(uint32_t *)(base + (offset & ~UINT64_C(3))) = rnd() % 3 ? rnd() % 64 : rnd();
                        }
                }
                if (read_step(NULL) == 0) {
                        assert_safe();
                        n_accepted++;
                }
        }
        print_message("%u of 60000 damaged steps were harmless\n", n_accepted);
        assert_true(n_accepted >= 1 && n_accepted <= 59999);

        for (uint64_t i = 0; i < layout.slot_bytes; i++) /* and pure noise behind a good id */
                base[layout.slot_offset[2] + i] = (uint8_t)rnd();
        tdm_steps_head(base, &layout, 2)->step_id = 77;
        tdm_steps_head(base, &layout, 2)->epoch = 5;
        assert_int_equal(read_step(NULL), TDM_E_PROTOCOL);
}

/* ---- bursts ---- */

static const struct {
        uint32_t table, first, n, n_burst;
} bursts[] = { { 4, 106, 20, 3 }, { 0, 200, 1, 0 }, { 8, 0, 7, 2 } };

/* All draw; the first and the last draw on. Together they fill the results. */
static void write_bursts(void)
{
        static const struct tdm_sampling sampling = {
                .top_p = 1, .repeat_penalty = 1.5f, .frequency_penalty = 0.5f, .seed = 3
        };
        struct tdm_step_head *head = tdm_steps_head(base, &layout, 2);

        memset(base, 0xff, layout.size_bytes);
        tdm_steps_format(base, &layout);
        *head = (struct tdm_step_head){ .step_id = 77, .epoch = 5, .n_seqs = 3, .n_logits = 3, .n_history = 16 };
        for (uint32_t s = 0; s < 3; s++) {
                tdm_steps_seqs(base, &layout, 2)[s] =
                        (struct tdm_step_seq){ bursts[s].table, head->n_rows, bursts[s].n, bursts[s].n_burst };
                for (uint32_t i = 0; i < bursts[s].n; i++)
                        tdm_steps_rows(base, &layout, 2)[head->n_rows++] =
                                (struct tdm_step_row){ i, bursts[s].first + i, s, UINT32_MAX };
                tdm_steps_rows(base, &layout, 2)[head->n_rows - 1].logits = s;
                tdm_steps_logits(base, &layout, 2)[s] =
                        (struct tdm_step_logits){ head->n_rows - 1, UINT32_MAX,     sampling,        5 * s + (s > 0), 3,
                                                  .n_repeated = 3,  .n_counted = 1, .repeat_last = 4 };
                for (int g = 0; g < TDM_KV_GROUPS; g++)
                        for (uint32_t i =
                                     tdm_window_first(&hp, (enum tdm_kv_group)g, bursts[s].first) / TDM_KV_PAGE_TOKENS;
                             i <= (bursts[s].first + bursts[s].n + bursts[s].n_burst - 1) / TDM_KV_PAGE_TOKENS; i++)
                                tdm_steps_table(base, &layout, bursts[s].table, (enum tdm_kv_group)g)[i] = 10 * s + i;
        }
        for (uint32_t i = 0; i < head->n_history; i++)
                tdm_steps_history(base, &layout, 2)[i] = 10 + i;
}

static void draw(struct tdm_result *ret, uint32_t pass)
{
        for (uint32_t i = 0; i < step->head.n_logits; i++)
                ret[i] = (struct tdm_result){ .token = 30 + 4 * pass + i, .logprob = -(float)(4 * pass + i) };
}

/* The rows, pasts and results of each pass are those of a step of its own. */
static void test_bursts(void **unused)
{
        struct tdm_result drawn[8], results[8] = {};
        uint32_t pass = 0;
        int r;

        write_bursts();
        assert_int_equal(read_step(NULL), 0);
        assert_int_equal(step->n_burst, 5);
        do {
                uint32_t n = pass == 0 ? 3 : pass < 3 ? 2 : 1;

                assert_int_equal(step->head.n_logits, n);
                assert_int_equal(step->head.n_seqs, n);
                for (uint32_t i = 0; i < n && pass > 0; i++) {
                        const struct tdm_step_row *row = &step->rows[i];
                        const struct tdm_step_logits *l = &step->logits[i];
                        uint32_t s = i == 0 ? 0 : 2, of = pass == 1 ? s : i, past[8], n_past = 3;

                        assert_int_equal(row->token, 30 + 4 * (pass - 1) + of);
                        assert_int_equal(row->position, bursts[s].first + bursts[s].n - 1 + pass);
                        assert_int_equal(step->seqs[i].table, bursts[s].table);
                        assert_int_equal(step->tables[TDM_KV_FULL][i * 12 + row->position / TDM_KV_PAGE_TOKENS],
                                         10 * s + row->position / TDM_KV_PAGE_TOKENS);
                        assert_int_equal(l->sampling.seed, 3);
                        assert_int_equal(l->n_repeated, 4);
                        assert_int_equal(l->n_counted, 1 + pass);
                        assert_int_equal(l->n_history, 4);
                        for (uint32_t k = 0; k < 3; k++)
                                past[k] = 10 + 5 * s + (s > 0) + k;
                        for (uint32_t k = 0; k < pass; k++)
                                past[n_past++] = 30 + 4 * k + (k == 0 ? s : i);
                        assert_memory_equal(step->history + l->history_offset, past + n_past - 4, 4 * sizeof(*past));
                }
                draw(drawn, pass);
                tdm_step_take(step, drawn, results);
                r = tdm_step_next_pass(step, drawn, &hp);
                pass++;
        } while (r > 0);
        assert_int_equal(r, 0);
        assert_int_equal(pass, 4);
        for (uint32_t i = 0; i < 3; i++)
                assert_int_equal(results[i].token, 30 + i);
        for (uint32_t i = 0; i < 3; i++)
                assert_int_equal(results[3 + i].token, 30 + 4 * (i + 1));
        for (uint32_t i = 0; i < 2; i++)
                assert_int_equal(results[6 + i].token, 30 + 4 * (i + 1) + 1);

        write_bursts();
        assert_int_equal(read_step(NULL), 0);
        draw(drawn, 0);
        drawn[2].token = hp.n_vocab;
        assert_int_equal(tdm_step_next_pass(step, drawn, &hp), -EPROTO);
}

/* Behind its second token the first sequence's doubts are more than they may be. The last sequence draws on. */
static void test_burst_ends(void **unused)
{
        struct tdm_result drawn[8], results[8] = {};
        struct tdm_step_seq *seqs;
        uint32_t pass = 0, doubt = 0;

        write_bursts();
        seqs = tdm_steps_seqs(base, &layout, 2);
        for (uint32_t c = 0; c < TDM_CERTAINTIES; c++)
                seqs[0].doubts[c] = (uint8_t)(10 - c);
        seqs[0].most_doubt[0] = 10;
        seqs[0].most_doubt[1] = 11;
        seqs[0].most_doubt[2] = 255;
        for (uint32_t i = 0; i < 8; i++)
                results[i].token = 999;
        assert_int_equal(read_step(NULL), 0);
        do {
                assert_int_equal(step->head.n_seqs, 3 - pass);
                assert_int_equal(step->seqs[step->head.n_seqs - 1].table, bursts[2].table);
                draw(drawn, pass);
                drawn[0].logprob = -0.4f; /* the sixth class: 5 */
                if (pass == 1)
                        drawn[0].logprob = -1; /* the fourth: 7, which is one too much */
                tdm_step_take(step, drawn, results);
                pass++;
        } while (tdm_step_next_pass(step, drawn, &hp) > 0);
        assert_int_equal(pass, 3);
        assert_int_equal(results[3].token, 34);
        assert_int_equal(results[4].token, 999);
        assert_int_equal(results[5].token, 999);
        assert_int_equal(results[6].token, 35);
        assert_int_equal(results[7].token, 38);
        assert_false(tdm_step_burst_ends(&seqs[0], 0, -0.4f, &doubt));
        assert_true(tdm_step_burst_ends(&seqs[0], 1, -1, &doubt));
        doubt = 0;
        assert_false(tdm_step_burst_ends(&seqs[0], 0, -0.4f, &doubt));
        assert_false(tdm_step_burst_ends(&seqs[0], 1, -0.4f, &doubt));
        assert_true(tdm_step_burst_ends(&seqs[0], 1, NAN, &doubt));
}

static const struct lie burst_lies[] = {
        { "more than fit", SEQ, 2, offsetof(struct tdm_step_seq, n_burst), 3 },
        { "more than are allowed", SEQ, 0, offsetof(struct tdm_step_seq, n_burst), TDM_MAX_BURST + 1 },
        { "without end", SEQ, 0, offsetof(struct tdm_step_seq, n_burst), UINT32_MAX },
        { "on both workers", HEAD, 0, offsetof(struct tdm_step_head, plan) + 1, 1 },
        { "in a relay", HEAD, 0, offsetof(struct tdm_step_head, marks), 1 },
        { "with a mask", LOGITS, 0, offsetof(struct tdm_step_logits, mask), 1 },
        { "with a target", LOGITS, 0, offsetof(struct tdm_step_logits, target), 1 },
        { "without room for its past", HEAD, 0, offsetof(struct tdm_step_head, n_history), 15 },
        { "longer past than allowed", LOGITS, 0, offsetof(struct tdm_step_logits, repeat_last), TDM_HISTORY_MAX + 1 },
        { "missing page", FULL_TABLE, 4, 0, TDM_KV_NO_PAGE },
        { "missing page of a window layer", WINDOW_TABLE, 4, 0, 70 },
};

static void test_burst_lies(void **unused)
{
        struct tdm_error err = {};

        for (size_t i = 0; i < TDM_ARRAY_SIZE(burst_lies); i++) {
                bool is_byte =
                        burst_lies[i].where == HEAD && burst_lies[i].field >= offsetof(struct tdm_step_head, plan);

                write_bursts();
                memcpy(place(&burst_lies[i]), &burst_lies[i].value, is_byte ? 1 : 4);
                if (read_step(&err) != TDM_E_PROTOCOL || !err.message[0])
                        fail_msg("accepted: a burst %s", burst_lies[i].what);
        }
        write_bursts(); /* behind a row that draws nothing */
        tdm_steps_rows(base, &layout, 2)[27].logits = UINT32_MAX;
        tdm_steps_head(base, &layout, 2)->n_logits = 2;
        assert_int_equal(read_step(&err), TDM_E_PROTOCOL);
        write_bursts(); /* past the context */
        for (uint32_t i = 0; i < 20; i++)
                tdm_steps_rows(base, &layout, 2)[i].position = hp.n_ctx - 22 + i;
        for (uint32_t i = 0; i < 12; i++)
                for (int g = 0; g < TDM_KV_GROUPS; g++)
                        tdm_steps_table(base, &layout, 4, (enum tdm_kv_group)g)[i] = i;
        assert_int_equal(read_step(&err), TDM_E_PROTOCOL);
        assert_non_null(strstr(err.message, "past the context"));
        write_bursts(); /* logits in another order than rows */
        tdm_steps_rows(base, &layout, 2)[19].logits = 1;
        tdm_steps_rows(base, &layout, 2)[20].logits = 0;
        tdm_steps_logits(base, &layout, 2)[0].row = 20;
        tdm_steps_logits(base, &layout, 2)[1].row = 19;
        assert_int_equal(read_step(&err), TDM_E_PROTOCOL);
}

/* Damaged bursts that are accepted stay within the copy, whatever is drawn. */
static void test_random_bursts(void **unused)
{
        struct tdm_result drawn[8] = {}, results[8];
        uint32_t n_passes = 0;

        for (int round = 0; round < 60000; round++) {
                uint64_t slot_bytes = layout.history_offset + 64;

                write_bursts();
                for (uint32_t n = 1 + rnd() % 3; n > 0; n--) {
                        uint64_t offset = (layout.slot_offset[2] + rnd() % slot_bytes) & ~UINT64_C(3);

                        *(uint32_t *)(base + offset) = rnd() % 3 ? rnd() % 64 : rnd();
                }
                if (read_step(NULL) != 0)
                        continue;
                do {
                        assert_safe();
                        for (uint32_t i = 0; i < step->head.n_logits; i++) {
                                assert_true(step->n_passes == 0 || step->bursts[i].at <= limits.max_logits);
                                drawn[i].token = rnd() % (hp.n_vocab + rnd() % 2);
                                drawn[i].n_top = rnd();
                        }
                        tdm_step_take(step, drawn, results);
                        n_passes++;
                } while (tdm_step_next_pass(step, drawn, &hp) > 0);
        }
        assert_true(n_passes > 60000);
}

static void test_segment(void **unused)
{
        struct tdm_steps_limits got = {}, bad;
        struct tdm_steps_header *header = (struct tdm_steps_header *)base;
        struct tdm_error err = {};

        write_step();
        assert_int_equal(tdm_steps_check(base, layout.size_bytes, &got, &err), 0);
        assert_memory_equal(&got, &limits, sizeof(got));
        assert_int_equal(tdm_steps_check(base, layout.size_bytes - 1, &got, &err), TDM_E_PROTOCOL);
        assert_int_equal(tdm_steps_check(base, 3, &got, &err), TDM_E_PROTOCOL);
        header->magic ^= 1;
        assert_int_equal(tdm_steps_check(base, layout.size_bytes, &got, &err), TDM_E_PROTOCOL);
        header->magic ^= 1;
        header->abi++;
        assert_int_equal(tdm_steps_check(base, layout.size_bytes, &got, &err), TDM_E_PROTOCOL);
        header->abi--;
        header->limits.max_rows++; /* the size no longer fits */
        header->limits.table_entries += 512;
        assert_int_equal(tdm_steps_check(base, layout.size_bytes, &got, &err), TDM_E_PROTOCOL);

        for (int i = 0; i < 5; i++) {
                bad = limits;
                ((uint32_t *)&bad)[i] = 0;
                assert_int_equal(tdm_steps_limits_check(&bad, &err), TDM_E_PROTOCOL);
                ((uint32_t *)&bad)[i] = UINT32_MAX;
                assert_int_equal(tdm_steps_limits_check(&bad, &err), TDM_E_PROTOCOL);
        }
        bad = limits;
        bad.max_logits = bad.max_seqs - 1;
        assert_int_equal(tdm_steps_limits_check(&bad, &err), TDM_E_PROTOCOL);
        bad = (struct tdm_steps_limits){ TDM_MAX_STEP_ROWS, TDM_MAX_STEP_SEQS, TDM_MAX_STEP_LOGITS, 65536, 32768 };
        assert_int_equal(tdm_steps_limits_check(&bad, &err), 0);
        bad.mask_words = UINT32_MAX;
        assert_int_equal(tdm_steps_limits_check(&bad, &err), TDM_E_PROTOCOL);
}

static void *publish_late(void *unused)
{
        const uint64_t words[] = { 0x123 };

        usleep(20000);
        tdm_steps_publish(base, &layout, 2, 5, 77, words, 1);
        return NULL;
}

/* A mask is looked for when it is wanted, and only that of this step counts. */
static void test_masks(void **unused)
{
        const uint64_t words[] = { 0xabc }, *got = words, soon = tdm_now_ns();
        const uint64_t long_ns = UINT64_C(10) * TDM_NSEC_PER_SEC;
        struct tdm_error err = {};
        pthread_t thread;

        write_step();
        assert_int_equal(read_step(&err), 0);
        assert_true(tdm_step_mask(step, 0, soon, &got)); /* has none */
        assert_null(got);
        assert_false(tdm_step_mask(step, 1, soon, &got)); /* has not come */
        tdm_steps_publish(base, &layout, 2, 5, 76, words, 1);
        assert_false(tdm_step_mask(step, 1, soon, &got)); /* another step's */
        tdm_steps_publish(base, &layout, 2, 4, 77, words, 1);
        assert_false(tdm_step_mask(step, 1, soon, &got)); /* another row's */
        tdm_steps_publish(base, &layout, 2, 5, 77, NULL, 0);
        assert_false(tdm_step_mask(step, 1, UINT64_MAX, &got)); /* there will be none: does not wait */
        assert_null(got);
        tdm_steps_publish(base, &layout, 2, 5, 77, words, 1);
        assert_true(tdm_step_mask(step, 1, soon, &got));
        assert_true(*got == 0xabc);

        tdm_steps_publish(base, &layout, 2, 5, 76, words, 1);
        assert_int_equal(pthread_create(&thread, NULL, publish_late, NULL), 0);
        assert_true(tdm_step_mask(step, 1, tdm_now_ns() + long_ns, &got));
        assert_true(*got == 0x123);
        pthread_join(thread, NULL);

        hp.n_vocab = 65; /* needs another word */
        assert_int_equal(read_step(&err), TDM_E_PROTOCOL);
        hp.n_vocab = 50;
}

/* A mask with fewer words than the slot has room for, and one with more. */
static void test_masks_of_other_sizes(void **unused)
{
        struct tdm_steps_limits wide = limits;
        struct tdm_steps_layout l;
        _cleanup_(freep) uint64_t *words = malloc(2 * sizeof(*words)), *many = calloc(8, sizeof(*many));
        _cleanup_(freep) uint8_t *segment = NULL;
        const uint64_t *mask;

        wide.mask_words = 4096;
        tdm_steps_layout(&wide, &l);
        segment = malloc(l.size_bytes);
        assert_true(words && many && segment);
        memset(segment, 0xff, l.size_bytes);
        mask = tdm_steps_mask(segment, &l, 1, 2);
        words[0] = 5;
        words[1] = 6;
        tdm_steps_publish(segment, &l, 1, 2, 77, words, 2);
        assert_true(mask[0] == 5 && mask[1] == 6);
        for (uint32_t i = 2; i < wide.mask_words; i++)
                assert_true(mask[i] == 0);
        assert_true(mask[wide.mask_words] == UINT64_MAX); /* the next mask */

        wide.mask_words = 2;
        tdm_steps_layout(&wide, &l);
        memset(segment, 0xff, l.size_bytes);
        mask = tdm_steps_mask(segment, &l, 1, 2);
        tdm_steps_publish(segment, &l, 1, 2, 77, many, 8);
        assert_true(mask[0] == 0 && mask[1] == 0 && mask[2] == UINT64_MAX);
}

/* Parts of a slot neither overlap nor leave it. */
static void test_layout(void **unused)
{
        assert_true(layout.rows_offset >= sizeof(struct tdm_step_head));
        assert_true(layout.seqs_offset >= layout.rows_offset + limits.max_rows * sizeof(struct tdm_step_row));
        assert_true(layout.logits_offset >= layout.seqs_offset + limits.max_seqs * sizeof(struct tdm_step_seq));
        assert_true(layout.history_offset >= layout.logits_offset + limits.max_logits * sizeof(struct tdm_step_logits));
        assert_true(layout.biases_offset >=
                    layout.history_offset + limits.max_logits * TDM_HISTORY_MAX * sizeof(uint32_t));
        assert_true(layout.published_offset >=
                    layout.biases_offset + limits.max_logits * TDM_MAX_BIASES * sizeof(struct tdm_logit_bias));
        assert_true(layout.masks_offset >= layout.published_offset + limits.max_seqs * sizeof(uint64_t));
        assert_true(layout.slot_bytes >=
                    layout.masks_offset + (uint64_t)limits.max_seqs * limits.mask_words * sizeof(uint64_t));
        for (uint32_t i = 0; i < TDM_STEP_SLOTS; i++) {
                uint64_t end = i + 1 < TDM_STEP_SLOTS ? layout.slot_offset[i + 1] : layout.tables_offset;

                assert_true(layout.slot_offset[i] >= sizeof(struct tdm_steps_header) &&
                            layout.slot_offset[i] % 64 == 0);
                assert_true(end - layout.slot_offset[i] >= layout.slot_bytes);
        }
        assert_true(layout.size_bytes - layout.tables_offset >=
                    limits.n_tables * TDM_KV_GROUPS * limits.table_entries * 4);
        assert_true(layout.results_slot_bytes >= limits.max_logits * sizeof(struct tdm_result));
}

/* A layer keeps a state: the pages of the good step, and each value that cannot be. */
static void test_states(void **unused)
{
        static const struct tdm_step_state good[] = { { 0, 1, 8, 19 },
                                                      { 2, 3, TDM_KV_NO_PAGE, 0 },
                                                      { TDM_KV_NO_PAGE, 4, 5, 1 } };
        static const struct {
                const char *what;
                uint32_t seq;
                struct tdm_step_state state;
        } bad[] = {
                { "reads none behind the beginning", 0, { TDM_KV_NO_PAGE, 1, 8, 19 } },
                { "reads one at the beginning", 2, { 6, 4, 5, 1 } },
                { "reads a page that is not there", 0, { 9, 1, 8, 19 } },
                { "writes a page that is not there", 0, { 0, 9, 8, 19 } },
                { "writes none", 0, { 0, TDM_KV_NO_PAGE, 8, 19 } },
                { "writes what it reads", 0, { 1, 1, 8, 19 } },
                { "keeps what it reads", 0, { 0, 1, 0, 19 } },
                { "keeps what it writes", 0, { 0, 1, 1, 19 } },
                { "keeps a page that is not there", 0, { 0, 1, 9, 19 } },
                { "keeps no rows", 0, { 0, 1, 8, 0 } },
                { "keeps all rows", 0, { 0, 1, 8, 20 } },
                { "keeps the most rows", 0, { 0, 1, 8, UINT32_MAX } },
                { "keeps rows and no page", 1, { 2, 3, TDM_KV_NO_PAGE, 1 } },
        };
        struct tdm_kv_geometry without = kv;
        struct tdm_step_seq *seqs = tdm_steps_seqs(base, &layout, 2);
        struct tdm_error err = {};

        hp.layers[1].n_state = 64;
        assert_int_equal(tdm_kv_geometry_init(&kv, &hp, TDM_KV_F16, 80, 70, 9), 0);
        write_step();
        for (uint32_t i = 0; i < 3; i++)
                seqs[i].state = good[i];
        assert_int_equal(read_step(&err), 0);
        assert_memory_equal(&step->seqs[0].state, &good[0], sizeof(good[0]));
        for (size_t i = 0; i < TDM_ARRAY_SIZE(bad); i++) {
                seqs[bad[i].seq].state = bad[i].state;
                if (read_step(&err) != TDM_E_PROTOCOL || !strstr(err.message, "state"))
                        fail_msg("accepted: %s", bad[i].what);
                seqs[bad[i].seq].state = good[bad[i].seq];
        }
        assert_int_equal(read_step(&err), 0);
        hp.layers[1].n_state = 0;
        kv = without;
}

static int setup(void **unused)
{
        hp = (struct tdm_hparams){ .n_layers = 2,
                                   .d_model = 32,
                                   .n_heads = 2,
                                   .n_kv_heads = 1,
                                   .head_dim = 16,
                                   .d_ff = 64,
                                   .n_vocab = 50,
                                   .n_ctx = 384,
                                   .window = 40 };
        tdm_hparams_all_layers(&hp);
        hp.layers[1].window = 0;
        tdm_steps_layout(&limits, &layout);
        if (tdm_kv_geometry_init(&kv, &hp, TDM_KV_F16, 80, 70, 0) < 0 || tdm_step_new(&step, &limits) < 0)
                return -1;
        base = aligned_alloc(4096, layout.size_bytes);
        return base ? 0 : -1;
}

static int teardown(void **unused)
{
        free(base);
        tdm_step_destroy(step);
        return 0;
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_good),
                cmocka_unit_test(test_picture_of_two),
                cmocka_unit_test(test_lies),
                cmocka_unit_test(test_not_looked_at),
                cmocka_unit_test(test_random),
                cmocka_unit_test(test_segment),
                cmocka_unit_test(test_layout),
                cmocka_unit_test(test_masks),
                cmocka_unit_test(test_masks_of_other_sizes),
                cmocka_unit_test(test_bursts),
                cmocka_unit_test(test_burst_ends),
                cmocka_unit_test(test_burst_lies),
                cmocka_unit_test(test_random_bursts),
                cmocka_unit_test(test_states),
        };

        return cmocka_run_group_tests(tests, setup, teardown);
}
