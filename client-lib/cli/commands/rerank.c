/* tandem rerank: how well documents answer a query, the best first. */
#include "client-lib/cli/cli.h"

#define MAX_TEXTS 4096u

struct rerank_options {
        const char *model, *file;
        bool with_text;
};

struct score {
        double value;
        size_t index; /* of the document */
};

struct ranking {
        const struct rerank_options *given;
        const char *query;
        struct score *scores; /* of each document */
};

extern const struct command command_rerank;

static int start_document(void *userdata, struct tandem *tandem, const struct text *text,
                          const struct tandem_callbacks *callbacks, void *progress, struct tandem_job **ret,
                          struct tandem_error *err)
{
        const struct ranking *ranking = userdata;
        struct tandem_rerank_options options;

        tandem_rerank_options_init(&options);
        options.model = cli_model(tandem, ranking->given->model);
        options.query = ranking->query;
        options.document = text->data;
        options.document_size = text->size;
        return tandem_rerank(tandem, &options, callbacks, progress, ret, err);
}

static void take_score(void *userdata, size_t index, const struct tandem_job *job)
{
        size_t n;

        ((struct ranking *)userdata)->scores[index] = (struct score){ (double)tandem_job_vector(job, &n)[0], index };
}

static void ranking_deinit(struct ranking *ranking)
{
        free(ranking->scores);
}

/* The best first; of equals that which came first. */
static int score_compare(const void *a, const void *b)
{
        const struct score *x = a, *y = b;

        return x->value != y->value ? (x->value < y->value) - (x->value > y->value) :
                                      (x->index > y->index) - (x->index < y->index);
}

static int print_ranks(const struct ranking *ranking, const struct texts *documents)
{
        _cleanup_(buf_freep) struct buf b = { 0 };

        for (size_t i = 0; i < documents->n; i++) {
                const struct score *score = &ranking->scores[i];
                const struct text *document = &documents->items[score->index];

                if (ranking->given->with_text) {
                        buf_printf(&b, "%zu\t%.9g\t", i + 1, score->value);
                        texts_add_printable(&b, document->data, document->size);
                        buf_puts(&b, "\n");
                } else {
                        buf_printf(&b, "%s{\"index\":%zu,\"score\":", i ? "," : "[", score->index);
                        json_number(&b, score->value);
                        buf_puts(&b, "}");
                }
        }
        if (!ranking->given->with_text)
                buf_puts(&b, "]\n");
        if (b.failed)
                return complain("no memory for the ranks");
        out_write(b.data, b.size);
        return out_finish();
}

static int run_rerank(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(texts_free) struct texts documents = { 0 };
        _cleanup_(buf_freep) struct buf input = { 0 };
        struct rerank_options given = { 0 };
        _cleanup_(ranking_deinit) struct ranking ranking = { .given = &given };
        const char *texts[1 + MAX_TEXTS];
        bool fits = true;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_rerank, argc, argv, &given, texts, 1 + MAX_TEXTS, &n, &status))
                return status;
        if (n == 0)
                return args_usage_error(argv[0], "there is no QUERY");
        if (given.file && n > 1)
                return args_usage_error(argv[0], "documents are given as TEXTs and by --file; take one");
        if (n == 1 && !given.file && term_stdin_tty)
                return args_usage_error(argv[0], "there is no TEXT (give documents, or --file)");
        if (n == 1 || (n == 2 && strcmp(texts[1], "-") == 0)) {
                if (!read_all(given.file ? given.file : "-", MAX_INPUT_BYTES, &input))
                        return EXIT_FAILED;
                fits = texts_add_lines(&documents, input.data ? input.data : "", input.size);
        }
        for (unsigned i = 1; i < n && !input.data && fits; i++)
                fits = texts_add(&documents, texts[i], strlen(texts[i]));
        if (!fits)
                return EXIT_FAILED;
        if (documents.n == 0)
                return complain("there are no documents: each line that is not empty is one");
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        ranking.query = texts[0];
        ranking.scores = calloc(documents.n, sizeof(*ranking.scores));
        if (!ranking.scores)
                return complain("no memory for the scores");
        status = texts_ask(cli, &tandem, &documents,
                           &(struct text_jobs){ given.model, &ranking, start_document, take_score });
        if (status != 0)
                return status;
        qsort(ranking.scores, documents.n, sizeof(ranking.scores[0]), score_compare);
        return print_ranks(&ranking, &documents);
}

static const struct arg args[] = {
        ARG_MODEL(struct rerank_options, model),
        {
                .letter = 'f',
                .name = "file",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct rerank_options, file),
                .value = "FILE",
                .brief = "each line that is not empty is a document",
                .more = "-: standard input",
                .offer = OFFER_FILES,
        },
        {
                .name = "text",
                .at = offsetof(struct rerank_options, with_text),
                .brief = "a line for each document: its rank, score and text, with tabs between",
        },
};

const struct command command_rerank = {
        .name = "rerank",
        .summary = "documents by how well they answer a query",
        .usage = "[-m MODEL] [--text] QUERY [-f FILE|TEXT...|-]",
        .about =
                "Ranks documents: the TEXTs, or the lines of a file or of standard input. Prints a JSON array of "
                "objects with \"index\" of the document and \"score\", the best first. The model must be a reranker: a "
                "file with a classification head. A score is what that head gives: a number of any size, or the "
                "probability of \"yes\". It depends on the query, the document and the model alone.",
        COMMAND_ARGS(args),
        .run = run_rerank,
};
