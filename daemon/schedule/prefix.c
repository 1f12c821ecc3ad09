/* The scheduler's side of the prefix cache: what computed a sequence's rows, and which of its rows are known already.
 *
 * A sequence looks for a known beginning when it is about to get its first rows, because only then it is known which
 * device computes them. It looks again after it was pushed out. It enters its pages as they are committed, for as long
 * as one numerics has computed all of them. */
#include "daemon/schedule/private.h"
#include "common/fnv.h"

static uint32_t plan_digest(const uint8_t *plan, uint32_t n_blocks)
{
        return tdm_fnv32(TDM_FNV32_BEGIN, plan, n_blocks);
}

/* Devices with one id give the same bits wherever a block runs. With two ids the bits depend on the plan. */
const struct bits *tdm_scheduler_bits(struct tdm_scheduler *s, const struct step_class *c, const uint8_t *plan)
{
        struct tdm_model *model = c->lane->model;
        const uint32_t n_blocks = tdm_model_n_blocks(tdm_model_hparams(model));
        const uint32_t epoch = tdm_fleet_epoch(s->fleet);
        struct bits *b = &c->lane->bits[tdm_class_plan(c)][plan[0] == TDM_WORKER_NPU ? TDM_WORKER_NPU : TDM_WORKER_GPU];
        const char *precision = tdm_precision_name(model->precision);
        const char *kv_type = tdm_kv_type_name((enum tdm_kv_type)model->geometry.type);
        const char *npu, *gpu;
        bool uses[TDM_N_WORKERS] = { false }, split;
        char key[sizeof(b->text) + sizeof(b->plan)];
        size_t size;

        if (b->epoch == epoch && memcmp(b->plan, plan, n_blocks) == 0)
                return b;
        npu = tdm_fleet_numerics_id(s->fleet, TDM_WORKER_NPU, model->id);
        gpu = tdm_fleet_numerics_id(s->fleet, TDM_WORKER_GPU, model->id);
        for (uint32_t i = 0; i < n_blocks; i++)
                uses[plan[i] == TDM_WORKER_NPU ? TDM_WORKER_NPU : TDM_WORKER_GPU] = true;
        split = uses[TDM_WORKER_NPU] && uses[TDM_WORKER_GPU] && !tdm_scheduler_workers(s, c->lane).equal_bits;
        memset(b->text, 0, sizeof(b->text));
        if (split)
                snprintf(b->text, sizeof(b->text), "split:%.50s+%.50s:%s:%s:%08x", npu, gpu, precision, kv_type,
                         plan_digest(plan, n_blocks));
        else
                snprintf(b->text, sizeof(b->text), "%.100s:%s:%s", uses[TDM_WORKER_GPU] ? gpu : npu, precision,
                         kv_type);
        memcpy(b->plan, plan, n_blocks);
        b->epoch = epoch;

        size = strlen(b->text) + 1;
        memcpy(key, b->text, size);
        if (split) {
                memcpy(key + size, plan, n_blocks);
                size += n_blocks;
        }
        /* A device without an id shares nothing. */
        b->is_named = (!uses[TDM_WORKER_NPU] || npu[0]) && (!uses[TDM_WORKER_GPU] || gpu[0]);
        b->number = model->prefix && b->is_named ? tdm_prefix_numerics(model->prefix, key, size) : 0;
        return b;
}

void tdm_scheduler_note_bits(struct sequence *q, const struct bits *b)
{
        tdm_job_note_numerics(q->job, b->text);
        if (q->n_issued == 0)
                q->numerics = b->number;
        else if (q->numerics != b->number)
                q->numerics = 0; /* mixed: not to be shared */
}

bool tdm_scheduler_may_go_on(struct sequence *q, const struct bits *b)
{
        struct tdm_job *job = q->job;
        struct tdm_error err;

        if (job->drawn.n == 0 || job->drawn.is_compared)
                return true;
        tdm_job_note_compared(job);
        if (!job->drawn.numerics_id[0] || (b->is_named && strcmp(job->drawn.numerics_id, b->text) == 0))
                return true;
        if (job->drawn.may_degrade) {
                tdm_job_note_committed(job, true, 0);
                return true;
        }
        tdm_error_set(&err, TDM_E_UNSUPPORTED,
                      "drawn-numerics: '%s' drew the tokens, and here '%s' would go on, which may draw others; leave "
                      "the tokens out, or ask for may-degrade",
                      job->drawn.numerics_id, b->text);
        tdm_job_finish(job, TDM_JOB_END_ERROR, &err);
        return false;
}

static bool prompt_may_cut(const void *job, uint32_t n)
{
        return tdm_job_pictures_may_cut(&((const struct tdm_job *)job)->pictures, n);
}

static struct tdm_prefix_tables tables_of(struct lane *lane, const struct sequence *q)
{
        struct tdm_model *model = lane->model;
        struct tdm_prefix_tables t;

        for (int g = 0; g < TDM_KV_GROUPS; g++) {
                t.pages[g] = tdm_steps_table(model->steps->base, &model->layout, q->table, (enum tdm_kv_group)g);
                t.first_page[g] = q->first_page[g];
        }
        t.may_cut = prompt_may_cut;
        t.userdata = q->job;
        t.state_page = TDM_KV_NO_PAGE;
        t.states[0] = (struct tdm_prefix_state){ q->state.kept, q->state.n_kept, false };
        t.states[1] = (struct tdm_prefix_state){ q->state.page, q->n_committed, tdm_sequence_state_passes(lane, q) };
        return t;
}

bool tdm_scheduler_look_up(struct tdm_scheduler *s, struct lane *lane, struct sequence *q, const struct bits *b)
{
        struct tdm_prefix_tables tables;
        uint32_t n;

        if (q->looked_up || q->n_issued > 0 || q->in_flight > 0)
                return true;
        if (!lane->model->prefix || b->number == 0) {
                q->looked_up = true;
                return true;
        }
        /* The last row is always computed, because the job needs its logits. Of scores every row is needed, once. */
        n = q->job->kind == TDM_JOB_SCORE ? q->n_told : q->job->n_ids - 1;
        if (tdm_scheduler_recall(s, lane, q, b, n))
                return false;
        q->looked_up = true;
        tables = tables_of(lane, q);
        n = tdm_prefix_take(lane->model->prefix, q->job->identity, b->number, q->job->ids, n, &tables, &q->cursor);
        if (n == 0)
                return true;
        for (int g = 0; g < TDM_KV_GROUPS; g++) {
                if (lane->model->geometry.n_layers[g] == 0)
                        continue;
                q->first_page[g] = tables.first_page[g];
                q->n_pages[g] = n / TDM_KV_PAGE_TOKENS;
                q->reserved.n[g] -= q->n_pages[g] - q->first_page[g];
        }
        if (tables.state_page != TDM_KV_NO_PAGE) {
                q->state.page = tables.state_page;
                q->reserved.n[TDM_KV_STATE]--;
        }
        q->n_committed = q->n_issued = n;
        q->numerics = b->number;
        s->stats.prefix_hits++;
        s->stats.cached_tokens += n;
        if (q->n_read == 0)
                tdm_job_note_cached(q->job, n);
        q->n_read = TDM_MAX(q->n_read, n);
        return true;
}

void tdm_scheduler_enter(struct lane *lane, struct sequence *q)
{
        struct tdm_prefix_tables tables;

        if (!lane->model->prefix || q->numerics == 0)
                return;
        tables = tables_of(lane, q);
        tdm_prefix_add(lane->model->prefix, q->job->identity, q->numerics, q->job->ids, sequence_kept(q), &tables,
                       &q->cursor);
}
