/* A shorter step for the layers that have no keys of their own: see shorter.h. Nothing is allocated while steps run. */
#include "engine/step/shorter.h"

struct tdm_shorter {
        uint32_t first_block, end_block, max_rows, max_seqs;
        struct tdm_step step; /* tables are the whole step's */
        uint32_t *from;       /* [max_rows] */
};

int tdm_shorter_new(struct tdm_shorter **ret, const struct tdm_hparams *hp, bool is_pooled, uint32_t max_rows,
                    const struct tdm_steps_limits *limits)
{
        uint32_t n_own = hp->n_layers;
        struct tdm_shorter *s;

        *ret = NULL;
        while (n_own > 0 && hp->layers[n_own - 1].kv_layer != n_own - 1)
                n_own--;
        if (n_own == hp->n_layers || is_pooled) /* a mean wants every row */
                return 0;
        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        /* The FFN of the last layer with keys of its own changes only its own rows. */
        s->first_block = 2 * n_own;
        s->end_block = 2 * hp->n_layers + 1;
        s->max_rows = max_rows;
        s->max_seqs = limits->max_seqs;
        s->step.rows = calloc(s->max_rows, sizeof(*s->step.rows));
        s->step.seqs = calloc(s->max_seqs, sizeof(*s->step.seqs));
        s->step.inputs = limits->input_bytes ? calloc(s->max_rows, limits->input_bytes) : NULL;
        s->from = calloc(s->max_rows, sizeof(*s->from));
        if (!s->step.rows || !s->step.seqs || (limits->input_bytes && !s->step.inputs) || !s->from) {
                tdm_shorter_free(s);
                return -ENOMEM;
        }
        *ret = s;
        return 0;
}

void tdm_shorter_free(struct tdm_shorter *s)
{
        if (!s)
                return;
        free(s->step.rows);
        free(s->step.seqs);
        free(s->step.inputs);
        free(s->from);
        free(s);
}

void tdm_shorter_blocks(const struct tdm_shorter *s, uint32_t *ret_first, uint32_t *ret_end)
{
        *ret_first = s->first_block;
        *ret_end = s->end_block;
}

/* The first of a sequence's rows that wants logits; its number of rows: none does. */
static uint32_t first_wanted(const struct tdm_step *step, const struct tdm_step_seq *seq)
{
        uint32_t i = 0;

        while (i < seq->n_rows && step->rows[seq->first_row + i].logits == UINT32_MAX)
                i++;
        return i;
}

const struct tdm_step *tdm_shorter_make(struct tdm_shorter *s, const struct tdm_step *step, const uint32_t **ret_from)
{
        uint32_t n = 0;

        for (uint32_t i = 0; i < step->head.n_seqs; i++)
                n += step->seqs[i].n_rows - first_wanted(step, &step->seqs[i]);
        if (n == step->head.n_rows || n > s->max_rows || step->head.n_seqs > s->max_seqs)
                return NULL;
        s->step.head = step->head;
        s->step.head.n_rows = 0;
        s->step.head.n_logits = 0;
        s->step.table_entries = step->table_entries;
        s->step.input_bytes = step->input_bytes;
        memcpy(s->step.tables, step->tables, sizeof(step->tables));
        for (uint32_t seq = 0; seq < step->head.n_seqs; seq++) {
                uint32_t skipped = first_wanted(step, &step->seqs[seq]);

                s->step.seqs[seq] = step->seqs[seq];
                s->step.seqs[seq].first_row = s->step.head.n_rows;
                s->step.seqs[seq].n_rows = step->seqs[seq].n_rows - skipped;
                for (uint32_t i = skipped; i < step->seqs[seq].n_rows; i++) {
                        uint32_t row = s->step.head.n_rows++, from = step->seqs[seq].first_row + i;

                        s->from[row] = from;
                        s->step.rows[row] = step->rows[from];
                        if (step->input_bytes)
                                memcpy(s->step.inputs + (size_t)row * step->input_bytes,
                                       step->inputs + (size_t)from * step->input_bytes, step->input_bytes);
                }
        }
        *ret_from = s->from;
        return &s->step;
}
