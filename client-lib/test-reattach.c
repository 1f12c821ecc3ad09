/* A daemon that is lost while jobs run, and the next one on its socket, as a program with a loop of its own sees it.
 * The fake daemon knows no drawn tokens, as an older one: it tells all of them anew. tests/integration/test_reattach.py
 * has the real one. */
#include "client-lib/test-client-util.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

/* The next daemon on the socket; it serves a connection. */
struct next_daemon {
        struct fake *fake;
        struct fake_config config;
        pthread_t thread;
};

static void *serve_next(void *userdata)
{
        struct next_daemon *next = userdata;
        int fd = accept4(next->fake->listen_fd, NULL, NULL, SOCK_CLOEXEC);

        assert(fd >= 0);
        (void)fake_serve(fd, &next->config);
        return NULL;
}

struct seen {
        unsigned accepted, recovering, tokens, done;
};

static void see_accepted(struct tandem_job *job, const struct tandem_accepted *accepted, void *userdata)
{
        ((struct seen *)userdata)->accepted++;
}

static void see_progress(struct tandem_job *job, const struct tandem_progress *progress, void *userdata)
{
        struct seen *seen = userdata;

        if (progress->state == TANDEM_JOB_RECOVERING && progress->daemon_lost)
                seen->recovering++;
}

static void see_token(struct tandem_job *job, const struct tandem_token *token, void *userdata)
{
        struct seen *seen = userdata;

        assert_int_equal(token->index, seen->tokens++);
}

static void see_done(struct tandem_job *job, const struct tandem_result *result, void *userdata)
{
        ((struct seen *)userdata)->done++;
}

static struct tandem_job *start_seen(struct tandem *t, const char *model, uint32_t n, struct seen *seen)
{
        struct tandem_callbacks callbacks;

        tandem_callbacks_init(&callbacks);
        callbacks.on_accepted = see_accepted;
        callbacks.on_progress = see_progress;
        callbacks.on_token = see_token;
        callbacks.on_done = see_done;
        return start(t, model, n, &callbacks, seen);
}

static void poll_until(struct tandem *t, const unsigned *count, unsigned n)
{
        int fd = tandem_fd(t);

        while (*count < n) {
                struct pollfd p = { .fd = tandem_fd(t), .events = tandem_events(t) };

                assert_int_equal(p.fd, fd);
                assert_true(poll(&p, 1, 60000) > 0);
                (void)tandem_dispatch(t, 0);
        }
}

/* Whether a timer of this process is yet to run out, or has and was not read. */
static bool timer_is_set(void)
{
        char path[64], line[128];
        bool set = false;

        for (int fd = 3; fd < 64; fd++) {
                FILE *f;
                long s = 0, ns = 0;
                unsigned long ticks = 0;

                snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
                f = fopen(path, "re");
                while (f && fgets(line, sizeof(line), f))
                        if (sscanf(line, "it_value: (%ld, %ld)", &s, &ns) == 2 ||
                            sscanf(line, "ticks: %lu", &ticks) == 1)
                                set = set || s > 0 || ns > 0 || ticks > 0;
                if (f)
                        fclose(f);
        }
        return set;
}

static void test_next_daemon(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct next_daemon next = { .config = FAKE_CONFIG_INIT };
        struct seen seen = { 0 }, late = { 0 };
        struct tandem_job *job, *begun_late;
        struct tandem_status *status;
        struct tandem_error err;
        struct tandem *t;
        struct fake fake;

        config.cut_after = 600;
        next.fake = &fake;
        t = connect_to(&fake, &config);
        job = start_seen(t, "slow", 40, &seen);
        poll_until(t, &seen.recovering, 1);
        assert_true(seen.tokens > 0 && seen.tokens < 40);
        assert_int_equal(tandem_get_status(t, &status, &err), TANDEM_E_DAEMON_LOST);
        assert_null(tandem_connection_error(t));
        begun_late = start_seen(t, "tale", 30, &late);
        assert_int_equal(pthread_create(&next.thread, NULL, serve_next, &next), 0);
        poll_until(t, &late.done, 1);
        poll_until(t, &seen.done, 1);
        assert_int_equal(tandem_job_result(job)->reason, TANDEM_REASON_LENGTH);
        assert_int_equal(seen.tokens, 40);
        assert_int_equal(seen.accepted, 1);
        assert_int_equal(tandem_job_result(job)->recoveries, 1);
        assert_int_equal(late.tokens, 30);
        assert_int_equal(late.accepted, 1);
        assert_false(timer_is_set()); /* it would wake the poll for ever */
        assert_int_equal(tandem_job_result(begun_late)->recoveries, 0);
        tandem_job_free(job);
        tandem_job_free(begun_late);
        tandem_close(t);
        pthread_join(next.thread, NULL);
        fake_stop(&fake);
}

/* A part of the scores had come: they are made anew. */
static void test_score(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct next_daemon next = { .config = FAKE_CONFIG_INIT };
        struct tandem_score_options options;
        struct tandem_callbacks callbacks;
        const struct tandem_scores *scores;
        struct seen seen = { 0 };
        struct tandem_job *job;
        uint32_t ids[40];
        struct tandem *t;
        struct fake fake;
        size_t n;

        for (uint32_t i = 0; i < 40; i++)
                ids[i] = 100 + i;
        config.cut_after = 400;
        next.fake = &fake;
        t = connect_to(&fake, &config);
        tandem_callbacks_init(&callbacks);
        callbacks.on_progress = see_progress;
        callbacks.on_done = see_done;
        tandem_score_options_init(&options);
        options.ids = ids;
        options.n_ids = 40;
        options.model = "tale";
        assert_int_equal(tandem_score(t, &options, &callbacks, &seen, &job, NULL), TANDEM_OK);
        poll_until(t, &seen.recovering, 1);
        (void)tandem_job_ids(job, &n);
        assert_true(n > 0 && n < 40);
        assert_int_equal(pthread_create(&next.thread, NULL, serve_next, &next), 0);
        poll_until(t, &seen.done, 1);
        scores = tandem_job_scores(job);
        assert_non_null(scores);
        assert_int_equal(scores->n, 40);
        assert_memory_equal(scores->ids, ids, sizeof(ids));
        assert_true(scores->nll[20] > 20 && scores->nll[20] < 21);
        tandem_job_free(job);
        tandem_close(t);
        pthread_join(next.thread, NULL);
        fake_stop(&fake);
}

/* Nobody accepts: the connection waits in the socket, as behind a service manager. */
static void test_cancel_while_away(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct seen seen[3] = { 0 };
        struct tandem_job *jobs[3];
        struct tandem *t;
        struct fake fake;
        int fd;

        config.cut_after = 900;
        t = connect_to(&fake, &config);
        for (unsigned i = 0; i < 3; i++)
                jobs[i] = start_seen(t, "slow", 1000, &seen[i]);
        for (unsigned i = 0; i < 3; i++)
                poll_until(t, &seen[i].recovering, 1);
        fd = tandem_fd(t);
        assert_int_equal(tandem_cancel(jobs[0]), TANDEM_OK);
        poll_until(t, &seen[0].done, 1);
        assert_int_equal(tandem_job_result(jobs[0])->reason, TANDEM_REASON_CANCELLED);
        assert_int_equal(tandem_job_result(jobs[0])->generated_tokens, seen[0].tokens);
        /* The number that it had is known still. */
        assert_int_equal(tandem_cancel_job(t, tandem_job_id(jobs[1]), NULL), TANDEM_OK);
        poll_until(t, &seen[1].done, 1);
        assert_int_equal(tandem_job_result(jobs[1])->reason, TANDEM_REASON_CANCELLED);
        assert_int_equal(tandem_fd(t), fd);
        tandem_job_free(jobs[0]);
        tandem_job_free(jobs[1]);
        tandem_job_free(jobs[2]); /* nobody is left who waits: the connection ends */
        while (tandem_dispatch(t, -1) == TANDEM_OK)
                ;
        assert_int_equal(tandem_connection_error(t)->code, TANDEM_E_DAEMON_LOST);
        assert_int_equal(seen[2].done, 0);
        tandem_close(t);
        fake_stop(&fake);
}

/* The daemon ends, and has another job to do yet. */
static void test_cancel_behind_another(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct seen busy = { 0 }, waiting = { 0 };
        struct tandem_job *other, *job;
        struct tandem *t;
        struct fake fake;

        t = connect_to(&fake, &config);
        other = start_seen(t, "slow", 0, &busy); /* without end: it is not over when this thread is late */
        job = start_seen(t, "ending", 5, &waiting);
        poll_until(t, &busy.tokens, 5);
        assert_int_equal(waiting.done, 0);
        assert_int_equal(tandem_cancel(job), TANDEM_OK);
        poll_until(t, &waiting.done, 1);
        assert_int_equal(busy.done, 0);
        assert_int_equal(tandem_job_result(job)->reason, TANDEM_REASON_CANCELLED);
        poll_until(t, &busy.tokens, busy.tokens + 5);
        assert_int_equal(tandem_cancel(other), TANDEM_OK);
        poll_until(t, &busy.done, 1);
        assert_int_equal(tandem_job_result(other)->reason, TANDEM_REASON_CANCELLED);
        tandem_job_free(job);
        tandem_job_free(other);
        tandem_close(t);
        fake_stop(&fake);
}

static void test_close_while_away(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct seen seen = { 0 };
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;

        config.cut_after = 600;
        t = connect_to(&fake, &config);
        job = start_seen(t, "slow", 1000, &seen);
        poll_until(t, &seen.recovering, 1);
        tandem_close(t);
        assert_true(tandem_job_done(job));
        assert_int_equal(tandem_job_result(job)->reason, TANDEM_REASON_CANCELLED);
        assert_int_equal(seen.done, 0);
        tandem_job_free(job);
        fake_stop(&fake);
}

/* Each daemon is lost before it tells anything new: the job may be what brings it down. */
static void test_fruitless(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct next_daemon next[3];
        struct seen seen = { 0 };
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;

        t = connect_to(&fake, &config);
        for (unsigned i = 0; i < 3; i++) {
                next[i] = (struct next_daemon){ .fake = &fake, .config = FAKE_CONFIG_INIT };
                assert_int_equal(pthread_create(&next[i].thread, NULL, serve_next, &next[i]), 0);
        }
        job = start_seen(t, "die", 0, &seen);
        poll_until(t, &seen.done, 1);
        assert_string_equal(tandem_job_result(job)->error.name, "daemon-lost");
        assert_int_equal(seen.tokens, 2);
        assert_int_equal(seen.recovering, 3);
        for (unsigned i = 0; i < 3; i++)
                pthread_join(next[i].thread, NULL);
        tandem_job_free(job);
        tandem_close(t);
        fake_stop(&fake);
}

static void poll_while(struct tandem *t, const struct seen *seen, unsigned n_tokens)
{
        while (seen->done == 0 && seen->tokens <= n_tokens) {
                struct pollfd p = { .fd = tandem_fd(t), .events = tandem_events(t) };

                assert_true(poll(&p, 1, 60000) > 0);
                (void)tandem_dispatch(t, 0);
        }
        assert_int_equal(seen->tokens, n_tokens);
        assert_int_equal(seen->done, 1);
}

/* A daemon that tells more tokens than were asked for is not believed, be it the first or the next one. */
static void test_too_many(void **state)
{
        for (unsigned again = 0; again < 2; again++) {
                struct fake_config config = FAKE_CONFIG_INIT;
                struct next_daemon next = { .config = FAKE_CONFIG_INIT };
                struct seen seen = { 0 };
                struct tandem_job *job;
                struct tandem *t;
                struct fake fake;

                config.too_many = !again;
                next.config.too_many = true;
                if (again)
                        config.cut_after = 600;
                next.fake = &fake;
                t = connect_to(&fake, &config);
                job = start_seen(t, "slow", 40, &seen);
                if (again) {
                        poll_until(t, &seen.recovering, 1);
                        assert_true(seen.tokens < 40);
                        assert_int_equal(pthread_create(&next.thread, NULL, serve_next, &next), 0);
                }
                poll_while(t, &seen, 40);
                assert_string_equal(tandem_job_result(job)->error.name, "protocol");
                assert_non_null(strstr(tandem_job_result(job)->error.message, "than the 40 that may come"));
                tandem_job_free(job);
                tandem_close(t);
                if (again)
                        pthread_join(next.thread, NULL);
                fake_stop(&fake);
        }
}

/* A process of another user has taken the socket's place. */
static void test_stranger(void **state)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        struct fake_config config = FAKE_CONFIG_INIT;
        struct seen seen = { 0 };
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;
        unsigned n = 0;
        char byte;
        int fd;

        if (geteuid() != 0)
                skip();
        config.cut_after = 600;
        t = connect_to(&fake, &config);
        job = start_seen(t, "slow", 40, &seen);
        poll_until(t, &seen.tokens, 1);
        assert_int_equal(unlink(fake.path), 0);
        close(fake.listen_fd);
        snprintf(address.sun_path, sizeof(address.sun_path), "%s", fake.path);
        fake.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_int_equal(bind(fake.listen_fd, (struct sockaddr *)&address, sizeof(address)), 0);
        assert_int_equal(seteuid(65534), 0);
        assert_int_equal(listen(fake.listen_fd, 64), 0);
        assert_int_equal(seteuid(0), 0);
        tandem_set_reattach(t, 200);
        poll_until(t, &seen.done, 1);
        assert_string_equal(tandem_job_result(job)->error.name, "daemon-lost");
        assert_non_null(strstr(tandem_job_result(job)->error.message, "another user (uid 65534)"));
        for (; (fd = accept4(fake.listen_fd, NULL, NULL, SOCK_CLOEXEC)) >= 0; close(fd), n++)
                assert_int_equal(read(fd, &byte, 1), 0); /* nothing was sent */
        assert_true(n > 0);
        tandem_job_free(job);
        tandem_close(t);
        fake_stop(&fake);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_next_daemon),       cmocka_unit_test(test_score),
                cmocka_unit_test(test_cancel_while_away), cmocka_unit_test(test_cancel_behind_another),
                cmocka_unit_test(test_close_while_away),  cmocka_unit_test(test_fruitless),
                cmocka_unit_test(test_too_many),          cmocka_unit_test(test_stranger),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
