/* Measures which shape the kernels of a single row should have on this GPU; kernels/tuned.c lists the shapes. No shape
 * changes a bit, so the fastest is taken. It is measured when a model with a matrix of new sizes is loaded. It is kept
 * on disk with the compiled kernels (device/pipeline-cache.c), so later starts neither compile nor measure the others.
 *
 * First each kernel is measured by itself, over the weights of several layers, so that they do not lie in the GPU's
 * cache. Then, where kernels follow each other without barriers (device/chain.c), some layers are measured as they are
 * run, by the device's clock. There a kernel's workgroups share the device with those of the next ones, and the shape
 * that is fastest by itself may leave these no room to start (up to a tenth of a token's time on an H200).
 *
 * Last, how steps of two to eight rows run (kernels/few-rows.c): as they do anyway, and in the other ways, in shapes
 * that are measured in layers alone. What is not faster is kept as not used.
 *
 * A CPU implementation keeps to the rules of kernels.c, since it would compile each kernel for seconds.
 * TANDEM_VULKAN_TUNE=on|off overrides that in tests. */
#include "engine/host/kernels.h"
#include "engine/weights/subblock.h"
#include "gpu-worker/vulkan/proof/proof.h"
#include "gpu-worker/vulkan/step/step-private.h"

#define PLACES 8u                   /* matrices that are taken in turns */
#define DISPATCHES 16u              /* of one measurement */
#define ROUNDS 4u                   /* the best counts; the first fills caches and does not count */
#define WARM_NS UINT64_C(300000000) /* of work, after which a GPU that was idle has its clock */
#define MAX_KEYS 24u
#define OTHERS 32u /* kernels that may be wanted besides all shapes of those that are measured */

/* Layers in the chain: how many, at which position of a sequence, and of how many runs the best counts. */
#define LAYERS 8u
#define POSITION 100u
#define RUNS 12u
#define RUNS_CPU 2u
#define PASSES 2u
#define GAIN 0.995 /* and less is another shape's time, or it is noise */

struct work {
        struct tdm_vk_tuned key;
        struct tdm_vk_matrix matrix;
        uint32_t out;   /* of MATVEC_GELU */
        uint32_t layer; /* the first that has it; UINT32_MAX: none */
        struct tdm_vk_matmul_push places[PLACES];
        unsigned n_places;
};

static bool is_wanted(const struct tdm_vk_device *device)
{
        const char *wanted = getenv("TANDEM_VULKAN_TUNE");

        if (wanted && *wanted)
                return strcmp(wanted, "off") != 0;
        return !device->is_cpu && device->properties.limits.timestampComputeAndGraphics;
}

/* ---- what a model has ---- */

static void add(const struct tdm_vk_device *device, struct work *works, unsigned *n, enum tdm_vk_shader shader,
                const struct tdm_vk_matrix *matrix, uint32_t n_panels, uint32_t out, uint32_t layer,
                const struct tdm_vk_matmul_push *push)
{
        unsigned i = 0;

        if (matrix->act == TDM_ACT_F32 || tdm_subblock_type(matrix->type) ||
            tdm_vk_tuned(device, shader, matrix, n_panels))
                return;
        while (i < *n && !tdm_vk_tuned_is_of(&works[i].key, shader, matrix, n_panels))
                i++;
        if (i == MAX_KEYS)
                return;
        if (i == *n)
                works[(*n)++] = (struct work){ .key = { .shader = shader,
                                                        .type = matrix->type,
                                                        .act = matrix->act,
                                                        .cols = matrix->cols,
                                                        .n_panels = n_panels },
                                               .matrix = *matrix,
                                               .out = out,
                                               .layer = layer };
        if (works[i].n_places < PLACES)
                works[i].places[works[i].n_places++] = *push;
}

static void add_groups(const struct tdm_vk_model *m, struct work *works, unsigned *n,
                       const struct tdm_vk_matrix *const *matrices, unsigned n_matrices, uint32_t layer)
{
        for (unsigned i = 0, n_group; i < n_matrices; i += n_group) {
                struct tdm_vk_matmul_push push;
                uint32_t n_panels;

                n_group = tdm_vk_matmul_group(m, matrices + i, n_matrices - i, &push, &n_panels);
                push.y = m->y.address;
                if (matrices[i] == &m->output)
                        push.y = m->logits.address;
                add(m->device, works, n, TDM_VK_MATVEC, matrices[i], n_panels, 0, layer, &push);
        }
}

static unsigned list_works(const struct tdm_vk_model *m, struct work *works)
{
        unsigned n = 0;

        for (uint32_t i = 0; i < m->hp.n_layers; i++) {
                const struct tdm_vk_layer *l = &m->layers[i];
                struct tdm_vk_matmul_push push;

                add_groups(m, works, &n, (const struct tdm_vk_matrix *[]){ &l->q, &l->k, &l->v }, l->n_qkv, i);
                add_groups(m, works, &n, (const struct tdm_vk_matrix *[]){ &l->o }, 1, i);
                if (l->experts.n > 0) /* their kernels have one shape */
                        continue;
                add_groups(m, works, &n, (const struct tdm_vk_matrix *[]){ &l->down }, 1, i);
                if (tdm_vk_gate_up_push(m, l, 1, &push))
                        add(m->device, works, &n, TDM_VK_MATVEC_GELU, &l->gate, l->gate.n_panels,
                            TDM_VK_GELU_OUT(l->down.act, l->activation), i, &push);
                else
                        add_groups(m, works, &n, (const struct tdm_vk_matrix *[]){ &l->gate, &l->up }, 2, i);
        }
        add_groups(m, works, &n, (const struct tdm_vk_matrix *[]){ &m->output }, 1, UINT32_MAX);
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

static bool is_gelu(const struct work *w)
{
        return TDM_VK_TUNED_SHADER(w->key.shader) == TDM_VK_MATVEC_GELU || w->key.shader & TDM_VK_TUNED_GELU;
}

/* Of a few rows, by MATMUL_F16: where no shape was found best it has one anyway. */
static bool is_tile(const struct work *w)
{
        return TDM_VK_TUNED_SHADER(w->key.shader) == TDM_VK_MATMUL_F16;
}

/* false: there is no such kernel. */
static bool constants_of(const struct tdm_vk_device *device, const struct work *w, const struct tdm_vk_shape *shape,
                         uint32_t constants[TDM_VK_N_CONSTANTS])
{
        uint32_t gelu = is_gelu(w) ? 1 + TDM_VK_GELU_OUT_ACTIVATION(w->out) : 0;

        if (is_tile(w))
                return tdm_vk_f16_tile_shaped(device, &w->matrix, shape, gelu, constants);
        if (tdm_vk_is_f16(&w->matrix))
                return tdm_vk_f16_shaped(device, &w->matrix, shape, gelu, (w->key.shader >> 16) + 1, constants);
        if (!fits_registers(device, w, shape))
                return false;
        constants[0] = w->key.type;
        constants[1] = w->key.act;
        constants[2] = w->key.shader == TDM_VK_MATVEC_GELU ? w->out : 1;
        constants[3] = tdm_vk_shape_with(device, &w->matrix, shape->panels, shape->ahead, shape->sets, true);
        return true;
}

static enum tdm_vk_shader shader_of(const struct work *w)
{
        return is_tile(w)                ? TDM_VK_MATMUL_F16 :
               tdm_vk_is_f16(&w->matrix) ? TDM_VK_MATVEC_F16 :
                                           (enum tdm_vk_shader)w->key.shader;
}

/* NULL: it may not be used here. */
static struct tdm_vk_pipeline *kernel_of(struct tdm_vk_device *device, const struct work *w,
                                         const struct tdm_vk_shape *shape)
{
        uint32_t c[TDM_VK_N_CONSTANTS];

        if (!constants_of(device, w, shape, c))
                return NULL;
        return tdm_vk_is_f16(&w->matrix) ? tdm_vk_pipeline_proven(device, shader_of(w), c[0], c[1], c[2], c[3]) :
                                           tdm_vk_pipeline_get(device, shader_of(w), c[0], c[1], c[2], c[3]);
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

static int measure(struct tdm_vk_device *device, const struct work *w, const struct tdm_vk_pipeline *pipeline,
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

static int tune(struct tdm_vk_device *device, struct work *w, const struct tdm_vk_shape *shapes, unsigned n_shapes,
                struct tdm_error *err)
{
        uint64_t best[TDM_VK_MAX_SHAPES];
        bool flags[TDM_VK_MAX_SHAPES], any_flags = false;
        unsigned winner = 0;
        int r = 0;

        memset(best, 0xff, sizeof(best));
        for (unsigned round = 0; round < ROUNDS && r == 0; round++)
                for (unsigned i = 0; i < n_shapes && r == 0; i++) {
                        const struct tdm_vk_pipeline *kernel = kernel_of(device, w, &shapes[i]);

                        if (!kernel)
                                continue;
                        r = measure(device, w, kernel, TDM_MIN(groups_of(w, &shapes[i]), device->max_groups_x),
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

/* A step of a few rows of a sequence that belongs to no job, with a small cache of its own. Its results are not used.
 */
struct trial {
        struct tdm_vk_model *m;
        struct tdm_step *step;
        struct tdm_vk_buffer cache, pieces;
        struct tdm_vk_work work;
        /* What the model has of its own cache, if it has one already. */
        struct tdm_vk_kv_layer layers[LAYERS];
};

static void trial_deinit(struct trial *t)
{
        struct tdm_vk_model *m = t->m;

        tdm_vk_record_forget(m);
        for (uint32_t i = 0; i < TDM_MIN(m->hp.n_layers, LAYERS); i++)
                m->cache.layers[i] = t->layers[i];
        memset(m->counters.map, 0, m->counters.size_bytes);
        tdm_vk_buffer_deinit(m->device, &t->cache);
        tdm_vk_buffer_deinit(m->device, &t->pieces);
        tdm_step_destroy(t->step);
}

static int trial_init(struct trial *t, struct tdm_vk_model *m, uint32_t n_rows)
{
        uint32_t n_layers = TDM_MIN(m->hp.n_layers, LAYERS),
                 last = TDM_MIN(POSITION + n_rows, TDM_MIN(m->hp.n_ctx, m->limits.table_entries * TDM_KV_PAGE_TOKENS)) -
                        1,
                 n_pages = last / TDM_KV_PAGE_TOKENS + 1;
        uint64_t cache_bytes = 0;
        struct tdm_vk_slot *slot = &m->slots[0];
        int r;

        *t = (struct trial){ .m = m, .work = { .slot = slot, .first = 1, .n = 2 * n_layers } };
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
static VkResult mark(struct tdm_vk_device *device, unsigned which, VkPipelineStageFlagBits stage)
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
static int trial_run(struct trial *t, uint64_t *ret_ns, struct tdm_error *err)
{
        struct tdm_vk_device *device = t->m->device;
        struct tdm_vk_recording *recording;
        VkResult result = mark(device, 0, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT);
        int r;

        if (result == VK_SUCCESS)
                result = mark(device, 1, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT);
        if (result != VK_SUCCESS)
                return tdm_vk_fault(device, what, result, err);
        tdm_vk_record_forget(t->m);
        r = tdm_vk_record(t->m, &t->work, &recording, err);
        *ret_ns = UINT64_MAX;
        for (unsigned i = 0; i < (device->is_cpu ? RUNS_CPU : RUNS) && r == 0; i++) {
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

/* Each kernel's shapes in turns while the others keep theirs. works[i] was found to be device->tuned[first + i] by
 * itself. */
static int tune_chained(struct tdm_vk_model *m, const struct work *works, unsigned n, unsigned first,
                        struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        struct trial trial;
        uint64_t best = UINT64_MAX, ns;
        int r;

        if (trial_init(&trial, m, 1) != 0 ||
            !tdm_vk_record_flags(m, &trial.work)) { /* no memory to spare is no error */
                trial_deinit(&trial);
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
                                r = trial_run(&trial, &best, err);
                        for (unsigned k = 0; k < n_shapes && r == 0 && works[i].layer < LAYERS; k++) {
                                tuned->shape = shapes[k];
                                if (!kernel_of(device, &works[i], &shapes[k]) || !tdm_vk_record_flags(m, &trial.work))
                                        continue;
                                r = trial_run(&trial, &ns, err);
                                if (r == 0 && (double)ns < (double)best * GAIN) { /* twice: of many, one is lucky */
                                        uint64_t again;

                                        r = trial_run(&trial, &again, err);
                                        ns = TDM_MAX(ns, again);
                                }
                                if (r == 0 && (double)ns < (double)best * GAIN) {
                                        best = ns;
                                        kept = *tuned;
                                }
                        }
                        *tuned = kept;
                }
        trial_deinit(&trial);
        return r;
}

/* Compiles the kernels of all shapes that are tried, as many as there is room for. */
static int compile_shapes(struct tdm_vk_device *device, const struct work *works, unsigned n,
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
                                r = tdm_vk_pipeline_need(device, shader_of(&works[i]), constants, err);
                }
        }
        if (r == 0)
                r = tdm_vk_pipelines_compile(device, err);
        device->deferring = false;
        return r;
}

/* ---- steps of a few rows ---- */

/* A CPU implementation proves each kernel for a second. */
static unsigned rows_shapes_of(const struct tdm_vk_device *device, const struct work *w,
                               const struct tdm_vk_shape **ret)
{
        unsigned n = tdm_vk_tuned_shapes(&w->key, ret);

        return device->is_cpu ? TDM_MIN(n, 2u) : n;
}

static void add_rows_work(struct work *works, unsigned *n, uint32_t shader, const struct tdm_vk_matrix *matrix,
                          uint32_t n_panels, uint32_t out, uint32_t layer)
{
        for (unsigned i = 0; i < *n; i++)
                if (tdm_vk_tuned_is_of(&works[i].key, shader, matrix, n_panels))
                        return;
        if (*n < MAX_KEYS)
                works[(*n)++] = (struct work){ .key = { .shader = shader,
                                                        .type = matrix->type,
                                                        .act = matrix->act,
                                                        .cols = matrix->cols,
                                                        .n_panels = n_panels },
                                               .matrix = *matrix,
                                               .out = out,
                                               .layer = layer };
}

/* The kernels whose shapes are chosen for so many rows. */
static unsigned list_rows_works(const struct tdm_vk_model *m, uint32_t rows, struct work *works)
{
        const bool flags = rows <= TDM_VK_FLAGGED_ROWS;
        const uint32_t tile = TDM_VK_TUNED_ROWS(TDM_VK_MATMUL_F16, rows), vec = TDM_VK_TUNED_ROWS(TDM_VK_MATVEC, rows),
                       gelu = TDM_VK_TUNED_ROWS(TDM_VK_MATVEC_GELU, rows);
        unsigned n = 0;

        for (uint32_t i = 0; i < m->hp.n_layers; i++) {
                const struct tdm_vk_layer *l = &m->layers[i];
                const struct tdm_vk_matrix *qkv[] = { &l->q, &l->k, &l->v };
                uint32_t out = TDM_VK_GELU_OUT(l->down.act, l->activation), n_panels;

                for (unsigned k = 0; k < 3;) {
                        const struct tdm_vk_matrix *a = qkv[k];

                        k += tdm_vk_group_of(qkv + k, 3 - k, &n_panels);
                        add_rows_work(works, &n, flags ? vec : tile, a, n_panels, 0, i);
                }
                add_rows_work(works, &n, flags ? vec : tile, &l->o, l->o.n_panels, 0, i);
                if (l->experts.n > 0 || !tdm_vk_gelu_fits(l, rows))
                        continue;
                add_rows_work(works, &n, flags ? gelu : tile | TDM_VK_TUNED_GELU, &l->gate, l->gate.n_panels, out, i);
                add_rows_work(works, &n, tile, &l->down, l->down.n_panels, 0, i);
        }
        return n;
}

/* Where a work's shape is kept: a new place, or the one of another model's matrix of these sizes. NULL: no room. */
static struct tdm_vk_tuned *place_of(struct tdm_vk_device *device, const struct tdm_vk_tuned *key)
{
        for (unsigned i = 0; i < device->n_tuned; i++)
                if (memcmp(&device->tuned[i], key, offsetof(struct tdm_vk_tuned, shape)) == 0)
                        return &device->tuned[i];
        if (device->n_tuned == TDM_VK_MAX_TUNED)
                return NULL;
        device->tuned[device->n_tuned] = *key;
        return &device->tuned[device->n_tuned++];
}

/* The best of two: of many, one is lucky, and one is interrupted. */
static int rows_run(struct trial *t, uint64_t *ret_ns, struct tdm_error *err)
{
        uint64_t again = UINT64_MAX;
        int r;

        atomic_fetch_add_explicit(t->m->device->heartbeat, 1, memory_order_relaxed);
        tdm_vk_few_rows_find(t->m);
        tdm_vk_step_fill(t->m, t->work.slot, t->step);
        r = trial_run(t, ret_ns, err);
        if (r == 0)
                r = trial_run(t, &again, err);
        *ret_ns = TDM_MIN(*ret_ns, again);
        return r;
}

/* The shapes of each kernel in turns; *ret: the time of the best ones, which they have then. */
static int tune_shapes(struct trial *t, const struct work *works, unsigned n, struct tdm_vk_tuned **places,
                       uint64_t *ret, struct tdm_error *err)
{
        struct tdm_vk_device *device = t->m->device;
        int r = 0;

        for (unsigned i = 0; i < n && r == 0; i++) {
                const struct tdm_vk_shape *shapes;
                unsigned n_shapes = rows_shapes_of(device, &works[i], &shapes);
                struct tdm_vk_shape kept = places[i]->shape;

                for (unsigned k = 0; k < n_shapes && r == 0 && works[i].layer < LAYERS; k++) {
                        uint64_t ns = UINT64_MAX;

                        if (memcmp(&shapes[k], &kept, sizeof(kept)) == 0 || !kernel_of(device, &works[i], &shapes[k]))
                                continue;
                        places[i]->shape = shapes[k];
                        r = rows_run(t, &ns, err);
                        if (r == 0 && (double)ns < (double)*ret * GAIN) {
                                *ret = ns;
                                kept = shapes[k];
                        }
                }
                places[i]->shape = kept;
        }
        return r;
}

/* By flagged words: from the first shapes on that may be used. UINT64_MAX: some matrix has none. */
static int tune_flagged(struct trial *t, const struct work *works, unsigned n, struct tdm_vk_tuned **places,
                        uint64_t *ret, struct tdm_error *err)
{
        struct tdm_vk_device *device = t->m->device;
        int r;

        *ret = UINT64_MAX;
        for (unsigned i = 0; i < n; i++) {
                const struct tdm_vk_shape *shapes;
                unsigned n_shapes = rows_shapes_of(device, &works[i], &shapes), k = 0;

                while (!is_tile(&works[i]) && k < n_shapes && !kernel_of(device, &works[i], &shapes[k]))
                        k++;
                if (k == n_shapes)
                        return 0;
                if (!is_tile(&works[i]))
                        places[i]->shape = shapes[k];
        }
        r = rows_run(t, ret, err);
        if (r == 0 && tdm_vk_record_flags(t->m, &t->work))
                return tune_shapes(t, works, n, places, ret, err);
        *ret = UINT64_MAX;
        return r;
}

static int tune_class(struct tdm_vk_model *m, uint32_t rows, struct work *works, struct tdm_error *err)
{
        static const struct tdm_vk_shape used = { .panels = 1 }, not_used;
        const struct tdm_vk_tuned key = tdm_vk_few_rows_key(m, rows);
        struct tdm_vk_device *device = m->device;
        struct tdm_vk_tuned *places[MAX_KEYS], *items;
        unsigned n = list_rows_works(m, rows, works), n_placed = 0, n_tuned = device->n_tuned;
        uint64_t plain = UINT64_MAX, few = UINT64_MAX, flagged = UINT64_MAX;
        struct trial trial;
        int r = 0;

        items = place_of(device, &key);
        while (n_placed < n && (places[n_placed] = place_of(device, &works[n_placed].key)))
                places[n_placed++]->shape = not_used;
        if (!items || n_placed < n) {
                device->n_tuned = n_tuned;
                return 0;
        }
        items->shape = not_used;
        r = compile_shapes(device, works, n, rows_shapes_of, err);
        if (r == 0)
                r = tdm_vk_prove_f16(device, err);
        if (r == 0 && trial_init(&trial, m, rows) != 0) { /* no memory to spare is no error */
                trial_deinit(&trial);
                device->n_tuned = n_tuned;
                return 0;
        }
        if (r != 0)
                return r;
        /* As not used it is kept first: should a kernel hang here, the worker that comes next does not try it again. */
        tdm_vk_cache_save(device);
        device->cache_tuned = 0;
        for (uint64_t begin = tdm_now_ns(); r == 0 && !device->is_cpu && tdm_now_ns() - begin < WARM_NS;)
                r = rows_run(&trial, &plain, err);
        if (r == 0)
                r = rows_run(&trial, &plain, err);
        items->shape = used;
        if (r == 0)
                r = rows_run(&trial, &few, err);
        if (rows > TDM_VK_FLAGGED_ROWS) {
                if ((double)few >= (double)plain * GAIN)
                        items->shape = not_used;
                few = TDM_MIN(few, plain);
                if (r == 0)
                        r = tune_shapes(&trial, works, n, places, &few, err);
        } else {
                if (r == 0)
                        r = tune_flagged(&trial, works, n, places, &flagged, err);
                if ((double)flagged >= (double)TDM_MIN(few, plain) * GAIN)
                        for (unsigned i = 0; i < n; i++)
                                places[i]->shape = not_used;
                if ((double)TDM_MIN(few, flagged) >= (double)plain * GAIN)
                        items->shape = not_used;
        }
        trial_deinit(&trial);
        return r;
}

/* None of them is known: another model with such matrices has no other way of attention. */
static int tune_few_rows(struct tdm_vk_model *m, struct work *works, struct tdm_error *err)
{
        int r = 0;

        if (tdm_vk_few_rows_forced() != 0 || !m->device->chained || m->activations_buffer.buffer || !m->attend_f16 ||
            !tdm_vk_attend_rotates(m))
                return 0;
        for (uint32_t rows = 2; rows <= TDM_VK_FEW_ROWS_MAX && r == 0; rows *= 2)
                if (rows <= m->limits.max_rows && !tdm_vk_few_rows_known(m, rows))
                        r = tune_class(m, rows, works, err);
        return r;
}

int tdm_vk_tune(struct tdm_vk_model *m, struct tdm_error *err)
{
        struct tdm_vk_device *device = m->device;
        unsigned n = 0, before = device->n_pipelines;
        _cleanup_(freep) struct work *works = NULL;
        bool in_layers = false;
        int r = 0;

        if (!is_wanted(device))
                return 0;
        works = calloc(MAX_KEYS, sizeof(*works));
        if (!works)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for measuring");
        n = TDM_MIN(list_works(m, works), TDM_VK_MAX_TUNED - device->n_tuned);
        n = TDM_MIN(n, (TDM_VK_MAX_PIPELINES - TDM_MIN(before + OTHERS, TDM_VK_MAX_PIPELINES)) /
                               (unsigned)TDM_VK_MAX_SHAPES);
        r = compile_shapes(device, works, n, shapes_of, err);
        if (r == 0 && m->f16_rows)
                r = tdm_vk_prove_f16(device, err);
        for (uint64_t begin = tdm_now_ns(); r == 0 && n && !device->is_cpu && tdm_now_ns() - begin < WARM_NS;) {
                const struct tdm_vk_shape *shapes;
                unsigned n_shapes = shapes_of(device, &works[0], &shapes);

                r = tune(device, &works[0], shapes, n_shapes, err);
        }
        for (unsigned i = 0; i < n && r == 0; i++) {
                const struct tdm_vk_shape *shapes;
                unsigned n_shapes = shapes_of(device, &works[i], &shapes);

                r = tune(device, &works[i], shapes, n_shapes, err);
                if (r == 0)
                        device->tuned[device->n_tuned++] = works[i].key;
        }
        for (unsigned i = 0; i < n; i++)
                in_layers = in_layers || works[i].layer < LAYERS;
        /* Hidden rows that are used in place may hold another step's. */
        if (r == 0 && in_layers && device->chained && !m->activations_buffer.buffer)
                r = tune_chained(m, works, n, device->n_tuned - n, err);
        if (r == 0)
                r = tune_few_rows(m, works, err);
        /* The others are not wanted again; those that are come back from the driver's own cache. */
        tdm_vk_pipelines_forget(device, before);
        return r;
}
