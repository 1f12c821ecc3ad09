#include "engine/host/short-conv.h"

#define CHUNK_VALUES 8192u /* some microseconds: less is done sooner than another thread has taken it */

/* A tile's rows of one layer. */
struct conv_job {
        struct tdm_host_model *model;
        const struct tdm_step *step;
        uint32_t layer, taps, d;
        uint32_t first_row; /* of the tile, in the step */
        uint32_t n_rows;
        uint32_t chunk_rows;
};

bool tdm_host_short_conv_init(struct tdm_host_model *model)
{
        const uint32_t d = model->hp.d_model;
        uint32_t n_kernels = 0;

        for (uint32_t i = 0; i < model->hp.n_layers; i++)
                n_kernels +=
                        model->recipe.layers[i].mixer == TDM_MIXER_SHORT_CONV ? model->recipe.layers[i].conv_taps : 0;
        if (n_kernels == 0)
                return true;
        model->mixers.conv.in = calloc((size_t)model->tile_rows * 3 * d, sizeof(float));
        model->mixers.conv.kernels = calloc((size_t)n_kernels * d, sizeof(float));
        model->mixers.conv.zeros = calloc(d, sizeof(float));
        if (!model->mixers.conv.in || !model->mixers.conv.kernels || !model->mixers.conv.zeros)
                return false;
        model->scratch_bytes += ((size_t)model->tile_rows * 3 + n_kernels + 1) * d * sizeof(float);
        n_kernels = 0;
        for (uint32_t i = 0; i < model->hp.n_layers; i++) {
                const uint32_t taps = model->recipe.layers[i].conv_taps;
                struct tdm_host_layer *l = &model->layers[i];
                float *to = model->mixers.conv.kernels + (size_t)n_kernels * d;

                if (model->recipe.layers[i].mixer != TDM_MIXER_SHORT_CONV)
                        continue;
                for (uint32_t k = 0; k < d; k++)
                        for (uint32_t j = 0; j < taps; j++)
                                to[(size_t)j * d + k] = l->conv[(size_t)k * taps + j];
                l->conv = taps > 0 ? to : NULL;
                n_kernels += taps;
        }
        return true;
}

void tdm_host_short_conv_free(struct tdm_host_model *model)
{
        free(model->mixers.conv.in);
        free(model->mixers.conv.kernels);
        free(model->mixers.conv.zeros);
}

/* s of a row of the tile. */
static float *tile_values(const struct conv_job *job, uint32_t row)
{
        return job->model->mixers.conv.in + (size_t)row * 3 * job->d;
}

/* Where the sequence has its first row in this tile, and what its state was before that row: NULL at position 0. */
static uint32_t state_before(const struct conv_job *job, const struct tdm_step_seq *seq, const float **ret)
{
        const struct tdm_host_model *model = job->model;
        bool goes_on = seq->first_row < job->first_row; /* an earlier tile has written the state */
        uint32_t page = goes_on ? seq->state.to : seq->state.from;

        *ret = page == TDM_KV_NO_PAGE ?
                       NULL :
                       (const float *)(model->kv_base + tdm_kv_state_offset(&model->kv, job->layer, page));
        return goes_on ? 0 : seq->first_row - job->first_row;
}

/* s of the row `back` rows before the n-th row of the sequence in this tile, which is row `begin` of the tile. */
static const float *values_before(const struct conv_job *job, uint32_t begin, const float *state, uint32_t n,
                                  uint32_t back)
{
        if (back <= n)
                return tile_values(job, begin + n - back);
        return state ? state + (size_t)(job->taps - 1 - (back - n)) * job->d : job->model->mixers.conv.zeros;
}

static void gate_input(const struct conv_job *job, uint32_t row)
{
        float *s = tile_values(job, row);
        const float *u = s + 2 * (size_t)job->d;

        for (uint32_t i = 0; i < job->d; i++)
                s[i] *= u[i];
}

static void convolve(const struct conv_job *job, uint32_t row)
{
        const struct tdm_host_model *model = job->model;
        const struct tdm_step_seq *seq = &job->step->seqs[job->step->rows[job->first_row + row].seq];
        const float *kernel = model->layers[job->layer].conv, *c = tile_values(job, row) + job->d, *state;
        uint32_t begin = state_before(job, seq, &state), d = job->d;
        float *out = model->heads.attn + (size_t)row * d;

        for (uint32_t j = 0; j < job->taps; j++, kernel += d) {
                const float *s = values_before(job, begin, state, row - begin, job->taps - 1 - j);

                for (uint32_t i = 0; i < d; i++)
                        out[i] = j == 0 ? kernel[i] * s[i] : out[i] + kernel[i] * s[i];
        }
        for (uint32_t i = 0; i < d; i++)
                out[i] *= c[i];
}

static void gate_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct conv_job *job = arg;

        for (uint32_t row = chunk * job->chunk_rows; row < TDM_MIN((chunk + 1) * job->chunk_rows, job->n_rows); row++)
                gate_input(job, row);
}

static void convolve_chunk(void *arg, unsigned chunk, unsigned thread)
{
        const struct conv_job *job = arg;

        for (uint32_t row = chunk * job->chunk_rows; row < TDM_MIN((chunk + 1) * job->chunk_rows, job->n_rows); row++)
                convolve(job, row);
}

/* The state behind the first n rows of the sequence in this tile. It may take the place of the state before them. */
static void store_state(const struct conv_job *job, uint32_t begin, const float *state, uint32_t n, uint32_t page)
{
        float *to = (float *)(job->model->kv_base + tdm_kv_state_offset(&job->model->kv, job->layer, page));

        for (uint32_t back = job->taps - 1; back > 0; back--, to += job->d)
                memmove(to, values_before(job, begin, state, n, back), job->d * sizeof(float));
}

static void store_states(const struct conv_job *job)
{
        const struct tdm_step *step = job->step;
        uint32_t end = job->first_row + job->n_rows;

        for (uint32_t s = step->rows[job->first_row].seq; s <= step->rows[end - 1].seq; s++) {
                const struct tdm_step_seq *seq = &step->seqs[s];
                const float *state;
                uint32_t begin = state_before(job, seq, &state), before = job->first_row + begin - seq->first_row;
                uint32_t n = TDM_MIN(seq->first_row + seq->n_rows, end) - job->first_row - begin;

                if (seq->state.n_kept > before && seq->state.n_kept <= before + n)
                        store_state(job, begin, state, seq->state.n_kept - before, seq->state.kept);
                store_state(job, begin, state, n, seq->state.to);
        }
}

void tdm_host_short_conv(struct tdm_host_model *model, const struct tdm_step *step, uint32_t layer, uint32_t first,
                         uint32_t n)
{
        struct conv_job job = { .model = model,
                                .step = step,
                                .layer = layer,
                                .taps = model->recipe.layers[layer].conv_taps,
                                .d = model->hp.d_model,
                                .first_row = first,
                                .n_rows = n };
        uint32_t share = TDM_DIV_UP(n, tdm_pool_n_threads(model->pool));

        job.chunk_rows = TDM_MIN(share, TDM_MAX(CHUNK_VALUES / job.d, 1u));
        tdm_pool_run(model->pool, TDM_DIV_UP(n, job.chunk_rows), gate_chunk, &job);
        tdm_pool_run(model->pool, TDM_DIV_UP(n, job.chunk_rows), convolve_chunk, &job);
        store_states(&job);
}
