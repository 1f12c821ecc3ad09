/* The hidden rows of a shorter step: see early.h. Nothing is allocated while steps run. */
#include "engine/host/early.h"

struct tdm_host_early {
        struct tdm_shorter *shorter;
        uint32_t first_block, end_block, width, n_rows;
        const uint32_t *from; /* [n_rows] */
        float *hidden;        /* [tile rows][width] */
};

int tdm_host_early_new(struct tdm_host_early **ret, const struct tdm_host_model *model,
                       const struct tdm_steps_limits *limits)
{
        struct tdm_host_early e = { .width = model->hp.residual_width };
        int r = tdm_shorter_new(&e.shorter, &model->hp, model->recipe.pooling != TDM_POOLING_NONE, model->tile_rows,
                                limits);

        *ret = NULL;
        if (r < 0 || !e.shorter)
                return r;
        tdm_shorter_blocks(e.shorter, &e.first_block, &e.end_block);
        e.hidden = aligned_alloc(64, TDM_ALIGN_UP((size_t)model->tile_rows * e.width * sizeof(float), (size_t)64));
        *ret = malloc(sizeof(**ret));
        if (!*ret || !e.hidden) {
                tdm_shorter_free(e.shorter);
                free(e.hidden);
                free(*ret);
                *ret = NULL;
                return -ENOMEM;
        }
        **ret = e;
        return 0;
}

void tdm_host_early_free(struct tdm_host_early *e)
{
        if (!e)
                return;
        tdm_shorter_free(e->shorter);
        free(e->hidden);
        free(e);
}

bool tdm_host_early_has(const struct tdm_host_early *e, uint32_t block)
{
        return e && block >= e->first_block && block < e->end_block;
}

const struct tdm_step *tdm_host_early_begin(struct tdm_host_early *e, const struct tdm_step *step, const float *hidden,
                                            float **ret_hidden)
{
        const struct tdm_step *shorter = tdm_shorter_make(e->shorter, step, &e->from);

        if (!shorter)
                return NULL;
        e->n_rows = shorter->head.n_rows;
        for (uint32_t row = 0; row < e->n_rows; row++)
                memcpy(e->hidden + (size_t)row * e->width, hidden + (size_t)e->from[row] * e->width,
                       e->width * sizeof(float));
        *ret_hidden = e->hidden;
        return shorter;
}

void tdm_host_early_end(struct tdm_host_early *e, float *hidden)
{
        for (uint32_t row = 0; row < e->n_rows; row++)
                memcpy(hidden + (size_t)e->from[row] * e->width, e->hidden + (size_t)row * e->width,
                       e->width * sizeof(float));
}
