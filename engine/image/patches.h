/* A picture as the rows that a vision tower reads: resized, cut into patches, each byte a number.
 *
 * Comes in bands: all patches of one row of the grid at once, from the top. Within a patch channel, row, column, as
 * v.patch_embd.weight has them. What is held is one band of bytes, and what the resize holds. One thread at a time. */
#ifndef TDM_ENGINE_IMAGE_PATCHES_H
#define TDM_ENGINE_IMAGE_PATCHES_H

#include "engine/image/fit.h"

struct tdm_image_patches;

/* TDM_E_BAD_REQUEST as tdm_image_fit(), -EINVAL where the fitted size is no multiple of the patch, -ENOMEM. */
int tdm_image_patches_new(struct tdm_image_patches **ret, const struct tdm_image_recipe *recipe,
                          struct tdm_image_size picture, struct tdm_error *err);
/* In patches. */
struct tdm_image_size tdm_image_patches_grid(const struct tdm_image_patches *patches);
struct tdm_image_size tdm_image_patches_fitted(const struct tdm_image_patches *patches);
/* The next band, grid.height of them. rgb: the picture, [height][width][3], the same at each call. out: [grid.width]
 * rows of 3 * patch * patch numbers, stride apart. */
void tdm_image_patches_next(struct tdm_image_patches *patches, const uint8_t *rgb, float *out, size_t stride);
/* The bytes of the last band: [patch][fitted.width][3]. */
const uint8_t *tdm_image_patches_bytes(const struct tdm_image_patches *patches);
void tdm_image_patches_destroy(struct tdm_image_patches *patches);
void tdm_image_patches_destroyp(struct tdm_image_patches **patches);

#endif
