// What stands between gate, up and down; activation: enum tdm_activation.
#include "gpu-worker/vulkan/shaders/ffn/gelu.glsl"

// As the host's silu_mul.
float tdm_silu_mul(float g, float up)
{
        precise float e = tdm_exp(-g);
        precise float v = g / (e + 1.0) * up;
        return clamp(v, -3.402823466e38, 3.402823466e38);
}

float tdm_activate(uint activation, float g, float up)
{
        return activation == 2 ? tdm_silu_mul(g, up) : tdm_gelu_mul(g, up);
}
