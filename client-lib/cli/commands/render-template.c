/* tandem render-template: what a chat template makes of a conversation. It needs no daemon. */
#include "client-lib/cli/cli.h"
#include "engine/chat/template/template.h"

extern const struct command command_render_template;

static int run_render_template(struct cli *cli, int argc, char **argv)
{
        unsigned n;
        int status;

        if (cli_parse(cli, &command_render_template, argc, argv, NULL, NULL, 0, &n, &status))
                return status;
        return answer_lines(tdm_template_render_line);
}

const struct command command_render_template = {
        .name = "render-template",
        .summary = "the prompt that a chat template makes of a conversation",
        .usage = "< LINES",
        .about =
                "Reads lines {\"id\": …, \"template\": …, \"bos\": …, \"eos\": …, \"now\": …, \"messages\": […], …} "
                "and prints a line {\"id\": …, \"text\": …} or {\"id\": …, \"error\": …} for each. Only template is "
                "needed. It is Jinja, as chat templates are written. bos and eos are the texts of these tokens, "
                "otherwise empty, and now is the local time that strftime_now() tells, such as 2026-01-15T12:34:56. "
                "Every other member is a variable of the template. With \"continue_final_message\": true the text ends "
                "where the last message's content ends. No daemon is needed.",
        .run = run_render_template,
};
