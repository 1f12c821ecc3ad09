/* What a vision model's processor makes of a picture's size and bytes: which size it is resized to, by which filter,
 * and which number a byte becomes. Data of one model. */
#ifndef TDM_ENGINE_IMAGE_FIT_H
#define TDM_ENGINE_IMAGE_FIT_H

#include "engine/image/resize.h"

enum tdm_image_rule {
        TDM_IMAGE_STRETCH = 1, /* to side x side; the aspect is not kept (Gemma 3) */
        /* The largest multiples of patch * merge that keep the aspect and have at most budget * merge² patches (Gemma
         * 4). Small pictures are enlarged. */
        TDM_IMAGE_BUDGET = 2,
        /* Multiples of patch * merge next to the picture's own sides, between least and most pixels (Qwen3-VL). */
        TDM_IMAGE_NEAREST = 3,
};

struct tdm_image_recipe {
        enum tdm_image_rule rule;
        enum tdm_resize_filter filter;
        uint32_t side;  /* of STRETCH */
        uint32_t patch; /* pixels of a patch's side */
        uint32_t merge; /* merge x merge patches make one row for the text */
        uint32_t budget;
        uint64_t least_pixels, most_pixels; /* of NEAREST */
        double mean[3], std[3];             /* a byte becomes (byte / 255 - mean) / std */
        bool doubled;                       /* and that, twice and minus 1 (Gemma 4) */
};

/* NEAREST refuses pictures that are more than this many times as long as wide. */
#define TDM_IMAGE_ASPECT_MAX 200u

/* TDM_E_BAD_REQUEST: a picture that has no size under this rule. */
int tdm_image_fit(const struct tdm_image_recipe *recipe, struct tdm_image_size picture, struct tdm_image_size *ret,
                  struct tdm_error *err);
/* Rows for the text that a picture of the size which tdm_image_fit() gave becomes. */
uint32_t tdm_image_rows(const struct tdm_image_recipe *recipe, struct tdm_image_size fitted);

#endif
