/* The cache. Where memory is unified it is the shared segment itself. On a GPU of its own each layer's pages lie in
 * buffers on the device, [page][kv head] parts, as many as an allocation may hold in each, and the segment is their
 * twin: what a submission stores is logged by the kernel that stores it (rows, as stored) and written into the twin
 * before run() returns, so that the segment is complete for whatever was reported done. The other way round: before a
 * step looks back on pages that the device did not write itself, one step after the other (a new process, a reused
 * prefix, a step that another worker ran meanwhile), they are copied from the twin. */
#include "gpu-worker/vulkan/private.h"

#define LOG_BYTES (UINT64_C(32) << 20)
#define PIECE_BYTES (UINT64_C(1) << 30)
#define PIECES_MAX 65536u

static uint32_t element_bytes(const struct tdm_vk_model *m)
{
        return m->kv.type == TDM_KV_F32 ? 4 : m->kv.type == TDM_KV_F16 ? 2 : 1;
}

/* A head's key or value as it is logged: its elements, then, of q8_0, the scales of its blocks. */
static uint32_t head_bytes(const struct tdm_vk_model *m)
{
        return m->hp.head_dim * element_bytes(m) +
               (m->kv.type == TDM_KV_Q8_0 ? 2 * tdm_kv_n_blocks(m->hp.head_dim) : 0);
}

uint64_t tdm_vk_kv_log_row_bytes(const struct tdm_vk_model *m)
{
        return (uint64_t)2 * m->hp.n_kv_heads * head_bytes(m);
}

uint32_t tdm_vk_kv_log_layers(const struct tdm_vk_model *m, uint32_t n_rows)
{
        if (m->kv_imported || !m->log.size_bytes)
                return UINT32_MAX;
        return (uint32_t)TDM_MAX(m->log.size_bytes / 2 / (tdm_vk_kv_log_row_bytes(m) * n_rows), UINT64_C(1));
}

void tdm_vk_kv_deinit(struct tdm_vk_model *m)
{
        for (unsigned i = 0; i < m->n_kv_buffers; i++)
                tdm_vk_buffer_deinit(m->device, &m->kv_buffers[i]);
        tdm_vk_buffer_deinit(m->device, &m->kv_pieces);
        tdm_vk_buffer_deinit(m->device, &m->log);
        tdm_vk_pages_free(steal_ptr(&m->pages));
        free(m->kv_buffers);
        m->kv_buffers = NULL;
        m->n_kv_buffers = 0;
        m->kv_imported = false;
}

/* Room for every piece, and for the table of their addresses that kernels read. */
static int make_table(struct tdm_vk_model *m, uint32_t n_pieces, struct tdm_error *err)
{
        m->kv_buffers = calloc(n_pieces, sizeof(*m->kv_buffers));
        if (!m->kv_buffers)
                return tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for a KV cache in %u pieces",
                                     n_pieces);
        return tdm_vk_buffer_init(m->device, &m->kv_pieces,
                                  (uint64_t)TDM_MAX(n_pieces, m->hp.n_layers) * sizeof(uint64_t), TDM_VK_SHARED_MEMORY,
                                  "the KV cache's table", err);
}

/* How many pages a piece has, as a shift: what one allocation may hold, and little enough that the last one wastes
 * little. */
static uint32_t piece_shift(const struct tdm_vk_model *m, uint64_t page_bytes)
{
        const char *kib = getenv("TANDEM_VULKAN_PIECE_KIB"); /* tests make many of a small cache */
        uint64_t limit = TDM_MIN(kib && *kib ? strtoull(kib, NULL, 10) << 10 : PIECE_BYTES, m->device->max_allocation);
        uint32_t shift = 0;

        while (shift < 30 && page_bytes << (shift + 1) <= limit)
                shift++;
        return shift;
}

/* attendhalf.comp multiplies what lies beside the keys that count with zero: it must be finite, as all is that is ever
 * stored. */
static int clear_pieces(struct tdm_vk_model *m, struct tdm_error *err)
{
        const char *what = "clearing the KV cache";
        VkCommandBuffer commands;
        int r = tdm_vk_once_begin(m->device, &commands, what, err);

        if (r != 0)
                return r;
        for (unsigned i = 0; i < m->n_kv_buffers; i++)
                m->device->vk.CmdFillBuffer(commands, m->kv_buffers[i].buffer, 0, VK_WHOLE_SIZE, 0);
        tdm_vk_barrier(m->device, commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                       VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                       VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT);
        return tdm_vk_once_end(m->device, what, err);
}

static int make_buffers(struct tdm_vk_model *m, struct tdm_error *err)
{
        uint64_t page = m->kv.part_bytes * m->hp.n_kv_heads, left, total, n_pieces = 0;
        uint32_t shift = piece_shift(m, page);
        int r;

        tdm_vk_memory_left(m->device, &left, &total);
        if (m->kv.size_bytes > left)
                return tdm_error_set(
                        err, TDM_E_NO_MEMORY,
                        "the KV cache needs %.1f MiB on the GPU and %.1f of its %.1f MiB are free: a shorter "
                        "context or fewer jobs at once",
                        (double)m->kv.size_bytes / 0x1p20, (double)left / 0x1p20, (double)total / 0x1p20);
        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                n_pieces += (uint64_t)m->kv.n_layers[group] * TDM_DIV_UP(m->kv.n_pages[group], 1u << shift);
                m->kv_page_bytes[group] = (uint32_t)page;
                m->kv_piece_shift[group] = shift;
        }
        if (n_pieces > PIECES_MAX || page > UINT32_MAX)
                return tdm_error_set(err, TDM_E_NO_MEMORY,
                                     "a KV cache of %.1f MiB in pieces of %.1f MiB: there may be %u pieces",
                                     (double)m->kv.size_bytes / 0x1p20, (double)(page << shift) / 0x1p20, PIECES_MAX);
        r = make_table(m, (uint32_t)n_pieces, err);
        if (r == 0 && tdm_vk_pages_new(&m->pages, &m->kv, m->kv_base, m->device->threads) < 0)
                r = tdm_error_set(err, TDM_E_NO_MEMORY, "vulkan device: no memory for a KV cache");
        if (r == 0)
                r = tdm_vk_buffer_init(m->device, &m->log,
                                       2 * TDM_MAX(tdm_vk_kv_log_row_bytes(m) * m->limits.max_rows, LOG_BYTES),
                                       TDM_VK_HOST_MEMORY, "the KV cache's write-behind", err);
        for (uint32_t i = 0; i < m->hp.n_layers && r == 0; i++) {
                uint32_t n_pages = m->kv.n_pages[tdm_kv_group_of(&m->hp, i)];

                m->layers[i].kv_first = m->n_kv_buffers;
                m->layers[i].kv_pieces = m->kv_pieces.address + m->n_kv_buffers * sizeof(uint64_t);
                for (uint32_t first = 0; first < n_pages && r == 0; first += 1u << shift) {
                        struct tdm_vk_buffer *piece = &m->kv_buffers[m->n_kv_buffers];

                        r = tdm_vk_buffer_init(m->device, piece, page * TDM_MIN(n_pages - first, 1u << shift),
                                               TDM_VK_DEVICE_MEMORY, "a piece of the KV cache", err);
                        if (r == 0)
                                ((uint64_t *)m->kv_pieces.map)[m->n_kv_buffers++] = piece->address;
                }
        }
        return r == 0 && m->attend_half ? clear_pieces(m, err) : r;
}

/* Each layer begins at another place of the segment, and is one piece. -EOPNOTSUPP where it cannot be imported. */
static int import_segment(struct tdm_vk_model *m, uint8_t *base)
{
        struct tdm_vk_device *device = m->device;
        int r = device->import ? make_table(m, 1, NULL) : -EOPNOTSUPP;

        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                if (m->kv.page_bytes[group] > UINT32_MAX)
                        r = -EOPNOTSUPP;
                m->kv_page_bytes[group] = (uint32_t)m->kv.page_bytes[group];
                m->kv_piece_shift[group] = 31;
        }
        if (r == 0)
                r = tdm_vk_buffer_import(device, &m->kv_buffers[0], base,
                                         TDM_ALIGN_UP(m->kv.size_bytes, device->import_align));
        if (r != 0)
                return r;
        m->n_kv_buffers = 1;
        m->kv_imported = true;
        for (uint32_t i = 0; i < m->hp.n_layers; i++) {
                ((uint64_t *)m->kv_pieces.map)[i] =
                        m->kv_buffers[0].address +
                        tdm_kv_part_offset(&m->kv, tdm_kv_group_of(&m->hp, i), 0, tdm_kv_layer_index(&m->hp, i), 0);
                m->layers[i].kv_pieces = m->kv_pieces.address + i * sizeof(uint64_t);
        }
        return 0;
}

void tdm_vk_kv_set(struct tdm_vk_model *m, uint8_t *base)
{
        tdm_vk_kv_deinit(m);
        m->kv_base = base;
        m->kv_error = (struct tdm_error){};
        /* they know the old addresses; a model that is not loaded has none */
        for (unsigned i = 0; m->recordings && i < TDM_VK_RECORDINGS; i++)
                m->recordings[i].used = 0;
        memset(m->sequences, 0, m->limits.n_tables * sizeof(*m->sequences));
        if (!base || import_segment(m, base) == 0)
                return;
        tdm_vk_kv_deinit(m);
        if (make_buffers(m, &m->kv_error) != 0)
                tdm_vk_kv_deinit(m);
}

/* ---- the twin's way to the device ---- */

/* Pieces collect in a staging buffer until it is full. */
struct restore {
        struct tdm_vk_model *m;
        VkCommandBuffer commands;
        uint64_t filled;
        bool begun;
};

static const char restoring[] = "restoring the KV cache";

static int restore_flush(struct restore *restore, struct tdm_error *err)
{
        struct tdm_vk_device *device = restore->m->device;

        if (!restore->begun)
                return 0;
        tdm_vk_barrier(device, restore->commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                       VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
        restore->begun = false;
        restore->filled = 0;
        return tdm_vk_once_end(device, restoring, err);
}

static int restore_piece(struct restore *restore, uint32_t layer, uint32_t page, struct tdm_error *err)
{
        struct tdm_vk_model *m = restore->m;
        struct tdm_vk_device *device = m->device;
        enum tdm_kv_group group = tdm_kv_group_of(&m->hp, layer);
        uint64_t at = tdm_kv_part_offset(&m->kv, group, page, tdm_kv_layer_index(&m->hp, layer), 0),
                 n = m->kv_page_bytes[group];
        uint32_t shift = m->kv_piece_shift[group], in_piece = page & ((1u << shift) - 1);
        const struct tdm_vk_buffer *piece = &m->kv_buffers[m->layers[layer].kv_first + (page >> shift)];

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
                memcpy(device->stages[0].map + restore->filled, m->kv_base + at + done, part);
                copy = (VkBufferCopy){ restore->filled, in_piece * n + done, part };
                device->vk.CmdCopyBuffer(restore->commands, device->stages[0].buffer, piece->buffer, 1, &copy);
                restore->filled += part;
                device->counters.kv_restored_bytes += part;
        }
        return 0;
}

/* ---- what the device knows ---- */

static uint32_t *known(struct tdm_vk_model *m, uint32_t table, int group)
{
        return m->known_pages + ((size_t)table * TDM_KV_GROUPS + group) * m->limits.table_entries;
}

/* Of the twin's value row at a position, in the first layer and head of a group: whether anybody else wrote there. */
static uint64_t value_hash(const struct tdm_vk_model *m, int group, const uint32_t *pages, uint32_t position)
{
        uint32_t row_bytes = m->hp.head_dim * element_bytes(m);
        const uint8_t *row =
                m->kv_base +
                tdm_kv_part_offset(&m->kv, (enum tdm_kv_group)group, pages[position / TDM_KV_PAGE_TOKENS], 0, 0) +
                m->kv.part_bytes / 2 + position % TDM_KV_PAGE_TOKENS * row_bytes;
        uint64_t hash = UINT64_C(0xcbf29ce484222325), word = 0;

        for (uint32_t i = 0; i < row_bytes; i += sizeof(word)) {
                memcpy(&word, row + i, TDM_MIN(row_bytes - i, sizeof(word)));
                hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
                hash ^= hash >> 32;
        }
        return hash;
}

static int first_group(const struct tdm_vk_model *m)
{
        return m->kv.n_layers[TDM_KV_FULL] ? TDM_KV_FULL : TDM_KV_WINDOW;
}

static const uint32_t *table_of(const struct tdm_step *step, int group, uint32_t seq)
{
        return step->tables[group] + (size_t)seq * step->table_entries;
}

/* Entries of a group that positions from `position` on look back to: [first, end). */
static void look_back(const struct tdm_vk_model *m, int group, uint32_t position, uint32_t *first, uint32_t *end)
{
        *first = tdm_window_first(&m->hp, (enum tdm_kv_group)group, position) / TDM_KV_PAGE_TOKENS;
        *end = TDM_DIV_UP(position, TDM_KV_PAGE_TOKENS);
}

static bool is_known(struct tdm_vk_model *m, const struct tdm_step *step, uint32_t seq, uint32_t position)
{
        const struct tdm_vk_sequence *s = &m->sequences[step->seqs[seq].table];
        int group0 = first_group(m);

        if (position == 0)
                return true;
        if (s->n_valid < position || s->epoch != step->head.epoch)
                return false;
        for (int group = 0; group < TDM_KV_GROUPS; group++) {
                uint32_t first, end;

                look_back(m, group, position, &first, &end);
                if (m->kv.n_layers[group] &&
                    memcmp(known(m, step->seqs[seq].table, group) + first, table_of(step, group, seq) + first,
                           (end - first) * sizeof(uint32_t)) != 0)
                        return false;
        }
        return s->n_valid != position ||
               s->last_hash == value_hash(m, group0, table_of(step, group0, seq), position - 1);
}

int tdm_vk_kv_begin(struct tdm_vk_model *m, const struct tdm_step *step, struct tdm_error *err)
{
        struct restore restore = { .m = m };

        if (m->kv_imported)
                return 0;
        for (uint32_t seq = 0; seq < step->head.n_seqs; seq++) {
                uint32_t table = step->seqs[seq].table, position = step->rows[step->seqs[seq].first_row].position;
                bool fine = is_known(m, step, seq, position);

                m->sequences[table].n_valid = 0; /* until all layers are done */
                for (uint32_t layer = 0; layer < m->hp.n_layers && !fine; layer++) {
                        int group = tdm_kv_group_of(&m->hp, layer);
                        uint32_t first, end;

                        look_back(m, group, position, &first, &end);
                        for (uint32_t i = first; i < end; i++) {
                                int r = restore_piece(&restore, layer, table_of(step, group, seq)[i], err);

                                if (r != 0)
                                        return r;
                        }
                }
        }
        return restore_flush(&restore, err);
}

void tdm_vk_kv_end(struct tdm_vk_model *m, const struct tdm_step *step)
{
        int group0 = first_group(m);

        if (m->kv_imported)
                return;
        for (uint32_t seq = 0; seq < step->head.n_seqs; seq++) {
                const struct tdm_step_seq *q = &step->seqs[seq];
                struct tdm_vk_sequence *s = &m->sequences[q->table];
                uint32_t position = step->rows[q->first_row].position, end_position = position + q->n_rows;

                for (int group = 0; group < TDM_KV_GROUPS; group++) {
                        uint32_t first =
                                tdm_window_first(&m->hp, (enum tdm_kv_group)group, position) / TDM_KV_PAGE_TOKENS;
                        uint32_t end = TDM_DIV_UP(end_position, TDM_KV_PAGE_TOKENS);

                        if (m->kv.n_layers[group])
                                memcpy(known(m, q->table, group) + first, table_of(step, group, seq) + first,
                                       (end - first) * sizeof(uint32_t));
                }
                s->n_valid = end_position;
                s->epoch = step->head.epoch;
                s->last_hash = value_hash(m, group0, table_of(step, group0, seq), end_position - 1);
        }
}

/* ---- write-behind ---- */

struct behind_job {
        struct tdm_vk_model *m;
        const struct tdm_step *step;
        uint32_t first_layer;
        const uint8_t *log;
};

static void behind_row(void *arg, unsigned chunk, unsigned thread)
{
        const struct behind_job *job = arg;
        struct tdm_vk_model *m = job->m;
        uint32_t n_rows = job->step->head.n_rows, layer = job->first_layer + chunk / n_rows, row = chunk % n_rows;
        const struct tdm_step_row *r = &job->step->rows[row];
        enum tdm_kv_group group = tdm_kv_group_of(&m->hp, layer);
        uint32_t page = table_of(job->step, group, r->seq)[r->position / TDM_KV_PAGE_TOKENS],
                 t = r->position % TDM_KV_PAGE_TOKENS;
        uint32_t head_dim = m->hp.head_dim, size = element_bytes(m), n_blocks = tdm_kv_n_blocks(head_dim),
                 logged = head_bytes(m);
        const uint8_t *log = job->log + chunk * tdm_vk_kv_log_row_bytes(m);

        for (uint32_t head = 0; head < m->hp.n_kv_heads; head++, log += 2 * logged) {
                uint8_t *part =
                        m->kv_base + tdm_kv_part_offset(&m->kv, group, page, tdm_kv_layer_index(&m->hp, layer), head);
                uint8_t *keys = part + ((size_t)(t / 16) * head_dim * 16 + t % 16) * size,
                        *values = part + m->kv.part_bytes / 2;

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

void tdm_vk_kv_behind(struct tdm_vk_model *m, const struct tdm_step *step, uint32_t first_layer, uint32_t n_layers,
                      uint32_t half)
{
        struct behind_job job = { m, step, first_layer, m->log.map + half * (m->log.size_bytes / 2) };

        if (m->kv_imported)
                return;
        for (uint32_t layer = first_layer; layer < first_layer + n_layers && m->pages; layer++) {
                enum tdm_kv_group group = tdm_kv_group_of(&m->hp, layer);

                for (uint32_t seq = 0; seq < step->head.n_seqs; seq++) {
                        const struct tdm_step_seq *q = &step->seqs[seq];
                        uint32_t position = step->rows[q->first_row].position,
                                 end = TDM_DIV_UP(position + q->n_rows, TDM_KV_PAGE_TOKENS);

                        for (uint32_t i = position / TDM_KV_PAGE_TOKENS; i < end; i++)
                                tdm_vk_pages_want(m->pages, group, table_of(step, group, seq)[i],
                                                  tdm_kv_layer_index(&m->hp, layer));
                }
        }
        if (m->pages) {
                tdm_vk_pages_make(m->pages);
                tdm_vk_pages_ahead(m->pages, step->head.n_seqs);
        }
        tdm_pool_run(m->device->threads, n_layers * step->head.n_rows, behind_row, &job);
}
