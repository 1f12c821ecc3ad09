/* tandemd: reads its configuration, runs the server, and says in one line why it could not. Status: 0 ended as asked,
 * 1 could not serve, 2 wrong usage. */
#include <stdio.h>
#include "common/log.h"
#include "common/standard-fds.h"
#include "daemon/faces/socket/gate.h"
#include "daemon/service/heap.h"
#include "daemon/service/reload.h"
#include "daemon/service/server.h"

/* --check-config: the names of the files and the resulting configuration on standard output; errors were reported
 * before. */
static int check_configuration(const struct tdm_config *config)
{
        for (char *const *file = config->files; file && *file; file++)
                printf("# %s\n", *file);
        if (!config->files)
                puts("# no configuration file was found");
        tdm_config_print(config, stdout);
        tdm_reload_check_default(config);
        if (config->n_warnings > 0)
                fprintf(stderr, "tandemd: the configuration can be used; %u line%s ignored\n", config->n_warnings,
                        config->n_warnings == 1 ? " is" : "s are");
        return fflush(stdout) == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
        _cleanup_(tdm_config_deinit) struct tdm_config config = { 0 };
        struct tdm_error err = { 0 };
        int r;

        tdm_standard_fds_open();
        if (argc == 2 && strcmp(argv[1], TDM_GATE_OPTION) == 0)
                return tdm_gate_run(3);
        tdm_heap_drop_thread_caches(argv);
        tdm_log_init("tandemd");
        r = tdm_config_init(&config);
        if (r == 0)
                r = tdm_config_load(&config, argc, argv, &err);
        if (r != 0) {
                tdm_log_error("%s", err.message[0] ? err.message : "out of memory");
                return r > 0 ? 2 : 1;
        }
        if (config.help || config.version) {
                if (config.help)
                        fputs(tdm_config_help, stdout);
                else
                        printf("tandemd %s\n", TANDEM_VERSION);
                return fflush(stdout) == 0 ? 0 : 1;
        }
        if (config.check)
                return check_configuration(&config);
        tdm_log_set_level(config.log_level);
        r = tdm_server_run(&config, &err);
        if (r != 0) {
                tdm_log_error("%s", err.message);
                return r == TDM_E_BAD_REQUEST ? 2 : 1;
        }
        return 0;
}
