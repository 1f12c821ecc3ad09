/* What kernels of mixtures of experts and the host share; included behind shared.h.
 *
 * A slot is a row together with one of the experts that it uses. Slots are in order of expert, then row. An item is
 * some slots of one expert, which a workgroup multiplies together. The lists are made on the device (choose.comp,
 * group.comp). */
#ifndef TDM_VK_SHARED_EXPERTS_H
#define TDM_VK_SHARED_EXPERTS_H

#define TDM_VK_EXPERTS_MAX 1024u
#define TDM_VK_EXPERTS_USED_MAX 32u
#define TDM_VK_ITEM_ROWS 8u   /* slots of an item, at most */
#define TDM_VK_ROUTER_OUTS 4u /* of a workgroup of router.comp */
#define TDM_VK_ITEMS_HEAD 16u /* bytes before the items: how many there are */

/* A row's choice: ids and weights by rank. */
struct tdm_vk_choose_push {
        TDM_U64 z;       /* [row][z_stride]: the router's numbers */
        TDM_U64 bias;    /* [n_experts]; 0: none */
        TDM_U64 ids;     /* [row][n_used] */
        TDM_U64 weights; /* [row][n_used] */
        TDM_U64 scales;  /* [n_experts], of the weights; 0: none */
        TDM_U32 z_stride;
        TDM_U32 n_experts;
        TDM_U32 n_used;
        TDM_F32 z_scale; /* of the router's numbers, before the bias */
        TDM_VK_CHAIN
};

struct tdm_vk_group_push {
        TDM_U64 ids;
        TDM_U64 slots;     /* [row][n_used]: each one's slot */
        TDM_U64 slot_rows; /* [slot] */
        TDM_U64 items;     /* head, then expert, first slot, slots, 0 of each */
        TDM_U32 n_rows;
        TDM_U32 n_experts;
        TDM_U32 n_used;
        TDM_U32 item_rows; /* at most TDM_VK_ITEM_ROWS */
        TDM_VK_CHAIN
};

/* A product with a matrix of each item's expert. */
struct tdm_vk_experts_push {
        TDM_U64 x;       /* rounded rows: of slot_rows[slot] or, where that is 0, of the slot */
        TDM_U64 weights; /* of expert 0: n_panels panels; those of the others follow */
        TDM_U64 bias;    /* [expert][16 n_panels]; 0: none */
        TDM_U64 y;       /* [slot][y_stride] */
        TDM_U64 items;
        TDM_U64 slot_rows;
        TDM_U32 panel_bytes;
        TDM_U32 n_panels;
        TDM_U32 cols;
        TDM_U32 y_stride;
        TDM_VK_CHAIN
};

/* The same of rows of F16 (matvec-f16.comp, matmul-f16.comp, matmul-f16-wide.comp with EXPERTS). As in
 * tdm_vk_matmul_push, but for one expert each. A single row has no lists: its slots are its ranks. */
struct tdm_vk_experts_f16_push {
        TDM_U64 x; /* rows of slot_rows[slot] or, where that is 0, of the slot; a single row: the row, or of the slot */
        TDM_U64 y; /* [slot][y_stride] */
        TDM_U64 w0;
        TDM_U64 w1;
        TDM_U64 acts;  /* of slots */
        TDM_U64 items; /* a single row: the experts by rank */
        TDM_U64 slot_rows;
        TDM_U64 bias0;  /* [expert][16 panel1], of w0; 0: none */
        TDM_U64 bias1;  /* of w1 */
        TDM_U32 panel1; /* of an expert's matrix */
        TDM_U32 panel_bytes;
        TDM_U32 cols;
        TDM_U32 n_out; /* of an expert, with GELU of both matrices */
        TDM_U32 y_stride;
        TDM_F32 y_scale;
        TDM_F32 act_scale;
        TDM_U32 pad0;
        TDM_VK_CHAIN
};

/* The sum over a row's experts, by rank. */
struct tdm_vk_experts_sum_push {
        TDM_U64 parts; /* [slot][d] */
        TDM_U64 slots; /* 0: of a single row, whose slots are its ranks */
        TDM_U64 weights;
        TDM_U64 y; /* [row][d] */
        TDM_U32 d;
        TDM_U32 n_used;
        TDM_VK_CHAIN
};

#endif
