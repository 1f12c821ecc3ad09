#include "daemon/jobs/options.h"

#include "common/utf8.h"

#include <assert.h>
#include <math.h>

static_assert(TDM_JOB_MAX_TEXTS == TDM_MAX_STOPS, "the table and the matcher take as many stop strings");

const size_t tdm_job_option_offsets[TDM_N_JOB_OPTIONS] = {
#define OPTION(TYPE, message, field, ...) offsetof(struct tdm_job_options, field),
#include "common/job-options.def"
#undef OPTION
};

int tdm_job_option_refuse(const struct tdm_job_option *option, const char *value, struct tdm_error *err)
{
        char text[TDM_RANGE_TEXT_MAX];

        return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: '%.*s' is not %s", option->name, TDM_UTF8_CUT(value, 60),
                             tdm_range_text(&option->range, text));
}

int tdm_job_option_choose(const struct tdm_job_option *option, const char *name, uint32_t *ret, struct tdm_error *err)
{
        int i = tdm_range_choice(&option->range, name);

        if (i < 0 && !(option->range.type == TDM_VALUE_NAME && !name[0]))
                return tdm_job_option_refuse(option, name, err);
        *ret = (uint32_t)(option->range.type == TDM_VALUE_NAME ? i + 1 : i);
        return 0;
}

static int check_size(const struct tdm_job_option *option, size_t size_bytes, struct tdm_error *err)
{
        char wants[TDM_RANGE_TEXT_MAX];

        if (tdm_range_has_size(&option->range, size_bytes))
                return 0;
        return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: a text of %zu bytes is not %s", option->name, size_bytes,
                             tdm_range_text(&option->range, wants));
}

static int check_texts(const struct tdm_job_option *option, const struct tdm_stop_string *texts, size_t n,
                       struct tdm_error *err)
{
        int r = 0;

        if (n > TDM_JOB_MAX_TEXTS)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: %zu texts are more than %u", option->name, n,
                                     TDM_JOB_MAX_TEXTS);
        for (size_t i = 0; i < n && r == 0; i++)
                r = check_size(option, texts[i].size, err);
        return r;
}

static int check_whole_option(const struct tdm_job_option *option, uint64_t value, struct tdm_error *err)
{
        char text[32];

        if (tdm_range_has_u64(&option->range, value))
                return 0;
        snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
        return tdm_job_option_refuse(option, text, err);
}

static int check_real(const struct tdm_job_option *option, double value, struct tdm_error *err)
{
        char text[32];

        if (tdm_range_has_real(&option->range, value))
                return 0;
        snprintf(text, sizeof(text), "%g", value);
        return tdm_job_option_refuse(option, text, err);
}

/* n_choices stands for "not one of them": what a face could not read. */
static int check_index(const struct tdm_job_option *option, uint32_t value, bool may_lack, struct tdm_error *err)
{
        char text[32];

        if (value < (uint32_t)tdm_range_n_choices(&option->range) + may_lack)
                return 0;
        snprintf(text, sizeof(text), "%u", value);
        return tdm_job_option_refuse(option, text, err);
}

#define CHECK_BOOL(row, o, field) 0
#define CHECK_U32(row, o, field) check_whole_option(row, (o)->field, err)
#define CHECK_U64(row, o, field) check_whole_option(row, (o)->field, err)
#define CHECK_REAL(row, o, field) check_real(row, (double)(o)->field, err)
#define CHECK_CHOICE(row, o, field) check_index(row, (o)->field, false, err)
#define CHECK_NAME(row, o, field) check_index(row, (o)->field, true, err)
#define CHECK_TEXT(row, o, field) ((o)->field ? check_size(row, strlen((o)->field), err) : 0)
#define CHECK_TEXTS(row, o, field) check_texts(row, (o)->field, (o)->n_##field, err)

int tdm_job_options_check(const struct tdm_job_options *options, struct tdm_error *err)
{
        int r = 0;

#define OPTION(TYPE, message, field, ...)                                                                              \
        if (r == 0)                                                                                                    \
                r = CHECK_##TYPE(&tdm_job_options[TDM_JOB_OPTION_##field], options, field);
#include "common/job-options.def"
#undef OPTION
        return r;
}

#define FORGET_BOOL(o, field)
#define FORGET_U32(o, field)
#define FORGET_U64(o, field)
#define FORGET_REAL(o, field)
#define FORGET_CHOICE(o, field)
#define FORGET_NAME(o, field)
#define FORGET_TEXT(o, field) (o)->field = NULL;
#define FORGET_TEXTS(o, field)                                                                                         \
        (o)->field = NULL;                                                                                             \
        (o)->n_##field = 0;

struct tdm_job_options tdm_job_options_without_texts(const struct tdm_job_options *options)
{
        struct tdm_job_options copy = *options;

#define OPTION(TYPE, message, field, ...) FORGET_##TYPE(&copy, field)
#include "common/job-options.def"
#undef OPTION
        return copy;
}

void tdm_job_options_take_recommended(struct tdm_job_options *o, const struct tdm_recommended *r)
{
        uint32_t take = o->left_open & r->has;

        if (take & TDM_OPEN_TEMPERATURE)
                o->temperature = r->temperature;
        if (take & TDM_OPEN_TOP_K)
                o->top_k = r->top_k;
        if (take & TDM_OPEN_TOP_P)
                o->top_p = r->top_p;
        if (take & TDM_OPEN_MIN_P)
                o->min_p = r->min_p;
        if (take & TDM_OPEN_REPEAT_PENALTY)
                o->repeat_penalty = r->repeat_penalty;
        if (!(take & TDM_OPEN_REPEAT_LAST))
                return;
        o->repeat_last = r->repeat_last;
        if (r->repeat_last == 0 && o->left_open & TDM_OPEN_REPEAT_PENALTY)
                o->repeat_penalty = 1; /* 0 stands for 64 among the options */
}

struct tdm_sampling tdm_job_options_sampling(const struct tdm_job_options *options)
{
        return (struct tdm_sampling){
                .temperature = options->temperature,
                .top_k = options->top_k,
                .top_p = options->top_p == 0 ? 1 : options->top_p,
                .min_p = options->min_p,
                .repeat_penalty = options->repeat_penalty == 0 ? 1 : options->repeat_penalty,
                .seed = options->seed,
                .frequency_penalty = options->frequency_penalty,
                .presence_penalty = options->presence_penalty,
        };
}

/* One "ID:BIAS" at *at, which is moved past it. */
static int take_bias(const char **at, struct tdm_logit_bias *ret, struct tdm_error *err)
{
        const char *start = *at;
        char *end = NULL;
        unsigned long long id = 0;
        double bias = NAN;

        if (*start >= '0' && *start <= '9') {
                errno = 0;
                id = strtoull(start, &end, 10);
                if (errno == 0 && id <= UINT32_MAX && *end == ':' && end[1] != 0 && strchr("+-.0123456789", end[1]))
                        bias = strtod(end + 1, &end);
        }
        if (!(fabs(bias) <= (double)TDM_MAX_BIAS) || (*end && *end != ','))
                return tdm_error_set(
                        err, TDM_E_BAD_REQUEST,
                        "logit-bias: '%.*s' is not ID:BIAS with a token id and a number from -%.0f to %.0f",
                        TDM_UTF8_CUT(start, strcspn(start, ",") < 60 ? strcspn(start, ",") : 60), (double)TDM_MAX_BIAS,
                        (double)TDM_MAX_BIAS);
        *ret = (struct tdm_logit_bias){ (uint32_t)id, (float)bias };
        *at = *end ? end + 1 : end;
        return 0;
}

static int compare_biases(const void *a, const void *b)
{
        uint32_t x = ((const struct tdm_logit_bias *)a)->id, y = ((const struct tdm_logit_bias *)b)->id;

        return x < y ? -1 : x > y;
}

int tdm_job_options_biases(const char *text, struct tdm_logit_bias *ret, uint32_t *ret_n, struct tdm_error *err)
{
        uint32_t n = 0;

        for (const char *at = text; *at; n++) {
                int r;

                if (n == TDM_MAX_BIASES)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "logit-bias: more than %u tokens", TDM_MAX_BIASES);
                r = take_bias(&at, &ret[n], err);
                if (r != 0)
                        return r;
        }
        qsort(ret, n, sizeof(*ret), compare_biases);
        for (uint32_t i = 1; i < n; i++)
                if (ret[i].id == ret[i - 1].id)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "logit-bias: token %u is given twice", ret[i].id);
        *ret_n = n;
        return 0;
}
