// The noise of a draw: engine/sampling/lanes-noise.h, by the same operations in the same order, so that the bits are
// the same. `precise` keeps multiplications and additions apart.

uint tdm_noise_hash(uint x, uint first_key, uint second_key)
{
        uint h = x * 0x9e3779b9u + first_key;

        h ^= h >> 16;
        h *= 0x21f0aaadu;
        h ^= h >> 15;
        h ^= second_key;
        h *= 0xd35a2d97u;
        return h ^ h >> 15;
}

// (bits + 1/2) / 2^32. Halves of 16 bits become floats without rounding.
float tdm_noise_fraction(uint bits)
{
        precise float low = float(bits & 0xffffu) + 0.5;
        precise float scaled = low * 2.3283064365386963e-10; // 2^-32
        precise float high = float(bits >> 16) * 1.52587890625e-05; // 2^-16
        precise float sum = high + scaled;

        return sum;
}

float tdm_noise_log(float z, float n)
{
        precise float square = z * z;
        precise float p = z * 7.0376836292e-2;

        p = p + -1.1514610310e-1;
        p = p * z;
        p = p + 1.1676998740e-1;
        p = p * z;
        p = p + -1.2420140846e-1;
        p = p * z;
        p = p + 1.4249322787e-1;
        p = p * z;
        p = p + -1.6668057665e-1;
        p = p * z;
        p = p + 2.0000714765e-1;
        p = p * z;
        p = p + -2.4999993993e-1;
        p = p * z;
        p = p + 3.3333331174e-1;
        p = p * z;
        p = p * square;
        precise float little = n * -2.12194440e-4;
        p = p + little;
        precise float half_square = square * 0.5;
        p = p - half_square;
        p = z + p;
        precise float much = n * 0.693359375;
        p = p + much;
        return p;
}

int tdm_noise_exponent(float v)
{
        return (floatBitsToInt(v) - 0x3f3504f3) >> 23;
}

float tdm_noise_rest(float v)
{
        precise float z = intBitsToFloat(floatBitsToInt(v) - (tdm_noise_exponent(v) << 23)) - 1.0;

        return z;
}

float tdm_noise_exponential(uint bits)
{
        float rest = tdm_noise_fraction(~bits);
        bool small = bits < 0x40000000u;

        return -tdm_noise_log(small ? -tdm_noise_fraction(bits) : tdm_noise_rest(rest),
                small ? 0.0 : float(tdm_noise_exponent(rest)));
}

// The least exponential number of a block of 64.
float tdm_noise_least(uint block, uvec4 keys)
{
        precise float least = tdm_noise_exponential(tdm_noise_hash(block, keys.z, keys.w)) * 0.015625;

        return least;
}

float tdm_noise_of(float e)
{
        return -tdm_noise_log(tdm_noise_rest(e), float(tdm_noise_exponent(e)));
}

float tdm_noise_score(float logit, float greatest, float inverse, float noise)
{
        precise float distance = logit - greatest;
        precise float scaled = distance * inverse;
        precise float score = scaled + noise;

        return score;
}

// What no score of a block's tokens is above.
float tdm_noise_bound(uint block, float maximum, float greatest, float inverse, uvec4 keys)
{
        precise float most = tdm_noise_of(tdm_noise_least(block, keys)) + 0.0009765625; // TDM_NOISE_SLACK

        return tdm_noise_score(maximum, greatest, inverse, most);
}

float tdm_noise_token(uint id, uvec4 keys)
{
        uint block = id / 64;
        float least = tdm_noise_least(block, keys);
        uint which = tdm_noise_hash(block | 0x80000000u, keys.z, keys.w) >> 26;
        precise float own = tdm_noise_exponential(tdm_noise_hash(id, keys.x, keys.y));
        precise float e = (which == id % 64 ? 0.0 : own) + least;

        return tdm_noise_of(e);
}
