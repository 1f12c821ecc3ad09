/* A story on the terminal with libtandem: one connection, one job, tokens as they come, Ctrl-C cancels.
 *
 *     cc story.c $(pkg-config --cflags --libs libtandem) -o story && ./story "Once upon a time"
 *
 * Where Tandem is in a prefix of its own, /opt/tandem say: PKG_CONFIG_PATH names its pkgconfig folder; then add
 * -Wl,-rpath,$(pkg-config --variable=libdir libtandem), or LD_LIBRARY_PATH names its lib folder. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <tandem.h>

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signo)
{
        (void)signo;
        interrupted = 1;
}

static void on_token(struct tandem_job *job, const struct tandem_token *token, void *userdata)
{
        (void)job;
        (void)userdata;
        fwrite(token->text, 1, token->size, stdout);
        fflush(stdout);
}

int main(int argc, char **argv)
{
        struct tandem_generate_options options;
        struct tandem_callbacks callbacks;
        const struct tandem_result *result;
        struct tandem_error err;
        struct tandem_job *job;
        struct tandem *tandem;
        int status = EXIT_FAILURE;

        if (tandem_connect(&tandem, NULL, &err) != TANDEM_OK) {
                fprintf(stderr, "%s\n", err.message);
                return EXIT_FAILURE;
        }
        tandem_generate_options_init(&options);
        options.prompt = argc > 1 ? argv[1] : "Once upon a time";
        options.max_tokens = 200;
        tandem_callbacks_init(&callbacks);
        callbacks.on_token = on_token;
        if (tandem_generate(tandem, &options, &callbacks, NULL, &job, &err) != TANDEM_OK) {
                fprintf(stderr, "%s\n", err.message);
                tandem_close(tandem);
                return EXIT_FAILURE;
        }

        /* A signal ends the wait early, so this is also where Ctrl-C is seen. */
        signal(SIGINT, on_interrupt);
        while (!tandem_job_done(job) && tandem_dispatch(tandem, -1) == TANDEM_OK)
                if (interrupted)
                        tandem_cancel(job);

        result = tandem_job_result(job);
        if (result && result->reason != TANDEM_REASON_ERROR) {
                printf("\n[%s, %u tokens]\n", tandem_reason_name(result->reason), result->generated_tokens);
                status = EXIT_SUCCESS;
        } else if (result) {
                fprintf(stderr, "\n%s\n", result->error.message);
        }
        tandem_job_free(job);
        tandem_close(tandem);
        return status;
}
