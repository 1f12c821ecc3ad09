/* Building a vocabulary's tries and slices. */
#include <assert.h>
#include "engine/grammar/trie.h"
#include "common/utf8.h"

enum { PIECE_MAX = 4096 }; /* longer pieces are never allowed */

/* A user is charged for a vocabulary before it is made. So this is the most: nodes of all tries together, and bytes of
 * all pieces. A piece has also its number in two tries, its place, and its bits in the slices. */
#define NODES_FIRST 57344u
#define NODES_PER_PIECE 6u
#define BYTES_PER_PIECE 24u
#define MORE_PER_PIECE 34u
#define NODE_BYTES                                                                                                     \
        (sizeof(struct tdm_trie_node) + 2 * sizeof(uint8_t) + sizeof(uint32_t)) /* with its place as a child */
static_assert(NODES_FIRST * NODE_BYTES <= TDM_VOCABULARY_BYTES &&
                      NODES_PER_PIECE * NODE_BYTES + BYTES_PER_PIECE + MORE_PER_PIECE <= TDM_VOCABULARY_BYTES_PER_PIECE,
              "what is charged for");

struct entry {
        const char *data;
        uint32_t size, id;
};

static int entry_compare(const void *a, const void *b)
{
        const struct entry *x = a, *y = b;
        int r = memcmp(x->data, y->data, TDM_MIN(x->size, y->size));

        if (r)
                return r;
        if (x->size != y->size)
                return x->size < y->size ? -1 : 1;
        return x->id < y->id ? -1 : x->id > y->id;
}

static uint32_t common(const struct entry *a, const struct entry *b)
{
        uint32_t n = 0;

        while (n < a->size && n < b->size && a->data[n] == b->data[n])
                n++;
        return n;
}

/* Whether all characters of one are of the other. */
static bool group_holds(const struct tdm_vocabulary *v, uint8_t group, uint8_t other)
{
        if (group >= TDM_GROUPS || other >= TDM_GROUPS)
                return false;
        for (unsigned i = 0; i < 4; i++)
                if (v->groups[group].bytes.bits[i] & ~v->groups[other].bytes.bits[i])
                        return false;
        return !v->groups[group].wide || v->groups[other].wide;
}

/* The children of each node, once all have their ends. bytes: of each node. */
static void trie_link(struct tdm_trie *trie, const uint8_t *bytes)
{
        uint32_t at = 0;

        for (uint32_t i = 0; i < trie->n_nodes; i++) {
                trie->nodes[i].children = at;
                for (uint32_t child = i + 1; child < trie->nodes[i].end; child = trie->nodes[child].end) {
                        trie->child_bytes[at] = bytes[child];
                        trie->child_nodes[at++] = child;
                }
        }
        trie->nodes[trie->n_nodes].children = at;
}

/* Which group holds all that is below each node, and how long that is at most. bytes: of each node. */
static int trie_tell_below(struct tdm_vocabulary *v, struct tdm_trie *trie, const uint8_t *bytes)
{
        _cleanup_(freep) uint16_t *heights = calloc(trie->n_nodes, sizeof(*heights));

        if (!heights)
                return -ENOMEM;
        for (uint32_t i = trie->n_nodes; i-- > 0;) {
                uint8_t g = 0;
                bool all = false;

                for (; g < TDM_GROUPS && !all; g += !all) {
                        all = !v->groups[g].wide;
                        for (uint32_t k = trie->nodes[i].children; k < trie->nodes[i + 1].children && all; k++) {
                                uint32_t child = trie->child_nodes[k];

                                all = tdm_byte_set_has(&v->groups[g].bytes, bytes[child]) &&
                                      (heights[child] == 0 || group_holds(v, trie->below[child], g));
                        }
                }
                for (uint32_t k = trie->nodes[i].children; k < trie->nodes[i + 1].children; k++)
                        heights[i] = (uint16_t)TDM_MAX(heights[i], heights[trie->child_nodes[k]] + 1);
                trie->below[i] = g;
                if (g < TDM_GROUPS)
                        v->groups[g].max_chars = TDM_MAX(v->groups[g].max_chars, (uint32_t)heights[i]);
        }
        return 0;
}

/* -E2BIG: the tries would have too many nodes. */
static int trie_build(struct tdm_vocabulary *v, struct tdm_trie *trie, struct entry *entries, uint32_t n)
{
        _cleanup_(freep) uint8_t *bytes = NULL;
        size_t n_nodes = 1;
        uint32_t open[PIECE_MAX + 1], depth = 0, at = 0;

        qsort(entries, n, sizeof(*entries), entry_compare);
        for (uint32_t i = 0; i < n; i++)
                n_nodes += entries[i].size - (i > 0 ? common(&entries[i - 1], &entries[i]) : 0);
        v->n_nodes += n_nodes;
        if (v->n_nodes > NODES_FIRST + (size_t)v->n_vocab * NODES_PER_PIECE)
                return -E2BIG;
        bytes = calloc(n_nodes, 1);
        trie->nodes = calloc(n_nodes + 1, sizeof(*trie->nodes));
        trie->child_bytes = malloc(n_nodes);
        trie->child_nodes = malloc(n_nodes * sizeof(*trie->child_nodes));
        trie->ids = malloc((n + 1) * sizeof(*trie->ids));
        trie->below = malloc(n_nodes);
        if (!bytes || !trie->below || !trie->nodes || !trie->child_bytes || !trie->child_nodes || !trie->ids ||
            n_nodes >= UINT32_MAX)
                return -ENOMEM;
        open[0] = at++;
        for (uint32_t i = 0; i < n; i++) {
                uint32_t keep = i > 0 ? common(&entries[i - 1], &entries[i]) : 0;

                for (; depth > keep; depth--)
                        trie->nodes[open[depth]].end = at;
                while (depth < entries[i].size) {
                        trie->nodes[at].ids = i;
                        bytes[at] = (uint8_t)entries[i].data[depth];
                        open[++depth] = at++;
                }
                trie->ids[i] = entries[i].id;
                trie->max_depth = (uint16_t)TDM_MAX(trie->max_depth, depth);
        }
        for (; depth > 0; depth--)
                trie->nodes[open[depth]].end = at;
        trie->nodes[0].end = at;
        trie->nodes[at] = (struct tdm_trie_node){ .end = at, .ids = n };
        trie->n_nodes = at;
        trie->n_ids = n;
        trie_link(trie, bytes);
        return trie_tell_below(v, trie, bytes);
}

static void trie_deinit(struct tdm_trie *trie)
{
        free(trie->nodes);
        free(trie->child_bytes);
        free(trie->child_nodes);
        free(trie->below);
        free(trie->ids);
}

static size_t trie_bytes(const struct tdm_trie *trie)
{
        return (trie->n_nodes + 1) * NODE_BYTES + (trie->n_ids + 1) * sizeof(*trie->ids);
}

/* How many bytes of leading plain characters there are. */
static size_t plain_bytes(const char *data, size_t size, uint32_t *ret_chars)
{
        size_t at = 0;

        *ret_chars = 0;
        while (at < size) {
                uint8_t byte = (uint8_t)data[at];
                int length = tdm_utf8_length((const uint8_t *)data + at, size - at);

                if (byte < 0x20 || byte == '"' || byte == '\\' || length <= 0)
                        break;
                at += (size_t)length;
                ++*ret_chars;
        }
        return at;
}

/* From the narrowest to the widest; a piece is in the first that holds all its characters. The last takes the rest. */
static const struct {
        const char *bytes; /* pairs: from, to */
        bool wide;
} groups[TDM_GROUPS] = {
        { "09", false },     { "az", false },           { "azAZ", false },
        { "azAZ09", false }, { "azAZ09__--..", false }, { "azAZ  ", false }, /* words with the space in front of them */
        { " !#[]~", false }, { " !#[]~", true },
};

static bool is_in_group(const char *data, uint32_t size, const struct tdm_group *group)
{
        for (uint32_t i = 0; i < size; i++) {
                uint8_t byte = (uint8_t)data[i];

                if (byte < 0x80 ? !tdm_byte_set_has(&group->bytes, byte) : !group->wide)
                        return false;
                if (byte == 0xe2 && i + 2 < size && (uint8_t)data[i + 1] == 0x80 &&
                    ((uint8_t)data[i + 2] == 0xa8 || (uint8_t)data[i + 2] == 0xa9))
                        return false;
        }
        return true;
}

/* entries is overwritten; those of no group (with U+2028) go to the end of `other`. */
static int fill_groups(struct tdm_vocabulary *v, struct entry *entries, uint32_t n, struct entry *other,
                       uint32_t *n_other)
{
        struct entry *of_group = malloc(((size_t)n + 1) * sizeof(*of_group));
        int r = of_group ? 0 : -ENOMEM;

        for (unsigned g = 0; g < TDM_GROUPS; g++) {
                v->groups[g].wide = groups[g].wide;
                for (const char *b = groups[g].bytes; *b; b += 2)
                        tdm_byte_set_add(&v->groups[g].bytes, (uint8_t)b[0], (uint8_t)b[1]);
        }
        for (unsigned g = 0; g < TDM_GROUPS && r == 0; g++) {
                struct tdm_group *group = &v->groups[g];
                uint32_t n_group = 0, n_left = 0, chars;

                group->slice = calloc(TDM_MAX(v->n_words, 1u), sizeof(*group->slice));
                if (!group->slice) {
                        r = -ENOMEM;
                        break;
                }
                for (uint32_t i = 0; i < n; i++) {
                        if (!is_in_group(entries[i].data, entries[i].size, group)) {
                                entries[n_left++] = entries[i];
                                continue;
                        }
                        of_group[n_group++] = entries[i];
                        group->slice[entries[i].id / 64] |= UINT64_C(1) << entries[i].id % 64;
                        (void)plain_bytes(entries[i].data, entries[i].size, &chars);
                        group->max_chars = TDM_MAX(group->max_chars, chars);
                }
                n = n_left;
                r = trie_build(v, &group->trie, of_group, n_group);
                v->max_depth = TDM_MAX(v->max_depth, group->trie.max_depth);
        }
        for (uint32_t i = 0; i < n; i++)
                other[(*n_other)++] = entries[i];
        free(of_group);
        return r;
}

static int copy_pieces(struct tdm_vocabulary *v, size_t (*piece)(void *userdata, uint32_t id, const char **ret_data),
                       bool (*is_end)(void *userdata, uint32_t id), void *userdata)
{
        size_t n_bytes = 0, capacity = 0;

        v->piece_at = malloc(((size_t)v->n_vocab + 1) * sizeof(*v->piece_at));
        v->ends = malloc(((size_t)v->n_vocab + 1) * sizeof(*v->ends));
        if (!v->piece_at || !v->ends)
                return -ENOMEM;
        for (uint32_t id = 0; id < v->n_vocab; id++) {
                const char *data = NULL;
                size_t size = 0;

                v->piece_at[id] = (uint32_t)n_bytes;
                if (is_end && is_end(userdata, id))
                        v->ends[v->n_ends++] = id;
                else
                        size = piece(userdata, id, &data);
                if (size == 0 || size > PIECE_MAX)
                        continue;
                if (n_bytes + size > TDM_VOCABULARY_BYTES + (size_t)v->n_vocab * BYTES_PER_PIECE)
                        return -E2BIG;
                if (n_bytes + size > capacity) {
                        char *bytes;

                        capacity = TDM_MAX(capacity * 2, (size_t)1 << 16);
                        if (capacity > UINT32_MAX)
                                return -ENOMEM;
                        bytes = realloc(v->bytes, capacity);
                        if (!bytes)
                                return -ENOMEM;
                        v->bytes = bytes;
                }
                memcpy(v->bytes + n_bytes, data, size);
                n_bytes += size;
        }
        v->piece_at[v->n_vocab] = (uint32_t)n_bytes;
        return 0;
}

static int long_piece_compare(const void *a, const void *b)
{
        const struct tdm_long_piece *x = a, *y = b;

        if (x->n_chars != y->n_chars)
                return x->n_chars < y->n_chars ? -1 : 1;
        return x->id < y->id ? -1 : x->id > y->id;
}

static void slice_add(struct tdm_vocabulary *v, uint32_t slice, uint32_t id)
{
        tdm_vocabulary_slice(v, slice)[id / 64] |= UINT64_C(1) << id % 64;
}

/* The slices, and the plain pieces that are longer. */
static int fill_slices(struct tdm_vocabulary *v, const struct entry *plain, uint32_t n)
{
        uint32_t chars, n_long = 0;

        v->slices = calloc((size_t)TDM_SLICE_STRING * TDM_MAX(v->n_words, 1u), sizeof(*v->slices));
        if (!v->slices)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++) {
                (void)plain_bytes(plain[i].data, plain[i].size, &chars);
                n_long += chars > TDM_SLICES;
                v->max_plain_chars = TDM_MAX(v->max_plain_chars, chars);
                for (uint32_t k = TDM_MIN(chars, TDM_SLICE_PLAIN); k <= TDM_SLICE_STRING; k++)
                        slice_add(v, k, plain[i].id);
        }
        v->long_pieces = malloc(((size_t)n_long + 1) * sizeof(*v->long_pieces));
        if (!v->long_pieces)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++) {
                (void)plain_bytes(plain[i].data, plain[i].size, &chars);
                if (chars > TDM_SLICES)
                        v->long_pieces[v->n_long_pieces++] = (struct tdm_long_piece){ plain[i].id, chars };
        }
        qsort(v->long_pieces, n_long, sizeof(*v->long_pieces), long_piece_compare);
        return 0;
}

static void fill_starts(struct tdm_vocabulary *v)
{
        for (unsigned t = 0; t <= TDM_GROUPS; t++) {
                const struct tdm_trie *trie = t < TDM_GROUPS ? &v->groups[t].trie : &v->other;

                for (uint32_t i = trie->nodes[0].children; i < trie->nodes[1].children; i++)
                        v->starts[trie->child_bytes[i]][t] = trie->child_nodes[i];
        }
}

/* entries is overwritten. */
static int fill_tails(struct tdm_vocabulary *v, struct entry *entries, uint32_t n)
{
        uint32_t n_tails = 0, chars;

        for (uint32_t i = 0; i < n; i++) {
                struct entry e = entries[i];
                uint32_t skip = (uint32_t)plain_bytes(e.data, e.size, &chars);

                v->max_plain_chars = TDM_MAX(v->max_plain_chars, chars); /* its tail is walked behind them */
                e.data += skip;
                e.size -= skip;
                if (tdm_utf8_length((const uint8_t *)e.data, e.size) < 0)
                        slice_add(v, TDM_SLICE_STRING, e.id);
                else
                        entries[n_tails++] = e;
        }
        return trie_build(v, &v->tails, entries, n_tails);
}

static int vocabulary_fill(struct tdm_vocabulary *v)
{
        _cleanup_(freep) struct entry *plain = malloc(((size_t)v->n_vocab + 1) * sizeof(*plain));
        _cleanup_(freep) struct entry *other = malloc(((size_t)v->n_vocab + 1) * sizeof(*other));
        uint32_t n_plain = 0, n_other = 0;
        int r;

        v->n_words = (v->n_vocab + 63) / 64;
        if (!plain || !other)
                return -ENOMEM;
        for (uint32_t id = 0; id < v->n_vocab; id++) {
                struct entry e = { v->bytes + v->piece_at[id], v->piece_at[id + 1] - v->piece_at[id], id };

                if (e.size == 0)
                        continue;
                if (plain_bytes(e.data, e.size, &(uint32_t){ 0 }) < e.size)
                        other[n_other++] = e;
                else
                        plain[n_plain++] = e;
        }
        r = fill_slices(v, plain, n_plain);
        if (r < 0)
                return r;
        r = fill_groups(v, plain, n_plain, other, &n_other);
        if (r == 0)
                r = trie_build(v, &v->other, other, n_other);
        if (r == 0)
                fill_starts(v);
        v->max_depth = TDM_MAX(v->max_depth, v->other.max_depth);
        return r < 0 ? r : fill_tails(v, other, n_other);
}

int tdm_vocabulary_new(struct tdm_vocabulary **ret, uint32_t n_vocab,
                       size_t (*piece)(void *userdata, uint32_t id, const char **ret_data),
                       bool (*is_end)(void *userdata, uint32_t id), void *userdata)
{
        static atomic_uint_least64_t n_made;
        _cleanup_(tdm_vocabulary_unrefp) struct tdm_vocabulary *v = calloc(1, sizeof(*v));
        int r;

        if (!v)
                return -ENOMEM;
        atomic_init(&v->refs, 1);
        v->number = 1 + atomic_fetch_add_explicit(&n_made, 1, memory_order_relaxed);
        v->n_vocab = n_vocab;
        r = copy_pieces(v, piece, is_end, userdata);
        if (r == 0)
                r = vocabulary_fill(v);
        if (r < 0)
                return r;
        *ret = steal_ptr(&v);
        return 0;
}

struct tdm_vocabulary *tdm_vocabulary_ref(struct tdm_vocabulary *v)
{
        atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
        return v;
}

void tdm_vocabulary_unref(struct tdm_vocabulary *v)
{
        /* Release pairs with the acquire of the last one, which frees. */
        if (!v || atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) > 1)
                return;
        for (unsigned g = 0; g < TDM_GROUPS; g++) {
                trie_deinit(&v->groups[g].trie);
                free(v->groups[g].slice);
        }
        trie_deinit(&v->other);
        trie_deinit(&v->tails);
        free(v->slices);
        free(v->long_pieces);
        free(v->ends);
        free(v->piece_at);
        free(v->bytes);
        free(v);
}

void tdm_vocabulary_unrefp(struct tdm_vocabulary **v)
{
        tdm_vocabulary_unref(*v);
}

uint32_t tdm_vocabulary_n_words(const struct tdm_vocabulary *v)
{
        return v->n_words;
}

size_t tdm_vocabulary_bytes(const struct tdm_vocabulary *v)
{
        size_t n = sizeof(*v) + trie_bytes(&v->other) + trie_bytes(&v->tails);

        for (unsigned g = 0; g < TDM_GROUPS; g++)
                n += trie_bytes(&v->groups[g].trie) + v->n_words * sizeof(uint64_t);
        n += ((size_t)v->n_long_pieces + 1) * sizeof(*v->long_pieces);
        return n + (size_t)TDM_SLICE_STRING * v->n_words * sizeof(*v->slices) +
               2 * ((size_t)v->n_vocab + 1) * sizeof(uint32_t) + v->piece_at[v->n_vocab];
}
