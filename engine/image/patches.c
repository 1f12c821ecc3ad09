/* Bands of patches; see patches.h. A byte has 256 values, so each channel's numbers are a table: made in double,
 * rounded once. */
#include "engine/image/patches.h"

#define CHANNELS 3u

struct tdm_image_patches {
        uint32_t patch;
        struct tdm_image_size fitted, grid;
        struct tdm_resize *resize;
        float numbers[CHANNELS][256];
        uint8_t *band; /* [patch][fitted.width][3] */
};

static void fill_numbers(struct tdm_image_patches *patches, const struct tdm_image_recipe *recipe)
{
        for (unsigned c = 0; c < CHANNELS; c++)
                for (unsigned byte = 0; byte < 256; byte++) {
                        double x = (byte / 255.0 - recipe->mean[c]) / recipe->std[c];

                        patches->numbers[c][byte] = (float)(recipe->doubled ? 2 * x - 1 : x);
                }
}

int tdm_image_patches_new(struct tdm_image_patches **ret, const struct tdm_image_recipe *recipe,
                          struct tdm_image_size picture, struct tdm_error *err)
{
        _cleanup_(tdm_image_patches_destroyp) struct tdm_image_patches *patches = calloc(1, sizeof(*patches));
        int r;

        if (!patches)
                return -ENOMEM;
        r = tdm_image_fit(recipe, picture, &patches->fitted, err);
        if (r != 0)
                return r;
        patches->patch = recipe->patch;
        if (recipe->patch == 0 || patches->fitted.width % recipe->patch || patches->fitted.height % recipe->patch)
                return -EINVAL;
        patches->grid = (struct tdm_image_size){ .width = patches->fitted.width / recipe->patch,
                                                 .height = patches->fitted.height / recipe->patch };
        r = tdm_resize_new(&patches->resize, recipe->filter, picture, patches->fitted);
        if (r < 0)
                return r;
        patches->band = malloc((size_t)recipe->patch * patches->fitted.width * CHANNELS);
        if (!patches->band)
                return -ENOMEM;
        fill_numbers(patches, recipe);
        *ret = steal_ptr(&patches);
        return 0;
}

struct tdm_image_size tdm_image_patches_grid(const struct tdm_image_patches *patches)
{
        return patches->grid;
}

struct tdm_image_size tdm_image_patches_fitted(const struct tdm_image_patches *patches)
{
        return patches->fitted;
}

const uint8_t *tdm_image_patches_bytes(const struct tdm_image_patches *patches)
{
        return patches->band;
}

void tdm_image_patches_next(struct tdm_image_patches *patches, const uint8_t *rgb, float *out, size_t stride)
{
        const uint32_t side = patches->patch;
        const size_t row_bytes = (size_t)patches->fitted.width * CHANNELS;

        for (uint32_t y = 0; y < side; y++) {
                uint8_t *row = patches->band + y * row_bytes;

                tdm_resize_next(patches->resize, rgb, row);
                for (uint32_t x = 0; x < patches->fitted.width; x++)
                        for (unsigned c = 0; c < CHANNELS; c++)
                                out[x / side * stride + (c * side + y) * side + x % side] =
                                        patches->numbers[c][row[x * CHANNELS + c]];
        }
}

void tdm_image_patches_destroy(struct tdm_image_patches *patches)
{
        if (!patches)
                return;
        tdm_resize_destroy(patches->resize);
        free(patches->band);
        free(patches);
}

void tdm_image_patches_destroyp(struct tdm_image_patches **patches)
{
        tdm_image_patches_destroy(*patches);
}
