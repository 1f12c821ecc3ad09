/* The sizes of fit.h, by the double arithmetic of the makers' processors: a side that falls on a multiple must fall on
 * the same one here. */
#include "engine/image/fit.h"

#include <math.h>

static int fit_budget(const struct tdm_image_recipe *recipe, struct tdm_image_size picture, struct tdm_image_size *ret,
                      struct tdm_error *err)
{
        uint32_t unit = recipe->patch * recipe->merge;
        uint64_t longest = (uint64_t)recipe->budget * unit;
        double pixels = (double)recipe->budget * unit * unit;
        double scale = sqrt(pixels / ((double)picture.width * picture.height));
        uint64_t width = (uint64_t)floor(scale * picture.width / unit) * unit;
        uint64_t height = (uint64_t)floor(scale * picture.height / unit) * unit;

        if (width == 0 && height == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "a picture of %u x %u pixels has no size for this model",
                                     picture.width, picture.height);
        if (height == 0) {
                height = unit;
                width = TDM_MIN((uint64_t)(picture.width / picture.height) * unit, longest);
        } else if (width == 0) {
                width = unit;
                height = TDM_MIN((uint64_t)(picture.height / picture.width) * unit, longest);
        }
        *ret = (struct tdm_image_size){ .width = (uint32_t)width, .height = (uint32_t)height };
        return 0;
}

static int fit_nearest(const struct tdm_image_recipe *recipe, struct tdm_image_size picture, struct tdm_image_size *ret,
                       struct tdm_error *err)
{
        double unit = (double)recipe->patch * recipe->merge, w = picture.width, h = picture.height;
        double width = rint(w / unit) * unit, height = rint(h / unit) * unit; /* halves to even */

        if (TDM_MAX(w, h) / TDM_MIN(w, h) > TDM_IMAGE_ASPECT_MAX)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "a picture of %u x %u pixels is more than %u times as long as wide, which this "
                                     "model does not take: cut it",
                                     picture.width, picture.height, TDM_IMAGE_ASPECT_MAX);
        if (width * height > (double)recipe->most_pixels) {
                double by = sqrt(h * w / (double)recipe->most_pixels);

                width = TDM_MAX(unit, floor(w / by / unit) * unit);
                height = TDM_MAX(unit, floor(h / by / unit) * unit);
        } else if (width * height < (double)recipe->least_pixels) {
                double by = sqrt((double)recipe->least_pixels / (h * w));

                width = ceil(w * by / unit) * unit;
                height = ceil(h * by / unit) * unit;
        }
        *ret = (struct tdm_image_size){ .width = (uint32_t)width, .height = (uint32_t)height };
        return 0;
}

int tdm_image_fit(const struct tdm_image_recipe *recipe, struct tdm_image_size picture, struct tdm_image_size *ret,
                  struct tdm_error *err)
{
        if (picture.width - 1 >= TDM_IMAGE_SIDE_MAX || picture.height - 1 >= TDM_IMAGE_SIDE_MAX)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "a picture of %u x %u pixels: sides are 1 to %u",
                                     picture.width, picture.height, TDM_IMAGE_SIDE_MAX);
        switch (recipe->rule) {
        case TDM_IMAGE_STRETCH:
                *ret = (struct tdm_image_size){ .width = recipe->side, .height = recipe->side };
                return 0;
        case TDM_IMAGE_BUDGET:
                return fit_budget(recipe, picture, ret, err);
        case TDM_IMAGE_NEAREST:
                return fit_nearest(recipe, picture, ret, err);
        }
        return tdm_error_set(err, TDM_E_INTERNAL, "a rule of sizes without a number: %d", (int)recipe->rule);
}

uint32_t tdm_image_rows(const struct tdm_image_recipe *recipe, struct tdm_image_size fitted)
{
        uint32_t unit = recipe->patch * recipe->merge;

        return fitted.width / unit * (fitted.height / unit);
}
