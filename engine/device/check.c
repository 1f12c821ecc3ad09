/* Every device checks this of a model before it loads it. Numbers that come from a peer must be those that follow from
 * the model's sizes. A device adds checks of what it alone does not compute. */
#include "engine/device/device.h"

static bool kv_geometry_fits(const struct tdm_kv_geometry *kv, const struct tdm_hparams *hp)
{
        struct tdm_kv_geometry want;

        if (!tdm_kv_type_name((enum tdm_kv_type)kv->type) ||
            tdm_kv_geometry_init(&want, hp, (enum tdm_kv_type)kv->type, kv->n_pages[TDM_KV_FULL],
                                 kv->n_pages[TDM_KV_WINDOW], kv->n_pages[TDM_KV_STATE]) < 0)
                return false;
        return tdm_kv_geometry_equal(kv, &want);
}

struct tdm_device_needs tdm_device_needs_of(const uint8_t *weights, uint32_t max_pictures)
{
        const struct tdm_weights_header *header = tdm_weights_header(weights);
        const struct tdm_weights_tensor *tensors = (const void *)(weights + header->tensors_offset);
        struct tdm_device_needs needs = { .features = tdm_recipe_features(&header->recipe, &header->hparams) };

        if (max_pictures > 0)
                needs.features |= TDM_FEATURE_BIT(TDM_FEATURE_PICTURES);
        for (uint32_t i = 0; i < header->n_tensors; i++)
                if (tensors[i].layout != TDM_LAYOUT_ROWS && tensors[i].type < 64)
                        needs.types |= UINT64_C(1) << tensors[i].type;
        return needs;
}

int tdm_device_check_model(const struct tdm_device_model_config *config, uint64_t more_features, const char *device,
                           struct tdm_error *err)
{
        const struct tdm_weights_header *header = tdm_weights_header(config->weights);
        const struct tdm_hparams *hp = &header->hparams;
        const uint32_t vector_width = header->recipe.pooling ? hp->d_model : 0;
        int r;

        if ((unsigned)config->precision > TDM_PRECISION_F32)
                return tdm_error_set(err, TDM_E_PROTOCOL, "%s device: no precision %u", device,
                                     (unsigned)config->precision);
        r = tdm_steps_limits_check(&config->limits, err);
        if (r == 0)
                r = tdm_recipe_check_device(&header->recipe, hp, TDM_FEATURES_OF_ALL | more_features, device, err);
        if (r != 0)
                return r;
        if (config->limits.input_bytes != tdm_weights_input_bytes(config->weights))
                return tdm_error_set(err, TDM_E_PROTOCOL,
                                     "%s device: rows carry %u bytes of the file, the model has %u", device,
                                     config->limits.input_bytes, tdm_weights_input_bytes(config->weights));
        if (config->limits.vector_width != vector_width)
                return tdm_error_set(err, TDM_E_PROTOCOL, "%s device: vectors of %u numbers, the model's have %u",
                                     device, config->limits.vector_width, vector_width);
        if (config->limits.max_pictures > 0 && !(more_features & TDM_FEATURE_BIT(TDM_FEATURE_PICTURES)))
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "%s device: a model with pictures needs what it does not "
                                     "compute: their rows",
                                     device);
        if (config->limits.max_pictures > 0 && !tdm_recipe_takes_pictures(&header->recipe, hp))
                return tdm_error_set(err, TDM_E_UNSUPPORTED, "%s device: a %s model like this takes no pictures",
                                     device, header->recipe.architecture);
        if (!kv_geometry_fits(&config->kv, hp))
                return tdm_error_set(err, TDM_E_PROTOCOL,
                                     "%s device: the KV cache's geometry does not fit the model's sizes", device);
        return 0;
}
