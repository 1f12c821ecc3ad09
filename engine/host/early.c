/* A shorter step for the layers that have no keys of their own: see early.h. Nothing is allocated while steps run. */
#include "engine/host/early.h"

struct tdm_host_early {
        uint32_t first_block, width, max_rows, max_seqs;
        struct tdm_step step; /* tables are the whole step's */
        uint32_t *from;       /* [max_rows]: which row of the whole step */
        float *hidden;        /* [max_rows][width] */
};

int tdm_host_early_new(struct tdm_host_early **ret, const struct tdm_host_model *model,
                       const struct tdm_steps_limits *limits)
{
        const struct tdm_hparams *hp = &model->hp;
        uint32_t n_own = hp->n_layers;
        struct tdm_host_early *e;

        *ret = NULL;
        while (n_own > 0 && hp->layers[n_own - 1].kv_layer != n_own - 1)
                n_own--;
        if (n_own == hp->n_layers || model->recipe.pooling != TDM_POOLING_NONE) /* a mean wants every row */
                return 0;
        e = calloc(1, sizeof(*e));
        if (!e)
                return -ENOMEM;
        /* The FFN of the last layer with keys of its own changes only its own rows. */
        e->first_block = 2 * n_own;
        e->width = hp->residual_width;
        e->max_rows = model->tile_rows;
        e->max_seqs = limits->max_seqs;
        e->step.rows = calloc(e->max_rows, sizeof(*e->step.rows));
        e->step.seqs = calloc(e->max_seqs, sizeof(*e->step.seqs));
        e->step.inputs = limits->input_bytes ? calloc(e->max_rows, limits->input_bytes) : NULL;
        e->from = calloc(e->max_rows, sizeof(*e->from));
        e->hidden = aligned_alloc(64, TDM_ALIGN_UP((size_t)e->max_rows * e->width * sizeof(float), (size_t)64));
        if (!e->step.rows || !e->step.seqs || (limits->input_bytes && !e->step.inputs) || !e->from || !e->hidden) {
                tdm_host_early_free(e);
                return -ENOMEM;
        }
        *ret = e;
        return 0;
}

void tdm_host_early_free(struct tdm_host_early *e)
{
        if (!e)
                return;
        free(e->step.rows);
        free(e->step.seqs);
        free(e->step.inputs);
        free(e->from);
        free(e->hidden);
        free(e);
}

bool tdm_host_early_has(const struct tdm_host_early *e, const struct tdm_hparams *hp, uint32_t block)
{
        return e && block >= e->first_block && block <= 2 * hp->n_layers;
}

/* Of a sequence's rows the first that wants logits; its number of rows: none does. */
static uint32_t first_wanted(const struct tdm_step *step, const struct tdm_step_seq *seq)
{
        uint32_t i = 0;

        while (i < seq->n_rows && step->rows[seq->first_row + i].logits == UINT32_MAX)
                i++;
        return i;
}

const struct tdm_step *tdm_host_early_begin(struct tdm_host_early *e, const struct tdm_step *step, const float *hidden,
                                            float **ret_hidden)
{
        uint32_t n = 0;

        for (uint32_t s = 0; s < step->head.n_seqs; s++)
                n += step->seqs[s].n_rows - first_wanted(step, &step->seqs[s]);
        if (n == step->head.n_rows || n > e->max_rows || step->head.n_seqs > e->max_seqs)
                return NULL;
        e->step.head = step->head;
        e->step.head.n_rows = 0;
        e->step.table_entries = step->table_entries;
        e->step.input_bytes = step->input_bytes;
        memcpy(e->step.tables, step->tables, sizeof(step->tables));
        for (uint32_t s = 0; s < step->head.n_seqs; s++) {
                uint32_t skipped = first_wanted(step, &step->seqs[s]);

                e->step.seqs[s] = step->seqs[s];
                e->step.seqs[s].first_row = e->step.head.n_rows;
                e->step.seqs[s].n_rows = step->seqs[s].n_rows - skipped;
                for (uint32_t i = skipped; i < step->seqs[s].n_rows; i++) {
                        uint32_t row = e->step.head.n_rows++, from = step->seqs[s].first_row + i;

                        e->from[row] = from;
                        e->step.rows[row] = step->rows[from];
                        memcpy(e->hidden + (size_t)row * e->width, hidden + (size_t)from * e->width,
                               e->width * sizeof(float));
                        if (step->input_bytes)
                                memcpy(e->step.inputs + (size_t)row * step->input_bytes,
                                       step->inputs + (size_t)from * step->input_bytes, step->input_bytes);
                }
        }
        *ret_hidden = e->hidden;
        return &e->step;
}

void tdm_host_early_end(struct tdm_host_early *e, float *hidden)
{
        for (uint32_t row = 0; row < e->step.head.n_rows; row++)
                memcpy(hidden + (size_t)e->from[row] * e->width, e->hidden + (size_t)row * e->width,
                       e->width * sizeof(float));
}
