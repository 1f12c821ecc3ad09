/* Lists what the Vulkan device records for one model, on a device that computes nothing (tests/dry-device.h): so the
 * lists of two builds can be compared (compare-dispatches.py).
 *
 * usage: list-dispatches MODEL.gguf | SIZE TYPE TYPE2, with a size of random-model.h and types as GGUF numbers them */
#include "gpu-worker/vulkan/tests/dry-device.h"
#include "gpu-worker/vulkan/tests/random-model.h"
#include "gpu-worker/vulkan/tests/test-drive.h"
#include "tests/golden/runner.h"

#define N_IDS 1024u

static uint32_t ids[N_IDS];
static uint32_t at[DRIVE_TABLES]; /* the next position of each sequence */
static uint32_t n_positions;

/* n_seqs sequences with n rows each; logits of the last n_logits of each. */
static void list_step(struct drive *drive, uint32_t n_seqs, uint32_t n, uint32_t n_logits)
{
        struct drive_part parts[DRIVE_TABLES];

        for (uint32_t i = 0; i < n_seqs; i++) {
                if (at[i] + n > n_positions) {
                        drive_forget(drive, i);
                        at[i] = 0;
                }
                parts[i] = (struct drive_part){ .table = i,
                                                .ids = ids,
                                                .n_ids = N_IDS,
                                                .first = at[i],
                                                .n = n,
                                                .n_logits = n_logits,
                                                .sampling = { .top_p = 1, .repeat_penalty = 1, .n_top = 4 } };
                at[i] += n;
        }
        printf("== %u x %u rows, %u logits\n", n_seqs, n, n_logits);
        drive_step(drive, parts, n_seqs, NULL, NULL);
}

static void list_steps(struct drive *drive)
{
        static const uint32_t rows[] = { 1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 200 },
                              seqs[] = { 2, 3, 8, 16, 17 };

        for (unsigned i = 0; i < TDM_ARRAY_SIZE(rows); i++)
                list_step(drive, 1, rows[i], 1);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(seqs); i++)
                list_step(drive, seqs[i], 1, 1);
        list_step(drive, 3, 2, 2);
        list_step(drive, 1, 40, 40);
        list_step(drive, 1, 1, 0);
}

static void list_model(const struct runner_model *file, uint32_t max_rows, uint32_t run_blocks, enum drive_plan plan)
{
        const struct tdm_device_ops ops = dry_device_ops();
        const struct drive_options options = { .ops = { &ops, plan == DRIVE_SINGLE ? NULL : &tdm_host_device_ops },
                                               .plan = plan,
                                               .max_rows = max_rows,
                                               .max_positions = TDM_MIN(N_IDS, file->hp->n_ctx),
                                               .n_tables = DRIVE_TABLES,
                                               .keep_pages = true,
                                               .inputs = file->inputs,
                                               .run_blocks = run_blocks };
        struct drive *drive;

        memset(at, 0, sizeof(at));
        n_positions = options.max_positions;
        printf("=== steps of up to %u rows, runs of %u blocks, plan %d\n", max_rows, run_blocks, plan);
        drive = drive_new(file->weights, &options);
        dry_device_list(true);
        if (max_rows > 512)
                list_step(drive, 1, max_rows, 1);
        else
                list_steps(drive);
        dry_device_list(false);
        dry_device_list_all();
        drive_destroy(drive);
}

int main(int argc, char **argv)
{
        struct runner_model file = { 0 };
        struct tdm_hparams hp;

        if (argc == 4) {
                if (!random_model_hparams(argv[1], &hp))
                        return 1;
                hp.n_layers = TDM_MIN(hp.n_layers, hp.d_model > 2048 ? 1u : hp.d_model > 1024 ? 2u : 4u);
                memset(hp.layers + hp.n_layers, 0, sizeof(hp.layers) - hp.n_layers * sizeof(hp.layers[0]));
                hp.n_vocab = TDM_MIN(hp.n_vocab, 8192u);
                file.weights = random_model_new_mixed(&hp, (uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]),
                                                      (uint32_t)atoi(argv[2]));
                if (!file.weights)
                        return 1;
                file.hp = &tdm_weights_header(file.weights)->hparams;
        } else if (argc == 2) {
                runner_model_load(&file, argv[1]);
        } else {
                fprintf(stderr, "usage: list-dispatches MODEL.gguf | SIZE TYPE TYPE2\n");
                return 1;
        }
        for (uint32_t i = 0; i < N_IDS; i++)
                ids[i] = i * 7 % file.hp->n_vocab;
        list_model(&file, 256, 0, DRIVE_SINGLE);
        list_model(&file, 256, 1, DRIVE_SINGLE);
        list_model(&file, 256, 0, DRIVE_SPLIT);
        if (file.hp->n_ctx >= 600)
                list_model(&file, 600, 0, DRIVE_SINGLE);
        return 0;
}
