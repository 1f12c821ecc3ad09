/* Writes what shaders read about a step: rows, page tables, rotation angles, and how attention is cut into items.
 * Written once for a step, into memory that the device reads where it is; command buffers are recorded without any of
 * it, so that they can be used again.
 *
 *   rows [max_rows], gather [max_logits], wanted [max_logits], dispatch arguments [tile][kind];
 *   for each group: page tables [max_seqs][table_entries];
 *   for each kind of layers: angles [max_rows][head_dim], items [tile][max_items], row items [max_rows];
 *   inputs of layers [max_rows][n_layers][per_layer_width] */
#include "engine/host/kernels.h"
#include "gpu-worker/vulkan/step/step.h"

#define ARGS_BYTES 16u /* of a VkDispatchIndirectCommand, padded */
/* workgroups of attention with one head each, at most: an H200 has room for 132 at once */
#define ONE_HEAD_GROUPS 128u
/* of a few rows with an item each, at most: a GPU as large has room for half of them. Behind more keys rows should
 * share them. */
#define FEW_GROUPS 1056u

static uint64_t take_bytes(uint64_t *at, uint64_t bytes)
{
        uint64_t begin = *at;

        *at += TDM_ALIGN_UP(bytes, UINT64_C(64));
        return begin;
}

void tdm_vk_step_layout(const struct tdm_vk_model *m, struct tdm_vk_step_layout *ret)
{
        uint64_t at = 0, max_rows = m->limits.max_rows, n_tiles = TDM_DIV_UP(max_rows, m->tile_rows);

        ret->rows = take_bytes(&at, max_rows * sizeof(struct tdm_vk_row));
        ret->gather = take_bytes(&at, m->limits.max_logits * sizeof(uint32_t));
        ret->wanted = take_bytes(&at, (uint64_t)m->limits.max_logits * TDM_VK_WANTED_STRIDE * sizeof(uint32_t));
        ret->args = take_bytes(&at, n_tiles * TDM_VK_KINDS * ARGS_BYTES);
        for (int group = 0; group < TDM_KV_GROUPS; group++)
                ret->tables[group] =
                        take_bytes(&at, m->kv.n_layers[group] ? (uint64_t)m->limits.max_seqs * m->limits.table_entries *
                                                                        sizeof(uint32_t) :
                                                                0);
        for (unsigned kind = 0; kind < TDM_VK_KINDS; kind++) {
                bool used = m->kinds[kind].used;

                ret->angles[kind] = take_bytes(&at, used ? max_rows * m->kinds[kind].head_dim * sizeof(float) : 0);
                ret->items[kind] =
                        take_bytes(&at, used ? n_tiles * m->attention.max_items * sizeof(struct tdm_vk_item) : 0);
                ret->row_items[kind] = take_bytes(&at, used ? max_rows * sizeof(struct tdm_vk_row_items) : 0);
        }
        ret->inputs = take_bytes(&at, max_rows * m->hp.n_layers * m->recipe.per_layer_width * sizeof(float));
        ret->size_bytes = at;
}

uint64_t tdm_vk_step_args(const struct tdm_vk_step_layout *layout, uint32_t tile, uint32_t kind)
{
        return layout->args + ((uint64_t)tile * TDM_VK_KINDS + kind) * ARGS_BYTES;
}

struct tdm_vk_slot *tdm_vk_slot_of(struct tdm_vk_model *m, const float *hidden)
{
        struct tdm_vk_slot *oldest = &m->slots[0];
        uint64_t bytes = (uint64_t)m->limits.max_rows * m->hp.residual_width * sizeof(float);

        for (unsigned i = 0; i < TDM_STEP_SLOTS; i++) {
                if (m->slots[i].key == hidden) {
                        m->slots[i].used = ++m->clock;
                        return &m->slots[i];
                }
                if (m->slots[i].used < oldest->used)
                        oldest = &m->slots[i];
        }
        oldest->key = hidden;
        oldest->used = ++m->clock;
        oldest->next_block = 0;
        oldest->in_place = m->activations.buffer.buffer != VK_NULL_HANDLE;
        oldest->hidden = oldest->hidden_buffer.address;
        if (oldest->in_place) {
                if ((const uint8_t *)hidden < m->activations.base ||
                    (const uint8_t *)hidden + bytes > m->activations.base + m->activations.size_bytes) {
                        oldest->key = NULL;
                        return NULL;
                }
                oldest->hidden =
                        m->activations.buffer.address + (uint64_t)((const uint8_t *)hidden - m->activations.base);
        }
        return oldest;
}

/* Rows of one sequence that an item takes, from `row` on. */
static uint32_t item_rows(const struct tdm_step *step, uint32_t row, uint32_t end, uint32_t most)
{
        uint32_t n = 1;

        while (n < most && row + n < end && step->rows[row + n].seq == step->rows[row].seq)
                n++;
        return n;
}

/* The first key that a row sees; below, what is behind the last one. */
static uint32_t seen_first(const struct tdm_vk_kind *kind, uint32_t position)
{
        return kind->window && position + 1 > kind->window ? position + 1 - kind->window : 0;
}

static uint32_t seen_end(const struct tdm_vk_kind *kind, const struct tdm_step *step, uint32_t row)
{
        const struct tdm_step_seq *seq = &step->seqs[step->rows[row].seq];
        uint32_t position = step->rows[row].position, left = seq->first_row + seq->n_rows - row;

        return position + (!kind->both ? 1 : kind->window ? TDM_MIN(kind->window, left) : left);
}

/* The spans of keys that an item of rows row … row + n - 1 sees. */
static void item_spans(const struct tdm_vk_kind *kind, const struct tdm_step *step, uint32_t row, uint32_t n,
                       uint32_t *first, uint32_t *last)
{
        *first = seen_first(kind, step->rows[row].position) / TDM_ATTENTION_SPAN;
        *last = (seen_end(kind, step, row + n - 1) - 1) / TDM_ATTENTION_SPAN;
}

/* Heads of an item: those that share keys, or one where there would be few workgroups then, each of which waits for its
 * own loads and sums and not for a second head's. Which of the two changes no bit. */
static uint32_t item_heads(const struct tdm_vk_model *m, const struct tdm_step *step, const struct tdm_vk_kind *kind)
{
        uint64_t n = 0;

        if (m->attention.is_f16)
                return kind->queries_heads;
        for (uint32_t row = 0; row < step->head.n_rows && kind->used; row++) {
                uint32_t first, last;

                item_spans(kind, step, row, 1, &first, &last);
                n += last - first + 1;
        }
        return n * kind->n_heads <= ONE_HEAD_GROUPS ? 1 : kind->queries_heads;
}

/* Whether a few rows have an item for each row and span: one tile's, and not too many. */
static bool has_few_items(const struct tdm_vk_model *m, const struct tdm_step *step)
{
        if (step->head.n_rows > m->tile_rows)
                return false;
        for (unsigned i = 0; i < TDM_VK_KINDS; i++) {
                const struct tdm_vk_kind *kind = &m->kinds[i];
                uint64_t n = 0;

                for (uint32_t row = 0; row < step->head.n_rows && kind->used; row++) {
                        uint32_t first, last;

                        item_spans(kind, step, row, 1, &first, &last);
                        n += last - first + 1;
                }
                if (kind->used && (n > m->attention.max_items || n * kind->n_heads > m->attention.max_slots ||
                                   n * (kind->n_heads / kind->queries_heads) > FEW_GROUPS))
                        return false;
        }
        return true;
}

/* Cuts a tile's attention: each span apart where that gives the device enough to do at once and fits, else an item
 * walks through its spans. Which of the two changes no bit. */
static void cut_tile(const struct tdm_vk_model *m, struct tdm_vk_slot *slot, const struct tdm_vk_step_layout *layout,
                     const struct tdm_step *step, uint32_t kind_index, uint32_t tile)
{
        const struct tdm_vk_kind *kind = &m->kinds[kind_index];
        uint32_t first_row = tile * m->tile_rows, end = TDM_MIN(first_row + m->tile_rows, step->head.n_rows);
        uint32_t most = slot->many ? kind->many_rows : 1, n_heads = kind->n_heads, n_items = 0, slots = 0;
        struct tdm_vk_item *items = (struct tdm_vk_item *)(slot->step.map + layout->items[kind_index]) +
                                    (size_t)tile * m->attention.max_items;
        struct tdm_vk_row_items *row_items =
                (struct tdm_vk_row_items *)(slot->step.map + layout->row_items[kind_index]);
        VkDispatchIndirectCommand *args =
                (VkDispatchIndirectCommand *)(slot->step.map + tdm_vk_step_args(layout, tile, kind_index));
        uint64_t all_items = 0, all_slots = 0;
        bool apart;

        for (uint32_t row = first_row, n; row < end; row += n) {
                uint32_t first, last;

                n = item_rows(step, row, end, most);
                item_spans(kind, step, row, n, &first, &last);
                all_items += last - first + 1;
                all_slots += (uint64_t)(last - first + 1) * n * n_heads;
        }
        apart = all_items <= m->attention.max_items && all_slots <= m->attention.max_slots;

        for (uint32_t row = first_row, n; row < end; row += n) {
                /* nothing here is read back: it may be far away */
                uint32_t first, last, step_slots, n_parts, first_slot = slots;

                n = item_rows(step, row, end, most);
                item_spans(kind, step, row, n, &first, &last);
                step_slots = n * n_heads;
                n_parts = apart ? last - first + 1 : 1;
                for (uint32_t i = 0; i < n; i++)
                        row_items[row + i] =
                                (struct tdm_vk_row_items){ first_slot + i * n_heads, step_slots, n_parts, 0 };
                for (uint32_t i = 0; i < n_parts; i++, slots += step_slots) {
                        const struct tdm_step_seq *seq = &step->seqs[step->rows[row].seq];
                        struct tdm_vk_item item = { .first_row = row,
                                                    .n_rows = n,
                                                    .span_first = first + i,
                                                    .span_last = apart ? first + i : last,
                                                    .slot = slots,
                                                    .first_slot = first_slot,
                                                    .n_items = n_parts,
                                                    .position = step->rows[row].position,
                                                    .seq = step->rows[row].seq,
                                                    .serial = m->attention.step_serial * TDM_VK_LAYERS_MAX,
                                                    .end = seen_end(kind, step, row + n - 1),
                                                    .n_before = row - TDM_MAX(seq->first_row, first_row) };

                        tdm_vk_item_pages(&item, step->tables[kind->group] + (size_t)item.seq * step->table_entries,
                                          seen_first(kind, item.position));
                        items[n_items++] = item;
                }
        }
        *args = (VkDispatchIndirectCommand){ n_items, n_heads / slot->item_heads[kind_index], 1 };
}

static void fill_wanted(const struct tdm_vk_model *m, const struct tdm_step *step, uint32_t i, uint32_t *to)
{
        const struct tdm_step_logits *l = &step->logits[i];
        const struct tdm_past past = tdm_step_past(step, i);
        struct tdm_noise noise = { 0 };
        uint32_t *named = to + TDM_VK_WANTED_HEAD, n = tdm_sample_moved(&l->sampling, &past, m->hp.n_vocab, named);

        static_assert(sizeof(noise) == 5 * sizeof(*to), "copied as words");
        to[0] = tdm_sample_n_wanted(&l->sampling, l->mask != 0, m->hp.n_vocab, n);
        for (uint32_t k = 0; k < n; k++)
                named[k] /= TDM_SAMPLE_MAX_BLOCK;
        if (l->target < m->hp.n_vocab)
                named[n++] = l->target / TDM_SAMPLE_MAX_BLOCK;
        to[1] = n;
        tdm_sample_noise(&l->sampling, l->mask != 0, step->rows[l->row].position + 1, &noise);
        memcpy(to + 2, &noise, sizeof(noise));
}

struct inputs_job {
        const struct tdm_step *step;
        uint32_t type, width;
        float *to;
};

static void fill_input(void *arg, unsigned row, unsigned thread)
{
        const struct inputs_job *job = arg;

        tdm_weights_file_row(job->type, job->step->inputs + (size_t)row * job->step->input_bytes, 0, job->width,
                             job->to + (size_t)row * job->width);
}

/* cos, then sin. Where nothing is turned, the angle that changes nothing. */
static void row_angles(const struct tdm_vk_model *m, unsigned kind, uint32_t position, float *ret)
{
        uint32_t half = m->kinds[kind].head_dim / 2;

        if (m->kinds[kind].rope != TDM_ROPE_NONE) {
                tdm_rope_row(&m->rope[kind], position, ret, ret + half);
                return;
        }
        for (uint32_t i = 0; i < half; i++) {
                ret[i] = 1;
                ret[half + i] = 0;
        }
}

void tdm_vk_step_fill(struct tdm_vk_model *m, struct tdm_vk_slot *slot, const struct tdm_step *step)
{
        struct tdm_vk_step_layout layout;
        uint8_t *base = slot->step.map;
        struct tdm_vk_row *rows;
        enum tdm_vk_few few;

        tdm_vk_step_layout(m, &layout);
        rows = (struct tdm_vk_row *)(base + layout.rows);
        slot->step_id = step->head.step_id;
        slot->epoch = step->head.epoch;
        slot->n_rows = step->head.n_rows;
        slot->n_logits = step->head.n_logits;
        slot->n_tiles = TDM_DIV_UP(step->head.n_rows, m->tile_rows);
        few = tdm_vk_few_rows(m, slot->n_rows);
        if (few != TDM_VK_FEW_NOT && !has_few_items(m, step))
                few = TDM_VK_FEW_NOT;
        slot->several = false; /* a sequence of a shorter step may have no row */
        for (uint32_t i = 0; i < step->head.n_seqs; i++)
                slot->several = slot->several || step->seqs[i].n_rows > 1;
        slot->many = slot->several && few == TDM_VK_FEW_NOT;
        slot->flags = slot->n_rows == 1 || few == TDM_VK_FEW_FLAGGED;
        for (unsigned kind = 0; kind < TDM_VK_KINDS; kind++)
                slot->item_heads[kind] =
                        slot->many ? m->kinds[kind].queries_heads : item_heads(m, step, &m->kinds[kind]);
        slot->attention_layers = 0;
        slot->on_device = false;
        m->attention.step_serial++;
        for (uint32_t i = 0; i < step->head.n_rows; i++)
                rows[i] = (struct tdm_vk_row){ step->rows[i].token, step->rows[i].position, step->rows[i].seq, 0 };
        for (uint32_t i = 0; i < step->head.n_logits; i++) {
                ((uint32_t *)(base + layout.gather))[i] = step->logits[i].row;
                fill_wanted(m, step, i, (uint32_t *)(base + layout.wanted) + (size_t)i * TDM_VK_WANTED_STRIDE);
        }
        if (m->recipe.per_layer_width > 0 && step->input_bytes > 0) {
                struct inputs_job job = { .step = step,
                                          .type = tdm_weights_find(m->weights, TDM_TENSOR_PER_LAYER_EMBD, 0)->type,
                                          .width = m->hp.n_layers * m->recipe.per_layer_width,
                                          .to = (float *)(base + layout.inputs) };

                tdm_pool_run(m->device->threads, step->head.n_rows, fill_input, &job);
        }
        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                uint32_t *tables = (uint32_t *)(base + layout.tables[group]);

                if (!m->kv.n_layers[group] ||
                    !m->cache.layers[tdm_kv_first_layer(&m->hp, (enum tdm_kv_group)group)].page_bytes)
                        continue;
                for (uint32_t seq = 0; seq < step->head.n_seqs; seq++) {
                        const struct tdm_step_seq *s = &step->seqs[seq];
                        uint32_t n;

                        if (!s->n_rows) /* of a shorter step */
                                continue;
                        n = (step->rows[s->first_row].position + s->n_rows - 1) / TDM_KV_PAGE_TOKENS + 1;
                        memcpy(tables + (size_t)seq * m->limits.table_entries,
                               step->tables[group] + (size_t)seq * step->table_entries, n * sizeof(uint32_t));
                }
        }
        for (unsigned kind = 0; kind < TDM_VK_KINDS; kind++) {
                uint32_t head_dim = m->kinds[kind].head_dim;

                if (!m->kinds[kind].used || !m->cache.layers[m->kinds[kind].layer].page_bytes)
                        continue;
                for (uint32_t i = 0; i < step->head.n_rows; i++) {
                        float angles[TDM_VK_HEAD_DIM_MAX]; /* so that all of a row goes over PCIe at once */

                        row_angles(m, kind, step->rows[i].position, angles);
                        memcpy((float *)(base + layout.angles[kind]) + (size_t)i * head_dim, angles,
                               head_dim * sizeof(float));
                }
                for (uint32_t tile = 0; tile < slot->n_tiles; tile++)
                        cut_tile(m, slot, &layout, step, kind, tile);
        }
}
