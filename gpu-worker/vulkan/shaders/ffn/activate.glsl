// What stands between gate, up and down; activation: enum tdm_activation.
#include "gpu-worker/vulkan/shaders/ffn/gelu.glsl"

// As the host's silu_mul.
float tdm_silu_mul(float g, float up)
{
        precise float e = tdm_exp(-g);
        precise float v = g / (e + 1.0) * up;
        return clamp(v, -3.402823466e38, 3.402823466e38);
}

// As the host's swiglu_clamped.
float tdm_swiglu_clamped(float g, float up)
{
        float l = min(g, 7.0), u = clamp(up, -7.0, 7.0);
        precise float e = tdm_exp(-1.702 * l);
        precise float v = l / (e + 1.0) * (u + 1.0);
        return v;
}

float tdm_activate(uint activation, float g, float up)
{
        return activation == 2   ? tdm_silu_mul(g, up)
               : activation == 3 ? tdm_swiglu_clamped(g, up)
                                 : tdm_gelu_mul(g, up);
}
