/* Runs a prompt with pictures on the host device, from RGB bytes to log-probabilities, and writes for each position a
 * line "POSITION BITS ID LOGPROB ID LOGPROB …", the likeliest first: exact numbers, and a sum of the hidden row's bits.
 *
 * usage: golden-picture TEXT.gguf MMPROJ.gguf PROMPT [--precision P] [--kv f16|f32|q8_0] [--threads N] [--split N]
 *                       [--chunk N] [--company N]
 * PROMPT: a line "IDS N" and the ids, -1 for each row of a picture; then for each picture a line "FILE WIDTH HEIGHT" of
 * its RGB bytes. --split: attention runs on a second device with N threads. --company: so many other sequences are in
 * each step. They read the same ids in other chunks, with other pictures in the places of these. */
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>

#include "engine/vision/tower.h"
#include "tests/golden/runner.h"

#define MAX_IDS 1024u
#define MAX_PICTURES 4u
#define MAX_ROWS 2048u

struct prompt {
        uint32_t ids[MAX_IDS], n_ids;
        struct runner_picture pictures[MAX_PICTURES];
        uint32_t n_pictures;
};

struct reader {
        struct prompt prompt; /* its ids are everybody's, its pictures its own */
        uint32_t at, chunk;
};

static _Noreturn void fail(const char *what, const struct tdm_error *err)
{
        fprintf(stderr, "%s: %s\n", what, err ? err->message : "cannot be read");
        exit(1);
}

static uint8_t *read_rgb(const char *path, struct tdm_image_size size)
{
        size_t n = (size_t)size.width * size.height * 3;
        uint8_t *bytes = malloc(n + 1);
        FILE *f = fopen(path, "re");

        if (!f || !bytes || fread(bytes, 1, n + 1, f) != n)
                fail(path, NULL);
        fclose(f);
        return bytes;
}

/* Places of pictures are where ids are -1: n_rows of them each. */
static void prompt_read(struct prompt *p, struct tdm_tower *tower, const char *path)
{
        uint32_t n_rows = tdm_tower_n_rows(tower), n_out = tdm_tower_projector(tower)->n_out;
        struct tdm_error err = {};
        FILE *f = fopen(path, "re");

        if (!f || fscanf(f, "IDS %u", &p->n_ids) != 1 || p->n_ids < 1 || p->n_ids > MAX_IDS)
                fail(path, NULL);
        for (uint32_t i = 0; i < p->n_ids; i++) {
                int id;

                if (fscanf(f, "%d", &id) != 1)
                        fail(path, NULL);
                p->ids[i] = id < 0 ? 0 : (uint32_t)id;
                if (id >= 0 || (p->n_pictures > 0 && i < p->pictures[p->n_pictures - 1].first + n_rows))
                        continue;
                if (p->n_pictures == MAX_PICTURES)
                        fail(path, NULL);
                p->pictures[p->n_pictures++] = (struct runner_picture){ .first = i, .n = n_rows };
        }
        for (uint32_t i = 0; i < p->n_pictures; i++) {
                float *rows = calloc((size_t)n_rows * n_out, sizeof(*rows));
                struct tdm_image_size size;
                char picture[4096];
                uint8_t *rgb;

                if (!rows || fscanf(f, "%4095s %u %u", picture, &size.width, &size.height) != 3)
                        fail(path, NULL);
                rgb = read_rgb(picture, size);
                if (tdm_tower_run(tower, rgb, size, rows, &err) != 0)
                        fail(picture, &err);
                free(rgb);
                p->pictures[i].rows = rows;
        }
        fclose(f);
}

static void read_pictures(struct prompt *prompt, const char *mmproj, const char *path, enum tdm_precision precision,
                          const struct tdm_hparams *hp)
{
        struct tdm_tower_options options = { .act = precision == TDM_PRECISION_F32 ? TDM_ACT_F32 : TDM_ACT_I8,
                                             .kv = precision == TDM_PRECISION_F32 ? TDM_KV_F32 : TDM_KV_F16 };
        const struct tdm_kernels *kernels;
        struct tdm_pool *pool = NULL;
        struct tdm_gguf *gguf = NULL;
        struct tdm_tower *tower = NULL;
        struct tdm_error err = {};
        int fd = open(mmproj, O_RDONLY | O_CLOEXEC);

        kernels = tdm_kernels_choose(&err);
        if (fd < 0 || !kernels || tdm_pool_new(&pool, 2, NULL) != 0 || tdm_gguf_open(&gguf, fd, mmproj, &err) != 0 ||
            tdm_tower_new(&tower, gguf, kernels, pool, &options, &err) != 0 ||
            tdm_projector_check_text(tdm_tower_projector(tower), "gemma3", hp->d_model, &err) != 0)
                fail(mmproj, &err);
        prompt_read(prompt, tower, path);
        tdm_tower_destroy(tower);
        tdm_gguf_close(gguf);
        tdm_pool_destroy(pool);
        close(fd);
}

/* The next rows of a sequence, `chunk` of them where no picture is cut. One that does not fit behind others waits. */
static struct runner_part part_of(const struct reader *reader, uint32_t table)
{
        const struct prompt *p = &reader->prompt;
        uint32_t end = TDM_MIN(reader->at + reader->chunk, p->n_ids);

        for (uint32_t i = 0; i < p->n_pictures; i++) {
                const struct runner_picture *picture = &p->pictures[i];

                if (picture->first < end && end < picture->first + picture->n)
                        end = picture->first > reader->at ? picture->first : picture->first + picture->n;
        }
        return (struct runner_part){ .table = table,
                                     .ids = p->ids,
                                     .n_ids = p->n_ids,
                                     .first = reader->at,
                                     .n = end - reader->at,
                                     .n_logits = table == 0 ? end - reader->at : 1,
                                     .sampling = { .top_p = 1, .repeat_penalty = 1, .n_top = TDM_MAX_TOP },
                                     .pictures = p->pictures,
                                     .n_pictures = p->n_pictures };
}

/* Other pictures at the places of these. */
static void reader_init(struct reader *reader, const struct prompt *prompt, uint32_t number, uint32_t d_model)
{
        *reader = (struct reader){ .prompt = *prompt, .chunk = 1 + 4 * number };
        for (uint32_t i = 0; i < prompt->n_pictures; i++) {
                uint32_t n = prompt->pictures[i].n * d_model;
                float *rows = calloc(n, sizeof(*rows));

                if (!rows)
                        abort();
                for (uint32_t k = 0; k < n; k++)
                        rows[k] = prompt->pictures[i].rows[k] * (number % 2 ? -1.0f : 0.5f);
                reader->prompt.pictures[i].rows = rows;
        }
}

static void write_rows(const struct runner_part *part, const float *hidden, uint32_t width,
                       const struct tdm_result *results)
{
        for (uint32_t i = 0; i < part->n; i++) {
                const uint8_t *bytes = (const uint8_t *)(hidden + (size_t)i * width);
                uint64_t bits = UINT64_C(14695981039346656037);

                for (size_t k = 0; k < width * sizeof(float); k++)
                        bits = (bits ^ bytes[k]) * UINT64_C(1099511628211);
                printf("%u %016" PRIx64, part->first + i, bits);
                for (uint32_t k = 0; k < results[i].n_top; k++)
                        printf(" %u %a", results[i].top[k].id, (double)results[i].top[k].logprob);
                printf("\n");
        }
}

/* Reader 0 is the one that is asked for; the others begin again when they are through. */
static void read_all(struct runner *runner, struct reader *readers, uint32_t n_readers, uint32_t width)
{
        struct tdm_result *results = calloc(TDM_MAX_STEP_LOGITS, sizeof(*results));
        float *hidden = calloc((size_t)MAX_ROWS * width, sizeof(*hidden));

        if (!results || !hidden)
                abort();
        for (uint32_t step = 0; readers[0].at < readers[0].prompt.n_ids; step++) {
                struct runner_part parts[RUNNER_TABLES];
                uint32_t at = 0, row = 0, logits = 0;

                for (uint32_t i = 0; i < n_readers; i++) { /* everywhere in turn */
                        uint32_t table = (i + step) % n_readers;

                        parts[i] = part_of(&readers[table], table);
                        if (table == 0)
                                at = i;
                }
                for (uint32_t i = 0; i < at; i++) {
                        row += parts[i].n;
                        logits += parts[i].n_logits;
                }
                runner_step(runner, parts, n_readers, hidden, results);
                write_rows(&parts[at], hidden + (size_t)row * width, width, results + logits);
                for (uint32_t i = 0; i < n_readers; i++) {
                        struct reader *reader = &readers[parts[i].table];

                        reader->at += parts[i].n;
                        if (parts[i].table == 0 || reader->at < reader->prompt.n_ids)
                                continue;
                        runner_forget(runner, parts[i].table);
                        reader->at = 0;
                }
        }
        free(results);
        free(hidden);
}

int main(int argc, char **argv)
{
        static const struct option options[] = {
                { "precision", required_argument, NULL, 'p' },
                { "kv", required_argument, NULL, 'k' },
                { "threads", required_argument, NULL, 't' },
                { "split", required_argument, NULL, 's' },
                { "chunk", required_argument, NULL, 'c' },
                { "company", required_argument, NULL, 'o' },
                {},
        };
        struct runner_options o = { .max_rows = MAX_ROWS, .max_pictures = MAX_PICTURES * RUNNER_TABLES };
        static struct reader readers[RUNNER_TABLES];
        uint32_t chunk = 400, n_readers = 1;
        struct runner_model model;
        struct runner *runner;
        int c;

        while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
                int number = c == 'p' ? tdm_precision_from_name(optarg) :
                             c == 'k' ? tdm_kv_type_from_name(optarg) :
                                        atoi(optarg);

                if (number < 0)
                        return 2;
                if (c == 'p')
                        o.precision = (enum tdm_precision)number;
                else if (c == 'k')
                        o.kv_type = (enum tdm_kv_type)number;
                else if (c == 't')
                        o.n_threads = (unsigned)number;
                else if (c == 's')
                        o.split_threads = (unsigned)number;
                else if (c == 'c')
                        chunk = TDM_MIN(TDM_MAX((uint32_t)number, 1u), 400u);
                else
                        n_readers = TDM_MIN(1 + (uint32_t)number, RUNNER_TABLES);
        }
        if (argc - optind != 3)
                return 2;
        o.cpu = getenv("TANDEM_CPU");
        o.max_positions = MAX_IDS;
        runner_model_load(&model, argv[optind]);
        read_pictures(&readers[0].prompt, argv[optind + 1], argv[optind + 2], o.precision, model.hp);
        readers[0].chunk = chunk;
        for (uint32_t i = 1; i < n_readers; i++)
                reader_init(&readers[i], &readers[0].prompt, i, model.hp->d_model);
        runner = runner_new(&model, &o);
        read_all(runner, readers, n_readers, model.hp->residual_width);
        runner_destroy(runner);
        runner_model_unload(&model);
        for (uint32_t i = 0; i < n_readers; i++)
                for (uint32_t k = 0; k < readers[i].prompt.n_pictures; k++)
                        free((float *)readers[i].prompt.pictures[k].rows);
        return fflush(stdout) != 0;
}
