/* The attention for f16 matrix units (attend-f16.comp, attend-f16-wide.comp) is only used where it is proven, as the
 * matrix kernels are (prove-f16.c): the one for single rows must attend as the definition says, to what f16 leaves of
 * it, and the one for many rows must give its bits. What they are given: a sequence in pages that do not lie in order,
 * rows that look back over two spans, with a window and without, and more rows than one workgroup takes. The one that
 * rotates rows itself must give what rotate.comp and the one for single rows do: the same result, the same key and
 * value in the cache and in the log. The kernel for several rows of a sequence must give them too, also
 * over the end of a span, where an item has one row or all. */
#include <math.h>

#include "common/f16.h"
#include "gpu-worker/vulkan/memory/kv.h"
#include "gpu-worker/vulkan/proof/proof.h"

#define N_KV_HEADS 2u
#define N_ROWS 70u
#define FIRST 230u
#define END (FIRST + N_ROWS)
#define N_PAGES TDM_DIV_UP(END, TDM_KV_PAGE_TOKENS)
#define SERIAL (5 * TDM_VK_LAYERS_MAX) /* of the step of rows that are rotated */
#define N_SEQS 2u                      /* the second for a second row that is rotated */
#define WINDOW 100u
#define QUERY_SCALE 4096.0f
static const char what[] = "proving attention";
enum place { PAGES, QKV, ITEMS, SINGLE, MANY, CHAIN, KEPT, N_PLACES };
#define PLACE (UINT64_C(2) << 20)     /* of each thing in the staging buffer */
#define PARTIAL (UINT64_C(512) << 10) /* in SINGLE and MANY: behind the arrivals */

static_assert(N_PLACES * PLACE <= TDM_VK_STAGE_BYTES, "everything fits the staging buffer");

struct shape {
        uint32_t head_dim, heads, n_heads; /* heads: of an item */
};

static uint32_t width_of(const struct shape *s)
{
        return (s->n_heads + 2 * N_KV_HEADS) * s->head_dim;
}

static uint32_t part_bytes_of(const struct shape *s)
{
        return 2 * TDM_KV_PAGE_TOKENS * s->head_dim * (uint32_t)sizeof(uint16_t);
}

static uint32_t page_of(uint32_t i)
{
        return (i * 7 + 3) % N_PAGES; /* 10 pages: each once */
}

static const uint16_t *page_part_of(const struct tdm_vk_device *device, const struct shape *s, uint32_t kv_head,
                                    uint32_t key)
{
        return (const uint16_t *)(device->stages[0].map + PAGES * PLACE +
                                  (page_of(key / TDM_KV_PAGE_TOKENS) * N_KV_HEADS + kv_head) *
                                          (uint64_t)part_bytes_of(s));
}

/* engine/step/kv.h: keys [16 tokens][dimension][token], values [token][dimension]. */
static double key_at(const struct tdm_vk_device *device, const struct shape *s, uint32_t kv_head, uint32_t key,
                     uint32_t d)
{
        uint32_t t = key % TDM_KV_PAGE_TOKENS;

        return (double)tdm_f16_to_f32(page_part_of(device, s, kv_head, key)[(t / 16 * s->head_dim + d) * 16 + t % 16]);
}

static double value_at(const struct tdm_vk_device *device, const struct shape *s, uint32_t kv_head, uint32_t key,
                       uint32_t d)
{
        return (double)tdm_f16_to_f32(
                page_part_of(device, s, kv_head,
                             key)[TDM_KV_PAGE_TOKENS * s->head_dim + key % TDM_KV_PAGE_TOKENS * s->head_dim + d]);
}

/* Scores of about 5, so that some keys count and none counts for all. */
static float query_value(uint64_t *state)
{
        return (float)((int)(tdm_vk_prove_random(state) % 2001) - 1000) / 1500.0f;
}

static void random_inputs(struct tdm_vk_device *device, const struct shape *s)
{
        uint8_t *map = device->stages[0].map;
        uint16_t *pages = (uint16_t *)(map + PAGES * PLACE);
        float *qkv = (float *)(map + QKV * PLACE);
        uint64_t state = 1;

        /* of either sign, 2^-4 to 2 */
        for (uint32_t i = 0; i < N_SEQS * N_PAGES * N_KV_HEADS * part_bytes_of(s) / sizeof(uint16_t); i++)
                pages[i] = (uint16_t)((11 + tdm_vk_prove_random(&state) % 5) << 10 |
                                      (tdm_vk_prove_random(&state) & 0x83ff));
        for (uint32_t i = 0; i < N_ROWS * width_of(s); i++)
                qkv[i] = query_value(&state);
}

/* In ITEMS: rows, pieces, a table, then items. */
#define ROWS_AT 0u
#define PIECES_AT 16384u
#define TABLE_AT 32768u
#define ITEMS_AT 65536u

static void put_step(struct tdm_vk_device *device)
{
        uint8_t *map = device->stages[0].map + ITEMS * PLACE;

        for (uint32_t i = 0; i < N_ROWS; i++)
                ((struct tdm_vk_row *)(map + ROWS_AT))[i] = (struct tdm_vk_row){ .position = FIRST + i };
        *(uint64_t *)(map + PIECES_AT) = device->stages[0].address + PAGES * PLACE;
        for (uint32_t i = 0; i < N_SEQS * N_PAGES; i++)
                ((uint32_t *)(map + TABLE_AT))[i] = i / N_PAGES * N_PAGES + page_of(i % N_PAGES);
}

/* As tdm_first_seen() in common.glsl. */
static uint32_t first_seen(uint32_t position, uint32_t window)
{
        return window && position + 1 > window ? position + 1 - window : 0;
}

/* Writes items of `most` rows each. With n_items 2, a single row's kernel leaves the merge to an item that never comes.
 */
static uint32_t put_items(struct tdm_vk_device *device, const struct shape *s, uint32_t window, uint32_t most)
{
        struct tdm_vk_item *items = (struct tdm_vk_item *)(device->stages[0].map + ITEMS * PLACE + ITEMS_AT);
        const uint32_t *table = (const uint32_t *)(device->stages[0].map + ITEMS * PLACE + TABLE_AT);
        uint32_t n = 0;

        for (uint32_t row = 0; row < N_ROWS; row += most, n++) {
                uint32_t n_rows = TDM_MIN(most, N_ROWS - row), seen = first_seen(FIRST + row, window);

                items[n] = (struct tdm_vk_item){ .first_row = row,
                                                 .n_rows = n_rows,
                                                 .span_first = seen / TDM_VK_SPAN,
                                                 .span_last = (FIRST + row + n_rows - 1) / TDM_VK_SPAN,
                                                 .slot = row * s->n_heads,
                                                 .first_slot = row * s->n_heads,
                                                 .n_items = 2,
                                                 .position = FIRST + row,
                                                 .end = FIRST + row + n_rows };
                tdm_vk_item_pages(&items[n], table, seen);
        }
        return n;
}

static struct tdm_vk_attend_push push_of(const struct tdm_vk_device *device, const struct shape *s, uint32_t window,
                                         enum place place)
{
        uint64_t base = device->stages[0].address;

        return (struct tdm_vk_attend_push){ .qkv = base + QKV * PLACE,
                                            .rows = base + ITEMS * PLACE + ROWS_AT,
                                            .table = base + ITEMS * PLACE + TABLE_AT,
                                            .items = base + ITEMS * PLACE + ITEMS_AT,
                                            .partial = base + place * PLACE + PARTIAL,
                                            .pieces = base + ITEMS * PLACE + PIECES_AT,
                                            .page_bytes = part_bytes_of(s) * N_KV_HEADS,
                                            .piece_shift = 20,
                                            .part_bytes = part_bytes_of(s),
                                            .n_heads = s->n_heads,
                                            .n_kv_heads = N_KV_HEADS,
                                            .table_entries = N_PAGES,
                                            .window = window,
                                            .act_scale = 1,
                                            .query_scale = QUERY_SCALE,
                                            .score_scale = 1 / QUERY_SCALE };
}

static int run_kernel(struct tdm_vk_device *device, const struct tdm_vk_pipeline *p, const struct shape *s,
                      uint32_t window, uint32_t most, enum place place, struct tdm_error *err)
{
        const struct tdm_vk_attend_push push = push_of(device, s, window, place);
        uint32_t n = put_items(device, s, window, most);

        memset(device->stages[0].map + place * PLACE, 0, PARTIAL);
        memset(device->stages[0].map + place * PLACE + PARTIAL, 0xff, PLACE - PARTIAL);
        return tdm_vk_once_dispatch(device, p, &push, sizeof(push), n, s->n_heads / s->heads, what, err);
}

static const float *partial_at(const struct tdm_vk_device *device, const struct shape *s, enum place place,
                               uint32_t row, uint32_t head)
{
        return (const float *)(device->stages[0].map + place * PLACE + PARTIAL) +
               (uint64_t)(row * s->n_heads + head) * TDM_VK_PARTIAL_WIDTH(s->head_dim);
}

/* One row's head. Each probability is rounded to f16 once, and each is at most 1. */
static bool is_right(const struct tdm_vk_device *device, const struct shape *s, uint32_t window, uint32_t row,
                     uint32_t head)
{
        const float *query = (const float *)(device->stages[0].map + QKV * PLACE) + row * width_of(s) +
                             head * s->head_dim,
                    *got = partial_at(device, s, SINGLE, row, head);
        uint32_t kv_head = head / (s->n_heads / N_KV_HEADS), end = FIRST + row + 1,
                 begin = first_seen(FIRST + row, window);
        double scores[END], largest = -HUGE_VAL, l = 0;

        for (uint32_t key = begin; key < end; key++) {
                scores[key] = 0;
                for (uint32_t d = 0; d < s->head_dim; d++)
                        scores[key] += (double)(tdm_f16_to_f32(tdm_f32_to_f16(query[d] * QUERY_SCALE)) / QUERY_SCALE) *
                                       key_at(device, s, kv_head, key, d);
                largest = fmax(largest, scores[key]);
        }
        for (uint32_t key = begin; key < end; key++)
                l += scores[key] = exp(scores[key] - largest);
        if (!(fabs((double)got[s->head_dim] - largest) < 1e-4) || !(fabs((double)got[s->head_dim + 1] / l - 1) < 1e-3))
                return false;
        for (uint32_t d = 0; d < s->head_dim; d++) {
                double o = 0, all = 0;

                for (uint32_t key = begin; key < end; key++) {
                        double share = scores[key] * value_at(device, s, kv_head, key, d);

                        o += share;
                        all += fabs(share);
                }
                if (!(fabs((double)got[d] - o) <= 0x1p-10 * all + 1e-5))
                        return false;
        }
        return true;
}

static bool same_rows(const struct tdm_vk_device *device, const struct shape *s)
{
        for (uint32_t row = 0; row < N_ROWS; row++)
                for (uint32_t head = 0; head < s->n_heads; head++)
                        if (memcmp(partial_at(device, s, SINGLE, row, head), partial_at(device, s, MANY, row, head),
                                   (s->head_dim + 2) * sizeof(float)) != 0)
                                return false;
        return true;
}

int tdm_vk_prove_attend(struct tdm_vk_device *device, struct tdm_vk_pipeline *single, struct tdm_vk_pipeline *many,
                        uint32_t heads, uint32_t many_rows, struct tdm_error *err)
{
        const struct shape s = { .head_dim = single ? single->constants[0] : 0,
                                 .heads = heads,
                                 .n_heads = 2 * heads * N_KV_HEADS };
        static const uint32_t windows[] = { 0, WINDOW };
        bool right = true;
        int r = 0;

        if (!single || !many || (single->tried && many->tried))
                return 0;
        random_inputs(device, &s);
        put_step(device);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(windows) && r == 0 && right; i++) {
                r = run_kernel(device, single, &s, windows[i], 1, SINGLE, err);
                for (uint32_t row = 0; row < N_ROWS && r == 0; row += 23)
                        right = right && is_right(device, &s, windows[i], row, row % s.n_heads);
                if (r == 0)
                        r = run_kernel(device, many, &s, windows[i], many_rows, MANY, err);
                right = right && r == 0 && same_rows(device, &s);
        }
        single->tried = many->tried = true;
        single->proven = many->proven = right && r == 0;
        return r;
}

/* ---- the one that rotates ---- */

/* In ITEMS, too: what it wants to know of a layer, gains, angles and a log; in SINGLE and CHAIN: the result. */
#define ROTATION_AT 131072u
#define GAINS_AT 135168u
#define ANGLES_AT 139264u
#define COUNTER_AT 143360u
#define LOG_AT 147456u
#define LOG_BYTES 16384u
#define ACTS_AT (UINT64_C(1) << 20)
#define LOG_KEPT_AT (PLACE - LOG_BYTES) /* in KEPT, behind the cache */
#define ROWS_KEPT_AT (PLACE - LOG_BYTES - 262144)
#define EPS 1e-6f
#define SCALE 0.125f
#define FLAG_STRIDE 65536u /* from row to row */
#define N_SEVERAL 4u

/* Rows of a sequence each, or several of one. */
struct rows {
        uint32_t n;
        bool several, flagged;
        uint32_t window, parts; /* parts 2: each span is an item of its own */
};

static uint8_t *place_at(const struct tdm_vk_device *device, enum place place, uint64_t at)
{
        return device->stages[0].map + place * PLACE + at;
}

static uint32_t position_of(const struct rows *rows, uint32_t row)
{
        return rows->several ? TDM_VK_SPAN - N_SEVERAL / 2 + row : END - 1 - row * 40;
}

/* Returns how many items there are. Gains of about 1 keep scores as they are elsewhere. */
static uint32_t put_rows(struct tdm_vk_device *device, const struct shape *s, const struct rows *rows)
{
        uint64_t items_at = device->stages[0].address + ITEMS * PLACE;
        struct tdm_vk_item *items = (struct tdm_vk_item *)place_at(device, ITEMS, ITEMS_AT);
        const uint32_t *table = (const uint32_t *)place_at(device, ITEMS, TABLE_AT);
        float *gains = (float *)place_at(device, ITEMS, GAINS_AT),
              *angles = (float *)place_at(device, ITEMS, ANGLES_AT);
        uint32_t n_items = 0;

        for (uint32_t row = 0; row < rows->n; row++) {
                uint32_t position = position_of(rows, row), seq = rows->several ? 0 : row,
                         seen = first_seen(position, rows->window), first = seen / TDM_VK_SPAN,
                         last = position / TDM_VK_SPAN, n = rows->parts == 1 ? 1 : last - first + 1,
                         first_slot = n_items * s->n_heads;

                ((struct tdm_vk_row *)place_at(device, ITEMS, ROWS_AT))[row] =
                        (struct tdm_vk_row){ .position = position, .seq = seq };
                for (uint32_t i = 0; i < n; i++, n_items++) {
                        items[n_items] = (struct tdm_vk_item){ .first_row = row,
                                                               .n_rows = 1,
                                                               .span_first = first + i,
                                                               .span_last = i + 1 == n ? last : first + i,
                                                               .slot = n_items * s->n_heads,
                                                               .first_slot = first_slot,
                                                               .n_items = n,
                                                               .position = position,
                                                               .seq = seq,
                                                               .serial = SERIAL,
                                                               .end = position + 1,
                                                               .n_before = rows->several ? row : 0 };
                        tdm_vk_item_pages(&items[n_items], table + (size_t)seq * N_PAGES, seen);
                }
                for (uint32_t d = 0; d < s->head_dim / 2; d++) {
                        angles[row * s->head_dim + d] = cosf((float)d / 32 + (float)row);
                        angles[row * s->head_dim + s->head_dim / 2 + d] = sinf((float)d / 32 + (float)row);
                }
        }
        for (uint32_t d = 0; d < s->head_dim; d++) {
                gains[d] = 0.75f + (float)d / 512;
                gains[s->head_dim + d] = 1.25f - (float)d / 512;
        }
        *(struct tdm_vk_rotation *)place_at(device, ITEMS, ROTATION_AT) =
                (struct tdm_vk_rotation){ .y = device->stages[0].address + KEPT * PLACE + ROWS_KEPT_AT,
                                          .q_gain = items_at + GAINS_AT,
                                          .k_gain = items_at + GAINS_AT + s->head_dim * sizeof(float),
                                          .counters = items_at + COUNTER_AT,
                                          .angles = ANGLES_AT - ROWS_AT,
                                          .eps = EPS,
                                          .query_scale = SCALE,
                                          .flag_stride = FLAG_STRIDE };
        return n_items;
}

/* rotate.comp, then the one for single rows. */
static int run_two(struct tdm_vk_device *device, const struct tdm_vk_pipeline *rotate,
                   const struct tdm_vk_pipeline *single, const struct shape *s, const struct rows *rows,
                   uint32_t n_items, struct tdm_error *err)
{
        const struct tdm_vk_rotation *rotation = (const struct tdm_vk_rotation *)place_at(device, ITEMS, ROTATION_AT);
        struct tdm_vk_attend_push push = push_of(device, s, rows->window, SINGLE);
        const struct tdm_vk_rotate_push rotates = { .qkv = push.qkv,
                                                    .rows = push.rows,
                                                    .table = push.table,
                                                    .angles = push.rows + rotation->angles,
                                                    .q_gain = rotation->q_gain,
                                                    .k_gain = rotation->k_gain,
                                                    .pieces = push.pieces,
                                                    .page_bytes = push.page_bytes,
                                                    .piece_shift = push.piece_shift,
                                                    .counters = rotation->counters,
                                                    .log = device->stages[0].address + ITEMS * PLACE + LOG_AT,
                                                    .part_bytes = push.part_bytes,
                                                    .n_heads = push.n_heads,
                                                    .n_kv_heads = push.n_kv_heads,
                                                    .head_dim = s->head_dim,
                                                    .table_entries = push.table_entries,
                                                    .eps = rotation->eps,
                                                    .query_scale = rotation->query_scale };
        int r = tdm_vk_once_dispatch(device, rotate, &rotates, sizeof(rotates), s->n_heads + 2 * N_KV_HEADS, rows->n,
                                     what, err);

        push.acts = device->stages[0].address + SINGLE * PLACE + ACTS_AT;
        memset(place_at(device, SINGLE, 0), 0, PLACE);
        return r ? r :
                   tdm_vk_once_dispatch(device, single, &push, sizeof(push), n_items, s->n_heads / s->heads, what, err);
}

/* Flagged: it reads flagged words of dispatch 1, and is 2. */
static int run_rotating(struct tdm_vk_device *device, const struct tdm_vk_pipeline *rotating, const struct shape *s,
                        const struct rows *rows, uint32_t n_items, struct tdm_error *err)
{
        const struct tdm_vk_attend_push whole = push_of(device, s, rows->window, MANY);
        uint64_t chain = device->stages[0].address + CHAIN * PLACE, items = device->stages[0].address + ITEMS * PLACE;
        struct tdm_vk_attend_rotating_push push =
                tdm_vk_attend_rotating(&whole, items + ROTATION_AT, items + LOG_AT, 7);

        push.acts = chain + ACTS_AT;
        push.chain = chain;
        push.chain_index = 2 | (rows->flagged ? TDM_VK_CHAIN_FLAGS : 0);
        push.chain_wait = rows->flagged ? TDM_VK_CHAIN_FLAGS : 0;
        memset(place_at(device, MANY, 0), 0, PLACE);
        return tdm_vk_once_dispatch(device, rotating, &push, sizeof(push), n_items, s->n_heads / s->heads, what, err);
}

/* fragments.glsl: of rows of a tile and of flagged ones. */
static bool same_result(const struct tdm_vk_device *device, const struct shape *s, const struct rows *rows)
{
        const uint32_t *want = (const uint32_t *)place_at(device, SINGLE, ACTS_AT);

        if (!rows->flagged)
                return memcmp(want, place_at(device, CHAIN, ACTS_AT), (size_t)s->n_heads * s->head_dim * 16) == 0;
        for (uint32_t row = 0; row < rows->n; row++) {
                const uint64_t *flagged = (const uint64_t *)place_at(device, CHAIN, ACTS_AT + row * FLAG_STRIDE);

                for (uint32_t col = 0; col < s->n_heads * s->head_dim; col += 2) {
                        uint32_t word = col / 2 % 4 * 4 + col / 16 % 2 * 2 + col / 8 % 2;

                        if (flagged[col / 64 * 32 + col / 32 % 2 * 16 + word] !=
                            (UINT64_C(2) << 32 | want[col / 64 * 256 + col / 32 % 2 * 128 + row * 16 + word]))
                                return false;
                }
        }
        return true;
}

static int try_rows(struct tdm_vk_device *device, const struct tdm_vk_pipeline *rotate,
                    const struct tdm_vk_pipeline *single, const struct tdm_vk_pipeline *rotating, const struct shape *s,
                    const struct rows *rows, bool *same, struct tdm_error *err)
{
        size_t pages_bytes = (size_t)N_SEQS * N_PAGES * N_KV_HEADS * part_bytes_of(s);
        uint32_t n_items;
        int r;

        random_inputs(device, s);
        n_items = put_rows(device, s, rows);
        memcpy(place_at(device, KEPT, 0), place_at(device, PAGES, 0), pages_bytes);
        memcpy(place_at(device, KEPT, ROWS_KEPT_AT), place_at(device, QKV, 0), rows->n * width_of(s) * sizeof(float));
        memset(place_at(device, CHAIN, 0), 0, PLACE);
        memset(place_at(device, ITEMS, LOG_AT), 0, LOG_BYTES);
        for (uint32_t i = 0; i < rows->n * width_of(s); i++) {
                uint64_t *flagged =
                        (uint64_t *)place_at(device, CHAIN, TDM_VK_FLAGGED_Y + i / width_of(s) * (uint64_t)FLAG_STRIDE);
                uint32_t bits;

                memcpy(&bits, place_at(device, QKV, i * sizeof(float)), sizeof(bits));
                flagged[i % width_of(s)] = UINT64_C(1) << 32 | bits;
        }
        r = run_two(device, rotate, single, s, rows, n_items, err);
        if (r != 0)
                return r;
        /* The cache as it was before; what has become of it is kept, and so is the log. */
        for (size_t i = 0; i < pages_bytes; i++) {
                uint8_t *a = place_at(device, PAGES, i), *b = place_at(device, KEPT, i), c = *a;

                *a = *b;
                *b = c;
        }
        memcpy(place_at(device, KEPT, LOG_KEPT_AT), place_at(device, ITEMS, LOG_AT), LOG_BYTES);
        memset(place_at(device, ITEMS, LOG_AT), 0, LOG_BYTES);
        r = run_rotating(device, rotating, s, rows, n_items, err);
        *same = r == 0 && same_result(device, s, rows) &&
                memcmp(place_at(device, PAGES, 0), place_at(device, KEPT, 0), pages_bytes) == 0 &&
                memcmp(place_at(device, ITEMS, LOG_AT), place_at(device, KEPT, LOG_KEPT_AT), LOG_BYTES) == 0;
        return r;
}

int tdm_vk_prove_rotating(struct tdm_vk_device *device, const struct tdm_vk_pipeline *rotate,
                          const struct tdm_vk_pipeline *single, struct tdm_vk_pipeline *rotating, uint32_t heads,
                          struct tdm_error *err)
{
        const struct shape s = { .head_dim = single->constants[0], .heads = heads, .n_heads = 2 * heads * N_KV_HEADS };
        static const struct rows alone[] = { { .n = 1, .flagged = true }, { .n = N_SEQS } },
                                 several[] = { { .n = N_SEVERAL, .several = true, .flagged = true },
                                               { .n = N_SEVERAL, .several = true } };
        const struct rows *ways = rotating->constants[2] == 2 ? several : alone;
        bool same = true;
        int r = 0;

        put_step(device);
        for (unsigned i = 0; i < 2 * 2 * 2 && r == 0 && same; i++) {
                struct rows rows = ways[i % 2];

                rows.window = i / 4 ? WINDOW : 0;
                rows.parts = 1 + i / 2 % 2;
                r = try_rows(device, rotate, single, rotating, &s, &rows, &same, err);
        }
        rotating->tried = true;
        rotating->proven = same && r == 0;
        return r;
}
