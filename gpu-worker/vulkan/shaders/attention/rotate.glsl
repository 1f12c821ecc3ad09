// A head's norm and rotation: the same operations in rotate.comp and, of a single row, in attend-f16.comp.

layout(buffer_reference, std430, buffer_reference_align = 2) coherent buffer Stored16s { uint16_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Constants { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Counters { uint n_saturated; };

// What a head is multiplied with; sum: of its squares. Element d's is of thread d % 128, which sums in rising d; then
// as in sum.glsl, of 128 threads.
float tdm_head_scale(float sum, uint head_dim, float eps)
{
        precise float mean = sum / float(head_dim) + eps;
        precise float scale = 1.0 / sqrt(mean);
        return scale;
}

// Element d and that half a head further; gain: of both; cos_sin: cosine and sine.
vec2 tdm_rotated(vec2 x, float scale, vec2 gain, vec2 cos_sin)
{
        precise vec2 y = x * scale * gain;
        precise float rs = y.y * cos_sin.y, ls = y.x * cos_sin.y;
        precise vec2 rotated = vec2(fma(y.x, cos_sin.x, -rs), fma(y.y, cos_sin.x, ls));

        return rotated;
}

// As the cache keeps it; saturated: counts.
uint tdm_stored16(float x, inout uint saturated)
{
        if (!(abs(x) <= 65504.0)) {
                saturated++;
                x = isnan(x) ? 0 : clamp(x, -65504.0, 65504.0);
        }
        return tdm_to_f16(x);
}

// Of a part of the cache, of f16: where a key's element is, and a value's.
uint tdm_key_at(uint t, uint d, uint head_dim)
{
        return (t / 16 * head_dim + d) * 16 + t % 16;
}
