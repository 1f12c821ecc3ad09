/* Any bytes as a schema, a GBNF grammar or a regular expression, and any bytes as text against it. The first byte says
 * which; the text follows the first NUL. Masks must agree with what is accepted, and nothing may take long. */
#include <assert.h>
#include "engine/grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_PIECES = 300 };

static size_t piece_of(void *userdata, uint32_t id, const char **ret_data)
{
        static const char *const more[] = { "true", "\":", "\",", "aa", "ab\"", " \"",  "\xc3\xa9",
                                            "{\"",  "}]",  "12",  ".5", "\n  ", "\\u00" };
        static char bytes[256];

        if (id < 256) {
                bytes[id] = (char)id;
                *ret_data = &bytes[id];
                return 1;
        }
        *ret_data = more[id % TDM_ARRAY_SIZE(more)];
        return strlen(*ret_data);
}

static bool is_end(void *userdata, uint32_t id)
{
        return id == N_PIECES - 1;
}

static void check(struct tdm_matcher *m)
{
        const uint64_t *mask;
        uint64_t copy[(N_PIECES + 63) / 64];
        int r = tdm_matcher_mask(m, &mask);

        if (r)
                return;
        memcpy(copy, mask, sizeof(copy));
        for (uint32_t id = 0; id < N_PIECES; id++) {
                r = tdm_matcher_accept(m, id);
                if (r > 1)
                        return;
                assert(r == (int)(copy[id / 64] >> id % 64 & 1));
                if (r == 1)
                        assert(tdm_matcher_rollback(m, 1) == 0);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static struct tdm_vocabulary *vocabulary;
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;
        struct tdm_grammar_limits limits;
        struct tdm_error err = { 0 };
        const char *source = (const char *)data + 1, *text, *end = (const char *)data + size;
        int r;

        if (size < 1)
                return 0;
        if (!vocabulary && tdm_vocabulary_new(&vocabulary, N_PIECES, piece_of, is_end, NULL) < 0)
                abort();
        tdm_grammar_limits_init(&limits);
        limits.max_compile_steps = 300000;
        limits.max_mask_steps = 300000;
        text = memchr(source, 0, size - 1);
        if (!text)
                text = end;
        switch (data[0] % 3) {
        case 0:
                r = tdm_grammar_new_schema(&g, source, (size_t)(text - source), data[0] & 4 ? TDM_GRAMMAR_COMPACT : 0,
                                           &limits, &err);
                break;
        case 1:
                r = tdm_grammar_new_gbnf(&g, source, (size_t)(text - source), &limits, &err);
                break;
        default:
                r = tdm_grammar_new_regex(&g, source, (size_t)(text - source), &limits, &err);
        }
        assert(r == 0 || (r == err.code && err.message[0]) || r == -ENOMEM);
        if (r || tdm_matcher_new(&m, g, vocabulary))
                return 0;
        check(m);
        for (unsigned n = 0; text < end && n < 200; text++, n++) {
                if (tdm_matcher_accept_bytes(m, text, 1) != 1)
                        continue;
                if (n % 8 == 0)
                        check(m);
        }
        return 0;
}
