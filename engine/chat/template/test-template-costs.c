/* What a step of a template costs: whatever it does, the processor's time for a step stays near that of a plain loop.
 * The bound of a rendering counts steps, so a step that did much would make it longer than the bound says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "engine/chat/template/template.h"

#define STEPS 400000u
#define LONG_BYTES 360000u
/* How often the time of a plain loop's step the dearest of them may take. */
#define TIMES_MAX 6.0
#define RUNS 3u

static double thread_seconds(void)
{
        struct timespec now;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Seconds for each step, the least of some runs. */
static double step_cost(const char *source)
{
        static const char input[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}";
        const struct tdm_template_limits limits = { .steps = STEPS, .bytes = (size_t)16 << 20 };
        _cleanup_(tdm_template_destroyp) struct tdm_template *template = NULL;
        struct tdm_json json = { 0 };
        const struct tm now = { .tm_year = 126, .tm_mday = 15, .tm_isdst = -1 };
        struct tdm_template_input in = { .json = &json, .bos = "<s>", .eos = "</s>", .now = &now };
        struct tdm_error err = { 0 };
        double best = 1e9;

        if (tdm_template_new(&template, source, strlen(source), &err) != 0)
                fail_msg("%.200s: %s", source, err.message);
        assert_int_equal(tdm_json_parse(&json, input, strlen(input), 64, &err), 0);
        for (unsigned i = 0; i < RUNS; i++) {
                struct tdm_template_result result;
                double seconds = thread_seconds();
                int r = tdm_template_render(template, &in, &limits, &result, &err);

                seconds = thread_seconds() - seconds;
                assert_true(r >= 0); /* it may end with an error: what counts is what it did until then */
                /* What takes less than a hundredth of what a rendering may take is no matter. */
                best = TDM_MIN(best, seconds / (double)TDM_MAX(result.steps, (uint64_t)STEPS / 100));
                tdm_template_result_deinit(&result);
        }
        tdm_json_deinit(&json);
        return best;
}

#define LOOP "{% for i in range(1000) %}{% for k in range(1000) %}"
#define END "{% endfor %}{% endfor %}"
#define LONG "{% set x = '@@' %}" LOOP
/* A text whose bytes are by turns the template's and the conversation's. */
#define MIXED "{% set x = (messages[0].content[0:1] ~ 'x') * 50000 %}" LOOP

static const struct costly {
        const char *unit; /* fills LONG_BYTES in the place of @@; with %u: and is numbered */
        const char *source;
} all[] = {
        { "ab", LONG "{% set y = x|wordcount %}" END },
        { "é ", LONG "{% set y = x|title %}" END },
        { "&", LONG "{% set y = x|escape %}" END },
        { "ab", LONG "{% set y = x|tojson %}" END },
        { "ab", LONG "{% set y = [x]|string %}" END },
        { "ab", LONG "{% set y = x|trim('q') %}" END },
        { "é", LONG "{% set y = x[100000] %}" END },
        { "ab", LONG "{% set y = x.isalnum() %}" END },
        { "a", LONG "{% set y = x.find('aab') %}" END },
        { "ab", LONG "{% set y = x.split('q') %}" END },
        { "ab", LONG "{% set y = x.replace('q', '') %}" END },
        { "ab", LONG "{% set y = x == x[1:] ~ 'a' %}" END },
        { "ab", LONG "{% set y = x ~ 'a' %}" END },
        { "ab", LONG "{% set y = 'q' in x %}" END },
        { "ab", LONG "{% set y = {}[x] %}" END },
        { "9", LONG "{% set y = [{}]|map(attribute=x)|list %}" END },
        { "%%%%", LONG "{% set y = x % () %}" END },
        { "%c", LONG "{% set y = strftime_now(x) %}" END },
        { "{% set v%u = 1 %}", "@@" LOOP "{{ absent }}" END },
        { "{% set v%u = 1 %}", "@@" },
        { "", "{% set t = ('ab',) * 20000 %}" LOOP "{% set y = 'x'.startswith(t) %}" END },
        { "", "{% set t = [''] * 20000 %}" LOOP "{% set y = t|join %}" END },
        { "", "{% set t = [1.1234567890123456] * 1000 %}" LOOP "{% set y = t|tojson %}" END },
        { "", LOOP "{% set y = 1e300|round(30) %}{% set y = '%.60f' % 1e300 %}" END },
        { "", MIXED "{% set y = x[99000:99001] %}" END },
        { "", MIXED "{% set y = x|tojson %}" END },
        { "", MIXED "{% set y = x ~ '' %}" END },
        { "", "{% set n = namespace(t=[1] * 10000) %}{% for i in range(80) %}{% set n.t = [n.t] %}{% endfor %}" LOOP
              "{% set y = n.t|tojson(indent='') %}" END },
};

static void unit_put(struct tdm_json_buffer *to, const char *unit, unsigned i)
{
        const char *number = strstr(unit, "%u");
        char line[16];

        tdm_json_write(to, unit, number ? (size_t)(number - unit) : strlen(unit));
        if (!number)
                return;
        tdm_json_write(to, line, (size_t)snprintf(line, sizeof(line), "%u", i));
        tdm_json_write(to, number + 2, strlen(number + 2));
}

static char *source_of(const struct costly *costly)
{
        const char *at = strstr(costly->source, "@@");
        struct tdm_json_buffer to = { 0 };

        tdm_json_write(&to, costly->source, at ? (size_t)(at - costly->source) : strlen(costly->source));
        for (unsigned i = 0; at && to.size < LONG_BYTES; i++)
                unit_put(&to, costly->unit, i);
        if (at)
                tdm_json_write(&to, at + 2, strlen(at + 2));
        tdm_json_write(&to, "", 1);
        assert_false(to.failed);
        return to.data;
}

/* Of a macro and of format(), names that are looked for among many. */
static char *names_source(const char *begin, const char *unit, const char *between, const char *call, const char *end)
{
        struct tdm_json_buffer to = { 0 };

        tdm_json_write(&to, begin, strlen(begin));
        for (unsigned i = 0; i < 1000; i++)
                unit_put(&to, unit, i);
        tdm_json_write(&to, between, strlen(between));
        for (unsigned i = 1000; i-- > 0;)
                unit_put(&to, call, i);
        tdm_json_write(&to, end, strlen(end));
        tdm_json_write(&to, "", 1);
        assert_false(to.failed);
        return to.data;
}

static double worst;

static void cost_check(const char *source, const char *name, double plain)
{
        double times = step_cost(source) / plain;

        worst = TDM_MAX(worst, times);
        if (times > TIMES_MAX)
                fail_msg("a step of this takes %.1f times what it takes of a plain loop: %s", times, name);
}

static void test_step_costs(void **state)
{
        double plain = step_cost(LOOP "{{ k }}" END);
        _cleanup_(freep) char *macro = names_source("{% macro m(p0=1", ",q%u=1", ") %}{% endmacro %}{% set d = {'p0':1",
                                                    ",'q%u':1", "} %}" LOOP "{{ m(**d) }}" END);
        _cleanup_(freep) char *format =
                names_source("{% set x = '", "{q0}", "' %}" LOOP "{% set y = x.format(p0=1", ",q%u=1", ") %}" END);

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(all); i++) {
                _cleanup_(freep) char *source = source_of(&all[i]);

                cost_check(source, all[i].source, plain);
        }
        cost_check(macro, "a macro with 1,000 named arguments", plain);
        cost_check(format, "a format with 1,000 named values", plain);
        print_message("the dearest step takes %.1f times what it takes of a plain loop, which is %.0f ns\n", worst,
                      plain * 1e9);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_step_costs) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
