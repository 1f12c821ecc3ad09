/* What a gated delta net needs of logarithms: against libm in long double, within the bound written here. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/host/delta.h"

/* With an exact exp: half a unit of the last place for its rounding to float, and as much for ours. */
static void test_softplus(void **state)
{
        double worst = 0;

        for (int i = -110 * 256; i <= 110 * 256; i++) {
                float x = (float)i / 256, e = expf(-fabsf(x));
                /* log(1 + exp(x)) with the same e */
                long double want = (x > 0 ? (long double)x : 0) + log1pl(e), got = tdm_host_softplus(x, e);

                assert_true(isfinite((double)got) && got >= 0);
                if (want > 0x1p-126L)
                        worst = fmax(worst, (double)fabsl((got - want) / want));
        }
        print_message("softplus: off by %.3g of its value at most\n", worst);
        assert_true(worst <= 0x1.001p-24);
        assert_true(tdm_host_softplus(-200, 0) == 0);
        assert_true(tdm_host_softplus(1e30f, 0) == 1e30f);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_softplus) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
