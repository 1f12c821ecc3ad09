/* Shared by config.c (flags, environment), config-files.c (which files) and config-ini.c (reading one). */
#ifndef TDM_DAEMON_SERVICE_CONFIG_PRIVATE_H
#define TDM_DAEMON_SERVICE_CONFIG_PRIVATE_H

#include "daemon/service/config.h"

#define TDM_CONFIG_MAX_THREADS 1024u
#define TDM_CONFIG_MAX_HANG_MS 600000u
#define TDM_CONFIG_NPU_FORMATS "bf16, int8, int4"

/* those of --config, --system, --user */
int tdm_config_read_default_files(struct tdm_config *c, struct tdm_error *err);
void tdm_config_strv_clear(char ***v);
int tdm_config_strv_add(char ***v, const char *value, size_t len);
int tdm_config_set_string(char **to, const char *value);
/* -EINVAL and a sentence in why. */
#define TDM_CONFIG_MAX_STORE (UINT64_C(1) << 44)
/* "auto", "off" or a size. */
int tdm_config_parse_store(const char *value, uint64_t max, uint64_t *ret, char *why, size_t why_size);
int tdm_config_parse_number(const char *value, uint64_t min, uint64_t max, uint64_t *ret, char *why, size_t why_size);
int tdm_config_placement(const char *value); /* "measured" too; -EINVAL */

#endif
