#include "engine/sampling/recommended.h"

#include "common/job-options.h"
#include "engine/sampling/sampler.h"

#include <math.h>

#define PREFIX "general.sampling."

/* False: the file has no such number. A key with a value of another kind is noted. */
static bool read_number(const struct tdm_gguf *gguf, const char *key, double *ret, struct tdm_notes *notes)
{
        int r = tdm_gguf_get_f64(gguf, key, ret);

        if (r == -EINVAL)
                tdm_note_add(notes, "%s is no number and is passed over", key);
        return r == 0;
}

static void read_real(const struct tdm_gguf *gguf, const char *key, enum tdm_job_option_index option, float *to,
                      struct tdm_recommended *ret, struct tdm_notes *notes)
{
        const struct tdm_job_option *row = &tdm_job_options[option];
        char text[TDM_RANGE_TEXT_MAX];
        double value;

        if (!read_number(gguf, key, &value, notes))
                return;
        if (!tdm_range_has_real(&row->range, value)) {
                tdm_note_add(notes, "%s is %g, which is not %s, and is passed over", key, value,
                             tdm_range_text(&row->range, text));
                return;
        }
        *to = (float)value;
        ret->has |= row->open_bit;
}

/* A count; what is below 0 stands for below. */
static void read_count(const struct tdm_gguf *gguf, const char *key, uint32_t bit, uint32_t below, uint32_t *to,
                       struct tdm_recommended *ret, struct tdm_notes *notes)
{
        double value;

        if (!read_number(gguf, key, &value, notes))
                return;
        if (!(fabs(value) <= INT32_MAX) || value != floor(value)) {
                tdm_note_add(notes, "%s is %g, which is no count, and is passed over", key, value);
                return;
        }
        *to = value < 0 ? below : (uint32_t)value;
        ret->has |= bit;
}

static void note_unknown(const struct tdm_gguf *gguf, const char *key, struct tdm_notes *notes)
{
        struct tdm_notes ignored = { 0 };
        double value;

        if (read_number(gguf, key, &value, &ignored) && value != 0)
                tdm_note_add(notes, "%s is %g; nothing draws so here, and it is passed over", key, value);
}

void tdm_recommended_read(const struct tdm_gguf *gguf, struct tdm_recommended *ret, struct tdm_notes *notes)
{
        *ret = (struct tdm_recommended){ 0 };
        read_real(gguf, PREFIX "temp", TDM_JOB_OPTION_temperature, &ret->temperature, ret, notes);
        read_real(gguf, PREFIX "top_p", TDM_JOB_OPTION_top_p, &ret->top_p, ret, notes);
        read_real(gguf, PREFIX "min_p", TDM_JOB_OPTION_min_p, &ret->min_p, ret, notes);
        read_real(gguf, PREFIX "penalty_repeat", TDM_JOB_OPTION_repeat_penalty, &ret->repeat_penalty, ret, notes);
        read_count(gguf, PREFIX "top_k", TDM_OPEN_TOP_K, 0, &ret->top_k, ret, notes);
        read_count(gguf, PREFIX "penalty_last_n", TDM_OPEN_REPEAT_LAST, TDM_HISTORY_MAX, &ret->repeat_last, ret, notes);
        ret->repeat_last = TDM_MIN(ret->repeat_last, TDM_HISTORY_MAX);
        note_unknown(gguf, PREFIX "mirostat", notes);
        note_unknown(gguf, PREFIX "xtc_probability", notes);
}
