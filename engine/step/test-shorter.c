/* Which rows a shorter step has: those that want logits and what follows them in their sequence, with their places,
 * inputs and pages; none where none is wanted; and no shorter step where all are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/step/shorter.h"

#define N_LAYERS 4u
#define N_OWN 2u /* the layers behind read the keys of the last of these */
#define INPUT_BYTES 3u

static const struct tdm_steps_limits limits = { .max_rows = 16, .max_seqs = 4, .input_bytes = INPUT_BYTES };

static void hparams(struct tdm_hparams *hp, uint32_t n_own)
{
        memset(hp, 0, sizeof(*hp));
        hp->n_layers = N_LAYERS;
        for (uint32_t i = 0; i < N_LAYERS; i++)
                hp->layers[i].kv_layer = TDM_MIN(i, n_own - 1);
}

static struct tdm_shorter *shorter_new(uint32_t max_rows)
{
        static struct tdm_hparams hp;
        struct tdm_shorter *s;

        hparams(&hp, N_OWN);
        assert_int_equal(tdm_shorter_new(&s, &hp, false, max_rows, &limits), 0);
        assert_non_null(s);
        return s;
}

/* Three sequences of 5, 3 and 2 rows; wanted: a bit for each row. */
static struct tdm_step *make_step(uint32_t wanted)
{
        static const uint32_t n_rows[] = { 5, 3, 2 };
        static struct tdm_step_row rows[10];
        static struct tdm_step_seq seqs[3];
        static uint8_t inputs[10 * INPUT_BYTES];
        static uint32_t table[3];
        static struct tdm_step step;
        uint32_t row = 0;

        step = (struct tdm_step){ .head = { .step_id = 7, .n_rows = 10, .n_seqs = 3 },
                                  .rows = rows,
                                  .seqs = seqs,
                                  .inputs = inputs,
                                  .input_bytes = INPUT_BYTES,
                                  .tables = { table },
                                  .table_entries = 1 };
        for (uint32_t seq = 0; seq < 3; seq++) {
                seqs[seq] = (struct tdm_step_seq){ .table = 2 - seq, .first_row = row, .n_rows = n_rows[seq] };
                for (uint32_t i = 0; i < n_rows[seq]; i++, row++) {
                        bool is_wanted = wanted >> row & 1;

                        rows[row] = (struct tdm_step_row){ 100 + row, 20 * seq + i, seq,
                                                           is_wanted ? step.head.n_logits : UINT32_MAX };
                        step.head.n_logits += is_wanted;
                        memset(inputs + (size_t)row * INPUT_BYTES, (int)row, INPUT_BYTES);
                }
        }
        return &step;
}

static void check(struct tdm_shorter *s, uint32_t wanted, const uint32_t *rows, uint32_t n_rows, const uint32_t *firsts,
                  const uint32_t *numbers)
{
        const struct tdm_step *step = make_step(wanted), *got;
        const uint32_t *from = NULL;

        got = tdm_shorter_make(s, step, &from);
        assert_non_null(got);
        assert_int_equal(got->head.n_rows, n_rows);
        assert_int_equal(got->head.n_seqs, 3);
        assert_int_equal(got->head.n_logits, 0);
        assert_int_equal(got->head.step_id, 7);
        assert_ptr_equal(got->tables[0], step->tables[0]);
        for (uint32_t i = 0; i < n_rows; i++) {
                assert_int_equal(from[i], rows[i]);
                assert_memory_equal(&got->rows[i], &step->rows[rows[i]], sizeof(got->rows[i]));
                assert_int_equal(got->inputs[(size_t)i * INPUT_BYTES + INPUT_BYTES - 1], rows[i]);
        }
        for (uint32_t seq = 0; seq < 3; seq++) {
                assert_int_equal(got->seqs[seq].first_row, firsts[seq]);
                assert_int_equal(got->seqs[seq].n_rows, numbers[seq]);
                assert_int_equal(got->seqs[seq].table, step->seqs[seq].table);
        }
}

static void test_rows(void **state)
{
        struct tdm_shorter *s = shorter_new(16);
        const uint32_t *from;

        /* a prompt's last row; none; the first of two, and the one behind it */
        check(s, 1u << 4 | 1u << 8, (const uint32_t[]){ 4, 8, 9 }, 3, (const uint32_t[]){ 0, 1, 1 },
              (const uint32_t[]){ 1, 0, 2 });
        check(s, 1u << 2 | 1u << 7, (const uint32_t[]){ 2, 3, 4, 7 }, 4, (const uint32_t[]){ 0, 3, 4 },
              (const uint32_t[]){ 3, 1, 0 });
        check(s, 0, NULL, 0, (const uint32_t[]){ 0, 0, 0 }, (const uint32_t[]){ 0, 0, 0 });
        assert_null(tdm_shorter_make(s, make_step(1u << 0 | 1u << 5 | 1u << 8), &from));
        tdm_shorter_free(s);
        s = shorter_new(2); /* more than fit */
        assert_null(tdm_shorter_make(s, make_step(1u << 4 | 1u << 8), &from));
        check(s, 1u << 9, (const uint32_t[]){ 9 }, 1, (const uint32_t[]){ 0, 0, 0 }, (const uint32_t[]){ 0, 0, 1 });
        tdm_shorter_free(s);
}

static void test_blocks(void **state)
{
        static struct tdm_hparams hp;
        struct tdm_shorter *s = shorter_new(16);
        uint32_t first, end;

        hparams(&hp, N_OWN);
        tdm_shorter_blocks(s, &first, &end);
        assert_int_equal(tdm_block_kind(&hp, first), TDM_BLOCK_FFN);
        assert_int_equal(tdm_block_layer(first), N_OWN - 1);
        assert_int_equal(tdm_block_kind(&hp, end), TDM_BLOCK_HEAD);
        tdm_shorter_free(s);
        hparams(&hp, N_LAYERS); /* every layer has its own */
        assert_int_equal(tdm_shorter_new(&s, &hp, false, 16, &limits), 0);
        assert_null(s);
        hparams(&hp, N_OWN);
        assert_int_equal(tdm_shorter_new(&s, &hp, true, 16, &limits), 0); /* a mean wants every row */
        assert_null(s);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows), cmocka_unit_test(test_blocks) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
