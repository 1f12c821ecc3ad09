/* What several commands need: parsing, connecting, reading input. */
#include "client-lib/cli/cli.h"

#include <fcntl.h>

bool cli_parse(struct cli *cli, const struct command *command, int argc, char **argv, void *options,
               const char **positional, unsigned max_positional, unsigned *ret_n_positional, int *ret_status)
{
        struct arg_group groups[] = {
                { command->args, command->n_args, options },
                { NULL, 0, options },
                { args_of_all, n_args_of_all, cli },
        };
        int k;

        groups[1].args = job_args_table(command->job_args, &groups[1].n_args);
        args_set_defaults(&groups[0]);
        k = args_parse(groups, TDM_ARRAY_SIZE(groups), argc, argv, positional, max_positional, ret_n_positional);
        term_set_colour((enum term_colour)cli->colour);
        if (k == ARGS_OK)
                return false;
        *ret_status = k == ARGS_HELP ? help_print(command) : k;
        return true;
}

bool cli_parse_one_argument(struct cli *cli, const struct command *command, int argc, char **argv, const char *what,
                            const char **ret, int *ret_status)
{
        unsigned n;

        if (cli_parse(cli, command, argc, argv, NULL, ret, 1, &n, ret_status))
                return false;
        if (n == 1)
                return true;
        *ret_status = args_usage_error(argv[0], "%s is missing", what);
        return false;
}

int complain_error(const struct tandem_error *err)
{
        return complain("%s: %s", err->name, name_users(err->message));
}

struct tandem *cli_connect(struct cli *cli)
{
        struct tandem *tandem;
        struct tandem_error err;

        if (tandem_connect(&tandem, cli->socket, &err) == TANDEM_OK)
                return tandem;
        complain_error(&err);
        return NULL;
}

bool cli_connect_anew(struct cli *cli, struct tandem **tandem, const struct tandem_error *err, bool *anew)
{
        struct tandem_error other; /* why there is no next one says less than what the last one said */
        struct tandem *next;

        if (err->code != TANDEM_E_DRAINING || *anew || tandem_connect(&next, cli->socket, &other) != TANDEM_OK)
                return false;
        *anew = true;
        tandem_close(*tandem);
        *tandem = next;
        return true;
}

void tandem_closep(struct tandem **tandem)
{
        tandem_close(*tandem);
}

void tandem_job_freep(struct tandem_job **job)
{
        tandem_job_free(*job);
}

bool read_all(const char *path, size_t max_bytes, struct buf *ret)
{
        bool is_stdin = strcmp(path, "-") == 0;
        const char *what = is_stdin ? "standard input" : path;
        _cleanup_(closep) int fd = -1;
        char chunk[16384];
        ssize_t n;

        if (!is_stdin) {
                fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
                if (fd < 0) {
                        complain("cannot open %s: %s", what, strerror(errno));
                        return false;
                }
        }
        for (;;) {
                n = read(is_stdin ? STDIN_FILENO : fd, chunk, sizeof(chunk));
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0) {
                        complain("cannot read %s: %s", what, strerror(errno));
                        return false;
                }
                if (n == 0)
                        break;
                if ((size_t)n > max_bytes - ret->size) {
                        complain("%s is longer than %zu MiB: no model takes that much text", what, max_bytes >> 20);
                        return false;
                }
                buf_add(ret, chunk, (size_t)n);
        }
        buf_add(ret, "", 0); /* an empty input is an empty text */
        if (ret->failed)
                complain("no memory for what %s holds", what);
        return !ret->failed;
}

static int answer_line(const char *line, size_t size, int (*answer)(const char *, size_t, char **))
{
        char *result;

        if (size > MAX_INPUT_BYTES)
                return complain("a line is longer than %zu MiB", MAX_INPUT_BYTES >> 20);
        if (size == 0)
                return EXIT_OK;
        if (answer(line, size, &result) < 0)
                return complain("no memory for a line of %zu bytes", size);
        out_puts(result);
        out_puts("\n");
        out_flush();
        free(result);
        return EXIT_OK;
}

int answer_lines(int (*answer)(const char *line, size_t size, char **ret))
{
        _cleanup_(freep) char *line = NULL;
        size_t capacity = 0;
        ssize_t size;
        int status;

        while ((size = getline(&line, &capacity, stdin)) > 0) {
                status = answer_line(line, (size_t)size - (line[size - 1] == '\n'), answer);
                if (status != EXIT_OK)
                        return status;
        }
        if (ferror(stdin))
                return complain("cannot read standard input: %s", strerror(errno));
        return out_finish();
}

bool cli_find_program(const char *name, char *ret, size_t size)
{
        char exe[4096], *slash;
        ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

        if (n <= 0)
                return false;
        exe[n] = '\0';
        slash = strrchr(exe, '/');
        *slash = '\0';
        snprintf(ret, size, "%s/%s", exe, name);
        if (access(ret, X_OK) == 0)
                return true;
        snprintf(ret, size, "%s/" TANDEM_PROGRAM_DIR "/%s", exe, name);
        return access(ret, X_OK) == 0;
}
