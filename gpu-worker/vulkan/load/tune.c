/* Measures which shape the kernels of a single row should have on this GPU; kernels/tuned.c lists the shapes. No shape
 * changes a bit, so the fastest is taken. It is measured when a model with a matrix of new sizes is loaded. It is kept
 * on disk with the compiled kernels (device/pipeline-cache.c), so later starts neither compile nor measure the others.
 *
 * First each kernel is measured by itself, over the weights of several layers, so that they do not lie in the GPU's
 * cache. Then, where kernels follow each other without barriers (device/chain.c), some layers are measured as they are
 * run, by the device's clock. There a kernel's workgroups share the device with those of the next ones, and the shape
 * that is fastest by itself may leave these no room to start (up to a tenth of a token's time on an H200). Among shapes
 * that are nearly as fast, all layers decide: there a kernel's code lies in fewer caches, and two shapes that are alike
 * in eight layers differ by 3%.
 *
 * Last, tune-rows.c measures how steps of two to eight rows run.
 *
 * A CPU implementation keeps to the rules of kernels.c, since it would compile each kernel for seconds.
 * TANDEM_VULKAN_TUNE=on|off overrides that in tests. */
#include "engine/host/kernels.h"
#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/proof/proof.h"
#include "gpu-worker/vulkan/load/tune.h"

#define DISPATCHES 16u /* of one measurement */
#define ROUNDS 4u      /* the best counts; the first fills caches and does not count */
#define OTHERS 32u     /* kernels that may be wanted besides all shapes of those that are measured */

/* In layers: at which position of a sequence, and of how many runs the best counts. */
#define POSITION 100u
#define RUNS 12u
#define RUNS_CPU 2u
#define PASSES 2u
/* In all layers: of fewer runs, those within such a part of the best. */
#define RUNS_ALL 4u
#define NEAR 1.02

static bool tuning_is_wanted(const struct tdm_vk_device *device)
{
        if (tdm_vk_switch(TDM_VK_SWITCH_TUNE))
                return !tdm_vk_switch_is(TDM_VK_SWITCH_TUNE, "off");
        return !device->is_cpu && device->properties.limits.timestampComputeAndGraphics;
}

/* ---- what a model has ---- */

struct work *tdm_vk_work_of(struct work *works, unsigned *n, uint32_t shader, const struct tdm_vk_matrix *matrix,
                            uint32_t n_panels, uint32_t out, uint32_t layer)
{
        unsigned i = 0;

        while (i < *n && !tdm_vk_tuned_is_of(&works[i].key, shader, matrix, n_panels))
                i++;
        if (i == MAX_KEYS)
                return NULL;
        if (i == *n)
                works[(*n)++] = (struct work){ .key = { .shader = shader,
                                                        .type = matrix->type,
                                                        .act = matrix->act,
                                                        .cols = matrix->cols,
                                                        .n_panels = n_panels },
                                               .matrix = *matrix,
                                               .out = out,
                                               .layer = layer };
        return &works[i];
}

static void list_work(const struct tdm_vk_device *device, struct work *works, unsigned *n, enum tdm_vk_shader shader,
                      const struct tdm_vk_matrix *matrix, uint32_t n_panels, uint32_t out, uint32_t layer,
                      const struct tdm_vk_matmul_push *push)
{
        struct work *w;

        if (matrix->act == TDM_ACT_F32 || tdm_subblock_type(matrix->type) ||
            tdm_vk_tuned(device, shader, matrix, n_panels))
                return;
        w = tdm_vk_work_of(works, n, shader, matrix, n_panels, out, layer);
        if (w && w->n_places < PLACES)
                w->places[w->n_places++] = *push;
}

/* Lists the work of a product: one for each type of its matrices. */
static void list_groups(const struct tdm_vk_model *m, struct work *works, unsigned *n, const struct tdm_vk_op *op,
                        unsigned n_matrices)
{
        for (unsigned i = 0, n_group; i < n_matrices; i += n_group) {
                struct tdm_vk_matmul_push push;
                uint32_t n_panels;

                n_group = tdm_vk_matmul_group(m, op->matrices + i, n_matrices - i, &push, &n_panels);
                push.y = m->arrays[op->y.array].address;
                list_work(m->device, works, n, TDM_VK_MATVEC, op->matrices[i], n_panels, 0, op->layer, &push);
        }
}

static unsigned list_works(const struct tdm_vk_model *m, struct work *works)
{
        unsigned n = 0;

        for (uint32_t i = 0; i < m->program->n_ops; i++) {
                const struct tdm_vk_op *op = &m->program->ops[i];
                const struct tdm_vk_layer *l = op->kind == TDM_VK_OP_GATE_UP ? tdm_vk_op_layer(m, op) : NULL;
                struct tdm_vk_matmul_push push;

                if (!op->is_measured)
                        continue;
                if (!l || !tdm_vk_gate_up_fuses(l, 1)) {
                        list_groups(m, works, &n, op, l ? 2 : op->n_matrices);
                        continue;
                }
                tdm_vk_gate_up_push(m, l, 1, &push);
                list_work(m->device, works, &n, TDM_VK_MATVEC_GELU, &l->gate, l->gate.n_panels,
                          TDM_VK_GELU_OUT(l->down.act, l->activation), op->layer, &push);
        }
        return n;
}

/* ---- measuring ---- */

/* A CPU implementation, in tests, compiles each for seconds. */
static unsigned shapes_of(const struct tdm_vk_device *device, const struct work *w, const struct tdm_vk_shape **ret)
{
        unsigned n = tdm_vk_tuned_shapes(&w->key, ret);

        return device->is_cpu ? TDM_MIN(n, 7u) : n;
}

/* More blocks of 8 bits on their way than leave registers for four subgroups, where nothing but other subgroups hides a
 * load (docs/gpu-compilers.md). */
#define Q8_BLOCKS_MOST 8u

static bool fits_registers(const struct tdm_vk_device *device, const struct work *w, const struct tdm_vk_shape *shape)
{
        return tdm_vk_fits_registers(device, &w->matrix, 1, shape) &&
               (tdm_vk_chain_wanted(device) || TDM_VK_FORM_TYPE(w->key.type) != TDM_TYPE_Q8_0 ||
                (uint32_t)shape->panels * shape->ahead <= Q8_BLOCKS_MOST);
}

static bool work_is_gelu(const struct work *w)
{
        return TDM_VK_TUNED_SHADER(w->key.shader) == TDM_VK_MATVEC_GELU || w->key.shader & TDM_VK_TUNED_GELU;
}

bool tdm_vk_work_is_tile(const struct work *w)
{
        return TDM_VK_TUNED_SHADER(w->key.shader) == TDM_VK_MATMUL_F16;
}

static uint32_t rows_of(const struct work *w)
{
        return ((w->key.shader & ~TDM_VK_TUNED_GELU) >> 16) + 1;
}

/* false: there is no such kernel. */
static bool constants_of(const struct tdm_vk_device *device, const struct work *w, const struct tdm_vk_shape *shape,
                         uint32_t constants[TDM_VK_N_CONSTANTS])
{
        uint32_t gelu = work_is_gelu(w) ? 1 + TDM_VK_GELU_OUT_ACTIVATION(w->out) : 0;

        if (tdm_vk_work_is_tile(w))
                return tdm_vk_f16_tile_shaped(device, &w->matrix, shape, gelu, rows_of(w), constants);
        if (tdm_vk_is_f16(&w->matrix))
                return tdm_vk_f16_shaped(device, &w->matrix, shape, gelu, rows_of(w), constants);
        if (!fits_registers(device, w, shape))
                return false;
        constants[0] = w->key.type;
        constants[1] = w->key.act;
        constants[2] = w->key.shader == TDM_VK_MATVEC_GELU ? w->out : 1;
        constants[3] = tdm_vk_shape_with(device, &w->matrix, shape->panels, shape->ahead, shape->sets, true);
        return true;
}

static enum tdm_vk_shader shader_of(const struct work *w, const struct tdm_vk_shape *shape)
{
        return tdm_vk_work_is_tile(w)    ? tdm_vk_f16_tile_shader(shape) :
               tdm_vk_is_f16(&w->matrix) ? TDM_VK_MATVEC_F16 :
                                           (enum tdm_vk_shader)w->key.shader;
}

struct tdm_vk_pipeline *tdm_vk_work_kernel(struct tdm_vk_device *device, const struct work *w,
                                           const struct tdm_vk_shape *shape)
{
        uint32_t c[TDM_VK_N_CONSTANTS];

        if (!constants_of(device, w, shape, c))
                return NULL;
        return tdm_vk_is_f16(&w->matrix) ? tdm_vk_pipeline_proven(device, shader_of(w, shape), c[0], c[1], c[2], c[3]) :
                                           tdm_vk_pipeline_get(device, shader_of(w, shape), c[0], c[1], c[2], c[3]);
}

/* With GELU a workgroup's panels are half of gate's and half of up's. */
static uint32_t groups_of(const struct work *w, const struct tdm_vk_shape *shape)
{
        return TDM_DIV_UP(w->key.n_panels,
                          TDM_MAX(shape->groups, 1) *
                                  (w->key.shader == TDM_VK_MATVEC_GELU ? shape->panels / 2u : shape->panels));
}

static const char what[] = "measuring a kernel";

/* Between the two timestamps of what is done. */
static int take_ticks(struct tdm_vk_device *device, uint64_t *ret, struct tdm_error *err)
{
        uint64_t ticks[2];
        VkResult result =
                device->vk.GetQueryPoolResults(device->vk.device, device->queries, 0, 2, sizeof(ticks), ticks,
                                               sizeof(ticks[0]), VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT);

        if (result != VK_SUCCESS)
                return tdm_vk_fault(device, what, result, err);
        *ret = ticks[1] - ticks[0];
        return 0;
}

static int measure_kernel(struct tdm_vk_device *device, const struct work *w, const struct tdm_vk_pipeline *pipeline,
                          uint32_t groups, uint64_t *best, struct tdm_error *err)
{
        struct tdm_vk *vk = &device->vk;
        VkCommandBuffer commands;
        uint64_t ticks = 0;
        int r = tdm_vk_once_begin(device, &commands, what, err);

        if (r != 0)
                return r;
        vk->CmdResetQueryPool(commands, device->queries, 0, 2);
        vk->CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline->pipeline);
        vk->CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, device->queries, 0);
        for (unsigned i = 0; i < DISPATCHES; i++) {
                vk->CmdPushConstants(commands, device->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(w->places[0]),
                                     &w->places[i % w->n_places]);
                vk->CmdDispatch(commands, groups, 1, 1);
                tdm_vk_barrier(device, commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
                               VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                               VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
        }
        vk->CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, device->queries, 1);
        r = tdm_vk_once_end(device, what, err);
        if (r == 0)
                r = take_ticks(device, &ticks, err);
        if (r == 0)
                *best = TDM_MIN(*best, ticks);
        return r;
}

static int tune_work(struct tdm_vk_device *device, struct work *w, const struct tdm_vk_shape *shapes, unsigned n_shapes,
                     struct tdm_error *err)
{
        uint64_t best[TDM_VK_MAX_SHAPES];
        bool flags[TDM_VK_MAX_SHAPES], any_flags = false;
        unsigned winner = 0;
        int r = 0;

        memset(best, 0xff, sizeof(best));
        for (unsigned round = 0; round < ROUNDS && r == 0; round++)
                for (unsigned i = 0; i < n_shapes && r == 0; i++) {
                        const struct tdm_vk_pipeline *kernel = tdm_vk_work_kernel(device, w, &shapes[i]);

                        if (!kernel)
                                continue;
                        r = measure_kernel(device, w, kernel, TDM_MIN(groups_of(w, &shapes[i]), device->max_groups_x),
                                           &best[i], err);
                        if (round == 0)
                                best[i] = UINT64_MAX;
                }
        /* In the chain, one that reads no flagged rows would keep the others from it. */
        for (unsigned i = 0; i < n_shapes; i++) {
                uint32_t constants[TDM_VK_N_CONSTANTS];

                flags[i] = device->chained &&
                           (tdm_vk_is_f16(&w->matrix) || (constants_of(device, w, &shapes[i], constants) &&
                                                          tdm_vk_shape_flags(constants[3], w->key.act)));
                any_flags = any_flags || flags[i];
        }
        for (unsigned i = 0; i < n_shapes; i++)
                if (any_flags && !flags[i])
                        best[i] = UINT64_MAX;
        for (unsigned i = 1; i < n_shapes; i++)
                winner = best[i] < best[winner] ? i : winner;
        w->key.shape = shapes[winner];
        return r;
}

/* ---- in the chain ---- */

void tdm_vk_trial_deinit(struct trial *t)
{
        struct tdm_vk_model *m = t->m;

        tdm_vk_record_forget(m);
        for (uint32_t i = 0; i < t->n_layers; i++)
                m->cache.layers[i] = t->layers[i];
        memset(m->counters.map, 0, m->counters.size_bytes);
        tdm_vk_buffer_deinit(m->device, &t->cache);
        tdm_vk_buffer_deinit(m->device, &t->pieces);
        tdm_step_destroy(t->step);
}

int tdm_vk_trial_init(struct trial *t, struct tdm_vk_model *m, uint32_t n_rows, uint32_t most_layers)
{
        uint32_t n_layers = TDM_MIN(m->hp.n_layers, most_layers),
                 last = TDM_MIN(POSITION + n_rows, TDM_MIN(m->hp.n_ctx, m->limits.table_entries * TDM_KV_PAGE_TOKENS)) -
                        1,
                 n_pages = last / TDM_KV_PAGE_TOKENS + 1;
        uint64_t cache_bytes = 0;
        struct tdm_vk_slot *slot = &m->slots[0];
        int r;

        *t = (struct trial){ .m = m,
                             .work = { .slot = slot, .first = 1, .n = 2 * n_layers },
                             .n_layers = n_layers,
                             .runs = m->device->is_cpu    ? RUNS_CPU :
                                     most_layers > LAYERS ? RUNS_ALL :
                                                            RUNS };
        for (uint32_t i = 0; i < n_layers; i++)
                t->layers[i] = m->cache.layers[i];
        for (uint32_t i = 0; i < n_layers; i++)
                cache_bytes += tdm_kv_layer_bytes(&m->kv, i) * n_pages;
        if (tdm_step_new(&t->step, &m->limits) < 0)
                return -ENOMEM;
        r = tdm_vk_buffer_init(m->device, &t->cache, cache_bytes, TDM_VK_DEVICE_MEMORY, "measuring", NULL);
        if (r == 0)
                r = tdm_vk_buffer_init(m->device, &t->pieces, n_layers * sizeof(uint64_t), TDM_VK_SHARED_MEMORY,
                                       "measuring", NULL);
        if (r != 0)
                return r;
        cache_bytes = 0;
        for (uint32_t i = 0; i < n_layers; i++) {
                ((uint64_t *)t->pieces.map)[i] = t->cache.address + cache_bytes;
                m->cache.layers[i] = (struct tdm_vk_kv_layer){ .pieces = t->pieces.address + i * sizeof(uint64_t),
                                                               .page_bytes = (uint32_t)tdm_kv_layer_bytes(&m->kv, i),
                                                               .piece_shift = 31 };
                cache_bytes += tdm_kv_layer_bytes(&m->kv, i) * n_pages;
        }
        t->step->head.n_rows = n_rows;
        t->step->head.n_seqs = 1;
        for (uint32_t i = 0; i < n_rows; i++)
                t->step->rows[i] = (struct tdm_step_row){ .position = last + 1 - n_rows + i };
        t->step->seqs[0] = (struct tdm_step_seq){ .n_rows = n_rows };
        for (int group = 0; group < TDM_KV_GROUPS; group++)
                for (uint32_t i = 0; i < n_pages && t->step->tables[group]; i++)
                        t->step->tables[group][i] = i;
        slot->hidden = slot->hidden_buffer.address;
        tdm_vk_step_fill(m, slot, t->step);
        return 0;
}

/* A command buffer of its own around the recording's: when the device came to it, and when it was done with all before.
 */
static VkResult write_mark(struct tdm_vk_device *device, unsigned which, VkPipelineStageFlagBits stage)
{
        const VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO };
        VkCommandBuffer commands = device->stage_commands[which];
        VkResult result = device->vk.BeginCommandBuffer(commands, &begin);

        if (result != VK_SUCCESS)
                return result;
        if (which == 0)
                device->vk.CmdResetQueryPool(commands, device->queries, 0, 2);
        device->vk.CmdWriteTimestamp(commands, stage, device->queries, which);
        return device->vk.EndCommandBuffer(commands);
}

/* By the device's clock: the host's would count how long it takes to hear of the end, which is as much as shapes
 * differ. */
int tdm_vk_trial_run(struct trial *t, uint64_t *ret_ns, struct tdm_error *err)
{
        struct tdm_vk_device *device = t->m->device;
        struct tdm_vk_recording *recording;
        VkResult result = write_mark(device, 0, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT);
        int r;

        if (result == VK_SUCCESS)
                result = write_mark(device, 1, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT);
        if (result != VK_SUCCESS)
                return tdm_vk_fault(device, what, result, err);
        tdm_vk_record_forget(t->m);
        r = tdm_vk_record(t->m, &t->work, &recording, err);
        *ret_ns = UINT64_MAX;
        for (unsigned i = 0; i < t->runs && r == 0; i++) {
                const VkCommandBuffer all[] = { device->stage_commands[0], recording->commands,
                                                device->stage_commands[1] };
                const VkSubmitInfo submit = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                              .commandBufferCount = TDM_ARRAY_SIZE(all),
                                              .pCommandBuffers = all };
                uint64_t ticks = 0;

                result = device->vk.QueueSubmit(device->queue, 1, &submit, device->fences[0]);
                r = result == VK_SUCCESS ? tdm_vk_submit_end(device, 0, err) : tdm_vk_fault(device, what, result, err);
                if (r == 0)
                        r = take_ticks(device, &ticks, err);
                *ret_ns = TDM_MIN(*ret_ns, (uint64_t)((double)ticks * device->ns_per_tick));
        }
        return r == 0 ? tdm_vk_record_check(t->m, err) : r;
}

/* Chooses among the shapes that are nearly the best, by measuring them in all layers. */
static int choose_near(struct tdm_vk_model *m, const struct work *works, unsigned n, unsigned first,
                       bool near[][TDM_VK_MAX_SHAPES], struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        uint64_t best = UINT64_MAX, ns;
        struct trial trial;
        int r = tdm_vk_trial_init(&trial, m, 1, LAYERS_ALL);

        if (r != 0 || !tdm_vk_record_flags(m, &trial.work)) {
                tdm_vk_trial_deinit(&trial);
                return 0;
        }
        r = tdm_vk_trial_run(&trial, &best, err);
        for (unsigned i = 0; i < n && r == 0; i++) {
                struct tdm_vk_tuned *tuned = &device->tuned[first + i], kept = *tuned;
                const struct tdm_vk_shape *shapes;
                unsigned n_shapes = shapes_of(device, &works[i], &shapes);

                for (unsigned k = 0; k < n_shapes && r == 0; k++) {
                        if (!near[i][k] || memcmp(&shapes[k], &kept.shape, sizeof(kept.shape)) == 0)
                                continue;
                        tuned->shape = shapes[k];
                        r = tdm_vk_trial_run(&trial, &ns, err);
                        if (r == 0 && (double)ns < (double)best * GAIN) {
                                best = ns;
                                kept = *tuned;
                        }
                }
                *tuned = kept;
        }
        tdm_vk_trial_deinit(&trial);
        return r;
}

/* Each kernel's shapes in turns while the others keep theirs. works[i] was found to be device->tuned[first + i] by
 * itself. */
static int tune_chained(struct tdm_vk_model *m, const struct work *works, unsigned n, unsigned first,
                        struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        bool near[MAX_KEYS][TDM_VK_MAX_SHAPES] = { { false } };
        struct trial trial;
        uint64_t best = UINT64_MAX, ns;
        int r;

        if (tdm_vk_trial_init(&trial, m, 1, LAYERS) != 0 ||
            !tdm_vk_record_flags(m, &trial.work)) { /* no memory to spare is no error */
                tdm_vk_trial_deinit(&trial);
                return 0;
        }
        device->deferring = true; /* what was found for other models, and so not compiled for this */
        r = tdm_vk_kernels_need_single(m, err);
        if (r == 0)
                r = tdm_vk_pipelines_compile(device, err);
        device->deferring = false;
        for (unsigned pass = 0; pass < PASSES && r == 0; pass++)
                for (unsigned i = 0; i < n && r == 0; i++) {
                        struct tdm_vk_tuned *tuned = &device->tuned[first + i], kept = *tuned;
                        const struct tdm_vk_shape *shapes;
                        unsigned n_shapes = shapes_of(device, &works[i], &shapes);

                        if (works[i].layer < LAYERS)
                                r = tdm_vk_trial_run(&trial, &best, err);
                        for (unsigned k = 0; k < n_shapes && r == 0 && works[i].layer < LAYERS; k++) {
                                tuned->shape = shapes[k];
                                if (!tdm_vk_work_kernel(device, &works[i], &shapes[k]) ||
                                    !tdm_vk_record_flags(m, &trial.work))
                                        continue;
                                r = tdm_vk_trial_run(&trial, &ns, err);
                                near[i][k] = (double)ns < (double)best * NEAR;
                                if (r == 0 && (double)ns < (double)best * GAIN) { /* twice: of many, one is lucky */
                                        uint64_t again;

                                        r = tdm_vk_trial_run(&trial, &again, err);
                                        ns = TDM_MAX(ns, again);
                                }
                                if (r == 0 && (double)ns < (double)best * GAIN) {
                                        best = ns;
                                        kept = *tuned;
                                }
                        }
                        *tuned = kept;
                }
        tdm_vk_trial_deinit(&trial);
        return r == 0 && m->hp.n_layers > LAYERS && !device->is_cpu ? choose_near(m, works, n, first, near, err) : r;
}

int tdm_vk_compile_shapes(struct tdm_vk_device *device, const struct work *works, unsigned n,
                          unsigned (*list)(const struct tdm_vk_device *device, const struct work *w,
                                           const struct tdm_vk_shape **ret),
                          struct tdm_error *err)
{
        int r = 0;

        device->deferring = true;
        for (unsigned i = 0; i < n && r == 0; i++) {
                const struct tdm_vk_shape *shapes;
                unsigned n_shapes = list(device, &works[i], &shapes);

                for (unsigned k = 0; k < n_shapes && r == 0 && device->n_pipelines < TDM_VK_MAX_PIPELINES; k++) {
                        uint32_t constants[TDM_VK_N_CONSTANTS];

                        if (constants_of(device, &works[i], &shapes[k], constants))
                                r = tdm_vk_pipeline_need(device, shader_of(&works[i], &shapes[k]), constants, err);
                }
        }
        if (r == 0)
                r = tdm_vk_pipelines_compile(device, err);
        device->deferring = false;
        return r;
}

int tdm_vk_tune(struct tdm_vk_model *m, struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        unsigned n = 0, before = device->n_pipelines;
        _cleanup_(freep) struct work *works = NULL;
        bool in_layers = false;
        int r = 0;

        if (!tuning_is_wanted(device))
                return 0;
        works = calloc(MAX_KEYS, sizeof(*works));
        if (!works)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for measuring");
        n = TDM_MIN(list_works(m, works), TDM_VK_MAX_TUNED - device->n_tuned);
        n = TDM_MIN(n, (TDM_VK_MAX_PIPELINES - TDM_MIN(before + OTHERS, TDM_VK_MAX_PIPELINES)) /
                               (unsigned)TDM_VK_MAX_SHAPES);
        r = tdm_vk_compile_shapes(device, works, n, shapes_of, err);
        if (r == 0 && m->f16_rows)
                r = tdm_vk_prove_f16(device, err);
        for (uint64_t begin = tdm_now_ns(); r == 0 && n && !device->is_cpu && tdm_now_ns() - begin < WARM_NS;) {
                const struct tdm_vk_shape *shapes;
                unsigned n_shapes = shapes_of(device, &works[0], &shapes);

                r = tune_work(device, &works[0], shapes, n_shapes, err);
        }
        for (unsigned i = 0; i < n && r == 0; i++) {
                const struct tdm_vk_shape *shapes;
                unsigned n_shapes = shapes_of(device, &works[i], &shapes);

                r = tune_work(device, &works[i], shapes, n_shapes, err);
                if (r == 0)
                        device->tuned[device->n_tuned++] = works[i].key;
        }
        for (unsigned i = 0; i < n; i++)
                in_layers = in_layers || works[i].layer < LAYERS;
        /* Hidden rows that are used in place may hold another step's. */
        if (r == 0 && in_layers && device->chained && !m->activations.buffer.buffer)
                r = tune_chained(m, works, n, device->n_tuned - n, err);
        if (r == 0)
                r = tdm_vk_tune_few_rows(m, works, err);
        /* The others are not wanted again; those that are come back from the driver's own cache. */
        tdm_vk_pipelines_forget(device, before);
        return r;
}
