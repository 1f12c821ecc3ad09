/* How fast the vulkan device runs: a model file, or random weights of a known shape made in memory, driven in process
 * through engine/device/device.h as a worker drives it. Prints tokens/s, what that is in memory read, and the device's
 * time by kernel. Needs nothing but libc and libvulkan.so.1, so that it can be carried to a machine with a GPU.
 *
 * usage: bench-vulkan [-qr] [-b BLOCKS] [-c CONTEXT] [-n SEQUENCES] [-s SECONDS] [FILE.gguf | SIZE[:TYPE[:HEAD]]] …
 *   sizes 1b, 4b, 12b, 27b; types q4_0 (without any), q8_0, f16, … The output matrix has the same, or HEAD: files of
 * Q4_0 often have one of Q8_0, those of K-quants one of Q6_K.
 *   -q: without the profile; -b: blocks of a run() (0: all at once; else as a worker that looks up from its work every
 * this often); -c: decode alone behind this many tokens too; -n: these numbers together, up to 256, and not 1,8,32;
 * -r: steps of a few rows of one sequence, as guesses are checked, and nothing else: first whether they draw what
 * single rows do, then how long they take
 *
 * The ids of prompts are random. "GB/s of weights" counts every matrix once a step: of a mixture of experts it says
 * nothing, since a step reads only some of them. */
#include <strings.h>

#include "gpu-worker/vulkan/tests/random-model.h"
#include "gpu-worker/vulkan/tests/test-drive.h"
#include "gpu-worker/vulkan/vulkan.h"
#include "tests/golden/runner.h"

#define PROMPT 512u
#define MAX_BATCH 256u
#define FEW_BATCH 32u     /* up to here a step is bound by its weights: what it reads of them says something */
#define MANY_CONTEXT 640u /* positions of each of more than that: those of 1,024 of 256 of a 27B would need 130 GB */
/* decoded over and over; with a prompt an odd number of steps, so that every slot has every recording */
#define POSITIONS 62u
#define WARM_SECONDS 0.2 /* a GPU that was kept waiting takes as long to its full clock */

static double seconds_each = 2;
static uint32_t run_blocks, context;
static bool quiet, few_rows;
static uint32_t batches[16] = { 1, 8, 32 };
static unsigned n_batches; /* that were asked for; 0: the first three */

static double since(uint64_t begin_ns)
{
        return (double)(tdm_now_ns() - begin_ns) / 1e9;
}

static uint64_t matrix_bytes(const uint8_t *weights)
{
        const struct tdm_weights_header *header = tdm_weights_header(weights);
        const struct tdm_weights_tensor *t = (const struct tdm_weights_tensor *)(weights + header->tensors_offset);
        uint64_t sum = 0;

        for (uint32_t i = 0; i < header->n_tensors; i++) /* the embedding counts once: as the output matrix */
                sum += t[i].size_bytes;
        return sum;
}

static void print_profile(struct tdm_device *device, unsigned steps)
{
        struct tdm_vulkan_profile profile[TDM_VULKAN_PROFILE_MAX];
        unsigned n = tdm_vulkan_profile_take(device, profile);
        uint64_t total = 0;

        for (unsigned i = 0; i < n; i++)
                total += profile[i].ns;
        for (unsigned i = 0; i < n; i++)
                printf("      %-22s %6.1f a step %9.3f ms a step %8.2f us each %5.1f%%\n", profile[i].name,
                       (double)profile[i].n / steps, (double)profile[i].ns / 1e6 / steps,
                       (double)profile[i].ns / 1e3 / (double)profile[i].n,
                       100.0 * (double)profile[i].ns / (double)total);
        printf("      %-22s %26.3f ms a step\n", "all kernels", (double)total / 1e6 / steps);
}

struct bench {
        struct drive *drive;
        const uint8_t *weights, *inputs; /* inputs: rows of a file that travel in steps; NULL: none */
        uint32_t *ids, n_ids;
        uint64_t bytes;
        uint32_t at[MAX_BATCH]; /* next position of each sequence */
};

static void step_with(struct bench *b, uint32_t n_seqs, uint32_t n, uint32_t n_logits, struct tdm_result *results)
{
        struct drive_part parts[MAX_BATCH];

        for (uint32_t i = 0; i < n_seqs; i++) {
                parts[i] =
                        (struct drive_part){ .table = i,
                                             .ids = b->ids,
                                             .n_ids = b->n_ids,
                                             .first = b->at[i],
                                             .n = n,
                                             .n_logits = n_logits,
                                             .sampling = { .top_p = 1, .repeat_penalty = 1, .n_top = 4 * !!results } };
                b->at[i] += n;
        }
        drive_step(b->drive, parts, n_seqs, NULL, results);
}

static void step(struct bench *b, uint32_t n_seqs, uint32_t n)
{
        step_with(b, n_seqs, n, 1, NULL);
}

static void restart(struct bench *b, uint32_t n_seqs, uint32_t position)
{
        for (uint32_t i = 0; i < n_seqs; i++) {
                if (position == 0)
                        drive_forget(b->drive, i);
                b->at[i] = position;
        }
}

static void report(const struct bench *b, const char *what, uint32_t tokens_a_step, unsigned steps, double s)
{
        printf("   %-28s %9.1f tokens/s %9.3f ms a step", what, tokens_a_step * steps / s, 1e3 * s / steps);
        if (tokens_a_step <= FEW_BATCH)
                printf(" %8.1f GB/s of weights", (double)b->bytes * steps / s / 1e9);
        printf("\n");
        fflush(stdout);
}

/* Each sequence behind `position` tokens. */
static void begin_at(struct bench *b, uint32_t n_seqs, uint32_t position)
{
        uint32_t most = PROMPT / n_seqs;

        restart(b, n_seqs, 0);
        while (b->at[0] < position)
                step(b, n_seqs, TDM_MIN(position - b->at[0], most));
}

/* The same POSITIONS over and over, so that how much of the cache is read does not depend on how long is measured. n:
 * rows of a sequence in a step, each with its logits. */
static void decode_rows(struct bench *b, uint32_t n_seqs, uint32_t n, uint32_t position, const char *what)
{
        struct tdm_device *device = drive_device(b->drive, 0);
        struct tdm_vulkan_counters before, after;
        unsigned steps = 0, profiled = 0;
        uint64_t begin, warm = tdm_now_ns();
        double s = 0;

        for (unsigned i = 0; i < TDM_STEP_SLOTS || since(warm) < WARM_SECONDS; i++) { /* every slot's recordings */
                begin_at(b, n_seqs, position);
                for (unsigned k = 0; k < POSITIONS / n; k++)
                        step_with(b, n_seqs, n, n, NULL);
        }
        tdm_vulkan_counters(device, &before);
        while (s < seconds_each) {
                begin_at(b, n_seqs, position);
                begin = tdm_now_ns();
                for (unsigned i = 0; i < POSITIONS / n; i++)
                        step_with(b, n_seqs, n, n, NULL);
                s += since(begin);
                steps += POSITIONS / n;
        }
        tdm_vulkan_counters(device, &after);
        report(b, what, n_seqs * n, steps, s);
        if (after.allocations != before.allocations || after.pipelines != before.pipelines ||
            after.recordings != before.recordings)
                printf("      NOT STEADY: %llu allocations, %llu pipelines, %llu recordings\n",
                       (unsigned long long)(after.allocations - before.allocations),
                       (unsigned long long)(after.pipelines - before.pipelines),
                       (unsigned long long)(after.recordings - before.recordings));
        begin_at(b, n_seqs, position);
        if (quiet)
                return;
        tdm_vulkan_profile(device, true);
        for (; profiled < 8; profiled++)
                step_with(b, n_seqs, n, n, NULL);
        print_profile(device, profiled);
        tdm_vulkan_profile(device, false);
}

static void decode(struct bench *b, uint32_t n_seqs, uint32_t position, const char *what)
{
        decode_rows(b, n_seqs, 1, position, what);
}

static const uint32_t rows_of_steps[] = { 2, 3, 4, 5, 6, 8, 9 };

/* Whether rows of one sequence draw what each draws alone, and leave the keys and values that it leaves: over the ends
 * of pages and of a span. */
static bool rows_draw_alike(struct bench *b)
{
        enum { BEHIND = 230, N = 72 };
        static struct tdm_result alone[N], together[N];
        bool same = true;

        for (unsigned i = 0; i <= TDM_ARRAY_SIZE(rows_of_steps); i++) {
                struct tdm_result *to = i == 0 ? alone : together;
                uint32_t n = i == 0 ? 1 : rows_of_steps[i - 1];

                memset(to, 0, N * sizeof(*to));
                begin_at(b, 1, BEHIND);
                for (uint32_t at = 0; at < N; at += n)
                        step_with(b, 1, TDM_MIN(n, N - at), TDM_MIN(n, N - at), to + at);
                for (uint32_t at = 0; at < N && i > 0; at++) {
                        if (alone[at].token == together[at].token &&
                            memcmp(&alone[at].logprob, &together[at].logprob, sizeof(float)) == 0 &&
                            memcmp(alone[at].top, together[at].top, 4 * sizeof(alone[at].top[0])) == 0)
                                continue;
                        printf("   NOT EXACT: %u rows, position %u: token %u (%.9g), alone %u (%.9g)\n", n, BEHIND + at,
                               together[at].token, (double)together[at].logprob, alone[at].token,
                               (double)alone[at].logprob);
                        same = false;
                        break;
                }
        }
        if (same)
                printf("   exact: 2 to 9 rows of a sequence draw what single rows draw, positions %u to %u\n", BEHIND,
                       BEHIND + N - 1);
        return same;
}

static bool measure_rows(struct bench *b)
{
        char what[40];
        bool same = rows_draw_alike(b);

        decode(b, 1, 128, "decode, alone");
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(rows_of_steps); i++) {
                snprintf(what, sizeof(what), "%u rows of a sequence", rows_of_steps[i]);
                decode_rows(b, 1, rows_of_steps[i], 128, what);
        }
        decode(b, 1, 128, "decode, alone, again");
        return same;
}

static void prefill(struct bench *b)
{
        struct tdm_device *device = drive_device(b->drive, 0);
        unsigned steps = 0;
        uint64_t begin;

        begin = tdm_now_ns();
        for (unsigned i = 0; i < TDM_STEP_SLOTS || since(begin) < WARM_SECONDS; i++) { /* every slot's recordings */
                restart(b, 1, 0);
                step(b, 1, PROMPT);
        }
        begin = tdm_now_ns();
        do {
                restart(b, 1, 0);
                step(b, 1, PROMPT);
                steps++;
        } while (since(begin) < seconds_each);
        report(b, "prompt of 512", PROMPT, steps, since(begin));
        if (!quiet) {
                tdm_vulkan_profile(device, true);
                restart(b, 1, 0);
                step(b, 1, PROMPT);
                print_profile(device, 1);
                tdm_vulkan_profile(device, false);
        }
        restart(b, 1, 0);
}

static struct drive *begin_drive(struct bench *b, uint32_t n_tables, uint32_t max_positions)
{
        const struct drive_options options = { .ops = { &tdm_vulkan_device_ops },
                                               .n_tables = n_tables,
                                               .max_rows = PROMPT,
                                               .max_positions = max_positions,
                                               .inputs = b->inputs,
                                               .keep_pages = true,
                                               .run_blocks = run_blocks };
        uint64_t begin = tdm_now_ns();
        struct drive *drive = drive_new(b->weights, &options);

        printf("   load: %.2f s for %.2f GB (%.1f GB/s), kernels compiled\n", since(begin), (double)b->bytes / 1e9,
               (double)b->bytes / 1e9 / since(begin));
        printf("   %s\n", drive_describe(drive, 0));
        return b->drive = drive;
}

static int measure(struct bench *b, uint32_t n_vocab)
{
        uint32_t most = FEW_BATCH;
        uint64_t begin;
        bool same;

        b->n_ids = TDM_MAX(context, 1024u) + 1024;
        b->ids = malloc(b->n_ids * sizeof(*b->ids));
        for (uint32_t i = 0; i < b->n_ids; i++)
                b->ids[i] = 3 + i * 7919 % (n_vocab - 3);

        for (unsigned i = 0; i < n_batches; i++)
                most = TDM_MAX(most, batches[i]);
        begin_drive(b, few_rows ? 1 : most, most > FEW_BATCH ? MANY_CONTEXT : 1024);
        if (few_rows) {
                same = measure_rows(b);
                drive_destroy(b->drive);
                free(b->ids);
                return same ? 0 : 1;
        }
        for (unsigned i = 0; i < (n_batches ? n_batches : 3u); i++) {
                char what[40];

                snprintf(what, sizeof(what), batches[i] == 1 ? "decode, alone" : "decode, %u together", batches[i]);
                decode(b, batches[i], TDM_MIN(128u, PROMPT / batches[i]), what);
        }
        prefill(b);
        drive_destroy(b->drive);
        if (context) {
                char what[40];

                begin_drive(b, 1, b->n_ids);
                begin = tdm_now_ns();
                begin_at(b, 1, context / PROMPT * PROMPT);
                printf("   prompt of %u in steps of %u: %.1f tokens/s\n", b->at[0], PROMPT, b->at[0] / since(begin));
                if (!quiet) {
                        struct tdm_device *device = drive_device(b->drive, 0);

                        tdm_vulkan_profile(device, true);
                        step(b, 1, PROMPT);
                        printf("   the next %u of a prompt\n", PROMPT);
                        print_profile(device, 1);
                        tdm_vulkan_profile(device, false);
                }
                snprintf(what, sizeof(what), "decode, behind %u", b->at[0]);
                decode(b, 1, b->at[0], what);
                drive_destroy(b->drive);
        }
        free(b->ids);
        return 0;
}

static int bench_file(const char *path)
{
        struct runner_model model;
        struct bench b = {};
        int r;

        runner_model_load(&model, path);
        if (tdm_weights_header(model.weights)->recipe.pooling != TDM_POOLING_NONE) {
                fprintf(stderr, "%s makes vectors, no tokens\n", path);
                runner_model_unload(&model);
                return 2;
        }
        b.weights = model.weights;
        b.inputs = model.inputs;
        b.bytes = matrix_bytes(model.weights);
        printf("%s: %.2f GB of weights\n", path, (double)b.bytes / 1e9);
        r = measure(&b, model.hp->n_vocab);
        runner_model_unload(&model);
        return r;
}

/* UINT32_MAX: no such type. */
static uint32_t type_of_name(const char *name)
{
        for (uint32_t i = 0; i < 64; i++)
                if (tdm_type_info(i) && strcasecmp(tdm_type_info(i)->name, name) == 0)
                        return i;
        return UINT32_MAX;
}

static int bench(const char *arg)
{
        struct tdm_hparams hp;
        struct bench b = {};
        char size[16] = "", type_name[16] = "q4_0", head_name[16] = "";
        const char *dot = strrchr(arg, '.');
        uint32_t type, head;
        uint8_t *weights;
        uint64_t begin = tdm_now_ns();
        int r;

        if (dot && strcmp(dot, ".gguf") == 0)
                return bench_file(arg);
        sscanf(arg, "%15[^:]:%15[^:]:%15s", size, type_name, head_name);
        type = type_of_name(type_name);
        head = head_name[0] ? type_of_name(head_name) : type;
        if (type == UINT32_MAX || head == UINT32_MAX) {
                fprintf(stderr, "no type %s\n", type == UINT32_MAX ? type_name : head_name);
                return 2;
        }
        if (!random_model_hparams(size, &hp)) {
                fprintf(stderr, "no size %s: known are tiny, 1b, 4b, 12b, 27b, and files whose name ends in .gguf\n",
                        size);
                return 2;
        }
        weights = random_model_new(&hp, type, head);
        if (!weights)
                return 1;
        b.weights = weights;
        b.bytes = matrix_bytes(weights);
        printf("%s %s: %.2f GB of weights, made in %.1f s\n", size, tdm_type_info(type)->name, (double)b.bytes / 1e9,
               since(begin));
        r = measure(&b, hp.n_vocab);
        random_model_destroy(weights);
        return r;
}

/* "64,128" */
static bool take_batches(const char *list)
{
        char *end;

        for (n_batches = 0; n_batches < TDM_ARRAY_SIZE(batches); list = end + 1) {
                unsigned long n = strtoul(list, &end, 10);

                if (n < 1 || n > MAX_BATCH || (*end && *end != ','))
                        return false;
                batches[n_batches++] = (uint32_t)n;
                if (!*end)
                        return true;
        }
        return false;
}

int main(int argc, char **argv)
{
        static const char *const all[] = { "4b", "27b" };
        int c, r = 0;

        while ((c = getopt(argc, argv, "qrb:c:n:s:")) != -1) {
                if (c == 'q')
                        quiet = true;
                else if (c == 'r')
                        few_rows = true;
                else if (c == 'b')
                        run_blocks = (uint32_t)strtoul(optarg, NULL, 10);
                else if (c == 'c')
                        context = (uint32_t)strtoul(optarg, NULL, 10);
                else if (c == 's')
                        seconds_each = atof(optarg);
                else if (c != 'n' || !take_batches(optarg)) {
                        fprintf(stderr,
                                "usage: bench-vulkan [-qr] [-b BLOCKS] [-c CONTEXT] [-n SEQUENCES] [-s SECONDS] "
                                "[FILE.gguf | SIZE[:TYPE]] …\n");
                        return 2;
                }
        }
        if (optind == argc)
                for (unsigned i = 0; i < TDM_ARRAY_SIZE(all) && r == 0; i++)
                        r = bench(all[i]);
        for (int i = optind; i < argc && r == 0; i++)
                r = bench(argv[i]);
        return r;
}
