/* tandem render-template: what a chat template makes of a conversation. It needs no daemon. */
#include "client-lib/cli/cli.h"
#include "engine/chat/template/template.h"

extern const struct command command_render_template;

static int line_print(const char *line, size_t size)
{
        char *result;

        if (tdm_template_render_line(line, size, &result) < 0)
                return complain("no memory for a line of %zu bytes", size);
        out_puts(result);
        out_puts("\n");
        free(result);
        return EXIT_OK;
}

static int render_template_run(struct cli *cli, int argc, char **argv)
{
        _cleanup_(freep) char *line = NULL;
        size_t capacity = 0;
        ssize_t size;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_render_template, argc, argv, NULL, NULL, 0, &n, &status))
                return status;
        while ((size = getline(&line, &capacity, stdin)) > 0) {
                if (line[size - 1] == '\n')
                        size--;
                if ((size_t)size > MAX_INPUT_BYTES)
                        return complain("a line is longer than %zu MiB", MAX_INPUT_BYTES >> 20);
                status = size > 0 ? line_print(line, (size_t)size) : EXIT_OK;
                if (status == EXIT_OK)
                        status = out_finish();
                if (status != EXIT_OK)
                        return status;
        }
        if (ferror(stdin))
                return complain("cannot read standard input: %s", strerror(errno));
        return EXIT_OK;
}

const struct command command_render_template = {
        .name = "render-template",
        .summary = "the prompt that a chat template makes of a conversation",
        .usage = "< LINES",
        .about =
                "Reads lines {\"id\": …, \"template\": …, \"bos\": …, \"eos\": …, \"now\": …, \"messages\": […], …} "
                "and "
                "prints a line {\"id\": …, \"text\": …} or {\"id\": …, \"error\": …} for each. The template is Jinja, "
                "as "
                "chat templates are written. bos and eos are the texts of these tokens, and now is the local time that "
                "strftime_now() tells, such as 2026-01-15T12:34:56. Every other member is a variable of the template. "
                "With \"continue_final_message\": true the text ends where the last message's content ends. No daemon "
                "is "
                "needed.",
        .run = render_template_run,
};
