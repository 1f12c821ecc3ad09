/* tandem embed: texts as vectors. */
#include "client-lib/cli/cli.h"

#define MAX_TEXTS 4096u

struct embed_options {
        const char *model;
        uint32_t dimensions;
};

struct embedding {
        const struct embed_options *given;
        struct buf line;
};

extern const struct command command_embed;

static int start_embedding(void *userdata, struct tandem *tandem, const struct text *text,
                           const struct tandem_callbacks *callbacks, void *progress, struct tandem_job **ret,
                           struct tandem_error *err)
{
        const struct embed_options *given = ((const struct embedding *)userdata)->given;
        struct tandem_embed_options options;

        tandem_embed_options_init(&options);
        options.model = cli_model(tandem, given->model);
        options.dimensions = given->dimensions;
        options.text = text->data;
        options.text_size = text->size;
        return tandem_embed(tandem, &options, callbacks, progress, ret, err);
}

static void take_embedding(void *userdata, size_t index, const struct tandem_job *job)
{
        struct buf *b = &((struct embedding *)userdata)->line;
        size_t n;
        const float *v = tandem_job_vector(job, &n);

        buf_puts(b, index == 0 ? "[[" : ",[");
        for (size_t i = 0; i < n; i++)
                buf_printf(b, "%s%.9g", i ? "," : "", (double)v[i]);
        buf_puts(b, "]");
}

static void embedding_deinit(struct embedding *embedding)
{
        buf_freep(&embedding->line);
}

static int run_embed(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(texts_free) struct texts texts = { 0 };
        _cleanup_(buf_freep) struct buf input = { 0 };
        struct embed_options given = { 0 };
        _cleanup_(embedding_deinit) struct embedding embedding = { .given = &given };
        const char *told[MAX_TEXTS];
        bool fits = true;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_embed, argc, argv, &given, told, MAX_TEXTS, &n, &status))
                return status;
        if (n == 0 && term_stdin_tty)
                return args_usage_error(argv[0], "there is no TEXT (give texts, or - to type one)");
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (n == 0 || (n == 1 && strcmp(told[0], "-") == 0)) {
                if (!read_all("-", MAX_INPUT_BYTES, &input))
                        return EXIT_FAILED;
                fits = texts_add(&texts, input.data ? input.data : "", input.size);
                n = 0;
        }
        for (unsigned i = 0; i < n && fits; i++)
                fits = texts_add(&texts, told[i], strlen(told[i]));
        if (!fits)
                return EXIT_FAILED;
        status = texts_ask(cli, &tandem, &texts,
                           &(struct text_jobs){ given.model, &embedding, start_embedding, take_embedding });
        if (status != 0)
                return status;
        buf_puts(&embedding.line, "]\n");
        if (embedding.line.failed)
                return complain("no memory for the vectors");
        out_write(embedding.line.data, embedding.line.size);
        return out_finish();
}

static const struct arg args[] = {
        ARG_MODEL(struct embed_options, model),
        {
                .name = "dimensions",
                .range = { .type = TDM_VALUE_U32, .min = 1, .max = 65536 },
                .at = offsetof(struct embed_options, dimensions),
                .value = "N",
                .brief = "only the first N numbers, made a vector of length 1 again",
                .more = "for models that were trained so",
        },
};

const struct command command_embed = {
        .name = "embed",
        .summary = "texts as vectors",
        .usage = "[-m MODEL] [--dimensions N] [TEXT...|-]",
        .about = "Prints the vectors of the TEXTs as a JSON array of arrays of numbers, in their order, each of length "
                 "1. The model must be an embedding model: one whose file names a pooling. What such a model was "
                 "trained to have before a query or a document belongs into the TEXT. A vector depends on its text and "
                 "the model alone.",
        COMMAND_ARGS(args),
        .run = run_embed,
};
