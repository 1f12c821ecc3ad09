/* Builds the segment: every tensor of the file, packed by several threads, panel by panel. It runs at memory speed; the guard turns a
 * file that shrinks meanwhile into an error.
 *
 * Does not compress, convert or round: every weight keeps its exact value. */
#include <assert.h>
#include <inttypes.h>
#include "common/hugepage.h"
#include "common/sigbus.h"
#include "engine/host/pool.h"
#include "engine/weights-private.h"

#define PROGRESS_BYTES (UINT64_C(4) << 20)
#define CHUNK_BYTES (UINT64_C(1) << 14) /* that a thread packs at a time */

struct build {
        struct tdm_pool *threads; /* NULL: the caller alone */
        uint64_t total_bytes, told_bytes;
        _Atomic uint64_t done_bytes;
        uint8_t *not_huge; /* up to here there are huge pages, or it was tried */
        _Atomic uint32_t n_not_huge;
        _Atomic bool stop; /* cancelled, or something was wrong: what is left is not touched */
        int (*progress)(uint64_t done, uint64_t total, void *userdata);
        void *userdata;
};

/* Of the thread that asked for all this only. */
static void tell_progress(struct build *build)
{
        uint64_t done = atomic_load_explicit(&build->done_bytes, memory_order_relaxed);

        if (!build->progress || (done - build->told_bytes < PROGRESS_BYTES && done < build->total_bytes))
                return;
        build->told_bytes = done;
        if (build->progress(done, build->total_bytes, build->userdata) != 0)
                atomic_store_explicit(&build->stop, true, memory_order_relaxed);
}

/* Zero rows that the file lost meanwhile look like data: the guard is asked before anything read is believed. */
static int changed(const struct tdm_gguf *gguf, const struct tdm_gguf_tensor *source, struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_MODEL_CHANGED,
                             "model %s: tensor %.*s could not be read to its end: the file was cut "
                             "short while it was in use",
                             tdm_gguf_name(gguf), tdm_weights_name_length(source), source->name.data);
}

static int not_finite(const struct tdm_gguf *gguf, const struct tdm_gguf_tensor *source, struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_BAD_MODEL,
                             "model %s: tensor %.*s holds a scale or weight that is not a finite number "
                             "(damaged file?)",
                             tdm_gguf_name(gguf), tdm_weights_name_length(source), source->name.data);
}

static void make_huge(void *arg, unsigned i, unsigned thread)
{
        struct build *build = arg;

        if (!atomic_load_explicit(&build->stop, memory_order_relaxed))
                tdm_hugepage_try(build->not_huge + i * TDM_HUGEPAGE_BYTES, 1, &build->n_not_huge);
}

/* Nothing behind not_huge has been written yet. What is not a whole huge page at the end of everything stays as it is. */
static void make_huge_until(struct build *build, const uint8_t *until, const uint8_t *end)
{
        uint64_t bytes = TDM_ALIGN_UP((uint64_t)TDM_MAX(until - build->not_huge, 0), TDM_HUGEPAGE_BYTES);
        unsigned n = (unsigned)(TDM_MIN(bytes, (uint64_t)TDM_MAX(end - build->not_huge, 0)) / TDM_HUGEPAGE_BYTES);

        if (build->threads)
                tdm_pool_run(build->threads, n, make_huge, build);
        else
                for (unsigned i = 0; i < n; i++)
                        make_huge(build, i, 0);
        build->not_huge += n * TDM_HUGEPAGE_BYTES;
}

/* One tensor's panels, by several threads. */
struct pack_job {
        struct build *build;
        const struct tdm_weights_tensor *tensor;
        const uint8_t *data;
        uint64_t row_bytes;
        uint8_t *dst;
        uint32_t n_panels, chunk_panels;
        _Atomic bool not_finite;
};

static void pack_chunk(void *arg, unsigned chunk, unsigned thread)
{
        struct pack_job *job = arg;
        const struct tdm_weights_tensor *tensor = job->tensor;
        uint32_t first = chunk * job->chunk_panels, end = TDM_MIN(first + job->chunk_panels, job->n_panels);

        for (uint32_t panel = first; panel < end; panel++) {
                uint32_t row = panel * TDM_PANEL_ROWS;

                if (atomic_load_explicit(&job->build->stop, memory_order_relaxed))
                        return;
                if (!tdm_weights_pack_panel(tensor->type, job->dst + panel * tensor->panel_bytes, job->data + row * job->row_bytes,
                                job->row_bytes, TDM_MIN(tensor->rows - row, TDM_PANEL_ROWS), tensor->cols)) {
                        atomic_store_explicit(&job->not_finite, true, memory_order_relaxed);
                        atomic_store_explicit(&job->build->stop, true, memory_order_relaxed);
                        return;
                }
                atomic_fetch_add_explicit(&job->build->done_bytes, tensor->panel_bytes, memory_order_relaxed);
                if (thread == 0)
                        tell_progress(job->build);
        }
}

static int build_tensor(struct build *build, const struct tdm_weights_tensor *tensor, const struct tdm_gguf *gguf,
                        const struct tdm_gguf_tensor *source, const struct tdm_sigbus_guard *guard, const uint8_t *data,
                        uint8_t *dst, struct tdm_error *err)
{
        struct pack_job job = { .build = build,
                                .tensor = tensor,
                                .data = data,
                                .row_bytes = source->size_bytes / tensor->rows,
                                .dst = dst,
                                .n_panels = TDM_DIV_UP(tensor->rows, TDM_PANEL_ROWS) };
        bool finite = true;

        if (tensor->layout == TDM_LAYOUT_ROWS) {
                finite = tdm_weights_pack_vector(source->type, (float *)(void *)dst, data, tensor->rows * tensor->cols);
                atomic_fetch_add_explicit(&build->done_bytes, tensor->size_bytes, memory_order_relaxed);
        } else {
                unsigned n_chunks;

                job.chunk_panels = (uint32_t)TDM_MAX(CHUNK_BYTES / tensor->panel_bytes, UINT64_C(1));
                n_chunks = TDM_DIV_UP(job.n_panels, job.chunk_panels);
                if (build->threads)
                        tdm_pool_run(build->threads, n_chunks, pack_chunk, &job);
                else
                        for (unsigned i = 0; i < n_chunks; i++)
                                pack_chunk(&job, i, 0);
                finite = !atomic_load_explicit(&job.not_finite, memory_order_relaxed);
        }
        if (tdm_sigbus_guard_hit(guard))
                return changed(gguf, source, err);
        if (!finite)
                return not_finite(gguf, source, err);
        tell_progress(build);
        return atomic_load_explicit(&build->stop, memory_order_relaxed)
                       ? tdm_error_set(err, -ECANCELED, "loading was cancelled")
                       : 0;
}

int tdm_weights_build(const struct tdm_weights_plan *plan, const struct tdm_gguf *gguf, uint8_t *dst,
                      unsigned n_threads, int (*progress)(uint64_t done, uint64_t total, void *userdata),
                      void *userdata, struct tdm_error *err)
{
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *threads = NULL;
        struct build build = { .progress = progress, .userdata = userdata };
        const struct tdm_weights_header *header = &plan->header;

        assert((uintptr_t)dst % TDM_WEIGHTS_ALIGNMENT == 0);
        build.not_huge = (uint8_t *)TDM_ALIGN_UP((uintptr_t)dst, (uintptr_t)TDM_HUGEPAGE_BYTES);
        for (uint32_t i = 0; i < header->n_tensors; i++)
                build.total_bytes += plan->tensors[i].size_bytes;
        /* Without helpers it only takes longer. */
        if (n_threads > 1 && build.total_bytes > 2 * CHUNK_BYTES && tdm_pool_new(&threads, n_threads, NULL) == 0)
                build.threads = threads;

        for (uint32_t i = 0; i < header->n_tensors; i++) {
                const struct tdm_gguf_tensor *source = plan->sources[i];
                const uint8_t *data = tdm_gguf_tensor_data(gguf, source);
                struct tdm_sigbus_guard guard;
                int r;

                if (!data)
                        return tdm_error_set(err, -EINVAL, "model %s is not mapped", tdm_gguf_name(gguf));
                r = tdm_sigbus_guard_begin(&guard, data, source->size_bytes);
                if (r < 0)
                        return tdm_error_set(err, r, "cannot guard the mapping of model %s: %s", tdm_gguf_name(gguf),
                                             strerror(-r));
                make_huge_until(&build, dst + plan->tensors[i].offset + plan->tensors[i].size_bytes, dst + header->size_bytes);
                r = build_tensor(&build, &plan->tensors[i], gguf, source, &guard, data, dst + plan->tensors[i].offset,
                                 err);
                tdm_sigbus_guard_end(&guard);
                if (r != 0)
                        return r;
        }
        memcpy(dst + header->tensors_offset, plan->tensors, header->n_tensors * sizeof(*plan->tensors));
        memcpy(dst, header, sizeof(*header));
        return 0;
}
