/* The page has every switch of the environment, and no other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu-worker/vulkan/device/gpu.h"

static char page[1u << 20];

static void all_are_on_the_page(void **state)
{
        unsigned n_rows = 0;

        (void)state;
        for (const char *at = page; (at = strstr(at, "\n| `TANDEM_VULKAN_")); at++)
                n_rows++;
        for (int i = 0; i < TDM_VK_N_SWITCHES; i++) {
                char row[64];

                snprintf(row, sizeof(row), "\n| `%s` |", tdm_vk_switch_name((enum tdm_vk_switch)i));
                if (!strstr(page, row))
                        fail_msg("docs/gpu.md has no row for %s", tdm_vk_switch_name((enum tdm_vk_switch)i));
        }
        assert_int_equal(n_rows, TDM_VK_N_SWITCHES);
}

static void an_empty_one_is_not_set(void **state)
{
        (void)state;
        setenv("TANDEM_VULKAN_LOGITS", "", 1);
        assert_null(tdm_vk_switch(TDM_VK_SWITCH_LOGITS));
        setenv("TANDEM_VULKAN_LOGITS", "whole", 1);
        assert_true(tdm_vk_switch_is(TDM_VK_SWITCH_LOGITS, "whole"));
        assert_false(tdm_vk_switch_is(TDM_VK_SWITCH_LOGITS, "wh"));
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(all_are_on_the_page),
                                            cmocka_unit_test(an_empty_one_is_not_set) };
        FILE *file = fopen("docs/gpu.md", "r");

        if (!file || fread(page, 1, sizeof(page) - 1, file) == 0) {
                perror("docs/gpu.md");
                return 1;
        }
        fclose(file);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
