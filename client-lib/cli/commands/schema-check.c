/* tandem schema-check: whether Tandem's grammar of a JSON Schema takes an instance. It needs no daemon. */
#include "client-lib/cli/cli.h"
#include "engine/grammar/grammar.h"

extern const struct command command_schema_check;

static int run_schema_check(struct cli *cli, int argc, char **argv)
{
        unsigned n;
        int status;

        if (cli_parse(cli, &command_schema_check, argc, argv, NULL, NULL, 0, &n, &status))
                return status;
        return answer_lines(tdm_schema_check_line);
}

const struct command command_schema_check = {
        .name = "schema-check",
        .summary = "does a JSON Schema, as Tandem holds it, take a value?",
        .usage = "< LINES",
        .about =
                "Reads lines {\"id\": …, \"schema\": …, \"instance\": …} and prints a line {\"id\": …, \"verdict\": …, "
                "\"why\": …} for each. The verdict is `accept` where the grammar that the schema becomes has a text "
                "with "
                "this value, `reject` where it has none, and `unsupported` where Tandem does not hold the schema: why "
                "then "
                "names what is not held and its place. Members of an object may stand in any order in the instance. No "
                "daemon is needed.",
        .run = run_schema_check,
};
