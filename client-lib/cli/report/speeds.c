/* See report.h. The speeds are those of `tandem bench` and of llama.cpp's llama-bench, each run as a program of its own
 * and in turns, so that a machine that becomes slower meanwhile is slower for both. */
#include "client-lib/cli/report/report.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

enum { MAX_OUTPUT = 1 << 20, PAIRS = 3, PROMPT = 128, TOKENS = 32 };

/* Collects what a program prints on standard output, and drops its messages. Returns its exit status, or -errno;
 * -EINTR: Ctrl-C. */
static int capture_output(const char *path, char *const *argv, struct buf *ret)
{
        posix_spawn_file_actions_t actions;
        int fds[2], status, r;
        pid_t pid;

        if (pipe2(fds, O_CLOEXEC) != 0)
                return -errno;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
        posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
        r = posix_spawn(&pid, path, &actions, NULL, argv, environ);
        posix_spawn_file_actions_destroy(&actions);
        close(fds[1]);
        if (r != 0) {
                close(fds[0]);
                return -r;
        }
        signal_set_mode(SIGNAL_ANSWER);
        for (;;) {
                struct pollfd wait[] = { { .fd = fds[0], .events = POLLIN }, { .fd = signal_fd(), .events = POLLIN } };
                char data[4096];
                ssize_t n;

                (void)poll(wait, TDM_ARRAY_SIZE(wait), -1);
                if (signal_take()) {
                        (void)kill(pid, SIGTERM);
                        r = -EINTR;
                        break;
                }
                if (!wait[0].revents)
                        continue;
                n = read(fds[0], data, sizeof(data));
                if (n <= 0)
                        break;
                if (ret->size < MAX_OUTPUT)
                        buf_add(ret, data, (size_t)n);
        }
        signal_set_mode(SIGNAL_EXIT);
        close(fds[0]);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
        if (r != 0)
                return r;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

struct rate {
        double prefill, decode;
};

/* The rate of a batch, as `tandem bench --json` says it. */
static int own_rate(struct cli *cli, const char *model, const char *batch, json_t **ret)
{
        _cleanup_(buf_freep) struct buf out = { 0 };
        char prompt[16], tokens[16], *argv[16];
        int n = 0, r;

        snprintf(prompt, sizeof(prompt), "%d", PROMPT);
        snprintf(tokens, sizeof(tokens), "%d", TOKENS);
        argv[n++] = (char *)(uintptr_t) "tandem";
        if (cli->socket) {
                argv[n++] = (char *)(uintptr_t) "--socket";
                argv[n++] = (char *)(uintptr_t)cli->socket;
        }
        argv[n++] = (char *)(uintptr_t) "bench";
        if (model) {
                argv[n++] = (char *)(uintptr_t) "-m";
                argv[n++] = (char *)(uintptr_t)model;
        }
        argv[n++] = (char *)(uintptr_t) "-p";
        argv[n++] = prompt;
        argv[n++] = (char *)(uintptr_t) "-n";
        argv[n++] = tokens;
        argv[n++] = (char *)(uintptr_t) "-b";
        argv[n++] = (char *)(uintptr_t)batch;
        argv[n++] = (char *)(uintptr_t) "--json";
        argv[n] = NULL;
        r = capture_output("/proc/self/exe", argv, &out);
        *ret = r == 0 ? json_loadb(out.data, out.size, 0, NULL) : NULL;
        return r;
}

/* The rates of one job. llama-bench's JSON has an entry for the prompt and one for generation. */
static int llama_rate(const char *program, const char *file, struct rate *ret)
{
        _cleanup_(buf_freep) struct buf out = { 0 };
        char *argv[] = { (char *)(uintptr_t) "llama-bench", (char *)(uintptr_t) "-m",   (char *)(uintptr_t)file,
                         (char *)(uintptr_t) "-p",          (char *)(uintptr_t) "128",  (char *)(uintptr_t) "-n",
                         (char *)(uintptr_t) "32",          (char *)(uintptr_t) "-r",   (char *)(uintptr_t) "1",
                         (char *)(uintptr_t) "-o",          (char *)(uintptr_t) "json", NULL };
        int r = capture_output(program, argv, &out);
        json_t *all = r == 0 ? json_loadb(out.data, out.size, 0, NULL) : NULL;

        *ret = (struct rate){ 0 };
        for (size_t i = 0; i < json_array_size(all); i++) {
                const json_t *row = json_array_get(all, i);
                double speed = json_number_value(json_object_get(row, "avg_ts"));

                if (json_integer_value(json_object_get(row, "n_gen")) > 0)
                        ret->decode = speed;
                else
                        ret->prefill = speed;
        }
        json_decref(all);
        return r;
}

/* A program in $PATH. */
static bool find_in_path(const char *name, char *ret, size_t size)
{
        const char *path = getenv("PATH"), *end;

        for (; path && *path; path = *end ? end + 1 : end) {
                end = strchrnul(path, ':');
                snprintf(ret, size, "%.*s/%s", (int)TDM_MIN(end - path, 3000), path, name);
                if (*path == '/' && access(ret, X_OK) == 0)
                        return true;
        }
        return false;
}

static int measure_pairs(struct buf *to, struct cli *cli, const char *model, const char *program, const char *file)
{
        buf_printf(to, "\nIn turns with llama-bench on the same file, one job, tokens/s:\n\n"
                       "| prompt: Tandem | llama.cpp | ratio | generation: Tandem | llama.cpp | ratio |\n"
                       "|---|---|---|---|---|---|\n");
        for (int i = 0; i < PAIRS; i++) {
                struct rate theirs = { 0 };
                json_t *ours, *row;
                double prefill, decode;
                int r;

                progress_show("speeds, pair %d of %d…", i + 1, PAIRS);
                r = own_rate(cli, model, "1", &ours);
                if (r == 0)
                        r = llama_rate(program, file, &theirs);
                row = json_array_get(json_object_get(ours, "results"), 0);
                prefill = json_number_value(json_object_get(row, "prefill_tps"));
                decode = json_number_value(json_object_get(row, "decode_tps_stream"));
                json_decref(ours);
                if (r == -EINTR)
                        return EXIT_INTERRUPTED;
                if (r != 0 || theirs.prefill <= 0 || theirs.decode <= 0) {
                        buf_printf(to, "\nOne of the two failed (status %d).\n", r);
                        break;
                }
                buf_printf(to, "| %.1f | %.1f | %.2f | %.1f | %.1f | %.2f |\n", prefill, theirs.prefill,
                           prefill / theirs.prefill, decode, theirs.decode, decode / theirs.decode);
        }
        return EXIT_OK;
}

int report_speeds(struct buf *to, struct cli *cli, const char *model, const char *file)
{
        char program[3100];
        json_t *ours, *rows;
        int r;

        progress_show("speeds…");
        r = own_rate(cli, model, "1,8,32", &ours);
        if (r == -EINTR)
                return EXIT_INTERRUPTED;
        rows = json_object_get(ours, "results");
        if (json_array_size(rows) == 0) {
                buf_printf(to, "Not measured: `tandem bench` failed (status %d); run it to see why.\n", r);
                json_decref(ours);
                return EXIT_OK;
        }
        buf_printf(to,
                   "Prompts of %d tokens, %d generated, tokens/s:\n\n| jobs | prompt | each | together | first token, "
                   "ms |\n|---|---|---|---|---|\n",
                   PROMPT, TOKENS);
        for (size_t i = 0; i < json_array_size(rows); i++) {
                const json_t *row = json_array_get(rows, i);

                buf_printf(to, "| %" PRIu64 " | %.1f | %.1f | %.1f | %.0f |\n",
                           (uint64_t)json_integer_value(json_object_get(row, "batch")),
                           json_number_value(json_object_get(row, "prefill_tps")),
                           json_number_value(json_object_get(row, "decode_tps_stream")),
                           json_number_value(json_object_get(row, "decode_tps")),
                           json_number_value(json_object_get(row, "ttft_ms")));
        }
        json_decref(ours);
        if (!find_in_path("llama-bench", program, sizeof(program)))
                buf_puts(to, "\nNot compared with llama.cpp: there is no llama-bench in $PATH.\n");
        else if (!file)
                buf_puts(to, "\nNot compared with llama.cpp: --llama FILE says which file the model is.\n");
        else
                return measure_pairs(to, cli, model, program, file);
        return EXIT_OK;
}

void report_gpu_memory(struct buf *to)
{
        _cleanup_(buf_freep) struct buf out = { 0 };
        char program[4300],
                *argv[] = { (char *)(uintptr_t) "tandem-gpu-worker", (char *)(uintptr_t) "--measure", NULL };

        progress_show("the GPU's memory…");
        if (!cli_find_program("tandem-gpu-worker", program, sizeof(program)))
                buf_puts(to, "- GPU: the GPU worker's program is missing\n");
        else if (capture_output(program, argv, &out) < 0 || out.size == 0 || out.failed)
                buf_puts(to, "- GPU: it could not be measured\n");
        else {
                const char *end = memchr(out.data, '\n', out.size);

                buf_printf(to, "- GPU: %.*s\n", (int)(end ? end - out.data : (ptrdiff_t)out.size), out.data);
        }
}
