/* Builds the segment: every tensor of the file, packed by several threads, panel by panel, in the order of the segment
 * and slice by slice, so that workers can use what is ready while the rest is read. What of the file comes next is
 * asked for ahead; the guard turns a file that shrinks meanwhile into an error.
 *
 * Does not compress, convert or round: every weight keeps its exact value. */
#include <assert.h>
#include <inttypes.h>
#include <sys/mman.h>
#include "common/hugepage.h"
#include "common/sigbus.h"
#include "common/pool.h"
#include "engine/weights/weights-private.h"

#define PROGRESS_BYTES (UINT64_C(4) << 20)
#define CHUNK_BYTES (UINT64_C(1) << 14)   /* that a thread packs at a time */
#define SLICE_BYTES (UINT64_C(32) << 20)  /* that all threads pack together: then it is ready */
#define AHEAD_BYTES (UINT64_C(128) << 20) /* of the file that are asked for before they are needed */
#define ASK_BYTES (UINT64_C(1) << 20)     /* at once: disks like large requests */
/* and again: a kernel forgets what is more than its window or the disk's largest request */
#define ASK_LEAST (UINT64_C(128) << 10)
#define ASK_PARTS 16u /* of a slice, so that no thread asks for all of it while the others wait */
/* Panels of a turned matrix that a thread packs at once: a column's piece of them is whole cache lines. */
#define COLUMNS_PANELS 8u

/* Panels of a matrix, or a whole vector. */
struct slice {
        uint32_t tensor, first, n;
};

struct build {
        const struct tdm_weights_plan *plan;
        const struct tdm_gguf *gguf;
        uint8_t *dst;
        struct tdm_pool *threads; /* NULL: the caller alone */
        struct slice *slices;     /* [n_slices], in the order of the segment */
        uint32_t n_slices;
        uint32_t n_asked;                   /* slices whose part of the file was asked for */
        uint64_t asked_bytes, packed_bytes; /* of the file */
        struct tdm_weights_progress progress;
        uint64_t told_bytes;
        _Atomic uint64_t done_bytes;
        uint8_t *not_huge; /* up to here there are huge pages, or it was tried */
        _Atomic uint32_t n_not_huge;
        uint8_t *gathered; /* [threads][gathered_bytes]: the rows of a panel, side by side */
        uint64_t gathered_bytes;
        _Atomic bool stop; /* cancelled, or something was wrong: what is left is not touched */
        tdm_weights_progress_fn fn;
        void *userdata;
};

/* Only the thread that asked for the build calls this. */
static void build_tell_progress(struct build *build)
{
        build->progress.done_bytes = build->told_bytes = atomic_load_explicit(&build->done_bytes, memory_order_relaxed);
        if (build->fn && build->fn(&build->progress, build->userdata) != 0)
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

/* First byte of the segment behind the slice. */
static uint64_t end_of(const struct build *build, const struct slice *slice)
{
        const struct tdm_weights_tensor *tensor = &build->plan->tensors[slice->tensor];

        return tensor->offset + (tensor->layout == TDM_LAYOUT_ROWS ? tensor->size_bytes :
                                                                     (slice->first + slice->n) * tensor->panel_bytes);
}

/* Whole pages that are not there yet, up to the slice's end; what is not a whole one at the end of everything stays as
 * it is. */
static unsigned n_huge_until(const struct build *build, const struct slice *slice)
{
        const uint8_t *until = build->dst + end_of(build, slice), *end = build->dst + build->plan->header.size_bytes;
        uint64_t bytes = TDM_ALIGN_UP((uint64_t)TDM_MAX(until - build->not_huge, 0), TDM_HUGEPAGE_BYTES);

        return (unsigned)(TDM_MIN(bytes, (uint64_t)TDM_MAX(end - build->not_huge, 0)) / TDM_HUGEPAGE_BYTES);
}

/* ---- the file ---- */

static uint64_t tensor_row_bytes(const struct build *build, uint32_t tensor)
{
        const struct tdm_gguf_tensor *source = build->plan->sources[tensor];

        return source->size_bytes / (source->dims[1] * source->dims[2] * source->dims[3]);
}

/* The first row of a slice, in the file's tensor. */
static uint32_t slice_first_row(const struct build *build, const struct slice *slice)
{
        return tdm_weights_cut_row(&build->plan->orders[slice->tensor].cut, slice->first * TDM_PANEL_ROWS);
}

/* Where the slice lies in the file: from its first row to its last, with what lies between rows that are cut out. For a
 * vector, all that it lies in. */
static void slice_source(const struct build *build, const struct slice *slice, const uint8_t **ret, uint64_t *ret_bytes)
{
        const struct tdm_weights_tensor *tensor = &build->plan->tensors[slice->tensor];
        const struct tdm_gguf_tensor *source = build->plan->sources[slice->tensor];
        uint32_t end = TDM_MIN((slice->first + slice->n) * TDM_PANEL_ROWS, tensor->rows), first, last;

        *ret = tdm_gguf_tensor_data(build->gguf, source);
        *ret_bytes = source->size_bytes;
        if (tensor->layout == TDM_LAYOUT_ROWS)
                return;
        first = slice_first_row(build, slice);
        last = tdm_weights_cut_row(&build->plan->orders[slice->tensor].cut, end - 1);
        *ret += first * tensor_row_bytes(build, slice->tensor);
        *ret_bytes = (last + 1 - first) * tensor_row_bytes(build, slice->tensor);
}

/* Slices from n_asked on whose part of the file is to be asked for now: a disk is only fast when it is asked for much
 * at once; page faults ask for little, and wait. */
static uint32_t n_to_ask(const struct build *build, uint64_t *ret_bytes)
{
        uint32_t n = 0;

        *ret_bytes = 0;
        for (uint32_t i = build->n_asked;
             i < build->n_slices && build->asked_bytes + *ret_bytes < build->packed_bytes + AHEAD_BYTES; i++, n++) {
                const uint8_t *data;
                uint64_t bytes;

                slice_source(build, &build->slices[i], &data, &bytes);
                *ret_bytes += bytes;
        }
        return n;
}

/* One of ASK_PARTS of a slice's. */
static void ask_for(const struct build *build, const struct slice *slice, uint32_t part)
{
        const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        const uint8_t *data;
        uint64_t bytes, each;

        slice_source(build, slice, &data, &bytes);
        bytes += (uintptr_t)data % page;
        data -= (uintptr_t)data % page;
        each = TDM_ALIGN_UP(TDM_DIV_UP(bytes, ASK_PARTS), ASK_BYTES);
        for (uint64_t at = part * each; at < TDM_MIN((part + 1) * each, bytes); at += ASK_LEAST) {
                if (at % ASK_BYTES == 0)
                        (void)madvise((void *)(data + at), TDM_MIN(bytes - at, ASK_BYTES), MADV_WILLNEED); /* a wish */
                (void)madvise((void *)(data + at), TDM_MIN(bytes - at, ASK_LEAST), MADV_WILLNEED);
        }
}

/* The pages that this slice was packed from leave the mapping at once. To unmap all of a large file in the end would
 * hold up its thread for a tenth of a second and more. The page cache keeps the data. */
static void let_go(const struct build *build, const struct slice *slice)
{
        const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        const uint8_t *data;
        uint64_t bytes;
        uintptr_t begin, end;

        slice_source(build, slice, &data, &bytes);
        begin = TDM_ALIGN_UP((uintptr_t)data, page);
        end = ((uintptr_t)data + bytes) & ~(page - 1);
        if (begin < end)
                (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* ---- packing ---- */

/* One slice, and what else is due: the last one's part of the file is let go, that of later ones asked for, and the
 * next one gets its huge pages. */
struct slice_job {
        struct build *build;
        const struct slice *slice;
        const struct slice *last; /* NULL: none */
        const struct tdm_weights_tensor *tensor;
        const uint8_t *data;
        uint64_t row_bytes;
        uint32_t first_row;     /* of the file's tensor, at data */
        uint32_t n_ask, n_huge; /* chunks */
        uint32_t chunk_panels;
        _Atomic bool not_finite;
};

/* Whether the file has a matrix in a type that is packed as another one. */
static bool is_rewritten(const struct build *build, uint32_t tensor)
{
        uint32_t type = build->plan->sources[tensor]->type;

        return tdm_weights_packed_type(type) != type;
}

/* Bytes of a row as it is packed, of the tensor's own type. */
static uint64_t packed_row_bytes(const struct tdm_weights_tensor *tensor)
{
        const struct tdm_type_info *info = tdm_type_info(tensor->type);

        return (uint64_t)tensor->cols / info->block_values * info->block_bytes;
}

/* Rows of a panel that are not equally far apart in the file, or are of a type that is rewritten, brought side by side.
 */
static const uint8_t *gather_rows(const struct slice_job *job, uint32_t row, uint32_t n_rows, unsigned thread)
{
        const struct build *build = job->build;
        const struct tdm_weights_order *order = &build->plan->orders[job->slice->tensor];
        uint8_t *to = build->gathered + thread * build->gathered_bytes, *rows = to;
        uint32_t type = build->plan->sources[job->slice->tensor]->type;
        uint64_t bytes = packed_row_bytes(job->tensor);
        bool rewrites = is_rewritten(build, job->slice->tensor);

        for (uint32_t i = 0; i < n_rows; i++, to += bytes) {
                uint32_t from = tdm_weights_source_row(order, row + i) - job->first_row;
                const uint8_t *src = job->data + from * job->row_bytes;

                if (rewrites)
                        tdm_weights_rewrite(type, to, src, job->tensor->cols / tdm_type_info(type)->block_values);
                else
                        memcpy(to, src, bytes);
        }
        return rows;
}

/* Panel i of the slice, or from it on as many as are packed at once; returns how many, 0 where something is not
 * finite. */
static uint32_t pack_panel(const struct slice_job *job, uint32_t i, unsigned thread)
{
        const struct tdm_weights_tensor *tensor = job->tensor;
        const struct build *build = job->build;
        const struct tdm_weights_order *order = &build->plan->orders[job->slice->tensor];
        uint32_t panel = job->slice->first + i, row = panel * TDM_PANEL_ROWS;
        uint32_t from = tdm_weights_source_row(order, row), n_rows = TDM_MIN(tensor->rows - row, TDM_PANEL_ROWS),
                 apart = tdm_weights_rows_apart(order, row, n_rows);
        const uint8_t *src = job->data + (uint64_t)(from - job->first_row) * job->row_bytes;
        uint8_t *dst = build->dst + tensor->offset;
        uint64_t row_bytes;

        switch (tensor->layout) {
        case TDM_LAYOUT_BY_COLUMN:
                n_rows = TDM_MIN(tensor->rows - row, COLUMNS_PANELS * TDM_PANEL_ROWS);
                return tdm_weights_pack_columns(tensor, dst, row, n_rows, src, job->row_bytes) ?
                               n_rows / TDM_PANEL_ROWS :
                               0;
        case TDM_LAYOUT_BY_ROW:
                return tdm_weights_pack_rows(tensor->type, dst + panel * tensor->panel_bytes, src,
                                             apart * job->row_bytes, n_rows, tensor->cols);
        default:
                row_bytes = apart * job->row_bytes;
                if (apart == 0 || is_rewritten(build, job->slice->tensor)) {
                        src = gather_rows(job, row, n_rows, thread);
                        row_bytes = packed_row_bytes(tensor);
                }
                return tdm_weights_pack_panel(tensor->type, dst + panel * tensor->panel_bytes, src, row_bytes, n_rows,
                                              tensor->cols);
        }
}

static bool pack_panels(struct slice_job *job, uint32_t first, uint32_t end, unsigned thread)
{
        const struct tdm_weights_tensor *tensor = job->tensor;
        struct build *build = job->build;

        if (tensor->layout == TDM_LAYOUT_ROWS) {
                atomic_fetch_add_explicit(&build->done_bytes, tensor->size_bytes, memory_order_relaxed);
                return tdm_weights_pack_vector(build->plan->sources[job->slice->tensor]->type,
                                               (float *)(void *)(build->dst + tensor->offset), job->data,
                                               tensor->rows * tensor->cols, &build->plan->orders[job->slice->tensor]);
        }
        for (uint32_t i = first, n; i < end && !atomic_load_explicit(&build->stop, memory_order_relaxed); i += n) {
                n = pack_panel(job, i, thread);
                if (n == 0)
                        return false;
                atomic_fetch_add_explicit(&build->done_bytes, n * tensor->panel_bytes, memory_order_relaxed);
                if (thread == 0 && atomic_load_explicit(&build->done_bytes, memory_order_relaxed) - build->told_bytes >=
                                           PROGRESS_BYTES)
                        build_tell_progress(build);
        }
        return true;
}

static void run_chunk(void *arg, unsigned chunk, unsigned thread)
{
        struct slice_job *job = arg;
        struct build *build = job->build;
        uint32_t first;

        if (atomic_load_explicit(&build->stop, memory_order_relaxed))
                return;
        if (chunk == 0) {
                if (job->last)
                        let_go(build, job->last);
                return;
        }
        chunk--;
        if (chunk < job->n_ask) {
                ask_for(build, &build->slices[build->n_asked + chunk / ASK_PARTS], chunk % ASK_PARTS);
                return;
        }
        chunk -= job->n_ask;
        if (chunk < job->n_huge) {
                tdm_hugepage_try(build->not_huge + chunk * TDM_HUGEPAGE_BYTES, 1, &build->n_not_huge);
                return;
        }
        first = (chunk - job->n_huge) * job->chunk_panels;
        if (!pack_panels(job, first, TDM_MIN(first + job->chunk_panels, job->slice->n), thread)) {
                atomic_store_explicit(&job->not_finite, true, memory_order_relaxed);
                atomic_store_explicit(&build->stop, true, memory_order_relaxed);
        }
}

/* n: chunks of panels. */
static void slice_run(struct slice_job *job, unsigned n)
{
        struct build *build = job->build;
        uint64_t asked_bytes;
        uint32_t n_slices = n_to_ask(build, &asked_bytes);

        job->n_ask = n_slices * ASK_PARTS;
        n += 1 + job->n_ask + job->n_huge;
        if (build->threads)
                tdm_pool_run(build->threads, n, run_chunk, job);
        else
                for (unsigned i = 0; i < n; i++)
                        run_chunk(job, i, 0);
        build->n_asked += n_slices;
        build->asked_bytes += asked_bytes;
        build->not_huge += job->n_huge * TDM_HUGEPAGE_BYTES;
}

/* False: a weight is not finite. */
static bool run_slice(struct build *build, uint32_t i, const uint8_t *data)
{
        const struct slice *slice = &build->slices[i];
        const struct tdm_weights_tensor *tensor = &build->plan->tensors[slice->tensor];
        struct slice_job job = { .build = build,
                                 .slice = slice,
                                 .last = i > 0 ? slice - 1 : NULL,
                                 .tensor = tensor,
                                 .data = data,
                                 .row_bytes = tensor_row_bytes(build, slice->tensor),
                                 .first_row = slice_first_row(build, slice),
                                 .n_huge = i + 1 < build->n_slices ? n_huge_until(build, slice + 1) : 0,
                                 .chunk_panels = 1 };

        if (tensor->layout == TDM_LAYOUT_BY_COLUMN)
                job.chunk_panels = COLUMNS_PANELS;
        else if (tensor->layout != TDM_LAYOUT_ROWS)
                job.chunk_panels = (uint32_t)TDM_MAX(CHUNK_BYTES / tensor->panel_bytes, UINT64_C(1));
        slice_run(&job, TDM_DIV_UP(slice->n, job.chunk_panels));
        return !atomic_load_explicit(&job.not_finite, memory_order_relaxed);
}

static int build_slice(struct build *build, uint32_t i, struct tdm_error *err)
{
        const struct slice *slice = &build->slices[i];
        const struct tdm_gguf_tensor *source = build->plan->sources[slice->tensor];
        struct tdm_sigbus_guard guard;
        const uint8_t *data;
        uint64_t bytes;
        bool finite;
        int r;

        slice_source(build, slice, &data, &bytes);
        r = tdm_sigbus_guard_begin(&guard, data, bytes);
        if (r < 0)
                return tdm_error_set(err, r, "cannot guard the mapping of model %s: %s", tdm_gguf_name(build->gguf),
                                     strerror(-r));
        finite = run_slice(build, i, data);
        if (tdm_sigbus_guard_hit(&guard))
                r = changed(build->gguf, source, err);
        else if (!finite)
                r = not_finite(build->gguf, source, err);
        tdm_sigbus_guard_end(&guard);
        if (r != 0)
                return r;
        build->packed_bytes += bytes;
        build->progress.ready_bytes = i + 1 < build->n_slices ? end_of(build, slice) : build->plan->header.size_bytes;
        build_tell_progress(build);
        return atomic_load_explicit(&build->stop, memory_order_relaxed) ?
                       tdm_error_set(err, -ECANCELED, "loading was cancelled") :
                       0;
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
        return b == 0 ? a : common_divisor(b, a % b);
}

/* A tensor whose rows come in another order is cut between heads, since a row may come from anywhere in its own, and
 * between panels. */
static uint32_t panels_apart(const struct tdm_weights_order *order)
{
        return order->n_dims ? order->head_dim / common_divisor(order->head_dim, TDM_PANEL_ROWS) : 1;
}

static bool may_gather(const struct build *build, uint32_t tensor)
{
        const struct tdm_weights_order *order = &build->plan->orders[tensor];

        return build->plan->tensors[tensor].layout != TDM_LAYOUT_ROWS &&
               (order->n_dims || order->cut.apart || is_rewritten(build, tensor));
}

/* Room for the rows of one panel for each thread, where any tensor's are gathered. */
static int take_gathered(struct build *build, unsigned n_threads, struct tdm_error *err)
{
        for (uint32_t i = 0; i < build->plan->header.n_tensors; i++)
                if (may_gather(build, i))
                        build->gathered_bytes = TDM_MAX(build->gathered_bytes,
                                                        packed_row_bytes(&build->plan->tensors[i]) * TDM_PANEL_ROWS);
        if (build->gathered_bytes == 0)
                return 0;
        build->gathered = malloc(n_threads * build->gathered_bytes);
        return build->gathered ? 0 : tdm_error_set(err, -ENOMEM, "out of memory");
}

/* *ret NULL: only counts. */
static uint32_t plan_cut(const struct tdm_weights_plan *plan, struct slice *ret)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < plan->header.n_tensors; i++) {
                const struct tdm_weights_tensor *tensor = &plan->tensors[i];
                bool is_vector = tensor->layout == TDM_LAYOUT_ROWS;
                uint32_t n_panels = is_vector ? 1 : TDM_DIV_UP(tensor->rows, TDM_PANEL_ROWS),
                         head = panels_apart(&plan->orders[i]),
                         each = is_vector ? 1 : (uint32_t)TDM_MAX(SLICE_BYTES / tensor->panel_bytes / head, 1) * head;

                if (tensor->layout == TDM_LAYOUT_FILE)
                        continue;
                if (tensor->layout == TDM_LAYOUT_BY_COLUMN) /* what is packed of any row lies all over it */
                        each = n_panels;
                for (uint32_t first = 0; first < n_panels; first += each, n++)
                        if (ret)
                                ret[n] = (struct slice){ i, first, TDM_MIN(each, n_panels - first) };
        }
        return n;
}

int tdm_weights_build(const struct tdm_weights_plan *plan, const struct tdm_gguf *gguf, uint8_t *dst,
                      unsigned n_threads, tdm_weights_progress_fn progress, void *userdata, struct tdm_error *err)
{
        _cleanup_(tdm_pool_destroyp) struct tdm_pool *threads = NULL;
        _cleanup_(freep) struct slice *slices = NULL;
        _cleanup_(freep) uint8_t *gathered = NULL;
        const struct tdm_weights_header *header = &plan->header;
        struct build build = { .plan = plan, .gguf = gguf, .dst = dst, .fn = progress, .userdata = userdata };
        struct slice_job before = { .build = &build }; /* the first slice */
        int r;

        assert((uintptr_t)dst % TDM_WEIGHTS_ALIGNMENT == 0);
        if (!tdm_gguf_tensor_data(gguf, plan->sources[0]))
                return tdm_error_set(err, -EINVAL, "model %s is not mapped", tdm_gguf_name(gguf));
        build.n_slices = plan_cut(plan, NULL);
        build.slices = slices = calloc(build.n_slices, sizeof(*slices));
        if (!slices)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        plan_cut(plan, slices);
        build.not_huge = (uint8_t *)TDM_ALIGN_UP((uintptr_t)dst, (uintptr_t)TDM_HUGEPAGE_BYTES);
        for (uint32_t i = 0; i < header->n_tensors; i++)
                build.progress.total_bytes += plan->tensors[i].size_bytes;
        /* Without helpers it only takes longer. */
        if (n_threads > 1 && build.progress.total_bytes > 2 * CHUNK_BYTES &&
            tdm_pool_new(&threads, n_threads, NULL) == 0)
                build.threads = threads;
        r = take_gathered(&build, build.threads ? n_threads : 1, err);
        if (r != 0)
                return r;
        gathered = build.gathered;

        before.n_huge = n_huge_until(&build, slices);
        slice_run(&before, 0);
        memcpy(dst + header->tensors_offset, plan->tensors, header->n_tensors * sizeof(*plan->tensors));
        memcpy(dst, header, sizeof(*header));
        for (uint32_t i = 0; i < build.n_slices; i++) {
                r = build_slice(&build, i, err);
                if (r != 0)
                        return r;
        }
        return 0;
}
