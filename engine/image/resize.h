/* Resizing RGB pictures as the makers of vision models do it, to the bit: Pillow's separable resampling of bytes.
 *
 * FORMULA: across first, then down; each pass rounds to a byte; a pass that keeps the length is left out. Of output i
 * of n from m inputs: s = m / n, f = max(s, 1), r = f (bilinear) or 2 f (bicubic), c = (i + 0.5) s. It sums inputs j
 * from max(0, trunc(c - r + 0.5)) to before min(m, trunc(c + r + 0.5)) with the weights F((j + 0.5 - c) / f), divided
 * by their sum in double, then by 2^22 to whole numbers, halves away from zero. Byte = clamp((sum + 2^21) >> 22). So a
 * filter that shrinks is widened. F bilinear: max(0, 1 - |x|). F bicubic: Keys' with a = -0.5.
 *
 * The picture lies in memory; the result comes row by row. What is held is the tables of weights and those rows of the
 * first pass that one row of the second needs. One thread at a time. */
#ifndef TDM_ENGINE_IMAGE_RESIZE_H
#define TDM_ENGINE_IMAGE_RESIZE_H

#include "common/error.h"

/* No side is longer: tables and sums are sized for it. */
#define TDM_IMAGE_SIDE_MAX 65536u

struct tdm_image_size {
        uint32_t width, height;
};

enum tdm_resize_filter { TDM_RESIZE_BILINEAR = 1, TDM_RESIZE_BICUBIC = 2 }; /* the value is the filter's reach */

struct tdm_resize;

/* Sides are 1 … TDM_IMAGE_SIDE_MAX. -EINVAL, -ENOMEM. */
int tdm_resize_new(struct tdm_resize **ret, enum tdm_resize_filter filter, struct tdm_image_size from,
                   struct tdm_image_size to);
/* The next row, from the top, to.height of them. rgb: [from.height][from.width][3], the same at each call. out:
 * [to.width][3]. */
void tdm_resize_next(struct tdm_resize *resize, const uint8_t *rgb, uint8_t *out);
/* Bytes that it holds. */
size_t tdm_resize_memory(const struct tdm_resize *resize);
void tdm_resize_destroy(struct tdm_resize *resize);
void tdm_resize_destroyp(struct tdm_resize **resize);

#endif
