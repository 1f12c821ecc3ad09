/* Any bytes as a chat template, rendered over a conversation. What comes out is UTF-8, its spans cover it, and both
 * limits hold. */
#include <assert.h>
#include "common/utf8.h"
#include "engine/chat/template/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char conversation[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\" Be  short.\\n\"},{\"role\":\"user\",\"content\":\"It's "
        "<b>\\u00e9\"},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"function\":{\"name\":\"f\","
        "\"arguments\":"
        "{\"a\":[1,2.5,123456789012345678901],\"b\":{\"c\":\"d\"}}}}]},{\"role\":\"tool\",\"content\":[{\"type\":"
        "\"text\","
        "\"text\":\"7\"}]}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{}}}}],\"add_generation_prompt\":true,\"enable_thinking\":false,\"x\":\"  a,b c \","
        "\"l\":[3,\"B\",\"a\",null],\"n\":-7}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static struct tdm_json json;
        static const struct tm now = { .tm_year = 126, .tm_mday = 15, .tm_hour = 12 };
        _cleanup_(tdm_template_destroyp) struct tdm_template *template = NULL;
        const struct tdm_template_limits limits = { .steps = 20000, .bytes = 4u << 20 };
        struct tdm_template_input input = { .json = &json, .bos = "<s>", .eos = "</s>", .now = &now };
        struct tdm_template_result result;
        struct tdm_error err = { 0 };
        int r;

        if (!json.nodes)
                assert(tdm_json_parse(&json, conversation, sizeof(conversation) - 1, 100, &err) == 0);
        if (tdm_template_new(&template, (const char *)data, size, &err)) {
                assert(err.message[0]);
                return 0;
        }
        input.continue_final = size % 8 == 0;
        r = tdm_template_render(template, &input, &limits, &result, &err);
        if (r == 0) {
                assert(tdm_utf8_is_valid(result.text, result.size));
                assert(result.n_spans > 0 && result.spans[result.n_spans - 1].end == result.size);
        } else {
                assert(err.message[0] && tdm_utf8_is_valid(err.message, strlen(err.message)));
        }
        tdm_template_result_deinit(&result);
        return 0;
}
