/* How the library's tests begin: a fake daemon, a connection to it, a job. */
#ifndef TANDEM_TEST_CLIENT_UTIL_H
#define TANDEM_TEST_CLIENT_UTIL_H

#include <setjmp.h>
#include <stdarg.h>

#include "client-lib/include/tandem.h"
#include "client-lib/test-fake-daemon.h"

#include <cmocka.h>

static inline struct tandem *connect_to(struct fake *fake, const struct fake_config *config)
{
        struct tandem *t;
        struct tandem_error err;
        int code;

        fake_start(fake, config);
        code = tandem_connect(&t, fake->path, &err);
        if (code != TANDEM_OK)
                print_message("%s\n", err.message);
        assert_int_equal(code, TANDEM_OK);
        return t;
}

static inline struct tandem_job *start(struct tandem *t, const char *model, uint32_t n,
                                       const struct tandem_callbacks *callbacks, void *userdata)
{
        struct tandem_generate_options options;
        struct tandem_error err;
        struct tandem_job *job;

        tandem_generate_options_init(&options);
        options.model = model;
        options.prompt = "Once";
        options.max_tokens = n;
        assert_int_equal(tandem_generate(t, &options, callbacks, userdata, &job, &err), TANDEM_OK);
        return job;
}

#endif
