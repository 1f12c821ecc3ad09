/* Building what a Unigram tokenizer needs: a tree of its pieces' texts, and the map by which text is normalized.
 *
 * Nodes of the tree are numbered level by level: the children of one are side by side, sorted by byte. Node 0 is the
 * root. Building it takes time and memory linear in the bytes of the pieces. */
#include "engine/text/byte-tree-private.h"

#include <math.h>

#define CHECK_EVERY 4096u        /* nodes between two looks at the flag */
#define UNKNOWN_PENALTY 10.0     /* below the worst score, as SentencePiece has it */
#define MAP_BYTES_MAX (1u << 24) /* a real one has 240,000 */

static const char map_key[] = "tokenizer.ggml.precompiled_charsmap";

struct tree_builder {
        struct tdm_tokenizer *t;
        uint32_t *order, *scratch;          /* pieces; those of one node are side by side */
        struct tdm_byte_tree_range *ranges; /* of each node, in order */
};

/* 0 for a piece that ends at this depth, else 1 + its byte there. */
static unsigned tree_key(const struct tdm_tokenizer *t, uint32_t id, size_t depth)
{
        return t->pieces[id].size == depth ? 0 : 1u + tdm_piece_text(t, id)[depth];
}

/* Gives a node its piece and its children, which are numbered from n_nodes on. */
static void open_node(struct tree_builder *b, uint32_t node, size_t depth)
{
        struct tdm_unigram *u = &b->t->unigram;
        struct tdm_byte_tree_range range = b->ranges[node];

        tdm_byte_tree_sort(b->t, b->order + range.low, range.high - range.low, b->scratch, tree_key, depth);
        u->ids[node] = TDM_NO_PIECE;
        u->first[node] = u->n_nodes;
        if (tree_key(b->t, b->order[range.low], depth) ==
            0) /* one alone: pieces of the same text are in the tree once */
                u->ids[node] = b->order[range.low++];
        while (range.low < range.high) {
                unsigned key = tree_key(b->t, b->order[range.low], depth);
                uint32_t end = range.low + 1;

                while (end < range.high && tree_key(b->t, b->order[end], depth) == key)
                        end++;
                u->bytes[u->n_nodes] = (uint8_t)(key - 1);
                b->ranges[u->n_nodes++] = (struct tdm_byte_tree_range){ range.low, end };
                range.low = end;
        }
}

static int tree_fill(struct tree_builder *b, uint32_t n, struct tdm_error *err)
{
        struct tdm_unigram *u = &b->t->unigram;
        uint32_t begin = 0, end = 1;
        int r;

        b->ranges[0] = (struct tdm_byte_tree_range){ 0, n };
        u->n_nodes = 1;
        for (size_t depth = 0; begin < end; depth++) {
                for (uint32_t node = begin; node < end; node++) {
                        if (node % CHECK_EVERY == 0 && (r = tdm_parse_check(&b->t->account, err)))
                                return r;
                        open_node(b, node, depth);
                }
                begin = end;
                end = u->n_nodes;
        }
        u->first[u->n_nodes] = u->n_nodes;
        for (uint32_t child = u->first[0]; child < u->first[1]; child++)
                u->roots[u->bytes[child]] = child;
        return 0;
}

/* Pieces that text may become. Others are special, or the file does not use them. */
static bool is_in_tree(const struct tdm_piece *p)
{
        return p->mergeable && p->type == TDM_PIECE_NORMAL;
}

static int tree_build(struct tdm_tokenizer *t, struct tdm_error *err)
{
        const uint64_t node_bytes = 2 * sizeof(uint32_t) + 1;
        struct tdm_unigram *u = &t->unigram;
        uint64_t n_bytes = 0, work;
        uint32_t n = 0;
        double least = 0;
        int r;

        for (uint32_t id = 0; id < t->n_pieces; id++) {
                const struct tdm_piece *p = &t->pieces[id];

                if (!is_in_tree(p))
                        continue;
                if (p->size > TDM_UNIGRAM_PIECE_MAX)
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "piece %u has %u bytes, at most %u are supported in a Unigram tokenizer",
                                             id, p->size, TDM_UNIGRAM_PIECE_MAX);
                if (!isfinite(p->score))
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the score of piece %u is not a finite number", id);
                least = n == 0 ? (double)p->score : fmin(least, (double)p->score);
                n_bytes += p->size;
                n++;
        }
        if (n == 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "its vocabulary has no ordinary piece");
        u->unknown_score = least - UNKNOWN_PENALTY;
        if (n_bytes >= UINT32_MAX / 2)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "its pieces have far too many bytes");
        work = (n_bytes + 1) * sizeof(struct tdm_byte_tree_range) + 2 * (uint64_t)n * sizeof(uint32_t);
        r = tdm_parse_charge(&t->account, (n_bytes + 2) * node_bytes + work, err);
        if (r)
                return r;
        u->first = malloc((n_bytes + 2) * sizeof(*u->first));
        u->ids = malloc((n_bytes + 1) * sizeof(*u->ids));
        u->bytes = malloc(n_bytes + 1);
        {
                _cleanup_(freep) uint32_t *order = malloc(n * sizeof(*order)), *scratch = malloc(n * sizeof(*scratch));
                _cleanup_(freep) struct tdm_byte_tree_range *ranges = malloc((n_bytes + 1) * sizeof(*ranges));
                struct tree_builder b = { .t = t, .order = order, .scratch = scratch, .ranges = ranges };

                if (!u->first || !u->ids || !u->bytes || !order || !scratch || !ranges)
                        return tdm_error_set(err, -ENOMEM, "out of memory for %u pieces", n);
                n = 0;
                for (uint32_t id = 0; id < t->n_pieces; id++)
                        if (is_in_tree(&t->pieces[id]))
                                order[n++] = id;
                r = tree_fill(&b, n, err);
        }
        tdm_parse_uncharge(&t->account, work);
        return r;
}

/* The map of SentencePiece: the bytes of a double array, its units of 32 bits, then texts that each end in a zero. */
static int read_map(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err)
{
        struct tdm_unigram *u = &t->unigram;
        struct tdm_gguf_array bytes;
        uint64_t n = 0, value;
        uint32_t array_bytes;
        int r = tdm_gguf_get_array_size(g, map_key, &n);

        if (r == -ENOENT || (r == 0 && n == 0))
                return 0;
        if (r < 0 || tdm_gguf_array_begin(&bytes, g, map_key) < 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not an array of bytes", map_key);
        if (n > MAP_BYTES_MAX)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s has over %u bytes", map_key, MAP_BYTES_MAX);
        r = tdm_parse_charge(&t->account, n, err);
        if (r)
                return r;
        u->map = malloc(n);
        if (!u->map)
                return tdm_error_set(err, -ENOMEM, "out of memory for the key %s", map_key);
        for (uint64_t i = 0; i < n; i++) {
                if (tdm_gguf_array_next_u64(&bytes, &value) < 0 || value > 255)
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "the key %s is not an array of bytes (a converter wrote it otherwise; "
                                             "convert the model again)",
                                             map_key);
                u->map[i] = (uint8_t)value;
        }
        array_bytes = n < sizeof(array_bytes) ? UINT32_MAX : tdm_map_u32(u->map);
        if (array_bytes > n - TDM_MIN(n, sizeof(array_bytes)) || array_bytes % sizeof(uint32_t) != 0 ||
            array_bytes == 0 || array_bytes == n - sizeof(array_bytes) || u->map[n - 1] != 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is damaged", map_key);
        u->n_units = array_bytes / (uint32_t)sizeof(uint32_t);
        u->texts = sizeof(array_bytes) + array_bytes;
        u->map_bytes = (uint32_t)n;
        return 0;
}

int tdm_unigram_build(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err)
{
        int r;

        if (tdm_gguf_get_bool(g, "tokenizer.ggml.remove_extra_whitespaces", &t->unigram.joins_spaces) == -EINVAL)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "the key tokenizer.ggml.remove_extra_whitespaces is not a boolean");
        r = read_map(t, g, err);
        return r ? r : tree_build(t, err);
}

void tdm_unigram_deinit(struct tdm_unigram *u)
{
        free(u->first);
        free(u->ids);
        free(u->bytes);
        free(u->map);
}
