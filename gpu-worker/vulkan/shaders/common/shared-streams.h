/* What C and GLSL both know of streams.comp: see shared.h. */
#ifndef TDM_VULKAN_SHADERS_SHARED_STREAMS_H
#define TDM_VULKAN_SHADERS_SHARED_STREAMS_H

#include "gpu-worker/vulkan/shaders/common/shared.h"

#define TDM_VK_STREAMS_MAX 8

/* OP. A row's residual is n_streams rows of n numbers, then room for one more, the middle. */
#define TDM_VK_STREAMS_ROUTE 0   /* y = rmsnorm(the row at `at`) * gain0 / n */
#define TDM_VK_STREAMS_PREDICT 1 /* x: the router's numbers, here and below */
/* The middle, of x (what attention made) and other (the low-rank branch); gains: of x, of the input, of other */
#define TDM_VK_STREAMS_JOIN 2
#define TDM_VK_STREAMS_CORRECT 3
#define TDM_VK_STREAMS_LENGTH 4 /* each stream becomes as long as the first */
#define TDM_VK_STREAMS_GATHER 5 /* y = the row at `at` of residual gather[row] */
/* y, or the first stream where at is n, += x, made as long as the first stream; behind the last one y /= n_streams */
#define TDM_VK_STREAMS_FOLD 6
/* Of y what is below mean + factor * deviation becomes 0, and the others lose as much. */
#define TDM_VK_STREAMS_CUT 7
struct tdm_vk_streams_push {
        TDM_U64 hidden; /* [row][hidden_stride] */
        TDM_U64 x;
        TDM_U64 other; /* [row][n] */
        TDM_U64 y;
        TDM_U64 coefficients;
        TDM_U64 gain0, gain1, gain2;
        TDM_U64 gather;
        TDM_U32 n;
        TDM_U32 hidden_stride;
        TDM_U32 x_stride;
        TDM_U32 y_stride;
        TDM_U32 n_streams;
        TDM_U32 at; /* in a residual: the active stream's number, but where it says otherwise */
        TDM_F32 eps;
        TDM_F32 factor;
        TDM_VK_CHAIN
};

#endif
