/* Trees over the bytes of pieces, numbered level by level: the children of a node are side by side, sorted by byte.
 * Node 0 is the root. A tree is built from pieces that are sorted one depth after the other, so that those of one node
 * are side by side. Inline, because encoding walks such a tree for each byte of a text. */
#ifndef TDM_ENGINE_BYTE_TREE_PRIVATE_H
#define TDM_ENGINE_BYTE_TREE_PRIVATE_H

#include "engine/text/tokenizer-private.h"

#define TDM_BYTE_TREE_FEW 24u /* pieces that are sorted by insertion */

/* The pieces of a node: from low on, before high. */
struct tdm_byte_tree_range {
        uint32_t low, high;
};

/* Sorts n pieces by their key, in linear time. Those with the same key keep their order. key: 0 for a piece that ends
 * at this depth, else 1 + its byte there. scratch: n ids. */
static inline void tdm_byte_tree_sort(const struct tdm_tokenizer *t, uint32_t *ids, uint32_t n, uint32_t *scratch,
                                      unsigned (*key)(const struct tdm_tokenizer *t, uint32_t id, size_t depth),
                                      size_t depth)
{
        uint32_t ends[258] = { 0 };

        if (n <= TDM_BYTE_TREE_FEW) {
                for (uint32_t i = 1; i < n; i++) {
                        uint32_t id = ids[i], k = i;

                        for (; k > 0 && key(t, ids[k - 1], depth) > key(t, id, depth); k--)
                                ids[k] = ids[k - 1];
                        ids[k] = id;
                }
                return;
        }
        for (uint32_t i = 0; i < n; i++)
                ends[key(t, ids[i], depth) + 1]++;
        for (unsigned k = 1; k < 258; k++)
                ends[k] += ends[k - 1];
        for (uint32_t i = 0; i < n; i++)
                scratch[ends[key(t, ids[i], depth)]++] = ids[i];
        memcpy(ids, scratch, n * sizeof(*ids));
}

/* The child of a node for this byte, or 0. first: of each node, where its children begin, and one more. bytes: of each
 * node. roots: the children of the root, of each byte. */
static inline uint32_t tdm_byte_tree_child(const uint32_t *first, const uint8_t *bytes, const uint32_t *roots,
                                           uint32_t node, uint8_t byte)
{
        uint32_t low, high;

        if (node == 0)
                return roots[byte];
        low = first[node];
        high = first[node + 1];
        while (high - low > 4) {
                uint32_t middle = low + (high - low) / 2;

                if (bytes[middle] <= byte)
                        low = middle;
                else
                        high = middle;
        }
        for (; low < high; low++) {
                if (bytes[low] == byte)
                        return low;
        }
        return 0;
}

#endif
