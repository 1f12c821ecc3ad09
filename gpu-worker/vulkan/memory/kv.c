/* The cache. Where memory is unified it is the shared segment itself. On a GPU of its own each layer's pages lie in
 * buffers on the device, [page][kv head] parts, as many as an allocation may hold in each, and the segment is their
 * twin: what a submission stores is logged by the kernel that stores it (rows, as stored) and written into the twin
 * before run() returns, so that the segment is complete for whatever was reported done. The other way round: before a
 * step looks back on pages that the device did not write itself, one step after the other (a new process, a reused
 * prefix, a step that another worker ran meanwhile), they are copied from the twin. */
#include "gpu-worker/vulkan/memory/kv-pages.h"
#include "gpu-worker/vulkan/memory/kv.h"

#define LOG_BYTES (UINT64_C(32) << 20)
#define PIECE_BYTES (UINT64_C(1) << 30)
#define PIECES_MAX 65536u

static uint32_t element_bytes(const struct tdm_vk_kv *kv)
{
        return kv->geometry->type == TDM_KV_F32 ? 4 : kv->geometry->type == TDM_KV_F16 ? 2 : 1;
}

/* A head's key or value as it is logged: its elements, then, of q8_0, the scales of its blocks. */
static uint32_t head_bytes(const struct tdm_vk_kv *kv, uint32_t layer)
{
        uint32_t head_dim = kv->geometry->layers[layer].head_dim;

        return head_dim * element_bytes(kv) + (kv->geometry->type == TDM_KV_Q8_0 ? 2 * tdm_kv_n_blocks(head_dim) : 0);
}

static uint64_t row_bytes(const struct tdm_vk_kv *kv, uint32_t layer)
{
        return (uint64_t)2 * kv->geometry->layers[layer].n_kv_heads * head_bytes(kv, layer);
}

uint64_t tdm_vk_kv_log_row_bytes(const struct tdm_vk_kv *kv)
{
        uint64_t most = 0;

        for (uint32_t i = 0; i < kv->hp->n_layers; i++)
                most = TDM_MAX(most, row_bytes(kv, i));
        return most;
}

static bool owns_layer(const struct tdm_vk_kv *kv, uint32_t layer)
{
        return kv->hp->layers[layer].kv_layer == layer;
}

uint32_t tdm_vk_kv_log_layers(const struct tdm_vk_kv *kv, uint32_t n_rows)
{
        if (kv->imported || !kv->log.size_bytes)
                return UINT32_MAX;
        return (uint32_t)TDM_MAX(kv->log.size_bytes / 2 / (tdm_vk_kv_log_row_bytes(kv) * n_rows), UINT64_C(1));
}

static void unset_cache(struct tdm_vk_kv *kv)
{
        for (unsigned i = 0; i < kv->n_buffers; i++)
                tdm_vk_buffer_deinit(kv->device, &kv->buffers[i]);
        tdm_vk_buffer_deinit(kv->device, &kv->pieces);
        tdm_vk_buffer_deinit(kv->device, &kv->log);
        tdm_vk_pages_free(steal_ptr(&kv->pages));
        free(kv->buffers);
        kv->buffers = NULL;
        kv->n_buffers = 0;
        kv->imported = false;
}

/* Room for every piece, and for the table of their addresses that kernels read. */
static int make_table(struct tdm_vk_kv *kv, uint32_t n_pieces, struct tdm_error *err)
{
        kv->buffers = calloc(n_pieces, sizeof(*kv->buffers));
        if (!kv->buffers)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for a KV cache in %u pieces",
                                     n_pieces);
        return tdm_vk_buffer_init(kv->device, &kv->pieces,
                                  (uint64_t)TDM_MAX(n_pieces, kv->hp->n_layers) * sizeof(uint64_t),
                                  TDM_VK_SHARED_MEMORY, "the KV cache's table", err);
}

/* How many pages a piece has, as a shift: what one allocation may hold, and little enough that the last one wastes
 * little. */
static uint32_t piece_shift(const struct tdm_vk_kv *kv, uint64_t page_bytes)
{
        const char *kib = tdm_vk_switch(TDM_VK_SWITCH_PIECE_KIB); /* tests make many of a small cache */
        uint64_t limit = TDM_MIN(kib ? strtoull(kib, NULL, 10) << 10 : PIECE_BYTES, kv->device->memory.max_allocation);
        uint32_t shift = 0;

        while (shift < 30 && page_bytes << (shift + 1) <= limit)
                shift++;
        return shift;
}

/* attend-f16.comp multiplies what lies beside the keys that count with zero: it must be finite, as all is that is ever
 * stored. */
static int clear_pieces(struct tdm_vk_kv *kv, struct tdm_error *err)
{
        const char *what = "clearing the KV cache";
        VkCommandBuffer commands;
        int r = tdm_vk_once_begin(kv->device, &commands, what, err);

        if (r != 0)
                return r;
        for (unsigned i = 0; i < kv->n_buffers; i++)
                kv->device->vk.CmdFillBuffer(commands, kv->buffers[i].buffer, 0, VK_WHOLE_SIZE, 0);
        tdm_vk_barrier(kv->device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                       VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                       VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT);
        return tdm_vk_once_end(kv->device, what, err);
}

/* How many pieces all layers have together; sets the sizes of each layer's. */
static int cut_pieces(struct tdm_vk_kv *kv, uint64_t *ret_n_pieces, struct tdm_error *err)
{
        uint64_t n_pieces = 0, largest = 0;

        for (uint32_t i = 0; i < kv->hp->n_layers; i++) {
                uint64_t page = tdm_kv_layer_bytes(kv->geometry, i);
                uint32_t shift = piece_shift(kv, page);

                kv->layers[i].page_bytes = (uint32_t)TDM_MIN(page, (uint64_t)UINT32_MAX);
                kv->layers[i].piece_shift = shift;
                if (owns_layer(kv, i))
                        n_pieces += TDM_DIV_UP(kv->geometry->n_pages[kv->geometry->layers[i].group], 1u << shift);
                if (page > UINT32_MAX)
                        n_pieces = UINT64_C(1) << 32;
                largest = TDM_MAX(largest, page << shift);
        }
        if (n_pieces > PIECES_MAX)
                return tdm_error_set(err, TDM_E_NO_MEMORY,
                                     "a KV cache of %.1f MiB in pieces of %.1f MiB: there may be %u pieces",
                                     (double)kv->geometry->size_bytes / 0x1p20, (double)largest / 0x1p20, PIECES_MAX);
        *ret_n_pieces = n_pieces;
        return 0;
}

static int make_layer(struct tdm_vk_kv *kv, uint32_t layer, struct tdm_error *err)
{
        struct tdm_vk_kv_layer *l = &kv->layers[layer];
        uint32_t n_pages = kv->geometry->n_pages[kv->geometry->layers[layer].group], n = 1u << l->piece_shift;

        if (!owns_layer(kv, layer)) {
                *l = kv->layers[kv->hp->layers[layer].kv_layer];
                return 0;
        }
        l->first = kv->n_buffers;
        l->pieces = kv->pieces.address + kv->n_buffers * sizeof(uint64_t);
        for (uint32_t first = 0; first < n_pages; first += n) {
                struct tdm_vk_buffer *piece = &kv->buffers[kv->n_buffers];
                int r = tdm_vk_buffer_init(kv->device, piece, (uint64_t)l->page_bytes * TDM_MIN(n_pages - first, n),
                                           TDM_VK_DEVICE_MEMORY, "a piece of the KV cache", err);

                if (r != 0)
                        return r;
                ((uint64_t *)kv->pieces.map)[kv->n_buffers++] = piece->address;
        }
        return 0;
}

static int make_buffers(struct tdm_vk_kv *kv, struct tdm_error *err)
{
        uint64_t left, total, n_pieces = 0;
        int r;

        tdm_vk_memory_left(kv->device, &left, &total);
        if (kv->geometry->size_bytes > left)
                return tdm_error_set(
                        err, TDM_E_NO_MEMORY,
                        "the KV cache needs %.1f MiB on the GPU and %.1f of its %.1f MiB are free: set a lower "
                        "kv-memory in tandem.conf",
                        (double)kv->geometry->size_bytes / 0x1p20, (double)left / 0x1p20, (double)total / 0x1p20);
        r = cut_pieces(kv, &n_pieces, err);
        if (r == 0)
                r = make_table(kv, (uint32_t)n_pieces, err);
        if (r == 0 && tdm_vk_pages_new(&kv->pages, kv->geometry, kv->base, kv->device->threads) < 0)
                r = tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for a KV cache");
        if (r == 0)
                r = tdm_vk_buffer_init(kv->device, &kv->log,
                                       2 * TDM_MAX(tdm_vk_kv_log_row_bytes(kv) * kv->limits->max_rows, LOG_BYTES),
                                       TDM_VK_HOST_MEMORY, "the KV cache's write-behind", err);
        for (uint32_t i = 0; i < kv->hp->n_layers && r == 0; i++)
                r = make_layer(kv, i, err);
        return r == 0 && kv->clear ? clear_pieces(kv, err) : r;
}

/* Each layer begins at another place of the segment, and is one piece. -EOPNOTSUPP where it cannot be imported. */
static int import_segment(struct tdm_vk_kv *kv, uint8_t *base)
{
        struct tdm_vk_device *device = kv->device;
        int r = device->memory.import ? make_table(kv, 1, NULL) : -EOPNOTSUPP;

        for (int group = 0; group < TDM_KV_GROUPS; group++)
                if (kv->geometry->page_bytes[group] > UINT32_MAX)
                        r = -EOPNOTSUPP;
        if (r == 0)
                r = tdm_vk_buffer_import(device, &kv->buffers[0], base,
                                         TDM_ALIGN_UP(kv->geometry->size_bytes, device->memory.import_align));
        if (r != 0)
                return r;
        kv->n_buffers = 1;
        kv->imported = true;
        for (uint32_t i = 0; i < kv->hp->n_layers; i++) {
                ((uint64_t *)kv->pieces.map)[i] = kv->buffers[0].address + tdm_kv_part_offset(kv->geometry, i, 0, 0);
                kv->layers[i] = (struct tdm_vk_kv_layer){
                        .pieces = kv->pieces.address + i * sizeof(uint64_t),
                        .page_bytes = (uint32_t)kv->geometry->page_bytes[kv->geometry->layers[i].group],
                        .piece_shift = 31,
                };
        }
        return 0;
}

int tdm_vk_kv_init(struct tdm_vk_kv *kv, struct tdm_vk_device *device, const struct tdm_hparams *hp,
                   const struct tdm_kv_geometry *geometry, const struct tdm_steps_limits *limits)
{
        size_t n_tables = limits->n_tables;

        kv->device = device;
        kv->hp = hp;
        kv->geometry = geometry;
        kv->limits = limits;
        kv->layers = calloc(hp->n_layers, sizeof(*kv->layers));
        kv->sequences = calloc(n_tables, sizeof(*kv->sequences));
        kv->known_pages = calloc(n_tables * TDM_KV_GROUPS, limits->table_entries * sizeof(uint32_t));
        return kv->layers && kv->sequences && kv->known_pages ? 0 : -ENOMEM;
}

void tdm_vk_kv_deinit(struct tdm_vk_kv *kv)
{
        if (!kv->device)
                return;
        unset_cache(kv);
        free(kv->layers);
        free(kv->sequences);
        free(kv->known_pages);
        *kv = (struct tdm_vk_kv){};
}

void tdm_vk_kv_set(struct tdm_vk_kv *kv, uint8_t *base)
{
        unset_cache(kv);
        kv->base = base;
        kv->error = (struct tdm_error){};
        memset(kv->sequences, 0, kv->limits->n_tables * sizeof(*kv->sequences));
        if (!base || import_segment(kv, base) == 0)
                return;
        unset_cache(kv);
        if (make_buffers(kv, &kv->error) != 0)
                unset_cache(kv);
}

/* ---- the twin's way to the device ---- */

/* Pages collect in a staging buffer until it is full. */
struct restore {
        struct tdm_vk_kv *kv;
        VkCommandBuffer commands;
        uint64_t filled;
        bool begun;
};

static const char restoring[] = "restoring the KV cache";

static int restore_flush(struct restore *restore, struct tdm_error *err)
{
        struct tdm_vk_device *device = restore->kv->device;

        if (!restore->begun)
                return 0;
        tdm_vk_barrier(device, restore->commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                       VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
        restore->begun = false;
        restore->filled = 0;
        return tdm_vk_once_end(device, restoring, err);
}

static int restore_page(struct restore *restore, uint32_t layer, uint32_t page, struct tdm_error *err)
{
        struct tdm_vk_kv *kv = restore->kv;
        struct tdm_vk_device *device = kv->device;
        const struct tdm_vk_kv_layer *l = &kv->layers[layer];
        uint64_t at = tdm_kv_part_offset(kv->geometry, layer, page, 0), n = l->page_bytes;
        uint32_t shift = l->piece_shift, in_piece = page & ((1u << shift) - 1);
        const struct tdm_vk_buffer *piece = &kv->buffers[l->first + (page >> shift)];

        for (uint64_t done = 0, part; done < n; done += part) {
                VkBufferCopy copy;

                if (restore->filled == TDM_VK_STAGE_BYTES) {
                        int r = restore_flush(restore, err);

                        if (r != 0)
                                return r;
                }
                if (!restore->begun) {
                        int r = tdm_vk_once_begin(device, &restore->commands, restoring, err);

                        if (r != 0)
                                return r;
                        restore->begun = true;
                }
                part = TDM_MIN(n - done, TDM_VK_STAGE_BYTES - restore->filled);
                memcpy(device->stages[0].map + restore->filled, kv->base + at + done, part);
                copy = (VkBufferCopy){ restore->filled, in_piece * n + done, part };
                device->vk.CmdCopyBuffer(restore->commands, device->stages[0].buffer, piece->buffer, 1, &copy);
                restore->filled += part;
                device->counters.kv_restored_bytes += part;
        }
        return 0;
}

/* ---- what the device knows ---- */

static uint32_t *known_table(struct tdm_vk_kv *kv, uint32_t table, int group)
{
        return kv->known_pages + ((size_t)table * TDM_KV_GROUPS + group) * kv->limits->table_entries;
}

/* A hash of the twin's value row at a position, in the first layer and head of a group. It changes when another worker
 * writes there. */
static uint64_t value_hash(const struct tdm_vk_kv *kv, int group, const uint32_t *pages, uint32_t position)
{
        uint32_t layer = tdm_kv_first_layer(kv->hp, (enum tdm_kv_group)group);
        uint32_t bytes = kv->geometry->layers[layer].head_dim * element_bytes(kv);
        const uint8_t *row = kv->base +
                             tdm_kv_part_offset(kv->geometry, layer, pages[position / TDM_KV_PAGE_TOKENS], 0) +
                             kv->geometry->layers[layer].part_bytes / 2 + position % TDM_KV_PAGE_TOKENS * bytes;
        uint64_t hash = UINT64_C(0xcbf29ce484222325), word = 0;

        for (uint32_t i = 0; i < bytes; i += sizeof(word)) {
                memcpy(&word, row + i, TDM_MIN(bytes - i, sizeof(word)));
                hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
                hash ^= hash >> 32;
        }
        return hash;
}

static int first_group(const struct tdm_vk_kv *kv)
{
        return kv->geometry->n_layers[TDM_KV_FULL] ? TDM_KV_FULL : TDM_KV_WINDOW;
}

static const uint32_t *table_of(const struct tdm_step *step, int group, uint32_t seq)
{
        return step->tables[group] + (size_t)seq * step->table_entries;
}

/* Entries of a group that positions from `position` on look back to: [first, end). */
static void look_back(const struct tdm_vk_kv *kv, int group, uint32_t position, uint32_t *first, uint32_t *end)
{
        *first = tdm_window_first(kv->hp, (enum tdm_kv_group)group, position) / TDM_KV_PAGE_TOKENS;
        *end = TDM_DIV_UP(position, TDM_KV_PAGE_TOKENS);
}

static bool is_known(struct tdm_vk_kv *kv, const struct tdm_step *step, uint32_t seq, uint32_t position)
{
        const struct tdm_vk_sequence *s = &kv->sequences[step->seqs[seq].table];
        int group0 = first_group(kv);

        if (position == 0)
                return true;
        if (s->n_valid < position || s->epoch != step->head.epoch)
                return false;
        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                uint32_t first, end;

                look_back(kv, group, position, &first, &end);
                if (kv->geometry->n_layers[group] &&
                    memcmp(known_table(kv, step->seqs[seq].table, group) + first, table_of(step, group, seq) + first,
                           (end - first) * sizeof(uint32_t)) != 0)
                        return false;
        }
        return s->n_valid != position ||
               s->last_hash == value_hash(kv, group0, table_of(step, group0, seq), position - 1);
}

int tdm_vk_kv_begin(struct tdm_vk_kv *kv, const struct tdm_step *step, struct tdm_error *err)
{
        struct restore restore = { .kv = kv };

        if (kv->imported)
                return 0;
        for (uint32_t seq = 0; seq < step->head.n_seqs; seq++) {
                uint32_t table = step->seqs[seq].table, position = step->rows[step->seqs[seq].first_row].position;
                bool fine = is_known(kv, step, seq, position);

                kv->sequences[table].n_valid = 0; /* until all layers are done */
                for (uint32_t layer = 0; layer < kv->hp->n_layers && !fine; layer++) {
                        int group = tdm_kv_group_of(kv->hp, layer);
                        uint32_t first, end;

                        if (!owns_layer(kv, layer))
                                continue;
                        look_back(kv, group, position, &first, &end);
                        for (uint32_t i = first; i < end; i++) {
                                int r = restore_page(&restore, layer, table_of(step, group, seq)[i], err);

                                if (r != 0)
                                        return r;
                        }
                }
        }
        return restore_flush(&restore, err);
}

void tdm_vk_kv_end(struct tdm_vk_kv *kv, const struct tdm_step *step)
{
        int group0 = first_group(kv);

        if (kv->imported)
                return;
        for (uint32_t seq = 0; seq < step->head.n_seqs; seq++) {
                const struct tdm_step_seq *q = &step->seqs[seq];
                struct tdm_vk_sequence *s = &kv->sequences[q->table];
                uint32_t position = step->rows[q->first_row].position, end_position = position + q->n_rows;

                for (int group = 0; group < TDM_KV_GROUPS; group++) {
                        uint32_t first =
                                tdm_window_first(kv->hp, (enum tdm_kv_group)group, position) / TDM_KV_PAGE_TOKENS;
                        uint32_t end = TDM_DIV_UP(end_position, TDM_KV_PAGE_TOKENS);

                        if (kv->geometry->n_layers[group])
                                memcpy(known_table(kv, q->table, group) + first, table_of(step, group, seq) + first,
                                       (end - first) * sizeof(uint32_t));
                }
                s->n_valid = end_position;
                s->epoch = step->head.epoch;
                s->last_hash = value_hash(kv, group0, table_of(step, group0, seq), end_position - 1);
        }
}

/* ---- write-behind ---- */

struct behind_job {
        struct tdm_vk_kv *kv;
        const struct tdm_step *step;
        uint32_t first_layer;
        const uint8_t *log;
};

static void behind_row(void *arg, unsigned chunk, unsigned thread)
{
        const struct behind_job *job = arg;
        struct tdm_vk_kv *kv = job->kv;
        uint32_t n_rows = job->step->head.n_rows, layer = job->first_layer + chunk / n_rows, row = chunk % n_rows;
        const struct tdm_step_row *r = &job->step->rows[row];
        enum tdm_kv_group group = tdm_kv_group_of(kv->hp, layer);
        uint32_t page = table_of(job->step, group, r->seq)[r->position / TDM_KV_PAGE_TOKENS],
                 t = r->position % TDM_KV_PAGE_TOKENS;
        const struct tdm_kv_layer *l = &kv->geometry->layers[layer];
        uint32_t head_dim = l->head_dim, size = element_bytes(kv), n_blocks = tdm_kv_n_blocks(head_dim),
                 logged = head_bytes(kv, layer);
        const uint8_t *log = job->log + (chunk - row) * tdm_vk_kv_log_row_bytes(kv) + row * row_bytes(kv, layer);

        for (uint32_t head = 0; head < l->n_kv_heads && owns_layer(kv, layer); head++, log += 2 * logged) {
                uint8_t *part = kv->base + tdm_kv_part_offset(kv->geometry, layer, page, head);
                uint8_t *keys = part + ((size_t)(t / 16) * head_dim * 16 + t % 16) * size,
                        *values = part + l->part_bytes / 2;

                if (size == 1) {
                        uint16_t *scales = (uint16_t *)(part + TDM_KV_PAGE_TOKENS * head_dim) +
                                           (size_t)(t / 16) * n_blocks * 16 + t % 16;

                        for (uint32_t d = 0; d < head_dim; d++)
                                keys[d * 16] = log[d];
                        for (uint32_t b = 0; b < n_blocks; b++)
                                memcpy(&scales[b * 16], log + head_dim + 2 * b, 2);
                        memcpy(values + TDM_KV_PAGE_TOKENS * head_dim + (size_t)t * n_blocks * 2,
                               log + logged + head_dim, n_blocks * 2);
                } else if (size == 2)
                        for (uint32_t d = 0; d < head_dim; d++)
                                ((uint16_t *)keys)[d * 16] = ((const uint16_t *)log)[d];
                else
                        for (uint32_t d = 0; d < head_dim; d++)
                                ((uint32_t *)keys)[d * 16] = ((const uint32_t *)log)[d];
                memcpy(values + (size_t)t * head_dim * size, log + logged, head_dim * size);
        }
}

void tdm_vk_kv_behind(struct tdm_vk_kv *kv, const struct tdm_step *step, uint32_t first_layer, uint32_t n_layers,
                      uint32_t half)
{
        struct behind_job job = { kv, step, first_layer, kv->log.map + half * (kv->log.size_bytes / 2) };

        if (kv->imported)
                return;
        for (uint32_t layer = first_layer; layer < first_layer + n_layers && kv->pages; layer++) {
                enum tdm_kv_group group = tdm_kv_group_of(kv->hp, layer);

                for (uint32_t seq = 0; seq < step->head.n_seqs && owns_layer(kv, layer); seq++) {
                        const struct tdm_step_seq *q = &step->seqs[seq];
                        uint32_t position = step->rows[q->first_row].position,
                                 end = TDM_DIV_UP(position + q->n_rows, TDM_KV_PAGE_TOKENS);

                        for (uint32_t i = position / TDM_KV_PAGE_TOKENS; i < end; i++)
                                tdm_vk_pages_want(kv->pages, layer, table_of(step, group, seq)[i]);
                }
        }
        if (kv->pages) {
                tdm_vk_pages_make(kv->pages);
                tdm_vk_pages_ahead(kv->pages, step->head.n_seqs);
        }
        tdm_pool_run(kv->device->threads, n_layers * step->head.n_rows, behind_row, &job);
}
