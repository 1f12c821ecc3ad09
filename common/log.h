/* Log lines to stderr with journald's priority prefix (<3>…). Libraries log at debug only; the owner of an event
 * logs it once. Any thread. Never the text of a prompt or an answer. Level: TANDEM_LOG=error|warning|info|debug. */
#ifndef TDM_COMMON_LOG_H
#define TDM_COMMON_LOG_H

#include "common/util.h"

enum tdm_log_level { TDM_LOG_ERROR = 3, TDM_LOG_WARNING = 4, TDM_LOG_INFO = 6, TDM_LOG_DEBUG = 7 };

/* Each line begins with ident ("tandemd") when stderr is not the journal. Reads TANDEM_LOG. */
void tdm_log_init(const char *ident);
void tdm_log_set_level(enum tdm_log_level level);
int tdm_log_level_from_name(const char *name); /* -EINVAL */
const char *tdm_log_level_name(enum tdm_log_level level);
bool tdm_log_enabled(enum tdm_log_level level);
void tdm_log(enum tdm_log_level level, const char *fmt, ...) _printf_(2, 3);

#define tdm_log_error(...) tdm_log(TDM_LOG_ERROR, __VA_ARGS__)
#define tdm_log_warning(...) tdm_log(TDM_LOG_WARNING, __VA_ARGS__)
#define tdm_log_info(...) tdm_log(TDM_LOG_INFO, __VA_ARGS__)
#define tdm_log_debug(...)                                                                                             \
        do {                                                                                                           \
                if (tdm_log_enabled(TDM_LOG_DEBUG))                                                                    \
                        tdm_log(TDM_LOG_DEBUG, __VA_ARGS__);                                                           \
        } while (0)

#endif
