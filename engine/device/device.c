/* Common to all devices: the names of the precisions, and which KV cache goes with each. */
#include "engine/device/device.h"

static const char *const names[] = {
        [TDM_PRECISION_DEFAULT] = "default",
        [TDM_PRECISION_PRECISE] = "precise",
        [TDM_PRECISION_F32] = "f32",
};

const char *tdm_precision_name(enum tdm_precision precision)
{
        return names[precision];
}

int tdm_precision_from_name(const char *name)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(names); i++)
                if (strcmp(name, names[i]) == 0)
                        return (int)i;
        return -EINVAL;
}

enum tdm_kv_type tdm_precision_kv_type(enum tdm_precision precision, enum tdm_kv_type wanted)
{
        if (precision == TDM_PRECISION_F32)
                return TDM_KV_F32;
        return wanted ? wanted : TDM_KV_F16;
}
