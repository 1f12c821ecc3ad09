/* The options of a job on a command line: a row of common/job-options.def each, in a struct job_args. */
#include "client-lib/cli/cli.h"

/* The place of an option's value. Texts that may come several times are collected first. */
#define AT_BOOL(field) offsetof(struct job_args, options.field)
#define AT_U32(field) offsetof(struct job_args, options.field)
#define AT_U64(field) offsetof(struct job_args, options.field)
#define AT_REAL(field) offsetof(struct job_args, options.field)
#define AT_CHOICE(field) offsetof(struct job_args, options.field)
#define AT_NAME(field) offsetof(struct job_args, options.field)
#define AT_TEXT(field) offsetof(struct job_args, options.field)
#define AT_TEXTS(field) offsetof(struct job_args, field)

static const struct {
        size_t at, given_at;
} places[TDM_N_JOB_OPTIONS] = {
#define OPTION(TYPE, message, field, ...) { AT_##TYPE(field), offsetof(struct job_args, given.field) },
#include "common/job-options.def"
#undef OPTION
};

/* Not of the job: what is printed of it. */
static const struct arg verbose = {
        .letter = 'v',
        .name = "verbose",
        .at = offsetof(struct job_args, verbose),
        .brief = "print the summary on standard error always, with seed and numerics",
};

static void add_rows(struct arg *table, size_t *n, bool only_bench, bool for_tests)
{
        for (size_t i = 0; i < TDM_N_JOB_OPTIONS; i++) {
                const struct tdm_job_option *row = &tdm_job_options[i];

                if ((only_bench && !row->bench) || row->for_tests != for_tests)
                        continue;
                table[(*n)++] = (struct arg){
                        .letter = row->letter,
                        .name = tdm_job_option_flag(row),
                        .range = row->range,
                        .at = places[i].at,
                        .given_at = places[i].given_at,
                        .default_value = row->default_value,
                        .minus_one = row->minus_one,
                        .value = row->value,
                        .brief = row->brief,
                        .more = row->more,
                        .offer = row->is_model                  ? OFFER_MODELS :
                                 row->is_file || row->from_file ? OFFER_FILES :
                                                                  OFFER_NOTHING,
                };
        }
}

const struct arg *job_args_table(enum job_args_kind kind, size_t *ret_n)
{
        static struct arg all[TDM_N_JOB_OPTIONS + 1], bench[TDM_N_JOB_OPTIONS];
        static size_t n_all, n_bench;

        if (n_all == 0) {
                add_rows(all, &n_all, false, false);
                all[n_all++] = verbose;
                add_rows(all, &n_all, false, true);
                add_rows(bench, &n_bench, true, false);
        }
        *ret_n = kind == JOB_ARGS_ALL ? n_all : kind == JOB_ARGS_BENCH ? n_bench : 0;
        return kind == JOB_ARGS_BENCH ? bench : all;
}

void job_args_init(struct job_args *args)
{
        *args = (struct job_args){ 0 };
        tandem_generate_options_init(&args->options);
}

/* A file that cannot be used leaves the text that was read before. */
static bool read_option_file(struct job_args *args, size_t which)
{
        const struct tdm_job_option *row = &tdm_job_options[which];
        _cleanup_(buf_freep) struct buf file = { 0 };
        struct buf *kept = &args->files[which];
        const char **text, *path;

        if (!row->from_file)
                return true; /* and what is there is no text */
        text = (const char **)(void *)((char *)args + places[which].at);
        path = *text;
        if (!path || path == kept->data)
                return true; /* read already */
        *text = kept->data;
        if (!read_all(path, (size_t)row->range.max, &file))
                return false;
        buf_add(&file, "", 1);
        if (file.failed) {
                (void)complain("no memory for %s", path);
                return false;
        }
        if (strlen(file.data) + 1 != file.size || file.size == 1) {
                (void)complain("--%s: %s %s", tdm_job_option_flag(row), path,
                               file.size == 1 ? "is empty" : "has a NUL byte: it is no text");
                return false;
        }
        buf_free(kept);
        *kept = file;
        file = (struct buf){ 0 };
        *text = kept->data;
        return true;
}

bool job_args_finish(struct job_args *args)
{
        args->options.stop = args->stop.items;
        args->options.n_stop = args->stop.n;
        if (!args->given.seed) { /* or it was taken back */
                struct tandem_generate_options fresh;

                tandem_generate_options_init(&fresh);
                args->options.seed = fresh.seed;
        }
        args->options.meant = 0;
        for (size_t i = 0; i < TDM_N_JOB_OPTIONS; i++) {
                if (*(const bool *)((const char *)args + places[i].given_at))
                        args->options.meant |= tdm_job_options[i].open_bit;
                if (!read_option_file(args, i))
                        return false;
        }
        return true;
}

static size_t value_bytes(enum tdm_value_type type)
{
        switch (type) {
        case TDM_VALUE_BOOL:
                return sizeof(bool);
        case TDM_VALUE_U32:
        case TDM_VALUE_CHOICE:
                return sizeof(uint32_t);
        case TDM_VALUE_U64:
                return sizeof(uint64_t);
        case TDM_VALUE_REAL:
                return sizeof(float);
        case TDM_VALUE_NAME:
        case TDM_VALUE_TEXT:
                return sizeof(const char *);
        case TDM_VALUE_TEXTS:
                return sizeof(struct arg_list);
        case TDM_VALUE_U32_LIST:
                return sizeof(struct arg_u32_list);
        }
        return 0;
}

void job_args_take_back(struct job_args *args, const struct arg *arg)
{
        struct job_args fresh;

        job_args_init(&fresh);
        if (arg->range.type == TDM_VALUE_TEXTS)
                arg_list_free((struct arg_list *)(void *)((char *)args + arg->at));
        memcpy((char *)args + arg->at, (const char *)&fresh + arg->at, value_bytes(arg->range.type));
        if (arg->given_at)
                *(bool *)((char *)args + arg->given_at) = false;
        for (size_t i = 0; i < TDM_N_JOB_OPTIONS; i++)
                if (places[i].at == arg->at)
                        buf_free(&args->files[i]);
        (void)job_args_finish(args); /* reads no file: nothing new was named */
}

void job_args_deinit(struct job_args *args)
{
        arg_list_free(&args->stop);
        for (size_t i = 0; i < TDM_N_JOB_OPTIONS; i++)
                buf_free(&args->files[i]);
}
