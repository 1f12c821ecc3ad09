/* One thread runs one stage of a load. The loop fills the struct before the thread starts, and reads the thread's
 * results after it has joined it, or, of the weights, after a chunk was sealed. So both threads touch only atomics at
 * the same time. A file that shrinks under the mapping comes back as an error of the functions that are called here. A
 * file on a slow disk or a hanging mount delays only its own load. */
#include "daemon/models/private.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/time.h>

#define PACKERS_MAX 12
#define TENSOR_BYTES 256u /* of description and plan, for each tensor */

enum stage { STAGE_NONE, STAGE_METADATA, STAGE_WEIGHTS };

struct tdm_model_load {
        struct tdm_loop *loop;
        struct tdm_source *wake;
        int fd;
        char *name, *path;
        tdm_model_load_fn done;
        void *userdata;

        uint64_t max_bytes;                          /* of metadata */
        const struct tdm_projector_config *pictures; /* NULL: the model takes none */

        enum stage stage;
        pthread_t thread;
        int r;
        struct tdm_error err;

        struct tdm_model_metadata *made;
        const struct tdm_model_metadata *metadata;
        struct tdm_segment *segment;
        tdm_model_load_sealed_fn sealed;
        int seal_error; /* the thread's */

        _Atomic bool cancel;
        _Atomic bool ended;
        _Atomic uint32_t n_sealed;
        _Atomic uint64_t n_done, n_total;
};

void tdm_model_metadata_trim(struct tdm_model_metadata *m)
{
        /* The description's tensors point into the gguf, so both are freed. The hparams stay, because a thread may read
         * them. */
        tdm_weights_plan_destroy(steal_ptr(&m->plan));
        tdm_model_description_deinit(&m->description);
        tdm_gguf_close(steal_ptr(&m->gguf));
}

void tdm_model_metadata_free(struct tdm_model_metadata *m)
{
        if (!m)
                return;
        tdm_model_metadata_trim(m);
        tdm_chat_destroy(m->chat);
        tdm_tokenizer_destroy(m->tokenizer);
        tdm_labels_unref(m->labels);
        tdm_model_parts_free(m->parts);
        tdm_model_projector_free(m->projector);
        tdm_vocabulary_unref(m->vocabulary);
        pthread_mutex_destroy(&m->vocabulary_lock);
        free(m);
}

uint64_t tdm_model_metadata_bytes(const struct tdm_model_metadata *m)
{
        uint64_t bytes = sizeof(*m) + TENSOR_BYTES * (uint64_t)m->description.n_tensors;

        if (m->gguf)
                bytes += tdm_gguf_memory(m->gguf);
        if (m->tokenizer)
                bytes += tdm_tokenizer_memory(m->tokenizer);
        if (m->chat)
                bytes += tdm_chat_memory(m->chat);
        if (m->labels)
                bytes += m->labels->bytes;
        return bytes;
}

static void metadata_freep(struct tdm_model_metadata **m)
{
        tdm_model_metadata_free(*m);
}

/* The types of the matrices, the most bytes first: "Q8_0", or "mixed Q4_0/F16". */
void tdm_quantisation_describe(const struct tdm_model_description *d, char *ret, size_t size)
{
        uint64_t bytes[64] = { 0 };
        int best = -1, second = -1, n = 0;

        for (uint32_t i = 0; i < d->n_tensors; i++) {
                const struct tdm_tensor_ref *ref = &d->tensors[i];
                const struct tdm_gguf_tensor *t = ref->tensor;
                /* This tensor's share of what the file has as one tensor. */
                double share = (double)ref->rows * ref->cols / (double)(t->dims[0] * t->dims[1] * t->dims[2]);

                if (ref->rows > 1 && t->type < TDM_ARRAY_SIZE(bytes))
                        bytes[t->type] += (uint64_t)((double)t->size_bytes * share);
        }
        for (int i = 0; i < (int)TDM_ARRAY_SIZE(bytes); i++) {
                if (bytes[i] == 0)
                        continue;
                n++;
                if (best < 0 || bytes[i] > bytes[best]) {
                        second = best;
                        best = i;
                } else if (second < 0 || bytes[i] > bytes[second])
                        second = i;
        }
        if (n == 0)
                snprintf(ret, size, "unknown");
        else if (n == 1)
                snprintf(ret, size, "%s", tdm_type_info((uint32_t)best)->name);
        else
                snprintf(ret, size, "mixed %s/%s%s", tdm_type_info((uint32_t)best)->name,
                         tdm_type_info((uint32_t)second)->name, n > 2 ? "/…" : "");
}

uint64_t tdm_parameters_count(const struct tdm_gguf *gguf)
{
        uint64_t n = 0;

        for (uint64_t i = 0; i < tdm_gguf_n_tensors(gguf); i++) {
                const uint64_t *dims = tdm_gguf_tensor(gguf, i)->dims;

                n += dims[0] * dims[1] * dims[2] * dims[3];
        }
        return n;
}

static void find_inputs(const struct tdm_model_description *d, struct tdm_model_inputs *ret)
{
        for (uint32_t i = 0; i < d->n_tensors; i++)
                if (tdm_tensor_role((enum tdm_tensor_kind)d->tensors[i].kind) == TDM_ROLE_FILE)
                        *ret = (struct tdm_model_inputs){
                                .part = d->tensors[i].tensor->part,
                                .offset = d->tensors[i].tensor->offset,
                                .row_bytes = (uint32_t)(d->tensors[i].tensor->size_bytes / d->tensors[i].rows),
                        };
}

/* Less memory by what the gguf took; 0 is no limit, and 1 is too little. */
static void take_memory(struct tdm_parse_limits *limits, const struct tdm_gguf *gguf)
{
        if (limits->max_bytes > 0)
                limits->max_bytes = limits->max_bytes > tdm_gguf_memory(gguf) ?
                                            limits->max_bytes - tdm_gguf_memory(gguf) :
                                            UINT64_C(1);
}

int tdm_gguf_read_parts(struct tdm_gguf *gguf, const char *name, const char *path, struct tdm_parse_limits *limits,
                        struct tdm_model_parts **ret, struct tdm_error *err)
{
        _cleanup_(freep) struct tdm_gguf **parts = NULL;
        uint32_t no, n, n_open = 0;
        int r = tdm_gguf_part(gguf, &no, &n, err);

        if (r != 0 || n == 1 || !path)
                return r; /* where there is no path, the description refuses it */
        if (no != 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "cannot open model %s: it is part %u of %u; name the first part", name, no + 1, n);
        parts = calloc(n, sizeof(*parts));
        if (!parts)
                return tdm_error_set(err, -ENOMEM, "out of memory for %u files", n);
        r = tdm_model_parts_open(path, n, ret, err);
        while (r == 0 && n_open < n - 1) {
                r = tdm_gguf_open_within(&parts[n_open], (*ret)->files[n_open].fd, (*ret)->files[n_open].path, limits,
                                         err);
                if (r == 0)
                        take_memory(limits, parts[n_open++]);
        }
        if (r == 0)
                r = tdm_gguf_join(gguf, parts, n - 1, err);
        for (uint32_t i = 0; i < n_open && r != 0; i++)
                tdm_gguf_close(parts[i]);
        return r;
}

static int read_metadata(struct tdm_model_load *l)
{
        _cleanup_(metadata_freep) struct tdm_model_metadata *m = calloc(1, sizeof(*m));
        struct tdm_parse_limits limits = { .max_bytes = l->max_bytes, .cancelled = &l->cancel };
        struct tdm_gguf_string architecture;
        int r;

        if (!m)
                return tdm_error_set(&l->err, -ENOMEM, "out of memory for the model's metadata");
        pthread_mutex_init(&m->vocabulary_lock, NULL);
        r = tdm_gguf_open_within(&m->gguf, l->fd, l->name, &limits, &l->err);
        if (r != 0)
                return r;
        take_memory(&limits, m->gguf);
        r = tdm_gguf_read_parts(m->gguf, l->name, l->path, &limits, &m->parts, &l->err);
        if (r != 0)
                return r;
        r = tdm_model_describe(m->gguf, &m->description, &l->err);
        if (r != 0)
                return r;
        r = tdm_tokenizer_new_within(&m->tokenizer, m->gguf, &limits, &l->err);
        if (r != 0)
                return r;
        r = tdm_weights_plan_new(&m->plan, &m->description, &l->err);
        if (r != 0)
                return r;
        m->weights_bytes = tdm_weights_plan_size(m->plan);
        find_inputs(&m->description, &m->inputs);
        if (limits.max_bytes > 0)
                limits.max_bytes -= TDM_MIN(tdm_tokenizer_memory(m->tokenizer), limits.max_bytes - 1);
        r = tdm_chat_new(&m->chat, m->gguf, m->tokenizer, limits.max_bytes);
        if (r < 0)
                return tdm_error_set(&l->err, r, "out of memory for the chat template");
        if (tdm_gguf_get_string(m->gguf, "general.architecture", &architecture) == 0)
                snprintf(m->architecture, sizeof(m->architecture), "%.*s", (int)TDM_MIN(architecture.size, (size_t)31),
                         architecture.data);
        r = l->pictures ? tdm_model_projector_open(&m->projector, l->path, &m->description, m->architecture,
                                                   l->pictures, &limits) :
                          0;
        if (r < 0)
                return tdm_error_set(&l->err, r, "out of memory for the vision tower's description");
        if (m->description.recipe.tells_classes) {
                r = tdm_labels_new(&m->labels, m->gguf, m->description.recipe.architecture,
                                   m->description.recipe.n_labels, &l->err);
                if (r != 0)
                        return r;
        }
        tdm_recommended_read(m->gguf, &m->recommended, &m->description.notes);
        m->is_far = tdm_file_is_far(l->fd);
        m->n_parameters = tdm_parameters_count(m->gguf);
        tdm_quantisation_describe(&m->description, m->quantisation, sizeof(m->quantisation));
        l->made = steal_ptr(&m);
        return 0;
}

static int on_load_progress(const struct tdm_weights_progress *progress, void *userdata)
{
        struct tdm_model_load *l = userdata;
        /* the segment may be longer: it is of whole pages */
        bool whole = progress->ready_bytes == l->metadata->weights_bytes;
        unsigned n = whole ? l->segment->n_chunks : (unsigned)(progress->ready_bytes / l->segment->chunk_bytes);

        /* Relaxed: the figures are shown to people, and publish nothing else. */
        atomic_store_explicit(&l->n_total, progress->total_bytes, memory_order_relaxed);
        atomic_store_explicit(&l->n_done, progress->done_bytes, memory_order_relaxed);
        if (atomic_load_explicit(&l->cancel, memory_order_relaxed))
                return -ECANCELED;
        if (n == l->segment->n_sealed)
                return 0;
        l->seal_error = tdm_segment_seal_until(l->segment, n);
        if (l->seal_error < 0)
                return l->seal_error;
        /* Release: pairs with the loop's acquire. A reader of this number finds this many chunks sealed. */
        atomic_store_explicit(&l->n_sealed, n, memory_order_release);
        tdm_loop_wake(l->wake);
        return 0;
}

/* Packing is mostly copying, and most of the cores together use all of the memory's speed. The others are left to
 * people's work and to the worker that reads what is packed. */
static unsigned n_packers(void)
{
        cpu_set_t cpus;

        if (sched_getaffinity(0, sizeof(cpus), &cpus) < 0)
                return 1;
        return (unsigned)TDM_MIN(TDM_MAX(CPU_COUNT(&cpus) * 3 / 4, 1), PACKERS_MAX);
}

static void *run_stage(void *userdata)
{
        struct tdm_model_load *l = userdata;

        if (l->stage == STAGE_METADATA)
                l->r = read_metadata(l);
        else
                l->r = tdm_weights_build(l->metadata->plan, l->metadata->gguf, l->segment->base, n_packers(),
                                         on_load_progress, l, &l->err);
        if (l->seal_error < 0)
                l->r = tdm_error_set(&l->err, TDM_E_INTERNAL, "cannot seal the weights of model %s: %s", l->name,
                                     strerror(-l->seal_error));
        /* Release: the loop that reads it joins a thread that is about to end. */
        atomic_store_explicit(&l->ended, true, memory_order_release);
        tdm_loop_wake(l->wake);
        return NULL;
}

static void on_stage_done(struct tdm_model_load *l)
{
        pthread_join(l->thread, NULL);
        l->stage = STAGE_NONE;
        if (l->r != 0 && l->err.message[0] == '\0')
                tdm_error_set(&l->err, l->r, "cannot load model %s: %s", l->name,
                              l->r < 0 ? strerror(-l->r) : tdm_error_name(l->r));
        l->done(l, l->r, &l->err, l->userdata);
}

static int on_wake(struct tdm_source *source, void *userdata)
{
        struct tdm_model_load *l = userdata;
        unsigned n;

        if (l->stage == STAGE_NONE)
                return 0;
        if (atomic_load_explicit(&l->ended, memory_order_acquire)) {
                on_stage_done(l);
                return 0;
        }
        n = atomic_load_explicit(&l->n_sealed, memory_order_acquire);
        if (n > 0 && n == l->segment->n_chunks)
                n--;
        if (n > 0)
                l->sealed(l, n, l->userdata);
        return 0;
}

int tdm_model_load_new(struct tdm_model_load **ret, struct tdm_loop *loop, int fd, const char *name, const char *path,
                       tdm_model_load_fn done, void *userdata)
{
        _cleanup_(tdm_model_load_destroyp) struct tdm_model_load *l = calloc(1, sizeof(*l));
        int r;

        if (!l)
                return -ENOMEM;
        l->loop = loop;
        l->fd = fd;
        l->done = done;
        l->userdata = userdata;
        l->name = strdup(name);
        l->path = path ? strdup(path) : NULL;
        if (!l->name || (path && !l->path))
                return -ENOMEM;
        r = tdm_loop_add_wake(loop, on_wake, l, &l->wake);
        if (r < 0)
                return r;
        *ret = steal_ptr(&l);
        return 0;
}

void tdm_model_load_destroy(struct tdm_model_load *l)
{
        if (!l)
                return;
        if (l->stage != STAGE_NONE) {
                atomic_store_explicit(&l->cancel, true, memory_order_relaxed);
                pthread_join(l->thread, NULL);
        }
        tdm_source_destroyp(&l->wake);
        tdm_model_metadata_free(l->made);
        free(l->name);
        free(l->path);
        free(l);
}

void tdm_model_load_destroyp(struct tdm_model_load **l)
{
        tdm_model_load_destroy(*l);
        *l = NULL;
}

void tdm_model_load_cancel(struct tdm_model_load *l)
{
        atomic_store_explicit(&l->cancel, true, memory_order_relaxed);
}

static int stage_start(struct tdm_model_load *l, enum stage stage)
{
        int r;

        l->stage = stage;
        atomic_store_explicit(&l->ended, false, memory_order_relaxed);
        l->r = 0;
        l->err.code = 0;
        l->err.message[0] = '\0';
        r = pthread_create(&l->thread, NULL, run_stage, l);
        if (r != 0) {
                l->stage = STAGE_NONE;
                return -r;
        }
        return 0;
}

int tdm_model_load_metadata(struct tdm_model_load *l, uint64_t max_bytes, const struct tdm_projector_config *pictures)
{
        l->pictures = pictures;
        l->max_bytes = max_bytes;
        return stage_start(l, STAGE_METADATA);
}

struct tdm_model_metadata *tdm_model_load_take_metadata(struct tdm_model_load *l)
{
        return steal_ptr(&l->made);
}

int tdm_model_load_weights(struct tdm_model_load *l, const struct tdm_model_metadata *metadata,
                           struct tdm_segment *segment, tdm_model_load_sealed_fn sealed)
{
        l->metadata = metadata;
        l->segment = segment;
        l->sealed = sealed;
        atomic_store_explicit(&l->n_done, 0, memory_order_relaxed);
        atomic_store_explicit(&l->n_total, metadata->weights_bytes, memory_order_relaxed);
        return stage_start(l, STAGE_WEIGHTS);
}

void tdm_model_load_progress(const struct tdm_model_load *l, uint64_t *ret_done, uint64_t *ret_total)
{
        *ret_done = atomic_load_explicit(&l->n_done, memory_order_relaxed);
        *ret_total = atomic_load_explicit(&l->n_total, memory_order_relaxed);
}
