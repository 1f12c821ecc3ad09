/* tandem-http: answers the HTTP requests that applications already know how to make. Status: 0 ended as asked, 1 could
 * not serve, 2 wrong usage. */
#include "common/log.h"
#include "common/standard-fds.h"
#include "http-gateway/listen.h"
#include "http-gateway/params.h"
#include "http-gateway/server.h"

int main(int argc, char **argv)
{
        _cleanup_(config_deinit) struct config config = { 0 };
        struct tdm_error err = { 0 };
        int r;

        tdm_standard_fds_open();
        tdm_log_init("tandem-http");
        r = config_load(&config, argc, argv, &err);
        if (r == 0 && config.who_has)
                return listen_say_who_has(config.who_has);
        if (r == 0 && (config.help || config.version || config.list_parameters)) {
                if (config.help)
                        fputs(config_help, stdout);
                else if (config.version)
                        printf("tandem-http %s\n", TANDEM_VERSION);
                else
                        params_print(stdout);
                return fflush(stdout) == 0 ? 0 : 1;
        }
        if (r == 0)
                r = server_run(&config, &err);
        if (r != 0) {
                tdm_log_error("%s", err.message);
                return r == TDM_E_BAD_REQUEST || r == TDM_E_UNSUPPORTED ? 2 : 1;
        }
        return 0;
}
