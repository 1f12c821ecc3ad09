/* A job's options as the daemon keeps them: a member for each row of common/job-options.def, named like its field. An
 * option that was not given is 0, as on the wires. */
#ifndef TDM_DAEMON_JOBS_OPTIONS_H
#define TDM_DAEMON_JOBS_OPTIONS_H

#include "common/error.h"
#include "common/job-options.h"
#include "daemon/jobs/stop.h"
#include "engine/sampling/recommended.h"
#include "engine/sampling/sampler.h"

/* The member that an option of a type has. A name is kept as 1 + its index among the choices; 0: none was given. */
#define TDM_JOB_MEMBER_BOOL(field) bool field;
#define TDM_JOB_MEMBER_U32(field) uint32_t field;
#define TDM_JOB_MEMBER_U64(field) uint64_t field;
#define TDM_JOB_MEMBER_REAL(field) float field;
#define TDM_JOB_MEMBER_CHOICE(field) uint32_t field;
#define TDM_JOB_MEMBER_NAME(field) uint32_t field;
#define TDM_JOB_MEMBER_TEXT(field) const char *field; /* NULL: not given */
#define TDM_JOB_MEMBER_TEXTS(field)                                                                                    \
        const struct tdm_stop_string *field;                                                                           \
        size_t n_##field;

/* In the order of the table of options. */
enum tdm_thinking {
        TDM_THINKING_AUTO,
        TDM_THINKING_OFF,
        TDM_THINKING_ON,
        TDM_THINKING_LOW,
        TDM_THINKING_MEDIUM,
        TDM_THINKING_HIGH,
};

struct tdm_job_options {
#define OPTION(TYPE, message, field, ...) TDM_JOB_MEMBER_##TYPE(field)
#include "common/job-options.def"
#undef OPTION
        uint32_t left_open; /* TDM_OPEN_*: what the model's file recommends goes before these */
};

/* TDM_E_BAD_REQUEST in the words of value-range.h: `NAME: 'VALUE' is not …`. */
int tdm_job_option_refuse(const struct tdm_job_option *option, const char *value, struct tdm_error *err);
/* The index of name among the choices of option; "" is given back as -1 where the option may be left out so. */
int tdm_job_option_choose(const struct tdm_job_option *option, const char *name, uint32_t *ret, struct tdm_error *err);
/* Every number and text against its row: what all faces have in common. */
int tdm_job_options_check(const struct tdm_job_options *options, struct tdm_error *err);
/* A copy without the texts, which the options only point to. */
struct tdm_job_options tdm_job_options_without_texts(const struct tdm_job_options *options);
/* Takes what the model's file recommends for the options that were left open. */
void tdm_job_options_take_recommended(struct tdm_job_options *options, const struct tdm_recommended *recommended);
/* For the sampler, to which some options are off at another number than 0. */
struct tdm_sampling tdm_job_options_sampling(const struct tdm_job_options *options);

/* The list of the option logit-bias. ret [TDM_MAX_BIASES], by rising id. Ids are not checked against a model. */
int tdm_job_options_biases(const char *text, struct tdm_logit_bias *ret, uint32_t *ret_n, struct tdm_error *err);

/* ---- by row, for faces that read the table at run time ---- */

/* Where the member of a row begins. */
extern const size_t tdm_job_option_offsets[TDM_N_JOB_OPTIONS];

#endif
