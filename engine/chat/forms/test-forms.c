/* Which form a template has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "engine/chat/forms/forms.h"
#include "engine/chat/forms/test-templates.h"

static char *describe(const char *source)
{
        _cleanup_(tdm_template_destroyp) struct tdm_template *template = NULL;
        _cleanup_(tdm_chat_form_destroyp) struct tdm_chat_form *form = NULL;
        struct tdm_error err = { 0 };
        char *text;

        if (tdm_template_new(&template, source, strlen(source), &err) != 0)
                fail_msg("%s", err.message);
        assert_int_equal(tdm_chat_form_derive(&form, template, "<s>", "</s>"), 0);
        assert_int_equal(tdm_chat_form_describe(form, &text), 0);
        return text;
}

/* "!name": no line of that name. */
static bool has_line(const char *text, const char *line)
{
        size_t size = strlen(line);

        for (const char *at = text; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
                if (line[0] == '!' && strncmp(at, line + 1, size - 1) == 0 && at[size - 1] == ':')
                        return false;
                if (line[0] != '!' && strncmp(at, line, size) == 0 && at[size] == '\n')
                        return true;
        }
        return line[0] == '!';
}

static void test_styles(void **state)
{
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(styles); i++) {
                _cleanup_(freep) char *text = describe(styles[i].template);

                for (unsigned k = 0; k < TDM_ARRAY_SIZE(styles[i].lines) && styles[i].lines[k]; k++)
                        if (!has_line(text, styles[i].lines[k]))
                                fail_msg("%s: '%s' is not so in\n%s", styles[i].name, styles[i].lines[k], text);
        }
}

static void test_prompt(void **state)
{
        static const struct {
                const char *end;
                enum tdm_form_prompt state;
        } ends[] = { { "<think>\n", TDM_FORM_PROMPT_OPEN },
                     { "<think>\n\n</think>\n\n", TDM_FORM_PROMPT_CLOSED },
                     { "</think>", TDM_FORM_PROMPT_CLOSED },
                     { "<think>\nHm", TDM_FORM_PROMPT_SILENT },
                     { "", TDM_FORM_PROMPT_SILENT } };
        struct tdm_chat_form form = { .think_begin = (char[]){ "<think>" }, .think_end = (char[]){ "</think>" } };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(ends); i++)
                assert_int_equal(tdm_chat_form_prompt(&form, ends[i].end, strlen(ends[i].end)), ends[i].state);
        form.think_begin = NULL;
        assert_int_equal(tdm_chat_form_prompt(&form, "<think>", 7), TDM_FORM_PROMPT_SILENT);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_styles), cmocka_unit_test(test_prompt) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
