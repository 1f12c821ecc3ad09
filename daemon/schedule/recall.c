/* Pages of a prompt's beginning come back from disk (daemon/cache/page-store.h).
 *
 * A sequence that is about to get its first rows asks for the pages that the prefix cache lacks. While a thread looks
 * for them and reads them, the sequence counts as in flight and gets no rows; others go on. The thread reads into pages
 * of the KV cache that the sequence was promised. Those that are what was asked for enter the prefix cache, and the
 * sequence finds them there like all others. So nothing else has to know where they came from.
 *
 * A piece at a time is read, so that no other job waits for the loop and one that is cancelled leaves soon. Where
 * reading takes longer than computing, it ends, and the model's texts are computed for a while.
 *
 * Only pages of the host device: a GPU with memory of its own would not notice that its copy is old. No states, and no
 * pages of users with a label: the number that a label has is another one in the daemon's next life. */
#include "daemon/schedule/private.h"

#include "common/log.h"
#include "common/stint.h"

#define PIECE_PAGES 64u
#define PIECE_BYTES (UINT64_C(64) << 20)
#define SLOW_NS (60 * TDM_NSEC_PER_SEC) /* for this long nothing is read after reading was slow */
/* So much longer than computing may reading take: a disk may have slept. Time without a CPU does not count, since
 * computing would have waited too. */
#define GRACE_NS (250 * TDM_NSEC_PER_MSEC)

struct recall {
        struct tdm_scheduler *s;
        struct lane *lane; /* the sequence is in it until this is over */
        struct sequence *q;
        struct tdm_kv_geometry kv;
        uint8_t *base; /* of the KV cache */
        uint32_t numerics;
        char key[TDM_BITS_TEXT]; /* of the numerics */
        size_t key_size;
        bool digest_known;
        struct tdm_page_key digest;
        struct tdm_page_set set;
        uint32_t *ids;             /* [first + most pages] */
        struct tdm_page_key *keys; /* the same */
        uint32_t first, most;      /* known pages before it; how many are looked for */
        uint32_t n, n_good;        /* that are read; that are what was asked for */
        uint32_t pages[PIECE_PAGES], window_pages[PIECE_PAGES];
        bool has_window[PIECE_PAGES]; /* it was read */
        uint64_t row_ns, took_ns;     /* computing a row; reading all */
};

bool tdm_scheduler_keeps(uint64_t identity, const char *numerics)
{
        return identity >> 32 == 0 && strncmp(numerics, "host-", 5) == 0;
}

static uint8_t *page_at(const struct recall *r, enum tdm_kv_group group, uint32_t page)
{
        return page == TDM_KV_NO_PAGE ? NULL : r->base + tdm_kv_page_offset(&r->kv, group, page);
}

static struct tdm_page_place recall_place(const struct recall *r, uint32_t i)
{
        return (struct tdm_page_place){ &r->set, r->ids, r->keys, r->first + i };
}

/* ---- on a thread ---- */

static void run_look(void *task)
{
        struct recall *r = task;
        const struct tdm_page_store *store = r->s->config.page_store;

        if (!r->digest_known)
                tdm_model_digest(r->lane->model, r->digest.bytes);
        tdm_page_store_set(store, &r->set, (uid_t)r->q->job->identity, &r->digest, r->key, r->key_size, &r->kv);
        tdm_page_store_keys(store, &r->set, r->ids, r->first + r->most, r->keys);
        while (r->n < r->most) {
                struct tdm_page_place place = recall_place(r, r->n);

                if (!tdm_page_store_has(store, &place))
                        break;
                r->n++;
        }
}

static bool is_slow(const struct recall *r)
{
        return r->n_good > 0 && r->row_ns > 0 && r->took_ns > GRACE_NS + r->n_good * TDM_KV_PAGE_TOKENS * r->row_ns;
}

/* Asks the kernel only where it matters. */
static bool has_been_slow(struct recall *r, const struct tdm_stint *stint)
{
        r->took_ns = tdm_now_ns() - stint->begin_ns;
        if (is_slow(r))
                r->took_ns = tdm_stint_ns(stint);
        return is_slow(r);
}

static void run_read(void *task)
{
        struct recall *r = task;
        struct tdm_stint stint;
        uint64_t row_ns = 0;

        tdm_stint_begin(&stint);
        for (; r->n_good < r->n; r->n_good++) {
                struct tdm_page_place place = recall_place(r, r->n_good);
                uint8_t *window = page_at(r, TDM_KV_WINDOW, r->window_pages[r->n_good]);

                if (has_been_slow(r, &stint))
                        return;
                if (tdm_page_store_read(r->s->config.page_store, &place, page_at(r, TDM_KV_FULL, r->pages[r->n_good]),
                                        window, &r->has_window[r->n_good], &row_ns) != 0)
                        return;
                if (r->row_ns == 0)
                        r->row_ns = row_ns;
        }
        (void)has_been_slow(r, &stint);
}

/* ---- on the loop ---- */

static void recall_free(struct recall *r)
{
        free(r->ids);
        free(r->keys);
        free(r);
}

/* The sequence is not in flight any more. all: there may be more pages of its text. */
static void end_recall(struct recall *r, bool all)
{
        struct tdm_scheduler *s = r->s;
        struct tdm_model *model = r->lane->model;
        struct sequence *q = r->q;

        q->recall.done = !all;
        q->recall.runs = false;
        q->in_flight--;
        recall_free(r);
        tdm_source_schedule(s->work); /* where it is finished, it is retired then */
        tdm_model_step_end(model);    /* last: it may free the model's segments */
}

static uint32_t draw_page(struct recall *r, enum tdm_kv_group group)
{
        struct sequence *q = r->q;

        if (q->reserved.n[group] == 0)
                return TDM_KV_NO_PAGE;
        q->reserved.n[group]--;
        return tdm_pages_alloc(r->lane->model->pages, group, q->job->identity);
}

/* Pages to read into. Windows of those that a row behind the piece can see. */
static void draw_pages(struct recall *r)
{
        const struct tdm_model *model = r->lane->model;
        uint32_t visible = tdm_prefix_first_visible(model->prefix, r->first + r->n);

        r->n = TDM_MIN(r->n, r->q->reserved.n[TDM_KV_FULL]);
        for (uint32_t i = 0; i < r->n; i++) {
                r->pages[i] = draw_page(r, TDM_KV_FULL);
                r->window_pages[i] = r->kv.n_layers[TDM_KV_WINDOW] > 0 && r->first + i >= visible ?
                                             draw_page(r, TDM_KV_WINDOW) :
                                             TDM_KV_NO_PAGE;
        }
}

/* What the prefix cache keeps of them is idle then. The sequence is promised as many again. */
static void give_page(struct recall *r, enum tdm_kv_group group, uint32_t page)
{
        struct tdm_pages_need one = { 0 };

        if (page == TDM_KV_NO_PAGE)
                return;
        one.n[group] = 1;
        tdm_pages_free(r->lane->model->pages, group, page, false);
        if (tdm_pages_reserve(r->lane->model->pages, &one))
                r->q->reserved.n[group]++;
}

static void on_pages_read(void *task, bool ran)
{
        struct recall *r = task;
        struct tdm_prefix *prefix = r->lane->model->prefix;
        uint32_t filled[PIECE_PAGES];
        bool slow = is_slow(r);

        if (r->lane->dead) {
                end_recall(r, false); /* the pages go with the model */
                return;
        }
        for (uint32_t i = 0; i < r->n; i++)
                filled[i] = r->has_window[i] ? r->window_pages[i] : TDM_KV_NO_PAGE;
        if (ran && r->n_good > 0)
                tdm_prefix_put(prefix, r->q->job->identity, r->numerics, r->ids, r->first, r->n_good, r->pages, filled);
        for (uint32_t i = r->n; i > 0; i--) {
                give_page(r, TDM_KV_FULL, r->pages[i - 1]);
                give_page(r, TDM_KV_WINDOW, r->window_pages[i - 1]);
        }
        r->s->stats.disk_tokens += (uint64_t)r->n_good * TDM_KV_PAGE_TOKENS;
        if (slow) {
                r->lane->store.slow_until_ns = tdm_now_ns() + SLOW_NS;
                tdm_log_debug("reading %u pages from disk took %.1f ms, longer than computing them", r->n_good,
                              (double)r->took_ns / 1e6);
        }
        end_recall(r, ran && !slow && r->n_good == r->most);
}

static void on_looked(void *task, bool ran)
{
        struct recall *r = task;

        if (ran && !r->digest_known) {
                r->lane->store.digest_known = true;
                r->lane->store.digest = r->digest;
        }
        if (!ran || r->s->disk.ending || r->n == 0 || r->lane->dead || r->q->job->finished || r->q->leaving) {
                end_recall(r, false);
                return;
        }
        draw_pages(r);
        if (r->n == 0 || tdm_background_add_for(r->s->disk.readers, r->q->job->login, run_read, on_pages_read, r) < 0)
                on_pages_read(r, false);
}

/* A text of this user is being read for this model: it may be the same. */
static bool user_recalls(const struct lane *lane, const struct sequence *of)
{
        const struct sequence *q;

        tdm_list_for_each(q, &lane->active, struct sequence, active) {
                if (q->recall.runs && q->job->identity == of->job->identity)
                        return true;
        }
        return false;
}

static int start_recall(struct tdm_scheduler *s, struct lane *lane, struct sequence *q, const struct bits *b,
                        uint32_t first, uint32_t most)
{
        struct tdm_model *model = lane->model;
        struct recall *r = calloc(1, sizeof(*r));
        const void *key;

        if (!r)
                return -ENOMEM;
        *r = (struct recall){ .s = s,
                              .lane = lane,
                              .q = q,
                              .kv = model->geometry,
                              .base = model->kv->base,
                              .numerics = b->number,
                              .digest_known = lane->store.digest_known,
                              .digest = lane->store.digest,
                              .first = first,
                              .most = most,
                              .row_ns = lane->lengths.prompt_row_ns };
        key = tdm_prefix_numerics_key(model->prefix, b->number, &r->key_size);
        r->ids = calloc((size_t)(first + most) * TDM_KV_PAGE_TOKENS, sizeof(*r->ids));
        r->keys = calloc(first + most, sizeof(*r->keys));
        if (!key || r->key_size > sizeof(r->key) || !r->ids || !r->keys) {
                recall_free(r);
                return -ENOMEM;
        }
        memcpy(r->key, key, r->key_size);
        memcpy(r->ids, q->job->ids, (size_t)(first + most) * TDM_KV_PAGE_TOKENS * sizeof(*r->ids));
        if (tdm_background_add_for(s->disk.readers, q->job->login, run_look, on_looked, r) < 0) {
                recall_free(r);
                return -ENOBUFS;
        }
        tdm_model_step_begin(model); /* its segments stay, should it fail */
        q->in_flight++;
        q->recall.runs = true;
        q->recall.n++;
        return 0;
}

bool tdm_scheduler_recall(struct tdm_scheduler *s, struct lane *lane, struct sequence *q, const struct bits *b,
                          uint32_t n_max)
{
        const struct tdm_model *model = lane->model;
        uint32_t n_pages = n_max / TDM_KV_PAGE_TOKENS, known, most;

        if (!s->config.page_store || s->disk.ending || q->recall.done || q->is_draft || tdm_lane_has_state(lane) ||
            !tdm_scheduler_keeps(q->job->identity, b->text) || tdm_now_ns() < lane->store.slow_until_ns)
                return false;
        known = tdm_prefix_known(model->prefix, q->job->identity, b->number, q->job->ids, n_max);
        if (known < n_pages && user_recalls(lane, q))
                return true;
        most = (uint32_t)TDM_MIN((uint64_t)PIECE_PAGES,
                                 TDM_MAX(PIECE_BYTES / model->geometry.page_bytes[TDM_KV_FULL], UINT64_C(1)));
        most = TDM_MIN(most, n_pages - known);
        /* Pages may leave as soon as they are read, where memory is short. */
        if (most == 0 || q->recall.n > 2 + n_pages / most || start_recall(s, lane, q, b, known, most) < 0) {
                q->recall.done = true;
                return false;
        }
        return true;
}
