// A span's own (o, m, l) into the running one on its left: the same operations wherever it happens. l = 0: nothing yet.
struct tdm_running {
        float m, l;
};

// The factors of the old and of the new; false: the new one is taken as it is.
bool tdm_merge(inout tdm_running into, float m, float l, out float old_factor, out float new_factor)
{
        precise float a, b, sum;
        float largest;

        if (into.l == 0) {
                into.m = m;
                into.l = l;
                old_factor = 0;
                new_factor = 1;
                return false;
        }
        largest = max(into.m, m);
        precise float old_distance = into.m - largest, new_distance = m - largest;
        a = tdm_exp(old_distance);
        b = tdm_exp(new_distance);
        precise float add = l * b;
        sum = fma(into.l, a, add);
        into.m = largest;
        into.l = sum;
        old_factor = a;
        new_factor = b;
        return true;
}

// Four neighbouring dimensions of a row's head: the partial results of its items, merged from left to right and divided. They lie
// slot_step apart; slot: the head's in the first.
vec4 tdm_merge_items(uint64_t partial, uint slot, uint slot_step, uint n, uint head_dim, uint d)
{
        tdm_running running = tdm_running(0, 0);
        precise vec4 o = vec4(0);

        for (uint i = 0; i < n; i++) {
                uint64_t item = partial + uint64_t(slot + i * slot_step) * TDM_VK_PARTIAL_WIDTH(head_dim) * 4;
                float m = F32s(item).v[head_dim], l = F32s(item).v[head_dim + 1], old_factor, new_factor;
                vec4 span = F32x4s(item).v[d / 4];

                if (l > 0) {
                        bool merged = tdm_merge(running, m, l, old_factor, new_factor);
                        precise vec4 add = span * new_factor;

                        o = merged ? fma(o, vec4(old_factor), add) : span;
                }
        }
        precise float inverse = 1.0 / running.l;
        precise vec4 divided = o * inverse;

        return divided;
}
