#include "engine/host/shared.h"

struct shared_job {
        const struct tdm_host_model *model;
        bool has_gate;
};

static void add_shared_row(void *arg, unsigned row, unsigned thread)
{
        const struct shared_job *job = arg;
        const struct tdm_host_model *model = job->model;
        const uint32_t d = model->hp.d_model;
        const float *part = model->routed.y + (size_t)row * d;
        float *y = model->y + (size_t)row * d, scale = 1;

        if (job->has_gate) {
                float e = -model->routed.router[row * model->routed.router_stride + model->routed.gate_at];

                model->kernels->exp_array(&e, 1, &e);
                scale = 1 / (e + 1);
        }
        for (uint32_t i = 0; i < d; i++)
                y[i] = y[i] + scale * part[i];
}

void tdm_host_shared_add(struct tdm_host_model *model, uint32_t layer, uint32_t n)
{
        const struct tdm_layer_recipe *recipe = &model->recipe.layers[layer];
        const struct tdm_host_shared *shared = &model->layers[layer].shared;
        const struct tdm_gate_up gate_up = {
                .gate = &shared->gate.matrix,
                .up = &shared->up.matrix,
                .gate_act = shared->gate.act,
                .up_act = shared->up.act,
                .activation = (enum tdm_activation)recipe->activation,
        };
        const struct tdm_matmul_out down = { .matrix = &shared->down.matrix,
                                             .act = shared->down.act,
                                             .y = model->routed.y,
                                             .y_stride = model->hp.d_model };
        struct shared_job job = { model, recipe->has_shared_gate };

        tdm_matmul_gate_up(model->pool, model->kernels, &model->acts[TDM_HOST_GATE_UP], n, &gate_up,
                           &model->acts[TDM_HOST_DOWN]);
        tdm_matmul(model->pool, model->kernels, &model->acts[TDM_HOST_DOWN], n, &down, 1);
        tdm_pool_run(model->pool, n, add_shared_row, &job);
}
