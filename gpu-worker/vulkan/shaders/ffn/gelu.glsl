// As the host's gelu_mul.
float tdm_gelu_mul(float g, float up)
{
        precise float cube = g * g * 0.044715;
        precise float t = fma(cube, g, g);
        precise float u = t * 1.5957691216057308;
        precise float e = tdm_exp(u);
        precise float v = g * 0.5 * (2.0 - 2.0 / (e + 1.0)) * up;
        return clamp(v, -3.402823466e38, 3.402823466e38);
}
