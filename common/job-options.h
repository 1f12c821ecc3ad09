/* The options of a job, in one table for all that take them: the socket and D-Bus faces of the daemon, libtandem, the
 * command with its help, its manual and its completions. The rows are in job-options.def.
 *
 * A face reads the table at run time (tdm_job_options), or includes the rows with a macro OPTION of its own where it
 * has to name a field of a struct. The fields of tandem.proto and of struct tandem_generate_options are copies, because
 * both are documents of their own. The compiler refuses a row without a field there, and the test `faces` refuses a
 * field without a row. */
#ifndef TDM_COMMON_JOB_OPTIONS_H
#define TDM_COMMON_JOB_OPTIONS_H

#include "common/value-range.h"

#define TDM_JOB_MAX_TEXTS 16u /* of an option that takes several */

/* Options for which a model's file may recommend a value (general.sampling.*). A request says of which of them it holds
 * but a default: these are bits of Sampling.left_open on the wire. */
#define TDM_OPEN_TEMPERATURE 0x01u
#define TDM_OPEN_TOP_K 0x02u
#define TDM_OPEN_TOP_P 0x04u
#define TDM_OPEN_MIN_P 0x08u
#define TDM_OPEN_REPEAT_PENALTY 0x10u
#define TDM_OPEN_REPEAT_LAST 0x20u
#define TDM_OPEN_ALL 0x3fu

struct tdm_job_option {
        const char *name;       /* on D-Bus, and in messages */
        const char *flag;       /* of the command; NULL: as name */
        char letter;            /* of the command; 0: none */
        const char *value;      /* the placeholder for the value in help */
        const char *brief;      /* what it does, in a few words: help, manual, completions */
        const char *more;       /* further sentences: help and manual */
        bool for_tests;         /* for measurements and tests: listed last */
        bool bench;             /* `tandem bench` takes it too */
        bool is_model, is_file; /* a text that names one: shells offer them */
        bool from_file;         /* the command takes the name of a file that holds the text */
        uint32_t open_bit;      /* TDM_OPEN_*, where a model's file may recommend a value; 0: it may not */
        const char *minus_one;  /* of the command: see struct arg */
        double default_value;   /* libtandem's and the command's; on the wires, what is not given is 0 */
        struct tdm_range range;
};

enum tdm_job_option_index {
#define OPTION(TYPE, message, field, ...) TDM_JOB_OPTION_##field,
#include "common/job-options.def"
#undef OPTION
        TDM_N_JOB_OPTIONS
};

static const struct tdm_job_option tdm_job_options[TDM_N_JOB_OPTIONS] __attribute__((unused)) = {
#define OPTION(TYPE, message, field, ...) { .range.type = TDM_VALUE_##TYPE, __VA_ARGS__ },
#include "common/job-options.def"
#undef OPTION
};

static inline const char *tdm_job_option_flag(const struct tdm_job_option *option)
{
        return option->flag ? option->flag : option->name;
}

#endif
