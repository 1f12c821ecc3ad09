/* run(): blocks become one submission, or a few where they would take long; then tokens are drawn. Logits go to the
 * host, and the host's own sampler draws: the same tokens from the same logits as everywhere else. Nothing is allocated
 * here. */
#include <assert.h>

#include "common/dmabuf.h"
#include "engine/host/kernels.h"
#include "gpu-worker/vulkan/record/record.h"
#include "gpu-worker/vulkan/run.h"

static void take_profile(struct tdm_vk_device *device, const struct tdm_vk_recording *c)
{
        static uint64_t ticks[TDM_VK_MAX_QUERIES];

        if (!device->profiling || !c->n_marks ||
            device->vk.GetQueryPoolResults(device->vk.device, device->queries, 0, c->n_marks + 1, sizeof(ticks), ticks,
                                           sizeof(ticks[0]),
                                           VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT) != VK_SUCCESS)
                return;
        for (uint32_t i = 0; i < c->n_marks; i++) {
                c->marks[i]->profile_n++;
                c->marks[i]->profile_ns += (uint64_t)((double)(ticks[i + 1] - ticks[i]) * device->ns_per_tick);
        }
}

/* Hidden rows in a dma-buf change hands: between the CPUs of all processes and the device. */
static int hand_over(struct tdm_vk_model *m, int (*over)(int fd), struct tdm_error *err)
{
        int r = m->activations.dmabuf ? over(m->activations.dmabuf) : 0;

        return r < 0 ? tdm_error_set(err, r, "vulkan device: cannot hand over the dma-buf of hidden rows: %s",
                                     strerror(-r)) :
                       0;
}

static int submit_work(struct tdm_vk_model *m, const struct tdm_vk_work *work, struct tdm_error *err)
{
        struct tdm_vk_recording *recording;
        int r = tdm_vk_record(m, work, &recording, err);

        if (r == 0)
                r = hand_over(m, tdm_dmabuf_to_device, err);
        if (r == 0)
                r = tdm_vk_submit(m->device, recording->commands, err);
        if (r == 0)
                r = hand_over(m, tdm_dmabuf_to_cpu, err);
        if (r == 0)
                r = tdm_vk_record_check(m, err);
        if (r == 0)
                take_profile(m->device, recording);
        return r;
}

/* ---- sampling ---- */

struct sample_job {
        struct tdm_vk_model *m;
        const struct tdm_step *step;
        const struct tdm_kernels *kernels;
        uint32_t first;
        struct tdm_result *results;
        uint64_t masks_until_ns;
        _Atomic uint32_t bad_row; /* UINT32_MAX: none */
        _Atomic uint32_t n_seen;  /* blocks of logits that gather.comp chose */
};

/* The same as on the host device: y = cap tanh(x / cap), tanh(z) = 1 - 2 / (exp(2z) + 1). */
static void softcap_logits(const struct sample_job *job, float *x)
{
        float cap = job->m->recipe.logit_softcap, e[64];

        for (uint32_t i = 0, n; i < job->m->hp.n_vocab; i += n) {
                n = TDM_MIN((uint32_t)TDM_ARRAY_SIZE(e), job->m->hp.n_vocab - i);
                for (uint32_t j = 0; j < n; j++)
                        e[j] = x[i + j] * (2.0f / cap);
                job->kernels->exp_array(e, n, e);
                for (uint32_t j = 0; j < n; j++)
                        x[i + j] = cap * (1.0f - 2.0f / (e[j] + 1.0f));
        }
}

static float *logits_of(const struct tdm_vk_model *m, uint32_t i)
{
        return (float *)m->logits.host.map + (size_t)i * m->logits.stride;
}

static void take_result(struct sample_job *job, uint32_t i, int r, const struct tdm_result *result)
{
        if (r < 0 && r != -ENODATA)
                atomic_store_explicit(&job->bad_row, job->step->logits[job->first + i].row, memory_order_relaxed);
        else
                job->results[job->first + i] = *result;
}

static void sample_one(void *arg, unsigned chunk, unsigned thread)
{
        struct sample_job *job = arg;
        struct tdm_vk_model *m = job->m;
        const struct tdm_step *step = job->step;
        const struct tdm_step_logits *l = &step->logits[job->first + chunk];
        struct tdm_past past = tdm_step_past(step, job->first + chunk);
        struct tdm_result result = { .token = TDM_NO_TOKEN };
        const uint64_t *allowed;
        int r = -ENODATA;

        if (m->recipe.logit_softcap > 0)
                softcap_logits(job, logits_of(m, chunk));
        if (tdm_step_mask(step, job->first + chunk, job->masks_until_ns, &allowed))
                r = tdm_sample(logits_of(m, chunk), m->hp.n_vocab, &l->sampling, allowed, &past,
                               step->rows[l->row].position + 1, l->target,
                               m->sampler_scratch + thread * m->sampler_stride, &result);
        take_result(job, chunk, r, &result);
}

/* Draws a row of which only what the sampler wants to see came to the host. */
static void sample_seen(void *arg, unsigned chunk, unsigned thread)
{
        struct sample_job *job = arg;
        struct tdm_vk_model *m = job->m;
        const struct tdm_step *step = job->step;
        const struct tdm_step_logits *l = &step->logits[job->first + chunk];
        const float *sums = (const float *)m->logits.scan_host.map,
                    *tops = (const float *)(m->logits.scan_host.map + tdm_vk_scan_tops(m));
        const uint32_t *found = (const uint32_t *)(m->logits.scan_host.map + tdm_vk_scan_found(m)) +
                                (size_t)chunk * (m->logits.maxima_stride + 1);
        uint8_t *scratch = m->sampler_scratch + thread * m->sampler_stride;
        struct tdm_past past = tdm_step_past(step, job->first + chunk);
        struct tdm_result result = { .token = TDM_NO_TOKEN };
        const uint64_t *allowed;
        int r = -ENODATA;

        atomic_fetch_add_explicit(&job->n_seen, found[0], memory_order_relaxed);
        tdm_sample_take(tops + (size_t)chunk * m->logits.tops_stride, m->logits.tops_stride,
                        sums + (size_t)chunk * m->logits.sums_stride, found + 1,
                        TDM_MIN(found[0], m->logits.maxima_stride), scratch);
        if (tdm_step_mask(step, job->first + chunk, job->masks_until_ns, &allowed))
                r = tdm_sample_finish(logits_of(m, chunk), m->hp.n_vocab, &l->sampling, allowed, &past,
                                      step->rows[l->row].position + 1, l->target, scratch, &result);
        take_result(job, chunk, r, &result);
}

/* Rows behind the last layer are in `hidden`. */
static int pool_vectors(struct tdm_vk_model *m, const struct tdm_step *step, const float *hidden,
                        struct tdm_result *results, struct tdm_error *err)
{
        memset(results, 0, step->head.n_logits * sizeof(*results));
        return tdm_pooler_run(m->pooling, step, hidden, tdm_steps_vectors(results, &m->limits), err);
}

/* The first logits.rows rows of logits are there already where `made` says so. */
static int sample_rows(struct tdm_vk_model *m, struct tdm_vk_slot *slot, const struct tdm_step *step, bool made,
                       struct tdm_result *results, struct tdm_error *err)
{
        for (uint32_t first = 0, n; first < step->head.n_logits; first += n) {
                struct sample_job job = {
                        .m = m, .step = step, .first = first, .results = results, .bad_row = UINT32_MAX
                };
                struct tdm_vk_work work = {
                        .slot = slot, .first = 2 * m->hp.n_layers + 1, .n = 1, .first_logit = first
                };

                work.n_logits = n = TDM_MIN(step->head.n_logits - first, m->logits.rows);
                if (first > 0 || !made) {
                        int r = submit_work(m, &work, err);

                        if (r != 0)
                                return r;
                }
                if (m->recipe.logit_softcap > 0)
                        job.kernels = tdm_kernels_choose(NULL);
                job.masks_until_ns = tdm_now_ns() + TDM_STEP_MASK_WAIT_NS;
                if (m->logits.is_whole)
                        tdm_pool_run(m->device->threads, n, sample_one, &job);
                else
                        tdm_pool_run_awake(m->device->threads, n, sample_seen, &job);
                m->device->counters.logit_blocks += job.n_seen;
                if (job.bad_row != UINT32_MAX)
                        return tdm_error_set(
                                err, -EDOM,
                                "vulkan device: the logits of row %u (position %u) hold a NaN (damaged weights?)",
                                job.bad_row, step->rows[job.bad_row].position);
        }
        return 0;
}

/* ---- blocks ---- */

/* How many blocks a submission has (cut_blocks()). The new keys and values of one submission are written behind while
 * the device computes the next one. With many rows on a GPU, writing takes about a third as long as computing. So a
 * submission is two thirds of what is left. The last one is an FFN and the head, which leave nothing to write. */
#define SUBMISSION_BLOCKS_MAX 84u /* at most, with several rows */
/* At most with a single row, which has little to write. */
#define SUBMISSION_BLOCKS_SINGLE TDM_VK_SUBMISSION_BLOCKS_MAX
/* A submission begins with kernels that lie in no cache, which takes 50 to 80 µs. So many rows of a sequence are
 * written behind while the last two blocks are computed. */
#define SUBMISSION_ROWS_APART 6u
#define SUBMISSION_ROWS_FEW 32u     /* up to this many rows use the same kernels, */
#define SUBMISSION_ROWS_AS 24u      /* and so count as no more than these */
#define SUBMISSION_BLOCKS_LAST 2u   /* of the last submission */
#define SUBMISSION_BLOCKS_SHORT 16u /* this few before the last submission are not cut again */
#define SUBMISSION_BLOCKS_WHOLE 12u /* a run of this few blocks is one submission */
/* Between a step's last write-behind and its sampling the device computes an FFN and the head. The pool's threads stay
 * awake for this long meanwhile, since waking them takes as long as sampling does. */
#define STAY_AWAKE_NS (UINT64_C(2) * TDM_NSEC_PER_MSEC)
#define STAY_AWAKE_LOGITS 8u /* only where this many rows or more are sampled */

/* In flight: its blocks, and the layers whose new rows it leaves in its half of the log. */
struct submission {
        struct tdm_vk_recording *recording;
        uint32_t first, n, first_layer, n_layers;
        bool download;
};

struct run {
        struct tdm_vk_model *m;
        struct tdm_vk_slot *slot;
        const struct tdm_step *step;
        float *hidden;
        uint32_t end; /* of the kernels' blocks: sample is the host's */
        bool bring_back;
        bool made_logits;
        bool joins;               /* the submission begun last leaves the next block's input */
        uint32_t n_begun, n_done; /* submissions */
        /* the i-th is in i % TDM_VK_IN_FLIGHT, which is its half of the log too */
        struct submission submissions[TDM_VK_IN_FLIGHT];
        void (*on_block)(uint32_t block, void *userdata);
        void *userdata;
};

/* Waits for the oldest submission under way, writes its keys and values behind into the segment, and only then calls
 * on_block() for its blocks. So a block that was told of is complete in the segment. Meanwhile the device computes the
 * next submission. */
static int settle_submission(struct run *run, struct tdm_error *err)
{
        struct tdm_vk_model *m = run->m;
        unsigned which = run->n_done % TDM_VK_IN_FLIGHT;
        struct submission *submission = &run->submissions[which];
        int r = tdm_vk_submit_end(m->device, which, err);

        if (r == 0)
                r = tdm_vk_record_check(m, err);
        if (r != 0)
                return r;
        run->n_done++;
        take_profile(m->device, submission->recording);
        if (submission->download) {
                size_t hidden_bytes = (size_t)run->slot->n_rows * m->hp.residual_width * sizeof(float);

                memcpy(run->hidden, m->hidden_host.map, hidden_bytes);
                m->device->counters.hidden_copies++;
        }
        if (submission->n_layers && run->slot != &m->early.slot) {
                if (run->made_logits && run->n_begun - run->n_done == 1 &&
                    run->step->head.n_logits >= STAY_AWAKE_LOGITS)
                        tdm_pool_stay_awake(m->device->threads, STAY_AWAKE_NS);
                tdm_vk_kv_behind(&m->cache, run->step, submission->first_layer, submission->n_layers, which);
                run->slot->attention_layers += submission->n_layers;
        }
        for (uint32_t i = 0; i < submission->n && run->on_block; i++)
                run->on_block(submission->first + i, run->userdata);
        return 0;
}

/* How many blocks from `block` on go into one submission, and the attention layers among them. */
static uint32_t cut_blocks(const struct run *run, uint32_t block, uint32_t *ret_first_layer, uint32_t *ret_n_layers)
{
        struct tdm_vk_model *m = run->m;
        bool single = run->slot->flags || /* or a few, whose kernels wait for each other as its do */
                      (run->slot->several && !run->slot->many && run->slot->n_rows <= SUBMISSION_ROWS_APART);
        uint32_t rows = run->slot->n_rows <= SUBMISSION_ROWS_FEW ? TDM_MIN(run->slot->n_rows, SUBMISSION_ROWS_AS) :
                                                                   run->slot->n_rows;
        uint32_t most = TDM_MIN(TDM_MAX(m->submission_row_blocks / rows, 2u),
                                single ? SUBMISSION_BLOCKS_SINGLE : SUBMISSION_BLOCKS_MAX),
                 log_layers = tdm_vk_kv_log_layers(&m->cache, run->slot->n_rows);
        uint32_t left = run->end - block, n = 0;

        if (!m->cache.imported && most > SUBMISSION_BLOCKS_LAST && left > SUBMISSION_BLOCKS_LAST &&
            run->end > SUBMISSION_BLOCKS_WHOLE) {
                left -= SUBMISSION_BLOCKS_LAST;
                most = TDM_MIN(most, single || left <= SUBMISSION_BLOCKS_SHORT ? left : left * 2 / 3);
        }
        *ret_n_layers = 0;
        *ret_first_layer = 0;
        for (; n < most && block + n < run->end; n++) {
                if (tdm_block_kind(&m->hp, block + n) != TDM_BLOCK_ATTENTION)
                        continue;
                if (*ret_n_layers == log_layers)
                        break;
                if (++*ret_n_layers == 1)
                        *ret_first_layer = tdm_block_layer(block + n);
        }
        return n;
}

/* Begins with the blocks from `block` on; *ret_n: how many. */
static int begin_some(struct run *run, uint32_t block, uint32_t *ret_n, struct tdm_error *err)
{
        struct tdm_vk_model *m = run->m;
        struct tdm_vk_slot *slot = run->slot;
        unsigned which = run->n_begun % TDM_VK_IN_FLIGHT;
        struct submission *submission = &run->submissions[which];
        struct tdm_vk_work work = { .slot = slot, .first = block, .log_half = which };
        uint32_t first_layer, n_layers;
        int r;

        work.n = *ret_n = cut_blocks(run, block, &first_layer, &n_layers);
        if (tdm_block_kind(&m->hp, block + work.n - 1) == TDM_BLOCK_HEAD && !m->pooling) {
                work.n_logits = TDM_MIN(run->step->head.n_logits, m->logits.rows);
                run->made_logits = true;
        }
        /* With several rows, the norm at a submission's end is the input of the next one. A single row's, or that of a
         * few, is in flagged words, which are valid within one submission only. */
        work.joined = run->joins;
        work.joins = run->joins = !slot->flags && slot->n_tiles == 1 && block + work.n < run->end &&
                                  tdm_vk_program_joins(m->program, block + work.n - 1);
        work.upload = !slot->in_place && !slot->on_device && block > 0;
        work.download = !slot->in_place && run->bring_back && block + work.n == run->end;
        if (work.upload) { /* only the first of a run: the others find them on the device */
                memcpy(m->hidden_host.map, run->hidden, (size_t)slot->n_rows * m->hp.residual_width * sizeof(float));
                m->device->counters.hidden_copies++;
        }
        *submission = (struct submission){ NULL, block, work.n, first_layer, n_layers, work.download };
        r = tdm_vk_record(m, &work, &submission->recording, err);
        if (r == 0)
                r = tdm_vk_submit_begin(m->device, which, submission->recording->commands, err);
        if (r != 0)
                return r;
        run->n_begun++;
        slot->on_device = !work.download; /* after a download the other worker may change the rows */
        return 0;
}

/* Ends the step's use of the cache when the keys and values of all layers are in the segment. The device may still be
 * computing the head then. */
static void end_cache(struct run *run)
{
        struct tdm_vk_slot *slot = run->slot;

        if (slot->attention_layers != run->m->hp.n_layers)
                return;
        tdm_vk_kv_end(&run->m->cache, run->step);
        slot->attention_layers = 0;
}

/* Blocks up to run->end: one submission is written behind while the next is on the device. */
static int run_all(struct run *run, uint32_t first, struct tdm_error *err)
{
        uint32_t most = run->m->device->profiling ? 1 : TDM_VK_IN_FLIGHT; /* a profile has one set of timestamps */
        int r = hand_over(run->m, tdm_dmabuf_to_device, err);

        for (uint32_t block = first, some; block < run->end && r == 0; block += some) {
                if (run->n_begun - run->n_done == most)
                        r = settle_submission(run, err);
                if (r == 0)
                        r = begin_some(run, block, &some, err);
        }
        while (run->n_done < run->n_begun && r == 0) {
                r = settle_submission(run, err);
                if (r == 0)
                        end_cache(run);
        }
        return r == 0 ? hand_over(run->m, tdm_dmabuf_to_cpu, err) : r;
}

/* The slot holds this step from an earlier run(), and `first` does not lie before the block where that one ended. */
static bool goes_on(const struct tdm_vk_slot *slot, const struct tdm_step *step, uint32_t first)
{
        return slot->next_block && first >= slot->next_block && slot->step_id == step->head.step_id &&
               slot->epoch == step->head.epoch && slot->n_rows == step->head.n_rows &&
               slot->n_logits == step->head.n_logits;
}

static int prepare_run(struct run *run, uint32_t first, struct tdm_error *err)
{
        struct tdm_vk_model *m = run->m;
        bool attends = false;
        int r = 0;

        for (uint32_t block = first; block < run->end && !attends; block++)
                attends = tdm_block_kind(&m->hp, block) == TDM_BLOCK_ATTENTION;
        if (attends && !m->cache.n_buffers) {
                if (!m->cache.error.code)
                        return tdm_error_set(err, -EINVAL, "vulkan device: asked for attention without a KV cache");
                if (err)
                        *err = m->cache.error;
                return m->cache.error.code;
        }
        run->slot = tdm_vk_slot_of(m, run->hidden);
        if (!run->slot)
                return tdm_error_set(err, -EINVAL, "vulkan device: hidden rows outside of the activations");
        if (!goes_on(run->slot, run->step, first)) {
                if (m->attention.step_serial + 1 >= TDM_VK_SERIALS)
                        r = tdm_vk_partial_clear(m, err);
                if (r != 0)
                        return r;
                tdm_vk_step_fill(m, run->slot, run->step);
        } else if (run->slot->next_block != first)
                run->slot->on_device = false; /* the other worker has run the blocks between */
        run->slot->next_block = 0;            /* should this fail */
        return attends && run->slot->attention_layers == 0 ? tdm_vk_kv_begin(&m->cache, run->step, err) : 0;
}

/* Blocks first … end - 1, none of which makes logits, on the shorter step. The slot is prepared. */
static int run_shorter(struct run *run, const struct tdm_step *shorter, const uint32_t *from, uint32_t first,
                       uint32_t end, struct tdm_error *err)
{
        struct tdm_vk_model *m = run->m;
        struct run late = { .m = m,
                            .slot = &m->early.slot,
                            .step = shorter,
                            .end = end,
                            .on_block = run->on_block,
                            .userdata = run->userdata };
        int r;

        m->device->counters.rows_spared += (uint64_t)(end - first) * (run->step->head.n_rows - shorter->head.n_rows);
        for (uint32_t block = first; block < end; block++)
                run->slot->attention_layers += tdm_block_kind(&m->hp, block) == TDM_BLOCK_ATTENTION;
        if (shorter->head.n_rows > 0) {
                r = hand_over(m, tdm_dmabuf_to_device, err);
                if (r == 0)
                        r = tdm_vk_early_begin(m, run->slot, shorter, from, run->hidden, err);
                if (r == 0)
                        r = hand_over(m, tdm_dmabuf_to_cpu, err);
                if (r == 0)
                        r = run_all(&late, first, err);
                if (r == 0)
                        r = hand_over(m, tdm_dmabuf_to_device, err);
                if (r == 0)
                        r = tdm_vk_early_end(m, run->slot, shorter, from, run->hidden, err);
                if (r == 0)
                        r = hand_over(m, tdm_dmabuf_to_cpu, err);
                if (r != 0)
                        return r;
        }
        for (uint32_t block = first; block < end && shorter->head.n_rows == 0 && run->on_block; block++)
                run->on_block(block, run->userdata);
        end_cache(run);
        return 0;
}

/* Blocks first … run->end - 1, those in the middle on a shorter step where some rows need them not. */
static int run_blocks(struct run *run, uint32_t first, struct tdm_error *err)
{
        struct tdm_vk_model *m = run->m;
        uint32_t end = run->end, late_first = end, late_end = end;
        const struct tdm_step *shorter = NULL;
        bool bring_back = run->bring_back;
        const uint32_t *from;
        int r = 0;

        if (m->early.shorter) {
                tdm_shorter_blocks(m->early.shorter, &late_first, &late_end);
                late_first = TDM_MAX(late_first, first);
                late_end = TDM_MIN(late_end, end);
                shorter = late_first < late_end ? tdm_shorter_make(m->early.shorter, run->step, &from) : NULL;
        }
        if (!shorter)
                return run_all(run, first, err);
        run->bring_back = false;
        run->end = late_first;
        if (first < late_first)
                r = run_all(run, first, err);
        if (r == 0)
                r = run_shorter(run, shorter, from, late_first, late_end, err);
        run->bring_back = bring_back;
        run->end = end;
        if (r == 0 && late_end < end)
                return run_all(run, late_end, err);
        return r == 0 && bring_back ? tdm_vk_early_bring(m, run->slot, run->hidden, err) : r;
}

int tdm_vk_run(struct tdm_device_model *public, const struct tdm_step *step, uint32_t first, uint32_t n, float *hidden,
               struct tdm_result *results, void (*on_block)(uint32_t block, void *userdata), void *userdata,
               struct tdm_error *err)
{
        struct tdm_vk_model *m = (struct tdm_vk_model *)public;
        uint32_t n_blocks = tdm_model_n_blocks(&m->hp), end = first + n;
        struct run run = { .m = m,
                           .step = step,
                           .hidden = hidden,
                           .end = TDM_MIN(end, n_blocks - 1),
                           .on_block = on_block,
                           .userdata = userdata };
        int r;

        assert(end <= n_blocks);
        if (m->device->lost)
                return tdm_error_set(err, TDM_E_DEVICE_FAULT,
                                     "vulkan device: lost before; the worker must be restarted");
        run.bring_back = (end < n_blocks - 1 && step->head.plan[end] != step->head.plan[first]) ||
                         (m->pooling && end >= n_blocks - 1);
        r = prepare_run(&run, first, err);
        if (r == 0 && first < run.end)
                r = run_blocks(&run, first, err);
        if (r == 0 && end == n_blocks) {
                if (first == n_blocks - 1 && !run.slot->in_place && !run.slot->on_device && !m->pooling)
                        return tdm_error_set(err, -EINVAL, "vulkan device: sample without its head");
                if (m->pooling)
                        r = pool_vectors(m, step, hidden, results, err);
                else
                        r = sample_rows(m, run.slot, step, run.made_logits, results, err);
                tdm_pool_stay_awake(m->device->threads, 0); /* nothing comes soon after this */
                if (r == 0 && on_block)
                        on_block(n_blocks - 1, userdata);
        }
        if (r == 0)
                run.slot->next_block = end;
        return r;
}
