/* Memory of the cache's twin before it is written. A long prompt writes gigabytes a second into memory that no process
 * has touched. 32 sequences begin new pages of it at once. The kernel clears new memory first: in small pages more
 * slowly than the device fills it, in huge pages (common/hugepage.h) at about the same pace. So a thread asks for the
 * segment's next pages before they are written, and no step waits for that thread. A page that a step needs sooner is
 * asked for right then. tandemd gives out low page numbers first, and freed pages before new ones.
 *
 * Neighbouring pages are asked for together. Each call to the kernel makes all CPUs drain their page lists first
 * (lru_add_drain_all), one caller after the other. */
#include "common/hugepage.h"
#include "common/thread.h"
#include "gpu-worker/vulkan/memory/kv-pages.h"

#define RUN_MAX 8u /* huge pages that are asked for together */
/* of the cache, of each group, besides one for each sequence: two thousand tokens, or a quarter of what is left */
#define AHEAD_PAGES 64u

/* A run of huge pages that follow one another. */
struct extent {
        uint32_t first, n; /* huge pages */
};

struct tdm_vk_pages {
        struct tdm_kv_geometry kv;
        uint8_t *base;
        struct tdm_pool *threads;
        _Atomic uint64_t *asked;    /* a bit for each huge page */
        _Atomic uint32_t n_refused; /* by the kernel */
        struct extent *runs;        /* [huge pages]: wanted now */
        uint32_t n_runs;
        uint32_t touched[TDM_KV_GROUPS]; /* pages of the cache, from the first on, that were wanted */

        pthread_t thread;
        bool has_thread;
        pthread_mutex_t mutex; /* of what follows */
        pthread_cond_t changed;
        uint32_t ahead[TDM_KV_GROUPS]; /* pages that should be ready */
        bool stop;
};

static bool take_page(struct tdm_vk_pages *p, uint64_t huge)
{
        uint64_t bit = UINT64_C(1) << huge % 64;

        if (atomic_load_explicit(&p->asked[huge / 64], memory_order_relaxed) & bit ||
            (huge + 1) * TDM_HUGEPAGE_BYTES > p->kv.size_bytes)
                return false;
        return !(atomic_fetch_or_explicit(&p->asked[huge / 64], bit, memory_order_relaxed) & bit);
}

/* Runs of huge pages that hold [from, end) and were not asked for before, at most `most` each. */
static uint32_t list_runs(struct tdm_vk_pages *p, uint64_t from, uint64_t end, uint32_t most, struct extent *runs,
                          uint32_t n_runs)
{
        for (uint64_t huge = from / TDM_HUGEPAGE_BYTES; huge <= (end - 1) / TDM_HUGEPAGE_BYTES; huge++) {
                struct extent *last = n_runs ? &runs[n_runs - 1] : NULL;

                if (!take_page(p, huge))
                        continue;
                if (last && last->first + last->n == huge && last->n < most)
                        last->n++;
                else
                        runs[n_runs++] = (struct extent){ (uint32_t)huge, 1 };
        }
        return n_runs;
}

static void make_pages(struct tdm_vk_pages *p, const struct extent *run)
{
        tdm_hugepage_try(p->base + run->first * TDM_HUGEPAGE_BYTES, run->n, &p->n_refused);
}

static void make_ahead(struct tdm_vk_pages *p, enum tdm_kv_group group, uint32_t page)
{
        uint64_t from = tdm_kv_page_offset(&p->kv, group, page), end = from + p->kv.page_bytes[group];

        while (from < end) { /* not all of a page at once: others wait for the kernel's lock */
                struct extent runs[RUN_MAX];
                uint64_t to = TDM_MIN(TDM_ALIGN_UP(from + 1, RUN_MAX * TDM_HUGEPAGE_BYTES), end);
                uint32_t n = list_runs(p, from, to, RUN_MAX, runs, 0);

                for (uint32_t i = 0; i < n; i++)
                        make_pages(p, &runs[i]);
                from = to;
        }
}

static void *ahead_main(void *userdata)
{
        struct tdm_vk_pages *p = userdata;
        uint32_t made[TDM_KV_GROUPS] = { 0 };

        pthread_mutex_lock(&p->mutex);
        while (!p->stop) {
                int group = 0;

                while (group < TDM_KV_GROUPS && made[group] >= p->ahead[group])
                        group++;
                if (group == TDM_KV_GROUPS || tdm_hugepage_hopeless(&p->n_refused)) {
                        pthread_cond_wait(&p->changed, &p->mutex);
                        continue;
                }
                pthread_mutex_unlock(&p->mutex);
                make_ahead(p, (enum tdm_kv_group)group, made[group]++);
                pthread_mutex_lock(&p->mutex);
        }
        pthread_mutex_unlock(&p->mutex);
        return NULL;
}

int tdm_vk_pages_new(struct tdm_vk_pages **ret, const struct tdm_kv_geometry *kv, uint8_t *base,
                     struct tdm_pool *threads)
{
        size_t n = kv->size_bytes / TDM_HUGEPAGE_BYTES + 1;
        struct tdm_vk_pages *p;

        *ret = NULL;
        if ((uintptr_t)base % TDM_HUGEPAGE_BYTES != 0) /* segments of the daemon's begin where a huge page may */
                return 0;
        p = calloc(1, sizeof(*p));
        if (!p)
                return -ENOMEM;
        p->kv = *kv;
        p->base = base;
        p->threads = threads;
        p->asked = calloc(TDM_DIV_UP(n, 64), sizeof(*p->asked));
        p->runs = calloc(n, sizeof(*p->runs));
        pthread_mutex_init(&p->mutex, NULL);
        pthread_cond_init(&p->changed, NULL);
        if (!p->asked || !p->runs) {
                tdm_vk_pages_free(p);
                return -ENOMEM;
        }
        /* without it pages are made when they are wanted */
        p->has_thread = tdm_thread_new(&p->thread, ahead_main, p) == 0;
        *ret = p;
        tdm_vk_pages_ahead(p, 0);
        return 0;
}

void tdm_vk_pages_free(struct tdm_vk_pages *p)
{
        if (!p)
                return;
        if (p->has_thread) {
                pthread_mutex_lock(&p->mutex);
                p->stop = true;
                pthread_cond_signal(&p->changed);
                pthread_mutex_unlock(&p->mutex);
                pthread_join(p->thread, NULL);
        }
        pthread_cond_destroy(&p->changed);
        pthread_mutex_destroy(&p->mutex);
        free((void *)p->asked);
        free(p->runs);
        free(p);
}

void tdm_vk_pages_want(struct tdm_vk_pages *p, uint32_t layer, uint32_t page)
{
        uint64_t from = tdm_kv_part_offset(&p->kv, layer, page, 0);
        uint32_t group = p->kv.layers[layer].group;

        p->touched[group] = TDM_MAX(p->touched[group], page + 1);
        if (!tdm_hugepage_hopeless(&p->n_refused))
                p->n_runs = list_runs(p, from, from + tdm_kv_layer_bytes(&p->kv, layer), RUN_MAX, p->runs, p->n_runs);
}

static void make_one(void *arg, unsigned chunk, unsigned thread)
{
        struct tdm_vk_pages *p = arg;

        make_pages(p, &p->runs[chunk]);
}

void tdm_vk_pages_make(struct tdm_vk_pages *p)
{
        tdm_pool_run(p->threads, p->n_runs, make_one, p);
        p->n_runs = 0;
}

void tdm_vk_pages_ahead(struct tdm_vk_pages *p, uint32_t n_seqs)
{
        bool more = false;

        if (!p->has_thread)
                return;
        pthread_mutex_lock(&p->mutex);
        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                uint32_t left = (p->kv.n_layers[group] ? p->kv.n_pages[group] : 0) - p->touched[group],
                         n = p->touched[group] + TDM_MIN(n_seqs + TDM_MIN(AHEAD_PAGES, left / 4), left);

                more = more || n > p->ahead[group];
                p->ahead[group] = TDM_MAX(p->ahead[group], n);
        }
        if (more)
                pthread_cond_signal(&p->changed);
        pthread_mutex_unlock(&p->mutex);
}
