/* Measures how steps of two to eight rows run (kernels/few-rows.c): as they do anyway, and in the other ways, in shapes
 * that are measured in layers alone. What is not faster is kept as not used. */
#include "gpu-worker/vulkan/proof/proof.h"
#include "gpu-worker/vulkan/load/tune.h"

/* A CPU implementation proves each kernel for a second. */
static unsigned rows_shapes_of(const struct tdm_vk_device *device, const struct work *w,
                               const struct tdm_vk_shape **ret)
{
        unsigned n = tdm_vk_tuned_shapes(&w->key, ret);

        return device->is_cpu ? TDM_MIN(n, 2u) : n;
}

/* The kernels whose shapes are chosen for this many rows; flags: of those that leave flagged words, and `down`. */
static unsigned list_rows_works(const struct tdm_vk_model *m, uint32_t rows, bool flags, struct work *works)
{
        const uint32_t tile = TDM_VK_TUNED_ROWS(TDM_VK_MATMUL_F16, rows), vec = TDM_VK_TUNED_ROWS(TDM_VK_MATVEC, rows),
                       gelu = TDM_VK_TUNED_ROWS(TDM_VK_MATVEC_GELU, rows);
        unsigned n = 0;

        for (uint32_t i = 0; i < m->program->n_ops; i++) {
                const struct tdm_vk_op *op = &m->program->ops[i];
                const struct tdm_vk_layer *l = op->kind == TDM_VK_OP_GATE_UP ? tdm_vk_op_layer(m, op) : NULL;
                uint32_t n_panels;

                if (!op->is_measured || op->rows != TDM_VK_ROWS_TILE ||
                    (op->kind == TDM_VK_OP_DOWN && !tdm_vk_gate_up_fuses(tdm_vk_op_layer(m, op), rows)))
                        continue;
                if (l && tdm_vk_gate_up_fuses(l, rows))
                        tdm_vk_work_of(works, &n, flags ? gelu : tile | TDM_VK_TUNED_GELU, &l->gate, l->gate.n_panels,
                                       TDM_VK_GELU_OUT(l->down.act, l->activation), op->layer);
                for (unsigned k = 0; k < op->n_matrices && !l;) {
                        const struct tdm_vk_matrix *a = op->matrices[k];

                        k += tdm_vk_group_of(op->matrices + k, op->n_matrices - k, &n_panels);
                        tdm_vk_work_of(works, &n, flags && op->kind != TDM_VK_OP_DOWN ? vec : tile, a, n_panels, 0,
                                       op->layer);
                }
        }
        return n;
}

/* The places of device->tuned from `first` on are of the model that is measured. Those before are of other models with
 * matrices of these sizes, which may be loaded and use them: they stay as they are. */
static bool is_own(const struct tdm_vk_device *device, const struct tdm_vk_tuned *place, unsigned first)
{
        return place >= &device->tuned[first];
}

/* The place where a work's shape is kept. It is new, and its shape is not used yet, or another model made it. NULL:
 * there is no room. */
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
        r = tdm_vk_trial_run(t, ret_ns, err);
        if (r == 0)
                r = tdm_vk_trial_run(t, &again, err);
        *ret_ns = TDM_MIN(*ret_ns, again);
        return r;
}

/* The shapes of each kernel in turns; *ret: the time of the best ones, which they have then. */
static int tune_shapes(struct trial *t, const struct work *works, unsigned n, struct tdm_vk_tuned **places,
                       unsigned first, uint64_t *ret, struct tdm_error *err)
{
        struct tdm_vk_device *device = t->m->device;
        int r = 0;

        for (unsigned i = 0; i < n && r == 0; i++) {
                const struct tdm_vk_shape *shapes;
                unsigned n_shapes = rows_shapes_of(device, &works[i], &shapes);
                struct tdm_vk_shape kept = places[i]->shape;

                if (!is_own(device, places[i], first))
                        continue;
                for (unsigned k = 0; k < n_shapes && r == 0 && works[i].layer < LAYERS; k++) {
                        uint64_t ns = UINT64_MAX;

                        if (memcmp(&shapes[k], &kept, sizeof(kept)) == 0 ||
                            !tdm_vk_work_kernel(device, &works[i], &shapes[k]))
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
                        unsigned first, uint64_t *ret, struct tdm_error *err)
{
        struct tdm_vk_device *device = t->m->device;
        int r;

        *ret = UINT64_MAX;
        for (unsigned i = 0; i < n; i++) {
                const struct tdm_vk_shape *shapes;
                unsigned n_shapes = rows_shapes_of(device, &works[i], &shapes), k = 0;

                while (!tdm_vk_work_is_tile(&works[i]) && k < n_shapes &&
                       !tdm_vk_work_kernel(device, &works[i], &shapes[k]))
                        k++;
                if (k == n_shapes)
                        return 0;
                if (!tdm_vk_work_is_tile(&works[i]) && is_own(device, places[i], first))
                        places[i]->shape = shapes[k];
        }
        r = rows_run(t, ret, err);
        if (r == 0 && tdm_vk_record_flags(t->m, &t->work))
                return tune_shapes(t, works, n, places, first, ret, err);
        *ret = UINT64_MAX;
        return r;
}

/* false: no room for all of them. */
static bool place_all(struct tdm_vk_device *device, const struct work *works, unsigned n, struct tdm_vk_tuned **ret)
{
        for (unsigned i = 0; i < n; i++) {
                ret[i] = place_of(device, &works[i].key);
                if (!ret[i])
                        return false;
        }
        return true;
}

static int compile_and_prove(struct tdm_vk_device *device, const struct work *works, unsigned n, struct tdm_error *err)
{
        int r = tdm_vk_compile_shapes(device, works, n, rows_shapes_of, err);

        return r == 0 ? tdm_vk_prove_f16(device, err) : r;
}

/* Measures a step through all layers with the shapes of now. UINT64_MAX: there is no memory for it. */
static int run_all_layers(struct tdm_vk_model *m, uint32_t rows, uint64_t *ret_ns, struct tdm_error *err)
{
        struct trial trial;
        int r = 0;

        *ret_ns = UINT64_MAX;
        if (tdm_vk_trial_init(&trial, m, rows, LAYERS_ALL) == 0)
                r = rows_run(&trial, ret_ns, err);
        tdm_vk_trial_deinit(&trial);
        return r;
}

/* Whether they are faster than what is there without them shows in all layers: what each boundary takes is more there,
 * where a kernel's code lies in fewer caches. */
static int try_flagged(struct trial *trial, uint32_t rows, struct work *works, struct tdm_vk_tuned *items,
                       unsigned first, struct tdm_error *err)
{
        static const struct tdm_vk_shape used = { .panels = 1 };
        struct tdm_vk_device *device = trial->m->device;
        struct tdm_vk_shape items_kept = items->shape, kept[MAX_KEYS];
        struct tdm_vk_tuned *places[MAX_KEYS];
        unsigned n = list_rows_works(trial->m, rows, true, works), n_tuned = device->n_tuned;
        uint64_t without = UINT64_MAX, with = UINT64_MAX, in_some = UINT64_MAX;
        int r = run_all_layers(trial->m, rows, &without, err);

        if (!place_all(device, works, n, places)) {
                device->n_tuned = n_tuned;
                return 0;
        }
        for (unsigned i = 0; i < n; i++) /* those of `down` are chosen already */
                kept[i] = places[i]->shape;
        items->shape = used;
        if (r == 0)
                r = compile_and_prove(device, works, n, err);
        if (r == 0)
                r = tune_flagged(trial, works, n, places, first, &in_some, err);
        if (r == 0 && in_some < UINT64_MAX)
                r = run_all_layers(trial->m, rows, &with, err);
        if ((double)with < (double)without * GAIN)
                return r;
        items->shape = items_kept;
        for (unsigned i = 0; i < n; i++)
                places[i]->shape = kept[i];
        return r;
}

static int tune_class(struct tdm_vk_model *m, uint32_t rows, struct work *works, struct tdm_error *err)
{
        static const struct tdm_vk_shape used = { .panels = 1 }, not_used;
        const struct tdm_vk_tuned key = tdm_vk_few_rows_key(m, rows);
        struct tdm_vk_device *device = m->device;
        struct tdm_vk_tuned *places[MAX_KEYS], *items;
        unsigned n = list_rows_works(m, rows, false, works), n_tuned = device->n_tuned;
        uint64_t plain = UINT64_MAX, few = UINT64_MAX;
        struct trial trial;
        int r;

        items = place_of(device, &key);
        if (!items || !place_all(device, works, n, places)) {
                device->n_tuned = n_tuned;
                return 0;
        }
        items->shape = not_used;
        r = compile_and_prove(device, works, n, err);
        if (r == 0 && tdm_vk_trial_init(&trial, m, rows, LAYERS) != 0) { /* no memory to spare is no error */
                tdm_vk_trial_deinit(&trial);
                device->n_tuned = n_tuned;
                return 0;
        }
        if (r != 0)
                return r;
        /* It is first kept as not used: if a kernel hangs here, the next worker does not try it again. */
        tdm_vk_cache_save(device);
        device->kept.n_tuned = 0;
        for (uint64_t begin = tdm_now_ns(); r == 0 && !device->is_cpu && tdm_now_ns() - begin < WARM_NS;)
                r = rows_run(&trial, &plain, err);
        if (r == 0)
                r = rows_run(&trial, &plain, err);
        items->shape = used;
        if (r == 0)
                r = rows_run(&trial, &few, err);
        if ((double)few >= (double)plain * GAIN)
                items->shape = not_used;
        few = TDM_MIN(few, plain);
        if (r == 0)
                r = tune_shapes(&trial, works, n, places, n_tuned, &few, err);
        if (r == 0 && rows <= TDM_VK_FLAGGED_ROWS)
                r = try_flagged(&trial, rows, works, items, n_tuned, err);
        tdm_vk_trial_deinit(&trial);
        return r;
}

/* None of them is known: another model with such matrices has no other way of attention. */
int tdm_vk_tune_few_rows(struct tdm_vk_model *m, struct work *works, struct tdm_error *err)
{
        int r = 0;

        if (tdm_vk_few_rows_forced() != TDM_VK_ROWS_MEASURED || !m->device->chained || m->activations.buffer.buffer ||
            !m->attention.is_f16 || !tdm_vk_attend_rotates(m))
                return 0;
        for (uint32_t rows = 2; rows <= TDM_VK_FEW_ROWS_MAX && r == 0; rows *= 2)
                if (rows <= m->limits.max_rows && !tdm_vk_few_rows_known(m, rows))
                        r = tune_class(m, rows, works, err);
        return r;
}
