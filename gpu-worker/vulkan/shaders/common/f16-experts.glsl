// What differs between the kernels of f16.glsl and the same for experts (EXPERTS): whose weights, which rows, and when
// the weights are known. A slot is a row with one of its experts (shared-experts.h).
//
// An item's expert and slots are known when what makes the lists is done, so nothing is loaded before. A slot's row
// lies anywhere among its tile's others; so each thread finds its own, and no row is copied. What a slot gets does not
// depend on its item's others: an element of a unit's result does not.
#ifdef EXPERTS
uint item_expert, item_slot, item_slots; // of this workgroup

uint64_t panel_address(uint panel)
{
        return panel < p.panel1 ? p.w0 + uint64_t(item_expert * p.panel1 + panel) * p.panel_bytes
                                : p.w1 + uint64_t(item_expert * p.panel1 + panel - p.panel1) * p.panel_bytes;
}

float biased(float x, uint64_t bias, uint out_index)
{
        precise float sum = x;

        if (bias != 0)
                sum += F32s(bias).v[item_expert * p.panel1 * 16 + out_index];
        return sum;
}

#define FIRST_PANEL 0
#define N_ROWS item_slots
#define OUT_ROW(row) (item_slot + (row))
#define BIASED(x, bias, out_index) biased(x, bias, out_index)
#define CHAIN_WAIT
#define CHAIN_WAIT_CACHED
#define CHAIN_WAIT_EXPERTS(expert, slot, n_slots) \
        tdm_chain_wait(p.chain, p.chain_index, p.chain_wait); \
        item_expert = expert; \
        item_slot = slot; \
        item_slots = n_slots;
// Of more items than there are: nothing.
#define CHAIN_WAIT_ITEM \
        tdm_chain_wait_cached(p.chain, p.chain_index, p.chain_wait); \
        if (gl_WorkGroupID.y >= Act32s(p.items).v[0]) { \
                tdm_chain_done(p.chain, p.chain_index); \
                return; \
        } \
        uvec4 item_ = Act32x4s(p.items + TDM_VK_ITEMS_HEAD).v[gl_WorkGroupID.y]; \
        item_expert = item_.x; \
        item_slot = item_.y; \
        item_slots = item_.z;
// The i-th row of an item, or its last.
#define item_row_at(i) \
        tdm_fragment_row(p.x, p.cols, p.slot_rows != 0 ? Act32s(p.slot_rows).v[item_slot + min(i, item_slots - 1)] \
                                                       : item_slot + min(i, item_slots - 1))
#else
#define FIRST_PANEL p.panel0
#define N_ROWS p.n_rows
#define OUT_ROW(row) (row)
#define BIASED(x, bias, out_index) (x)
#define CHAIN_WAIT tdm_chain_wait(p.chain, p.chain_index, p.chain_wait);
#define CHAIN_WAIT_CACHED tdm_chain_wait_cached(p.chain, p.chain_index, p.chain_wait);
#define CHAIN_WAIT_EXPERTS(expert, slot, n_slots)
#define CHAIN_WAIT_ITEM
#endif
