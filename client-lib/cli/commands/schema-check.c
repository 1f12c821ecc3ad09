/* tandem schema-check: whether Tandem's grammar of a JSON Schema takes an instance. It needs no daemon. */
#include "client-lib/cli/cli.h"
#include "engine/grammar/grammar.h"

extern const struct command command_schema_check;

static int check_line(const char *line, size_t size)
{
        char *result;

        if (tdm_schema_check_line(line, size, &result) < 0)
                return complain("no memory for a line of %zu bytes", size);
        out_puts(result);
        out_puts("\n");
        free(result);
        return EXIT_OK;
}

static int run_schema_check(struct cli *cli, int argc, char **argv)
{
        _cleanup_(freep) char *line = NULL;
        size_t capacity = 0;
        ssize_t size;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_schema_check, argc, argv, NULL, NULL, 0, &n, &status))
                return status;
        while ((size = getline(&line, &capacity, stdin)) > 0) {
                if (line[size - 1] == '\n')
                        size--;
                if ((size_t)size > MAX_INPUT_BYTES)
                        return complain("a line is longer than %zu MiB", MAX_INPUT_BYTES >> 20);
                status = size > 0 ? check_line(line, (size_t)size) : EXIT_OK;
                if (status != EXIT_OK)
                        return status;
        }
        if (ferror(stdin))
                return complain("cannot read standard input: %s", strerror(errno));
        return out_finish();
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
