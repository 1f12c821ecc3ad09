/* The proof of attention on f16 units (prove-attend.c) must accept what is right and refuse what is not, also where no
 * device has such units: the kernels are done here on the CPU, from the same push constants, with faults on demand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu-worker/vulkan/proof/prove-attend.c" /* all of it is its own */

static enum fault {
        NONE,
        SEES_ONE_LESS,
        SEES_PAST_WINDOW,
        OTHER_HEAD,
        FORGETS_A_BLOCK,
        WRONG_SUM,
        WRONG_LARGEST,
        ROUNDS_COARSELY,
        MANY_DIFFER, /* by the last bit of one value */
        /* of the kernel that rotates */
        FORGETS_THE_KEY,
        FORGETS_THE_LOG,
        VALUE_ELSEWHERE,
        ROTATES_OTHERWISE,
        OTHER_ROW, /* angles of the first for all */
        OTHER_GAIN,
        WRONG_FLAG,
        /* of the one for several rows of a sequence */
        FORGETS_OLDER,
        ROWS_OVERLAP, /* flagged words of the second lie where the first's do */
        N_FAULTS
} fault;
static unsigned n_dispatches;
static int dispatch_result;

uint32_t tdm_vk_prove_random(uint64_t *state)
{
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (uint32_t)(*state >> 32);
}

static void attend(const struct tdm_vk_attend_push *p, uint32_t head_dim, const struct tdm_vk_item *item, uint32_t row,
                   uint32_t head)
{
        const struct tdm_vk_row *at = (const struct tdm_vk_row *)p->rows + item->first_row + row;
        const uint32_t *table = (const uint32_t *)p->table + at->seq * p->table_entries;
        uint32_t kv_head = (fault == OTHER_HEAD ? head + 1 : head) % p->n_heads / (p->n_heads / p->n_kv_heads),
                 end = at->position + 1, begin = p->window && end > p->window ? end - p->window : 0;
        const float *query = (const float *)p->qkv +
                             (size_t)((item->first_row + row) * (p->n_heads + 2 * p->n_kv_heads) + head) * head_dim;
        float *to =
                (float *)p->partial + (size_t)(item->slot + row * p->n_heads + head) * TDM_VK_PARTIAL_WIDTH(head_dim);
        double scores[END], largest = -HUGE_VAL, l = 0;

        assert_true(item->span_first <= begin / TDM_VK_SPAN && item->span_last >= at->position / TDM_VK_SPAN);
        assert_true(item->position == at->position - row && item->seq == at->seq);
        /* those of its first span */
        for (uint32_t i = begin / TDM_VK_PAGE_TOKENS; i <= at->position / TDM_VK_PAGE_TOKENS; i++)
                assert_true(i / (TDM_VK_SPAN / TDM_VK_PAGE_TOKENS) != item->span_first ||
                            item->pages[i % (TDM_VK_SPAN / TDM_VK_PAGE_TOKENS)] == table[i]);
        begin -= fault == SEES_PAST_WINDOW && begin > 0;
        end -= fault == SEES_ONE_LESS;
        for (uint32_t i = 0; i < head_dim; i++)
                to[i] = 0;
        for (uint32_t pass = 0; pass < 2; pass++)
                for (uint32_t key = begin; key < end; key++) {
                        uint32_t t = key % TDM_VK_PAGE_TOKENS;
                        const uint16_t *part =
                                (const uint16_t *)(*(const uint64_t *)p->pieces +
                                                   (uint64_t)table[key / TDM_VK_PAGE_TOKENS] * p->page_bytes +
                                                   (uint64_t)kv_head * p->part_bytes);

                        if (fault == FORGETS_A_BLOCK && key / 64 == 3)
                                continue;
                        if (pass == 0) {
                                scores[key] = 0;
                                for (uint32_t d = 0; d < head_dim; d++)
                                        scores[key] +=
                                                (double)(tdm_f16_to_f32(tdm_f32_to_f16(query[d] * p->query_scale)) *
                                                         p->score_scale) *
                                                (double)tdm_f16_to_f32(part[(t / 16 * head_dim + d) * 16 + t % 16]);
                                largest = fmax(largest, scores[key]);
                                continue;
                        }
                        double prob = exp(scores[key] - largest),
                               rounded = fault == ROUNDS_COARSELY ? round(prob * 256) / 256 :
                                                                    (double)tdm_f16_to_f32(tdm_f32_to_f16((float)prob));

                        l += prob;
                        for (uint32_t d = 0; d < head_dim; d++)
                                to[d] += (float)(rounded *
                                                 (double)tdm_f16_to_f32(part[p->part_bytes / 4 + t * head_dim + d]));
                }
        to[head_dim] = (float)largest + (fault == WRONG_LARGEST ? 0.001f : 0);
        to[head_dim + 1] = (float)l * (fault == WRONG_SUM ? 1.01f : 1);
}

/* ---- rows, rotated ---- */

static void rotate_head(const struct tdm_vk_rotate_push *p, uint32_t row, const float *gain, float scale, float sign,
                        float *x)
{
        const float *angles =
                (const float *)p->angles + (size_t)(fault == OTHER_ROW && p->counters == 0 ? 0 : row) * p->head_dim;
        float sum = 0, factor;

        for (uint32_t d = 0; d < p->head_dim; d++)
                sum += x[d] * x[d];
        factor = 1 / sqrtf(sum / (float)p->head_dim + p->eps);
        for (uint32_t d = 0; d < p->head_dim / 2; d++) {
                float left = x[d] * factor * gain[d],
                      right = x[p->head_dim / 2 + d] * factor * gain[p->head_dim / 2 + d], c = angles[d],
                      s = angles[p->head_dim / 2 + d] * sign;

                x[d] = (left * c - right * s) * scale;
                x[p->head_dim / 2 + d] = (right * c + left * s) * scale;
        }
}

/* Into the cache and the log, as engine/step/kv.h has them. */
static void put_head(const struct tdm_vk_rotate_push *p, uint32_t row, uint32_t kv_head, bool is_value, const float *x,
                     bool rotating)
{
        const struct tdm_vk_row *at = (const struct tdm_vk_row *)p->rows + row;
        uint32_t t = at->position % TDM_VK_PAGE_TOKENS,
                 page = ((const uint32_t *)p->table)[at->seq * p->table_entries + at->position / TDM_VK_PAGE_TOKENS];
        uint16_t *part = (uint16_t *)(*(const uint64_t *)p->pieces + (uint64_t)page * p->page_bytes +
                                      (uint64_t)kv_head * p->part_bytes);

        if (rotating && fault == VALUE_ELSEWHERE && is_value)
                t--;
        for (uint32_t d = 0; d < p->head_dim; d++) {
                uint16_t f16 = tdm_f32_to_f16(x[d]);

                if (!(rotating && fault == FORGETS_THE_KEY && !is_value))
                        part[is_value ? p->part_bytes / 4 + t * p->head_dim + d :
                                        (t / 16 * p->head_dim + d) * 16 + t % 16] = f16;
                if (!(rotating && fault == FORGETS_THE_LOG))
                        ((uint16_t *)p->log)[(row * p->n_kv_heads * 2 + 2 * kv_head + is_value) * p->head_dim + d] =
                                f16;
        }
}

static void rotate_row(const struct tdm_vk_rotate_push *p, uint32_t i, float *row, bool rotating)
{
        const float *q_gain = (const float *)p->q_gain,
                    *k_gain = (const float *)(rotating && fault == OTHER_GAIN ? p->q_gain : p->k_gain);

        for (uint32_t head = 0; head < p->n_heads; head++)
                rotate_head(p, i, q_gain, p->query_scale, rotating && fault == ROTATES_OTHERWISE ? -1 : 1,
                            row + head * p->head_dim);
        for (uint32_t head = 0; head < p->n_kv_heads; head++) {
                float *key = row + (p->n_heads + head) * p->head_dim;

                rotate_head(p, i, k_gain, 1, 1, key);
                put_head(p, i, head, false, key, rotating);
                put_head(p, i, head, true, key + p->n_kv_heads * p->head_dim, rotating);
        }
}

static const struct tdm_vk_item *first_item_of(const struct tdm_vk_attend_push *p, uint32_t row)
{
        const struct tdm_vk_item *first = (const struct tdm_vk_item *)p->items;

        while (first->first_row != row)
                first += first->n_items;
        return first;
}

/* Of a row, all items merged: rows of F16, flagged or in a tile. */
static void leave_result(const struct tdm_vk_attend_push *p, uint32_t row, uint32_t head_dim, bool flagged)
{
        struct tdm_vk_item whole = *first_item_of(p, row);
        struct tdm_vk_attend_push push = *p;
        float partial[TDM_VK_PARTIAL_WIDTH(256)];
        uint64_t *words = (uint64_t *)(p->acts + (fault == ROWS_OVERLAP ? 0 : row) * (uint64_t)FLAG_STRIDE);

        whole.span_last = ((const struct tdm_vk_row *)p->rows)[row].position / TDM_VK_SPAN;
        for (uint32_t head = 0; head < p->n_heads; head++) {
                push.partial = (uint64_t)partial - head * TDM_VK_PARTIAL_WIDTH(head_dim) * sizeof(float);
                whole.slot = 0;
                attend(&push, head_dim, &whole, 0, head);
                for (uint32_t d = 0; d < head_dim; d += 2) {
                        uint32_t col = head * head_dim + d, word = col / 2 % 4 * 4 + col / 16 % 2 * 2 + col / 8 % 2;
                        uint32_t both = (uint32_t)tdm_f32_to_f16(partial[d] / partial[head_dim + 1]) |
                                        (uint32_t)tdm_f32_to_f16(partial[d + 1] / partial[head_dim + 1]) << 16;

                        if (flagged)
                                words[col / 64 * 32 + col / 32 % 2 * 16 + word] =
                                        (uint64_t)(fault == WRONG_FLAG ? 1 : 2) << 32 | both;
                        else
                                ((uint32_t *)p->acts)[col / 64 * 256 + col / 32 % 2 * 128 + row * 16 + word] = both;
                }
        }
}

/* As qkv's matrix left it. */
static void take_row(const struct tdm_vk_attend_rotating_push *p, uint32_t row_at, uint32_t n, float *row)
{
        const struct tdm_vk_rotation *rotation = (const struct tdm_vk_rotation *)p->rotation;
        const uint64_t *words =
                (const uint64_t *)(p->chain + TDM_VK_FLAGGED_Y + row_at * (uint64_t)rotation->flag_stride);
        bool flagged = p->chain_wait == TDM_VK_CHAIN_FLAGS;

        memcpy(row, (const float *)rotation->y + (size_t)row_at * n, n * sizeof(*row));
        for (uint32_t i = 0; i < n && flagged; i++) {
                uint32_t bits = (uint32_t)words[i];

                assert_int_equal(words[i] >> 32, 1);
                memcpy(&row[i], &bits, sizeof(bits));
        }
}

static void rotate_and_attend(const struct tdm_vk_attend_rotating_push *p, uint32_t row_at, uint32_t head_dim)
{
        const struct tdm_vk_rotation *rotation = (const struct tdm_vk_rotation *)p->rotation;
        const struct tdm_vk_rotate_push rotate = { .rows = p->rows,
                                                   .table = p->table,
                                                   .angles = p->rows + rotation->angles,
                                                   .q_gain = rotation->q_gain,
                                                   .k_gain = rotation->k_gain,
                                                   .pieces = p->pieces,
                                                   .page_bytes = p->page_bytes,
                                                   .log = p->log,
                                                   .part_bytes = p->part_bytes,
                                                   .n_heads = p->n_heads,
                                                   .n_kv_heads = p->n_kv_heads,
                                                   .head_dim = head_dim,
                                                   .table_entries = p->table_entries,
                                                   .eps = rotation->eps,
                                                   .query_scale = rotation->query_scale };
        bool flagged = p->chain_wait == TDM_VK_CHAIN_FLAGS;
        uint32_t n = (p->n_heads + 2 * p->n_kv_heads) * head_dim, n_before;
        struct tdm_vk_attend_push push;
        float *row = calloc(n, sizeof(*row));

        assert_non_null(row);
        memcpy(&push, p, sizeof(push)); /* all but what differs lies at the same offset: tdm_vk_attend_rotating() */
        assert_true(p->chain && p->chain_index == (flagged ? TDM_VK_CHAIN_FLAGS | 2 : 2));
        n_before = first_item_of(&push, row_at)->n_before;
        for (uint32_t back = n_before; back > 0 && fault != FORGETS_OLDER; back--) {
                take_row(p, row_at - back, n, row);
                rotate_row(&rotate, row_at - back, row, true);
        }
        take_row(p, row_at, n, row);
        rotate_row(&rotate, row_at, row, true);
        push.qkv = (uint64_t)row - (uint64_t)row_at * n * sizeof(*row);
        leave_result(&push, row_at, head_dim, flagged);
        free(row);
}

int tdm_vk_once_dispatch(struct tdm_vk_device *device, const struct tdm_vk_pipeline *pipeline, const void *push,
                         uint32_t push_bytes, uint32_t x, uint32_t y, const char *doing, struct tdm_error *err)
{
        const struct tdm_vk_attend_push *p = push;
        uint32_t heads;

        n_dispatches++;
        if (pipeline->shader == TDM_VK_ROTATE) {
                const struct tdm_vk_rotate_push *rotate = push;

                assert_int_equal(push_bytes, sizeof(*rotate));
                for (uint32_t row = 0; row < y; row++)
                        rotate_row(rotate, row,
                                   (float *)rotate->qkv +
                                           (size_t)row * (rotate->n_heads + 2 * rotate->n_kv_heads) * rotate->head_dim,
                                   false);
                return 0;
        }
        assert_int_equal(push_bytes, sizeof(*p));
        if (p->acts) {
                const struct tdm_vk_item *last = (const struct tdm_vk_item *)p->items + x - 1;

                for (uint32_t row = last->first_row; row != UINT32_MAX; row--) /* none waits for an older one */
                        if (pipeline->constants[2])
                                rotate_and_attend(push, row, pipeline->constants[0]);
                        else
                                leave_result(p, row, pipeline->constants[0], false);
                return 0;
        }
        heads = p->n_heads / y;
        for (uint32_t i = 0; i < x && dispatch_result == 0; i++) {
                const struct tdm_vk_item *item = (const struct tdm_vk_item *)p->items + i;

                for (uint32_t row = 0; row < item->n_rows; row++)
                        for (uint32_t head = 0; head < y * heads; head++)
                                attend(p, pipeline->constants[0], item, row, head);
        }
        if (fault == MANY_DIFFER && pipeline->shader == TDM_VK_ATTEND_F16_WIDE)
                ((uint32_t *)p->partial)[5 * TDM_VK_PARTIAL_WIDTH(pipeline->constants[0]) + 7] ^= 1;
        return dispatch_result;
}

static bool prove(uint32_t head_dim, uint32_t heads, uint32_t many_rows, int want)
{
        struct tdm_vk_device *device = calloc(1, sizeof(*device));
        struct tdm_vk_pipeline single = { .shader = TDM_VK_ATTEND_F16, .constants = { head_dim } },
                               rotate = { .shader = TDM_VK_ROTATE },
                               rotating = { .shader = TDM_VK_ATTEND_F16, .constants = { head_dim, 0, 1 } },
                               several = { .shader = TDM_VK_ATTEND_F16, .constants = { head_dim, 0, 2 } },
                               many = { .shader = TDM_VK_ATTEND_F16_WIDE, .constants = { head_dim } };
        struct tdm_error err = {};
        bool proven;

        assert_non_null(device);
        device->stages[0].size_bytes = TDM_VK_STAGE_BYTES;
        device->stages[0].map = calloc(1, TDM_VK_STAGE_BYTES);
        assert_non_null(device->stages[0].map);
        device->stages[0].address = (uint64_t)device->stages[0].map;
        assert_int_equal(tdm_vk_prove_attend(device, &single, &many, heads, many_rows, &err), want);
        assert_true(single.tried && many.tried && single.proven == many.proven);
        proven = single.proven;
        if (proven) {
                assert_int_equal(tdm_vk_prove_rotating(device, &rotate, &single, &rotating, heads, &err), 0);
                assert_true(rotating.tried);
                assert_int_equal(tdm_vk_prove_rotating(device, &rotate, &single, &several, heads, &err), 0);
                assert_true(several.tried);
                proven = rotating.proven && several.proven;
        }
        free(device->stages[0].map);
        free(device);
        return proven;
}

static void accepted(void **state)
{
        static const uint32_t shapes[][3] = { { 128, 2, 32 }, { 256, 2, 16 }, { 64, 8, 8 }, { 128, 1, 64 } };

        (void)state;
        fault = NONE;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(shapes); i++)
                assert_true(prove(shapes[i][0], shapes[i][1], shapes[i][2], 0));
}

static void refused(void **state)
{
        (void)state;
        for (fault = NONE + 1; fault < N_FAULTS; fault++)
                if (prove(128, 2, 32, 0))
                        fail_msg("fault %d was not seen", fault);
        fault = NONE;
}

/* A device that fails is no proof of either; a kernel that could not be compiled is not tried. */
static void without(void **state)
{
        struct tdm_vk_pipeline single = { .shader = TDM_VK_ATTEND_F16, .constants = { 128 } };
        struct tdm_error err = {};

        (void)state;
        dispatch_result = TDM_E_DEVICE_FAULT;
        assert_false(prove(128, 2, 32, TDM_E_DEVICE_FAULT));
        dispatch_result = 0;
        n_dispatches = 0;
        assert_int_equal(tdm_vk_prove_attend(NULL, &single, NULL, 2, 32, &err), 0);
        assert_int_equal(n_dispatches, 0);
        assert_false(single.proven);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(accepted),
                cmocka_unit_test(refused),
                cmocka_unit_test(without),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
