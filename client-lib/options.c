/* struct tandem_generate_options: its defaults, its checks, and the way of each option into the request. All three
 * follow from the rows of common/job-options.def. */
#include "client-lib/job.h"

#include "common/job-options.h"

#include <assert.h>
#include <inttypes.h>
#include <sys/random.h>

ProtobufCBinaryData lib_bytes(const char *text, size_t size)
{
        return (ProtobufCBinaryData){ .len = size == SIZE_MAX ? strlen(text) : size,
                                      .data = (uint8_t *)(uintptr_t)text };
}

/* ---- defaults ---- */

/* Texts and what is chosen have none: NULL, or the first choice. */
#define SET_DEFAULT_BOOL(to, value) (to) = (value) != 0
#define SET_DEFAULT_U32(to, value) (to) = (uint32_t)(value)
#define SET_DEFAULT_U64(to, value) (to) = (uint64_t)(value)
#define SET_DEFAULT_REAL(to, value) (to) = (float)(value)
#define SET_DEFAULT_CHOICE(to, value) (to) = (__typeof__(to))(int)(value)
#define SET_DEFAULT_NAME(to, value) (to) = NULL
#define SET_DEFAULT_TEXT(to, value) (to) = NULL
#define SET_DEFAULT_TEXTS(to, value) (to) = NULL

void tandem_generate_options_init_sized(struct tandem_generate_options *options, size_t size)
{
        struct tandem_generate_options full = { .struct_size = size, .prompt_size = SIZE_MAX };

#define OPTION(TYPE, message, field, ...)                                                                              \
        SET_DEFAULT_##TYPE(full.field, tdm_job_options[TDM_JOB_OPTION_##field].default_value);
#include "common/job-options.def"
#undef OPTION
        if (getrandom(&full.seed, sizeof(full.seed), 0) != (ssize_t)sizeof(full.seed))
                full.seed = tdm_now_ns();
        full.seed &= (UINT64_C(1) << 53) - 1; /* survives programs that keep JSON numbers as doubles */
        memset(options, 0, size);
        memcpy(options, &full, TDM_MIN(size, sizeof(full)));
}

/* ---- checks, in the words of the daemon ---- */

static int refuse_option(const struct tdm_job_option *option, const char *value, struct tandem_error *err)
{
        char text[TDM_RANGE_TEXT_MAX];

        return lib_error(err, TANDEM_E_BAD_REQUEST, "%s: '%.60s' is not %s", option->name, value,
                         tdm_range_text(&option->range, text));
}

static int check_whole_number(const struct tdm_job_option *option, uint64_t value, struct tandem_error *err)
{
        char text[32];

        if (tdm_range_has_u64(&option->range, value))
                return TANDEM_OK;
        snprintf(text, sizeof(text), "%" PRIu64, value);
        return refuse_option(option, text, err);
}

static int check_real(const struct tdm_job_option *option, double value, struct tandem_error *err)
{
        char text[32];

        if (tdm_range_has_real(&option->range, value))
                return TANDEM_OK;
        snprintf(text, sizeof(text), "%g", value);
        return refuse_option(option, text, err);
}

static int check_index(const struct tdm_job_option *option, unsigned value, struct tandem_error *err)
{
        char text[32];

        if (value < (unsigned)tdm_range_n_choices(&option->range))
                return TANDEM_OK;
        snprintf(text, sizeof(text), "%u", value);
        return refuse_option(option, text, err);
}

static int check_name(const struct tdm_job_option *option, const char *value, struct tandem_error *err)
{
        return !value || !*value || tdm_range_choice(&option->range, value) >= 0 ? TANDEM_OK :
                                                                                   refuse_option(option, value, err);
}

static int check_text(const struct tdm_job_option *option, const char *value, struct tandem_error *err)
{
        char wants[TDM_RANGE_TEXT_MAX];

        if (!value || tdm_range_has_size(&option->range, strlen(value)))
                return TANDEM_OK;
        return lib_error(err, TANDEM_E_BAD_REQUEST, "%s: a text of %zu bytes is not %s", option->name, strlen(value),
                         tdm_range_text(&option->range, wants));
}

static int check_texts(const struct tdm_job_option *option, const char *const *texts, size_t n,
                       struct tandem_error *err)
{
        int code = TANDEM_OK;

        if (n > TDM_JOB_MAX_TEXTS)
                return lib_error(err, TANDEM_E_BAD_REQUEST, "%s: %zu texts are more than %u", option->name, n,
                                 TDM_JOB_MAX_TEXTS);
        for (size_t i = 0; i < n && code == TANDEM_OK; i++)
                code = check_text(option, texts[i] ? texts[i] : "", err);
        return code;
}

#define CHECK_BOOL(row, o, field) TANDEM_OK
#define CHECK_U32(row, o, field) check_whole_number(row, (o)->field, err)
#define CHECK_U64(row, o, field) check_whole_number(row, (o)->field, err)
#define CHECK_REAL(row, o, field) check_real(row, (double)(o)->field, err)
#define CHECK_CHOICE(row, o, field) check_index(row, (unsigned)(o)->field, err)
#define CHECK_NAME(row, o, field) check_name(row, (o)->field, err)
#define CHECK_TEXT(row, o, field) check_text(row, (o)->field, err)
#define CHECK_TEXTS(row, o, field) check_texts(row, (o)->field, (o)->n_##field, err)

int lib_check_options(const struct tandem_generate_options *o, struct tandem_error *err)
{
        int code = TANDEM_OK;

#define OPTION(TYPE, message, field, ...)                                                                              \
        if (code == TANDEM_OK)                                                                                         \
                code = CHECK_##TYPE(&tdm_job_options[TDM_JOB_OPTION_##field], o, field);
#include "common/job-options.def"
#undef OPTION
        return code;
}

/* ---- into the request ---- */

/* Protobuf's strings are not const, though packing only reads them. */
#define PUT_BOOL(m, o, field) (m)->field = (o)->field
#define PUT_U32(m, o, field) (m)->field = (o)->field
#define PUT_U64(m, o, field) (m)->field = (o)->field
#define PUT_REAL(m, o, field) (m)->field = (o)->field
#define PUT_CHOICE(m, o, field) (m)->field = (__typeof__((m)->field))(o)->field
#define PUT_NAME(m, o, field)                                                                                          \
        if ((o)->field)                                                                                                \
        (m)->field = (char *)(uintptr_t)(o)->field
#define PUT_TEXT(m, o, field) PUT_NAME(m, o, field)
#define PUT_TEXTS(m, o, field)                                                                                         \
        for (size_t i = 0; i < (o)->n_##field; i++)                                                                    \
                stops[i] = lib_bytes((o)->field[i], SIZE_MAX);                                                         \
        (m)->n_##field = (o)->n_##field;                                                                               \
        (m)->field = stops

static_assert(TANDEM_SAMPLING_TEMPERATURE == TDM_OPEN_TEMPERATURE && TANDEM_SAMPLING_TOP_K == TDM_OPEN_TOP_K &&
                      TANDEM_SAMPLING_TOP_P == TDM_OPEN_TOP_P && TANDEM_SAMPLING_MIN_P == TDM_OPEN_MIN_P &&
                      TANDEM_SAMPLING_REPEAT_PENALTY == TDM_OPEN_REPEAT_PENALTY &&
                      TANDEM_SAMPLING_REPEAT_LAST == TDM_OPEN_REPEAT_LAST,
              "the library's bits are the wire's");

/* Whether an option has its default, bit for bit. */
#define IS_DEFAULT_BOOL(o, field, value) false
#define IS_DEFAULT_U32(o, field, value) ((o)->field == (uint32_t)(value))
#define IS_DEFAULT_U64(o, field, value) ((o)->field == (uint64_t)(value))
#define IS_DEFAULT_REAL(o, field, value) ((o)->field == (float)(value))
#define IS_DEFAULT_CHOICE(o, field, value) false
#define IS_DEFAULT_NAME(o, field, value) false
#define IS_DEFAULT_TEXT(o, field, value) false
#define IS_DEFAULT_TEXTS(o, field, value) false

static uint32_t left_open(const struct tandem_generate_options *o)
{
        uint32_t open = 0;

#define OPTION(TYPE, message, field, ...)                                                                              \
        if (IS_DEFAULT_##TYPE(o, field, tdm_job_options[TDM_JOB_OPTION_##field].default_value))                        \
                open |= tdm_job_options[TDM_JOB_OPTION_##field].open_bit;
#include "common/job-options.def"
#undef OPTION
        return (open & ~o->meant) | (o->left_open & TDM_OPEN_ALL);
}

void lib_put_options(Tandem__Generate *generate, Tandem__Sampling *sampling, ProtobufCBinaryData *stops,
                     const struct tandem_generate_options *o)
{
#define OPTION(TYPE, message, field, ...) PUT_##TYPE(message, o, field);
#include "common/job-options.def"
#undef OPTION
        if (o->struct_size >= offsetof(struct tandem_generate_options, left_open) + sizeof(o->left_open))
                sampling->left_open = left_open(o);
}
