/* How fast the host device runs a model in process: a prompt, then tokens one by one, then several sequences together;
 * and where the time goes, by kind of block. Each sequence has ids of its own, since equal rows would share their
 * experts. No daemon, no rings: the difference to `tandem bench` is what those cost.
 *
 * Where a prompt stops before the last layers, one that runs all of them is read in turns with it.
 *
 * With ROWS also steps of 1, 2, … ROWS rows of one sequence, each with logits, as one with guesses has them: in turns,
 * so that all meet the same machine; medians.
 *
 * usage: bench-forward MODEL.gguf [PROMPT_ROWS [DECODE_STEPS [BATCH [THREADS [PRECISION [ROWS]]]]]] */
#include <time.h>

#include "tests/golden/runner.h"

#define ROUNDS_OF_ALL_LAYERS 3u

/* Of the process: on a busy machine it says more than the wall. */
static uint64_t cpu_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static uint64_t begin_cpu_ns, best_step_ns;

static void begin(uint64_t *ret_begin_ns)
{
        best_step_ns = UINT64_MAX;
        begin_cpu_ns = cpu_ns();
        *ret_begin_ns = tdm_now_ns();
}

static void step(struct runner *runner, const struct runner_part *parts, uint32_t n_parts)
{
        uint64_t begin_ns = tdm_now_ns();

        runner_step(runner, parts, n_parts, NULL, NULL);
        best_step_ns = TDM_MIN(best_step_ns, tdm_now_ns() - begin_ns);
}

static void read_prompt(struct runner *runner, struct runner_part part, uint32_t n_prompt, uint32_t max_rows)
{
        for (uint32_t first = 0; first < n_prompt; first += part.n) {
                part.first = first;
                part.n = TDM_MIN(n_prompt - first, max_rows);
                part.n_logits = first + part.n == n_prompt;
                step(runner, &part, 1);
        }
}

static bool stops_early(const struct tdm_hparams *hp)
{
        return hp->layers[hp->n_layers - 1].kv_layer != hp->n_layers - 1;
}

static uint32_t argument(int argc, char **argv, int i, uint32_t otherwise)
{
        return i < argc ? (uint32_t)strtoul(argv[i], NULL, 10) : otherwise;
}

static void report(struct runner *runner, const char *what, uint32_t n_tokens, uint64_t begin_ns)
{
        double s = (double)(tdm_now_ns() - begin_ns) / 1e9;

        printf("%-22s %6u tokens %8.3f s %9.1f tokens/s, best step %8.3f ms, processor %8.3f ms a token |", what,
               n_tokens, s, n_tokens / s, (double)best_step_ns / 1e6,
               (double)(cpu_ns() - begin_cpu_ns) / 1e6 / n_tokens);
        for (int kind = 0; kind < TDM_N_BLOCK_KINDS; kind++)
                printf(" %s %.1f%%", tdm_block_kind_name((enum tdm_block_kind)kind),
                       100 * runner_block_seconds(runner, kind) / s);
        printf("\n");
        runner_reset_seconds(runner);
}

static int compare(const void *a, const void *b)
{
        return *(const double *)a < *(const double *)b ? -1 : 1;
}

static double median(double *of, uint32_t n)
{
        qsort(of, n, sizeof(*of), compare);
        return of[n / 2];
}

/* The rows stand at the same positions each time. */
static void steps_of_rows(struct runner *runner, struct runner_part part, uint32_t n_rounds, uint32_t most)
{
        size_t n = (size_t)n_rounds * (TDM_N_BLOCK_KINDS + 1);
        double *ms = malloc(most * n * sizeof(*ms));

        for (uint32_t round = 0; round < n_rounds; round++) {
                for (uint32_t rows = 1; rows <= most; rows++) {
                        double *of = ms + (rows - 1) * n + round;
                        uint64_t begin_ns;

                        part.n = part.n_logits = rows;
                        runner_reset_seconds(runner);
                        begin_ns = tdm_now_ns();
                        runner_step(runner, &part, 1, NULL, NULL);
                        of[0] = (double)(tdm_now_ns() - begin_ns) / 1e6;
                        for (int kind = 0; kind < TDM_N_BLOCK_KINDS; kind++)
                                of[(size_t)(kind + 1) * n_rounds] = 1e3 * runner_block_seconds(runner, kind);
                }
        }
        for (uint32_t rows = 1; rows <= most; rows++) {
                double *of = ms + (rows - 1) * n, least = of[0];

                for (uint32_t round = 1; round < n_rounds; round++)
                        least = TDM_MIN(least, of[round]);
                printf("%2u rows: %7.3f ms, best %7.3f |", rows, median(of, n_rounds), least);
                for (int kind = 0; kind < TDM_N_BLOCK_KINDS; kind++)
                        printf(" %s %.3f", tdm_block_kind_name((enum tdm_block_kind)kind),
                               median(of + (size_t)(kind + 1) * n_rounds, n_rounds));
                printf("\n");
        }
        free(ms);
}

int main(int argc, char **argv)
{
        uint32_t n_prompt = argument(argc, argv, 2, 128), n_steps = argument(argc, argv, 3, 16),
                 n_batch = argument(argc, argv, 4, 8), most_rows = argument(argc, argv, 7, 0);
        struct runner_options options = { .n_threads = argument(argc, argv, 5, 0), .max_rows = 512 };
        struct runner_part parts[RUNNER_TABLES];
        struct runner_model model;
        struct runner *runner;
        uint32_t *ids, *of_table, n_ids;
        uint64_t begin_ns;
        char what[64];

        if (argc < 2)
                return fprintf(stderr, "usage: bench-forward MODEL.gguf [PROMPT_ROWS [DECODE_STEPS [BATCH [THREADS "
                                       "[PRECISION [ROWS]]]]]]\n"),
                       2;
        if (argc > 6 && tdm_precision_from_name(argv[6]) >= 0)
                options.precision = (enum tdm_precision)tdm_precision_from_name(argv[6]);
        n_batch = TDM_MIN(TDM_MAX(n_batch, 1u), RUNNER_TABLES);
        n_ids = n_prompt + TDM_MAX(2 * n_steps, most_rows) + 2;
        options.max_positions = n_ids;
        runner_model_load(&model, argv[1]);
        ids = malloc((size_t)n_batch * n_ids * sizeof(*ids));
        runner = runner_new(&model, &options);
        printf("%s, %s, %s\n", argv[1], runner_describe(runner), tdm_precision_name(options.precision));
        for (uint32_t t = 0; t < n_batch; t++) {
                of_table = ids + (size_t)t * n_ids;
                for (uint32_t i = 0; i < n_ids; i++)
                        of_table[i] = 300 + (i * 7919 + t) % (model.hp->n_vocab - 300);
                parts[t] = (struct runner_part){
                        .table = t,
                        .ids = of_table,
                        .n_ids = n_ids,
                        .n = 1,
                        .n_logits = 1,
                        .sampling = { .temperature = 0.8f, .top_k = 40, .top_p = 1, .repeat_penalty = 1 }
                };
        }
        /* The first step of many rows touches memory for the first time. It is not measured. */
        read_prompt(runner, parts[0], n_prompt, options.max_rows);
        runner_forget(runner, 0);
        runner_reset_seconds(runner);

        for (uint32_t t = 0; t < n_batch; t++) {
                begin(&begin_ns);
                read_prompt(runner, parts[t], n_prompt, options.max_rows);
                if (t == 0)
                        report(runner, "prompt", n_prompt, begin_ns);
        }
        for (uint32_t i = 0; stops_early(model.hp) && i < 2 * ROUNDS_OF_ALL_LAYERS; i++) {
                struct runner_part part = parts[0];

                runner_forget(runner, 0);
                part.whole = i % 2 == 0;
                runner_reset_seconds(runner);
                begin(&begin_ns);
                read_prompt(runner, part, n_prompt, options.max_rows);
                report(runner, part.whole ? "prompt, all layers" : "prompt", n_prompt, begin_ns);
        }
        runner_reset_seconds(runner);
        for (uint32_t together = 1, base = n_prompt; together <= n_batch;
             together = n_batch > together ? n_batch : n_batch + 1, base += n_steps) {
                begin(&begin_ns);
                for (uint32_t i = 0; i < n_steps; i++) {
                        for (uint32_t t = 0; t < together; t++)
                                parts[t].first = t == 0 ? base + i : n_prompt + i;
                        step(runner, parts, together);
                }
                snprintf(what, sizeof(what), "decode, %u together", together);
                report(runner, what, together * n_steps, begin_ns);
        }
        if (most_rows > 0) {
                parts[0].first = n_prompt;
                steps_of_rows(runner, parts[0], TDM_MAX(n_steps, 1u), most_rows);
        }
        runner_destroy(runner);
        runner_model_unload(&model);
        free(ids);
        return 0;
}
