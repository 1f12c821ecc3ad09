/* Base64: RFC 4648's own examples, all bytes, and what is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base64.h"

static void test_examples(void **state)
{
        static const char *const texts[] = { "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy" };
        char text[16], back[16];
        size_t n = 99, at;

        for (size_t i = 0; i <= 6; i++) {
                assert_int_equal(tdm_base64_length(i), strlen(texts[i]));
                tdm_base64_write("foobar", i, text);
                assert_memory_equal(text, texts[i], strlen(texts[i]));
                assert_int_equal(tdm_base64_read(texts[i], strlen(texts[i]), back, &n, &at), TDM_BASE64_OK);
                assert_int_equal(n, i);
                assert_memory_equal(back, "foobar", i);
        }
}

static void test_all_bytes(void **state)
{
        uint8_t bytes[256], back[260];
        char text[344];
        size_t n, at;

        for (unsigned i = 0; i < 256; i++)
                bytes[i] = (uint8_t)(i * 7 + 3);
        for (size_t size = 0; size <= 256; size++) {
                tdm_base64_write(bytes, size, text);
                assert_int_equal(tdm_base64_read(text, tdm_base64_length(size), back, &n, &at), TDM_BASE64_OK);
                assert_int_equal(n, size);
                assert_memory_equal(back, bytes, size);
        }
}

static void test_faults(void **state)
{
        static const struct {
                const char *text;
                enum tdm_base64_fault fault;
                size_t at;
        } cases[] = {
                { "Zm9v Zg==", TDM_BASE64_CHARACTER, 4 }, { "Zm9-", TDM_BASE64_CHARACTER, 3 },
                { "=m9v", TDM_BASE64_CHARACTER, 0 },      { "Zg==Zg==", TDM_BASE64_CHARACTER, 2 },
                { "Z===", TDM_BASE64_CHARACTER, 1 },      { "Zm9", TDM_BASE64_LENGTH, 0 },
                { "Zg=", TDM_BASE64_LENGTH, 0 },          { "Zh==", TDM_BASE64_BITS, 0 },
                { "Zm9=", TDM_BASE64_BITS, 0 },
        };
        char back[16];

        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
                size_t n = 99, at = 0;

                assert_int_equal(tdm_base64_read(cases[i].text, strlen(cases[i].text), back, &n, &at), cases[i].fault);
                assert_int_equal(at, cases[i].at);
                assert_int_equal(n, 99);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_examples),
                cmocka_unit_test(test_all_bytes),
                cmocka_unit_test(test_faults),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
