/* tandem rerank: how well documents answer a query, the best first. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>

#define AT_ONCE 32u /* documents that are with the daemon at one time; it has a bound for each user */
#define MAX_TEXTS 4096u
#define MAX_DOCUMENTS 65536u

struct rerank_options {
        const char *model, *file;
        bool with_text;
};

struct document {
        const char *text;
        size_t size, index;
        double score;
};

struct documents {
        struct document *items; /* [n] */
        size_t n, capacity;
};

extern const struct command command_rerank;

static void free_jobs(struct tandem_job **jobs, size_t n)
{
        for (size_t i = 0; i < n; i++)
                tandem_job_free(jobs[i]);
}

static void documents_free(struct documents *d)
{
        free(d->items);
}

static bool documents_add(struct documents *d, const char *text, size_t size)
{
        struct document *items;

        if (d->n == MAX_DOCUMENTS) {
                complain("there are more than %u documents; rank them in parts", MAX_DOCUMENTS);
                return false;
        }
        if (d->n == d->capacity) {
                size_t capacity = d->capacity ? 2 * d->capacity : 64;

                items = realloc(d->items, capacity * sizeof(*items));
                if (!items) {
                        complain("no memory for the documents");
                        return false;
                }
                d->items = items;
                d->capacity = capacity;
        }
        d->items[d->n] = (struct document){ .text = text, .size = size, .index = d->n };
        d->n++;
        return true;
}

/* Each line that is not empty is a document. */
static bool documents_add_lines(struct documents *d, const char *text, size_t size)
{
        for (size_t at = 0, end; at < size; at = end + 1) {
                const char *newline = memchr(text + at, '\n', size - at);

                end = newline ? (size_t)(newline - text) : size;
                if (end > at && !documents_add(d, text + at, end - at))
                        return false;
        }
        return true;
}

/* Some documents at once. An exit status; -1: the daemon says in *err why not. */
static int ask_scores(struct tandem *tandem, const struct rerank_options *given, const char *query,
                      struct document *documents, size_t n, struct tandem_error *err)
{
        struct run_progress progress = { .model = given->model };
        struct tandem_job *jobs[AT_ONCE] = { NULL };
        struct tandem_rerank_options options;
        struct tandem_callbacks callbacks;
        enum run_outcome outcome;
        int status = 0;

        tandem_callbacks_init(&callbacks);
        callbacks.on_progress = run_show_progress;
        tandem_rerank_options_init(&options);
        options.model = cli_model(tandem, given->model);
        options.query = query;
        for (size_t i = 0; i < n; i++) {
                options.document = documents[i].text;
                options.document_size = documents[i].size;
                if (tandem_rerank(tandem, &options, &callbacks, &progress, &jobs[i], err) != TANDEM_OK) {
                        free_jobs(jobs, i);
                        return -1;
                }
        }
        outcome = run_jobs(tandem, jobs, n, SIGNAL_CANCEL);
        if (outcome == RUN_INTERRUPTED)
                status = EXIT_INTERRUPTED;
        else if (outcome == RUN_OUTPUT_GONE)
                status = EXIT_FAILED;
        for (size_t i = 0; i < n && status == 0; i++) {
                const struct tandem_result *result = tandem_job_result(jobs[i]);
                size_t n_numbers;

                if (result->reason == TANDEM_REASON_ERROR) {
                        *err = result->error;
                        status = -1;
                } else if (result->reason == TANDEM_REASON_CANCELLED) {
                        status = complain("cancelled: job %" PRIu64 " was cancelled from elsewhere", result->job);
                } else {
                        documents[i].score = (double)tandem_job_vector(jobs[i], &n_numbers)[0];
                }
        }
        free_jobs(jobs, n);
        return status;
}

static int rank_documents(struct cli *cli, struct tandem **tandem, const struct rerank_options *given,
                          const char *query, struct documents *d)
{
        struct tandem_error err;
        bool anew = false;
        int status = 0;

        for (size_t i = 0; i < d->n && status == 0; i += AT_ONCE) {
                do
                        status = ask_scores(*tandem, given, query, d->items + i, TDM_MIN(d->n - i, (size_t)AT_ONCE),
                                            &err);
                while (status < 0 && cli_connect_anew(cli, tandem, &err, &anew));
        }
        return status < 0 ? complain_model(&err, given->model) : status;
}

/* The best first; of equals that which came first. */
static int document_compare(const void *a, const void *b)
{
        const struct document *x = a, *y = b;

        return x->score != y->score ? (x->score < y->score) - (x->score > y->score) :
                                      (x->index > y->index) - (x->index < y->index);
}

/* Nothing in it is a line's end, a tab, or a command to a terminal. */
static void add_printable(struct buf *b, const char *text, size_t size)
{
        for (size_t i = 0; i < size; i++) {
                unsigned char c = (unsigned char)text[i], next = i + 1 < size ? (unsigned char)text[i + 1] : 0;
                bool is_control = c < 0x20 || c == 0x7f || (c == 0xc2 && next >= 0x80 && next < 0xa0);

                buf_add(b, is_control ? "?" : &text[i], 1);
                i += is_control && c == 0xc2;
        }
}

static int print_ranks(const struct documents *d, bool with_text)
{
        _cleanup_(buf_freep) struct buf b = { 0 };

        for (size_t i = 0; i < d->n; i++) {
                const struct document *document = &d->items[i];

                if (with_text) {
                        buf_printf(&b, "%zu\t%.9g\t", i + 1, document->score);
                        add_printable(&b, document->text, document->size);
                        buf_puts(&b, "\n");
                } else {
                        buf_printf(&b, "%s{\"index\":%zu,\"score\":", i ? "," : "[", document->index);
                        json_number(&b, document->score);
                        buf_puts(&b, "}");
                }
        }
        if (!with_text)
                buf_puts(&b, "]\n");
        if (b.failed)
                return complain("no memory for the ranks");
        out_write(b.data, b.size);
        return out_finish();
}

static int run_rerank(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(documents_free) struct documents documents = { 0 };
        _cleanup_(buf_freep) struct buf input = { 0 };
        struct rerank_options given = { 0 };
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
                fits = documents_add_lines(&documents, input.data ? input.data : "", input.size);
        }
        for (unsigned i = 1; i < n && !input.data && fits; i++)
                fits = documents_add(&documents, texts[i], strlen(texts[i]));
        if (!fits)
                return EXIT_FAILED;
        if (documents.n == 0)
                return complain("there are no documents: each line that is not empty is one");
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        status = rank_documents(cli, &tandem, &given, texts[0], &documents);
        if (status != 0)
                return status;
        qsort(documents.items, documents.n, sizeof(documents.items[0]), document_compare);
        return print_ranks(&documents, given.with_text);
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
