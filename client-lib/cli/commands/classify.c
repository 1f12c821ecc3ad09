/* tandem classify: of which class texts are. */
#include "client-lib/cli/cli.h"

#define MAX_TEXTS 4096u

struct classify_options {
        const char *model, *file, *second;
        bool raw, with_text;
};

struct classification {
        const struct classify_options *given;
        const struct texts *texts;
        struct buf out;
};

struct class
{
        double score;
        size_t index;
};

extern const struct command command_classify;

static int start_classification(void *userdata, struct tandem *tandem, const struct text *text,
                                const struct tandem_callbacks *callbacks, void *progress, struct tandem_job **ret,
                                struct tandem_error *err)
{
        const struct classify_options *given = ((const struct classification *)userdata)->given;
        struct tandem_classify_options options;

        tandem_classify_options_init(&options);
        options.model = cli_model(tandem, given->model);
        options.text = text->data;
        options.text_size = text->size;
        options.second = given->second;
        options.raw = given->raw;
        return tandem_classify(tandem, &options, callbacks, progress, ret, err);
}

/* The likeliest first; of equals that which the model has first. */
static int class_compare(const void *a, const void *b)
{
        const struct class *x = a, *y = b;

        return x->score != y->score ? (x->score < y->score) - (x->score > y->score) :
                                      (x->index > y->index) - (x->index < y->index);
}

static void print_as_json(struct buf *b, const struct class *classes, size_t n, const char *const *labels)
{
        for (size_t i = 0; i < n; i++) {
                buf_puts(b, i ? ",{\"label\":" : "[{\"label\":");
                json_text(b, labels[classes[i].index], strlen(labels[classes[i].index]));
                buf_puts(b, ",\"score\":");
                json_number(b, classes[i].score);
                buf_puts(b, "}");
        }
        buf_puts(b, "]");
}

static void take_classes(void *userdata, size_t index, const struct tandem_job *job)
{
        struct classification *c = userdata;
        size_t n, n_labels;
        const float *scores = tandem_job_vector(job, &n);
        const char *const *labels = tandem_job_labels(job, &n_labels);
        struct class *classes = calloc(n, sizeof(*classes));

        if (!classes) {
                c->out.failed = true;
                return;
        }
        for (size_t i = 0; i < n; i++)
                classes[i] = (struct class){ (double)scores[i], i };
        qsort(classes, n, sizeof(*classes), class_compare);
        if (c->given->with_text) {
                const char *label = labels[classes[0].index];

                texts_add_printable(&c->out, label, strlen(label));
                buf_printf(&c->out, "\t%.9g\t", classes[0].score);
                texts_add_printable(&c->out, c->texts->items[index].data, c->texts->items[index].size);
                buf_puts(&c->out, "\n");
        } else {
                buf_puts(&c->out, index ? "," : "[");
                print_as_json(&c->out, classes, n, labels);
        }
        free(classes);
}

static void classification_deinit(struct classification *c)
{
        buf_freep(&c->out);
}

static int run_classify(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(texts_free) struct texts texts = { 0 };
        _cleanup_(buf_freep) struct buf input = { 0 };
        struct classify_options given = { 0 };
        _cleanup_(classification_deinit) struct classification c = { .given = &given, .texts = &texts };
        const char *told[MAX_TEXTS];
        bool fits = true;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_classify, argc, argv, &given, told, MAX_TEXTS, &n, &status))
                return status;
        if (given.file && n > 0)
                return args_usage_error(argv[0], "texts are given as TEXTs and by --file; take one");
        if (n == 0 && !given.file && term_stdin_tty)
                return args_usage_error(argv[0], "there is no TEXT (give texts, or --file)");
        if (n == 0 || (n == 1 && strcmp(told[0], "-") == 0)) {
                if (!read_all(given.file ? given.file : "-", MAX_INPUT_BYTES, &input))
                        return EXIT_FAILED;
                fits = texts_add_lines(&texts, input.data ? input.data : "", input.size);
                n = 0;
        }
        for (unsigned i = 0; i < n && fits; i++)
                fits = texts_add(&texts, told[i], strlen(told[i]));
        if (!fits)
                return EXIT_FAILED;
        if (texts.n == 0)
                return complain("there are no texts: each line that is not empty is one");
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        status = texts_ask(cli, &tandem, &texts,
                           &(struct text_jobs){ given.model, &c, start_classification, take_classes });
        if (status != 0)
                return status;
        if (!given.with_text)
                buf_puts(&c.out, "]\n");
        if (c.out.failed)
                return complain("no memory for the classes");
        out_write(c.out.data, c.out.size);
        return out_finish();
}

static const struct arg args[] = {
        ARG_MODEL(struct classify_options, model),
        {
                .letter = 'f',
                .name = "file",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct classify_options, file),
                .value = "FILE",
                .brief = "each line that is not empty is a text",
                .more = "-: standard input",
                .offer = OFFER_FILES,
        },
        {
                .name = "second",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct classify_options, second),
                .value = "TEXT",
                .brief = "each TEXT is the first of a pair, and this is the second",
                .more = "for models of inference",
        },
        {
                .name = "raw",
                .at = offsetof(struct classify_options, raw),
                .brief = "what the model's head gives, in place of probabilities",
        },
        {
                .name = "text",
                .at = offsetof(struct classify_options, with_text),
                .brief = "a line for each text: its likeliest class, the score and the text, with tabs between",
        },
};

const struct command command_classify = {
        .name = "classify",
        .summary = "texts by their class",
        .usage = "[-m MODEL] [--second TEXT] [--raw] [--text] [-f FILE|TEXT...|-]",
        .about =
                "Tells of which class each of the TEXTs is, or each line of a file or of standard input. Prints a JSON "
                "array with an array for each text: objects with \"label\" and \"score\" of all classes, the likeliest "
                "first. The model must be a classification model: a file whose head has several labels. Scores are "
                "probabilities whose sum is 1. They depend on the text and the model alone.",
        COMMAND_ARGS(args),
        .run = run_classify,
};
