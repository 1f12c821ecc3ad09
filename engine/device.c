/* What is common to all devices: the names of the precisions, and which KV cache goes with each. */
#include "engine/device.h"

static const struct {
        const char *name;
        enum tdm_kv_type kv_type;
} precisions[] = {
        [TDM_PRECISION_DEFAULT] = { "default", TDM_KV_F16 },
        [TDM_PRECISION_PRECISE] = { "precise", TDM_KV_F16 },
        [TDM_PRECISION_F32] = { "f32", TDM_KV_F32 },
};

const char *tdm_precision_name(enum tdm_precision precision)
{
        return precisions[precision].name;
}

int tdm_precision_from_name(const char *name)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(precisions); i++)
                if (strcmp(name, precisions[i].name) == 0)
                        return (int)i;
        return -EINVAL;
}

enum tdm_kv_type tdm_precision_kv_type(enum tdm_precision precision)
{
        return precisions[precision].kv_type;
}
