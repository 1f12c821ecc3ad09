/* Pages that prompts and answers left are written to disk, behind the steps (daemon/cache/page-store.h).
 *
 * A thread copies some pages that are new in the prefix cache, and then the loop looks whether they were there all the
 * time: a page that left meanwhile may hold anything by now. What was there is written. So no sequence waits for a page
 * because of this, and none is held. One such group is under way at a time. */
#include "daemon/schedule/private.h"

#include "common/log.h"

#define GROUP_PAGES 16u
#define GROUP_BYTES (UINT64_C(16) << 20)
#define PAUSE_NS (60 * TDM_NSEC_PER_SEC) /* after a page could not be written */

struct keeping {
        struct tdm_scheduler *s;
        struct tdm_model *model; /* referenced */
        struct tdm_kv_geometry kv;
        const uint8_t *base; /* of the KV cache, while pages are copied */
        char key[TDM_BITS_TEXT];
        size_t key_size;
        bool digest_known;
        struct tdm_page_key digest;
        uint64_t row_ns;
        uint32_t n;
        struct tdm_prefix_item items[GROUP_PAGES]; /* each hangs on the one before */
        bool good[GROUP_PAGES];
        uint32_t *ids;   /* of the last one's text */
        uint8_t *copies; /* [n] pages of both groups */
        int r;           /* of the first page that could not be written */
};

static uint8_t *copy_at(const struct keeping *k, uint32_t i, enum tdm_kv_group group)
{
        uint64_t bytes = k->kv.page_bytes[TDM_KV_FULL] + k->kv.page_bytes[TDM_KV_WINDOW];

        return k->copies + i * bytes + (group == TDM_KV_WINDOW ? k->kv.page_bytes[TDM_KV_FULL] : 0);
}

/* ---- on a thread ---- */

static void run_copy(void *task)
{
        struct keeping *k = task;

        if (!k->digest_known)
                tdm_model_digest(k->model, k->digest.bytes);
        for (uint32_t i = 0; i < k->n; i++) {
                const struct tdm_prefix_item *item = &k->items[i];

                memcpy(copy_at(k, i, TDM_KV_FULL), k->base + tdm_kv_page_offset(&k->kv, TDM_KV_FULL, item->page),
                       k->kv.page_bytes[TDM_KV_FULL]);
                if (item->window_page != TDM_KV_NO_PAGE)
                        memcpy(copy_at(k, i, TDM_KV_WINDOW),
                               k->base + tdm_kv_page_offset(&k->kv, TDM_KV_WINDOW, item->window_page),
                               k->kv.page_bytes[TDM_KV_WINDOW]);
        }
}

static void run_write(void *task)
{
        struct keeping *k = task;
        struct tdm_page_store *store = k->s->config.page_store;
        uint32_t n_pages = k->items[k->n - 1].n_pages;
        _cleanup_(freep) struct tdm_page_key *keys = calloc(n_pages, sizeof(*keys));
        struct tdm_page_set set;

        if (!keys)
                return;
        tdm_page_store_set(store, &set, (uid_t)k->items[0].identity, &k->digest, k->key, k->key_size, &k->kv);
        tdm_page_store_keys(store, &set, k->ids, n_pages, keys);
        for (uint32_t i = 0; i < k->n && k->r == 0; i++) {
                struct tdm_page_place place = { &set, k->ids, keys, k->items[i].n_pages - 1 };
                int r = k->good[i] ?
                                tdm_page_store_write(
                                        store, &place, copy_at(k, i, TDM_KV_FULL),
                                        k->items[i].window_page == TDM_KV_NO_PAGE ? NULL : copy_at(k, i, TDM_KV_WINDOW),
                                        k->row_ns) :
                                0;

                k->r = r == -EEXIST ? 0 : r;
        }
}

/* ---- on the loop ---- */

static void keeping_free(struct keeping *k)
{
        tdm_model_unref(k->model);
        free(k->ids);
        free(k->copies);
        free(k);
}

static void on_written(void *task, bool ran)
{
        struct keeping *k = task;
        struct tdm_scheduler *s = k->s;

        s->disk.keeping = false;
        if (k->r < 0) {
                s->disk.keep_after_ns = tdm_now_ns() + PAUSE_NS;
                if (k->r != s->disk.keep_error)
                        tdm_log_warning("prefixes are not written to disk now: %s", strerror(-k->r));
        }
        if (ran)
                s->disk.keep_error = k->r;
        keeping_free(k);
        tdm_source_schedule(s->work);
}

static void on_copied(void *task, bool ran)
{
        struct keeping *k = task;
        struct tdm_model *model = k->model;
        struct lane *lane = tdm_scheduler_lane(k->s, model->id);
        bool there = ran && !k->s->disk.ending && lane && !lane->dead && model->prefix;
        uint32_t n_good = 0;

        if (there) {
                lane->store.digest_known = true;
                lane->store.digest = k->digest;
        }
        for (uint32_t i = 0; i < k->n; i++) {
                k->good[i] = there && tdm_prefix_is_there(model->prefix, &k->items[i]);
                n_good += k->good[i];
        }
        tdm_model_step_end(model);
        if (n_good == 0 || tdm_background_add(k->s->disk.writer, run_write, on_written, k) < 0)
                on_written(k, false);
}

/* Items that go together. Others are passed over: they are of users or devices whose pages are not kept. */
static void take_items(struct keeping *k, struct tdm_prefix *prefix)
{
        uint64_t bytes = k->kv.page_bytes[TDM_KV_FULL] + k->kv.page_bytes[TDM_KV_WINDOW];
        struct tdm_prefix_item item;

        while (k->n < GROUP_PAGES && (k->n == 0 || (k->n + 1) * bytes <= GROUP_BYTES) &&
               tdm_prefix_first_new(prefix, &item)) {
                const struct tdm_prefix_item *last = k->n > 0 ? &k->items[k->n - 1] : NULL;
                size_t size = 0;
                const char *key = tdm_prefix_numerics_key(prefix, item.numerics, &size);

                if (last &&
                    (item.parent != last->page || item.numerics != last->numerics || item.identity != last->identity))
                        return;
                tdm_prefix_drop_new(prefix);
                if (!key || size > sizeof(k->key) || !tdm_scheduler_keeps(item.identity, key))
                        continue;
                memcpy(k->key, key, size);
                k->key_size = size;
                k->items[k->n++] = item;
        }
}

static bool start_keeping(struct tdm_scheduler *s, struct lane *lane)
{
        struct tdm_model *model = lane->model;
        struct keeping *k = calloc(1, sizeof(*k));

        if (!k)
                return false;
        *k = (struct keeping){ .s = s,
                               .model = tdm_model_ref(model),
                               .kv = model->geometry,
                               .base = model->kv->base,
                               .digest_known = lane->store.digest_known,
                               .digest = lane->store.digest,
                               .row_ns = lane->lengths.prompt_row_ns };
        take_items(k, model->prefix);
        if (k->n > 0) {
                k->ids = calloc((size_t)k->items[k->n - 1].n_pages * TDM_KV_PAGE_TOKENS, sizeof(*k->ids));
                k->copies = malloc(k->n * (k->kv.page_bytes[TDM_KV_FULL] + k->kv.page_bytes[TDM_KV_WINDOW]));
        }
        if (!k->ids || !k->copies) {
                keeping_free(k);
                return false;
        }
        tdm_prefix_ids(model->prefix, &k->items[k->n - 1], k->ids);
        if (tdm_background_add(s->disk.writer, run_copy, on_copied, k) < 0) {
                keeping_free(k);
                return false;
        }
        tdm_model_step_begin(model); /* its segments stay */
        s->disk.keeping = true;
        return true;
}

void tdm_scheduler_keep(struct tdm_scheduler *s)
{
        struct lane *lane;

        if (!s->config.page_store || s->disk.keeping || s->disk.ending || tdm_now_ns() < s->disk.keep_after_ns)
                return;
        tdm_list_for_each(lane, &s->lanes, struct lane, node) {
                if (!lane->dead && lane->model->prefix && !tdm_lane_has_state(lane) && start_keeping(s, lane))
                        return;
        }
}
