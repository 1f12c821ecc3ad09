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
