// The sum of one value of each of WORKERS threads, the same in every thread. Order: thread i's into 32 sums by i % 32,
// each in rising i; then those from the first to the last. Every thread must come here.
shared float s_parts[WORKERS];
shared float s_sums[32];

float tdm_workgroup_sum(float x)
{
        uint thread = gl_LocalInvocationID.x;
        precise float sum = 0;

        s_parts[thread] = x;
        barrier();
        if (thread < 32) {
                [[unroll]] for (uint i = 0; i < WORKERS / 32; i++)
                        sum += s_parts[i * 32 + thread];
                s_sums[thread] = sum;
        }
        barrier();
        sum = 0;
        [[unroll]] for (uint i = 0; i < 32; i++)
                sum += s_sums[i];
        barrier();
        return sum;
}
