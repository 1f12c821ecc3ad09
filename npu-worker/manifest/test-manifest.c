/* Manifests: the one of the emulated NPU and ways of being wrong, each of which must be refused in one line that names
 * place and reason; the same for xclbins. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "npu-worker/manifest/files.h"
#include "npu-worker/manifest/manifest.h"

#define SET "[set]\nformat = 1\ngeneration = phoenix\nxclbin = a.xclbin\nkernel = MLIR_AIE\n"
#define REST(shape, type, b, order)                                                                                    \
        "shape = " shape "\ntype = " type "\na = rows\nb = " b "\nc = rows\norder = " order "\ncolumns = 4\n"          \
        "instructions = p.bin\narguments = a b c\n"
#define PROGRAM(shape, type, b, order) "[p]\nop = gemm\n" REST(shape, type, b, order)
#define GOOD PROGRAM("8x64x128", "bf16", "columns", "lanes8")

#define BLOCK(n, args, more)                                                                                           \
        "[p]\nop = attention\nshape = 8x64x" n "\ntype = bf16\na = rows\nb = columns\nc = rows\norder = lanes8\n"      \
        "columns = 4\ninstructions = p.bin\narguments = " args "\n" more

static int parse(const char *text, const char *generation, struct tdm_npu_manifest **ret, struct tdm_error *err)
{
        return tdm_npu_manifest_parse(text, strlen(text), "m", generation, ret, err);
}

static void test_good(void **state)
{
        struct tdm_npu_manifest *m = NULL;
        struct tdm_error err = {};

        assert_int_equal(parse("# comment\r\n" SET "\n" GOOD
                               "[q]\nop=gemm\n" REST("256x64x128", "int8", "tiles 8x8", "exact") "; end",
                               "phoenix", &m, &err),
                         0);
        assert_int_equal(m->n_programs, 2);
        assert_string_equal(m->kernel, "MLIR_AIE");
        assert_int_equal(m->programs[0].m, 8);
        assert_int_equal(m->programs[0].k, 64);
        assert_int_equal(m->programs[0].n, 128);
        assert_int_equal(m->programs[0].b.kind, TDM_NPU_COLUMNS);
        assert_int_equal(m->programs[1].type, TDM_NPU_INT8);
        assert_int_equal(m->programs[1].b.tile_cols, 8);
        assert_int_equal(m->programs[1].argument[2], 2);
        free(m);
        assert_int_equal(parse(SET PROGRAM("64x128x96", "int4a16", "blocks 16x8", "blocks32"), NULL, &m, &err), 0);
        assert_int_equal(m->programs[0].type, TDM_NPU_INT4A16);
        assert_int_equal(m->programs[0].b.kind, TDM_NPU_BLOCKS);
        assert_int_equal(m->programs[0].b.tile_rows * 100 + m->programs[0].b.tile_cols, 1608);
        assert_int_equal(tdm_npu_row_bytes(TDM_NPU_INT4A16, 128), 272);
        assert_int_equal(tdm_npu_weights_bytes(TDM_NPU_INT4A16, 128, 96), 128 * 96 * 9 / 16);
        free(m);
        assert_int_equal(parse(SET BLOCK("256", "e d c b a", "heads = 2x1x64\npages = 64\n"), NULL, &m, &err), 0);
        assert_int_equal(m->programs[0].n_arguments, 5);
        assert_int_equal(m->programs[0].argument[4], 0);
        assert_int_equal(m->programs[0].n_heads * 100 + m->programs[0].head_dim, 264);
        free(m);
}

static void test_wrong(void **state)
{
        static const struct {
                const char *text, *says;
        } wrong[] = {
                { "", "no section [set]" },
                { SET, "no programs" },
                { GOOD, "m:1: section [p] before [set]" },
                { "format = 1\n", "m:1: key format before [set]" },
                { "[set\n", "m:1: \"[set\" is not a section's name" },
                { "[set]\nformat = 2\n", "m:2: format: this program reads format 1" },
                { "[set]\nformat = 1\nformat = 1\n", "m:3: format is there twice" },
                { "[set]\nformat = 1\ngeneration = phoenix\nxclbin = a\n" GOOD, "m:1: [set] has no kernel" },
                { "[set]\nformat = 1\nxclbin = ../a.xclbin\n",
                  "m:3: xclbin: \"../a.xclbin\" is not a plain file name" },
                { SET SET GOOD, "m:6: section [set] is there twice" },
                { SET "[p]\nop = conv\n", "m:7: op: there is no \"conv\"" },
                { SET "[p]\ncolor = red\n", "m:7: there is no key \"color\" in section [p]" },
                { SET "[p]\nop gemm\n", "m:7: \"op gemm\" is neither a [section] nor key = value" },
                { SET "[p]\nop =\n", "m:7: op has no value" },
                { SET "[p]\nop = gemm\nshape = 8x64\n", "m:8: shape: \"8x64\" is not MxKxN" },
                { SET "[p]\nop = gemm\nshape = 8x64x0\n", "m:8: shape: \"8x64x0\"" },
                { SET "[p]\nop = gemm\nshape = 8x64x99999999999\n", "m:8: shape" },
                { SET BLOCK("256", "a b c d e", "pages = 64\n"), "m:6: [p]: attention needs heads" },
                { SET BLOCK("256", "a b c d e", "heads = 2x1x64\n"), "m:6: [p]: attention needs pages" },
                { SET BLOCK("256", "a b c d e", "heads = 2x64\n"), "heads: \"2x64\" is not query heads x key heads" },
                { SET BLOCK("256", "a b c d e", "heads = 3x2x64\npages = 1\n"),
                  "the first must be a multiple of the second" },
                { SET BLOCK("192", "a b c d e", "heads = 2x1x64\npages = 64\n"),
                  "N is 192, q, k and v of heads 2x1x64 are 256 wide" },
                { SET BLOCK("256", "a b c", "heads = 2x1x64\npages = 64\n"),
                  "m:6: [p]: 3 arguments, this operation has 5" },
                { SET BLOCK("256", "a b c d d", ""), "is not a, b and c in some order" },
                { SET BLOCK("256", "a b c d e", "heads = 2x1x64\npages = 0\n"), "pages: \"0\" is not a number" },
                { SET PROGRAM("8x64x128", "f16", "columns", "lanes8"), "m:9: type: there is no \"f16\"" },
                { SET PROGRAM("8x64x128", "bf16", "zigzag", "lanes8"), "m:11: b: there is no layout \"zigzag\"" },
                { SET PROGRAM("8x128x128", "int4", "blocks 12x8", "blocks32"),
                  "m:11: b: \"blocks 12x8\": what a block is cut into" },
                { SET PROGRAM("8x128x128", "int4", "blocks 16x", "blocks32"), "m:11: b: \"blocks 16x\"" },
                { SET PROGRAM("8x128x128", "int4", "columns", "blocks32"), "m:6: [p]: blocks are the layout of int4" },
                { SET PROGRAM("8x128x128", "bf16", "blocks 16x8", "x"), "m:6: [p]: blocks are the layout of int4" },
                { SET PROGRAM("8x64x128", "int4a16", "blocks 16x8", "blocks32"),
                  "m:6: [p]: of 8x64x128 in int4 K is no multiple of 128" },
                { SET PROGRAM("8x128x48", "int4", "blocks 16x8", "blocks32"), "or N of 32" },
                { SET PROGRAM("8x128x128", "int4", "blocks 16x8", "exact"), "m:6: [p]: order \"exact\" is for int8" },
                { SET PROGRAM("8x64x128", "bf16", "tiles 8", "lanes8"),
                  "m:11: b: \"tiles 8\": a tile is written as 8x8" },
                { SET PROGRAM("8x64x128", "int8", "tiles 48x8", "exact"),
                  "m:6: [p]: K and N of 8x64x128 are not multiples of its tiles" },
                { SET PROGRAM("8x60x128", "bf16", "columns", "lanes8"),
                  "m:6: [p]: K and N of 8x60x128 are not multiples of 8" },
                { SET PROGRAM("8x64x128", "int8", "columns", "lanes8"), "m:6: [p]: order \"exact\" is for int8" },
                { SET PROGRAM("8x64x128", "bf16", "columns", "exact"), "m:6: [p]: order \"exact\" is for int8" },
                { SET "[p]\nop = gemv\n" REST("8x64x128", "bf16", "columns", "x"), "m:6: [p]: a gemv has one row" },
                { SET "[p]\nop = gemm\nshape = 8x64x64\na = columns\n", "m:9: a: only rows are supported" },
                { SET GOOD GOOD, "m:17: section [p] is there twice" },
                { SET "[p]\nop = gemm\n", "m:6: [p] has no shape" },
                { SET "[p]\narguments = a b b\n", "m:7: arguments: \"a b b\" is not a, b and c in some order" },
                { SET "[p]\ninstructions = /etc/passwd\n",
                  "m:7: instructions: \"/etc/passwd\" is not a plain file name" },
                { SET "[p]\ncolumns = many\n", "m:7: columns: \"many\" is not a number from 1 to 64" },
                { SET "[p]\norder = a,b\n", "m:7: order: \"a,b\" has a character" },
                { SET "[p]\norder = abcdefghijklmnopqrstuvwxyz\n", "m:7: order: \"abcdef" },
        };
        struct tdm_npu_manifest *m = NULL;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(wrong); i++) {
                struct tdm_error err = {};

                assert_int_equal(parse(wrong[i].text, NULL, &m, &err), TDM_E_BAD_MODEL);
                if (!strstr(err.message, wrong[i].says) || strchr(err.message, '\n'))
                        fail_msg("case %zu says \"%s\" and not \"%s\"", i, err.message, wrong[i].says);
        }
        assert_null(m);
}

static void test_rest(void **state)
{
        struct tdm_npu_manifest *m = NULL;
        struct tdm_error err = {};
        char text[1024], *big;
        size_t n = 0;

        assert_int_equal(parse(SET GOOD, "strix", &m, &err), TDM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "m is for generation phoenix, the device is of generation strix"));
        memset(text, 'x', sizeof(text));
        assert_int_equal(tdm_npu_manifest_parse(text, sizeof(text), "m", NULL, &m, &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "the line has 1024 characters"));
        assert_int_equal(tdm_npu_manifest_parse("[set]\n\0", 7, "m", NULL, &m, &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "zero byte"));
        assert_int_equal(tdm_npu_manifest_load("/nowhere", NULL, &m, &err), -ENOENT);
        assert_non_null(strstr(err.message, "cannot open /nowhere/manifest: No such file"));

        /* As many programs as may be, and one more. */
        big = malloc(400 * (TDM_NPU_MAX_PROGRAMS + 2));
        n = (size_t)sprintf(big, SET);
        for (unsigned i = 0; i < TDM_NPU_MAX_PROGRAMS; i++)
                n += (size_t)sprintf(big + n, "[p%u]\nop = gemm\n" REST("8x64x128", "bf16", "columns", "lanes8"), i);
        assert_int_equal(parse(big, NULL, &m, &err), 0);
        free(m);
        sprintf(big + n, GOOD);
        assert_int_equal(parse(big, NULL, &m, &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "more than 512 programs"));
        free(big);
}

static void test_xclbin(void **state)
{
        uint8_t image[600] = "xclbin2";
        uint64_t length = sizeof(image), offset = 520, size = 80;
        uint32_t n_sections = 1;
        struct tdm_error err = {};

        memcpy(image + 304, &length, 8);
        memcpy(image + 448, &n_sections, 4);
        memcpy(image + 456 + 24, &offset, 8);
        memcpy(image + 456 + 32, &size, 8);
        assert_int_equal(tdm_xclbin_check(image, sizeof(image), "x", &err), 0);
        assert_int_equal(tdm_xclbin_check(image, 100, "x", &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "x is not an xclbin"));
        assert_int_equal(tdm_xclbin_check(image, 599, "x", &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "truncated"));
        size = UINT64_MAX - 500;
        memcpy(image + 456 + 32, &size, 8);
        assert_int_equal(tdm_xclbin_check(image, sizeof(image), "x", &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "section 0 lies outside"));
        n_sections = UINT32_MAX;
        memcpy(image + 448, &n_sections, 4);
        assert_int_equal(tdm_xclbin_check(image, sizeof(image), "x", &err), TDM_E_BAD_MODEL);
        assert_non_null(strstr(err.message, "cannot hold"));
}

/* Whatever is done to a good one: accepted or refused with a reason, nothing else. */
static void test_damaged(void **state)
{
        static const char good[] = SET GOOD "[q]\nop = gemv\n" REST("1x64x128", "int8", "tiles 8x8", "exact");
        uint32_t random = 4711;
        unsigned n_good = 0;

        for (unsigned i = 0; i < 20000; i++) {
                struct tdm_npu_manifest *m = NULL;
                struct tdm_error err = {};
                char text[sizeof(good)];
                size_t size = sizeof(good) - 1;
                int r;

                memcpy(text, good, sizeof(good));
                for (unsigned n = 0; n <= i % 3; n++) {
                        uint32_t at;

                        random = random * 1664525 + 1013904223;
                        at = random / 16 % (uint32_t)size;
                        switch (random >> 30) {
                        case 0:
                                text[at] = (char)(random >> 8);
                                break;
                        case 1:
                                text[at] = good[random / 3 % size];
                                break;
                        case 2:
                                memmove(text + at, text + at + 1, size - at - 1);
                                size--;
                                break;
                        default:
                                text[at] ^= (char)(1u << (random >> 10 & 7));
                        }
                }
                r = tdm_npu_manifest_parse(text, size, "m", NULL, &m, &err);
                n_good += r == 0;
                if (r == 0)
                        assert_true(m->n_programs >= 1 && m->n_programs <= 2);
                else
                        assert_true(r == TDM_E_BAD_MODEL && err.message[0]);
                free(m);
        }
        assert_true(n_good > 100 && n_good < 19000);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_good),    cmocka_unit_test(test_wrong),  cmocka_unit_test(test_rest),
                cmocka_unit_test(test_damaged), cmocka_unit_test(test_xclbin),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
