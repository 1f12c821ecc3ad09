/* libtandem against the fake daemon, through its public interface only: what it does and says when all is well, and
 * when a daemon refuses or goes. What odd daemons can do to it is in test-hostile.c. */
#include "client-lib/test-client-util.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

static void test_version(void **state)
{
        char version[32];

        snprintf(version, sizeof(version), "%d.%d.%d", TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR,
                 TANDEM_VERSION_PATCH);
        assert_string_equal(tandem_version(), version);
        assert_string_equal(tandem_version(), TANDEM_PROJECT_VERSION);
}

static void test_names(void **state)
{
        assert_string_equal(tandem_code_name(TANDEM_E_NO_MODEL), "no-model");
        assert_string_equal(tandem_code_name(TANDEM_E_NO_DAEMON), "no-daemon");
        assert_string_equal(tandem_code_name(TANDEM_OK), "ok");
        assert_string_equal(tandem_code_name(4711), "internal");
        assert_string_equal(tandem_reason_name(TANDEM_REASON_LENGTH), "length");
        assert_string_equal(tandem_reason_name(99), "unknown");
        assert_string_equal(tandem_job_state_name(-1), "unknown");
}

static void test_blocking(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        const struct tandem_result *r;
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;
        const uint32_t *ids;
        size_t n;

        t = connect_to(&fake, &config);
        assert_string_equal(tandem_daemon_version(t), "0.1.0-fake");
        assert_string_equal(tandem_socket_path(t), fake.path);
        job = start(t, NULL, 0, NULL, NULL);
        assert_null(tandem_job_result(job));
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        r = tandem_job_result(job);
        assert_non_null(r);
        assert_int_equal(r->reason, TANDEM_REASON_STOP);
        assert_int_equal(r->generated_tokens, 5);
        assert_int_equal(r->prompt_tokens, 23);
        assert_int_equal(r->job, 7);
        assert_string_equal(r->numerics_id, "fake-1");
        assert_string_equal(tandem_job_text(job, &n), "Once upon a time.\n");
        assert_int_equal(n, 18);
        ids = tandem_job_ids(job, &n);
        assert_int_equal(n, 5);
        assert_int_equal(ids[4], 104);
        assert_null(tandem_job_scores(job));
        /* The job outlives its connection. */
        tandem_close(t);
        assert_string_equal(tandem_job_text(job, NULL), "Once upon a time.\n");
        assert_int_equal(tandem_cancel(job), TANDEM_OK);
        tandem_job_free(job);
        fake_stop(&fake);
}

struct heard {
        unsigned accepted, progress, tokens, done;
        struct tandem_job *other;
        struct tandem *close;
        bool free_in_token, cancel_in_token;
        int blocking_code;
        struct tandem *t;
};

static void on_accepted(struct tandem_job *job, const struct tandem_accepted *accepted, void *userdata)
{
        ((struct heard *)userdata)->accepted++;
        assert_int_equal(accepted->prompt_tokens, 23);
}

static void on_progress(struct tandem_job *job, const struct tandem_progress *progress, void *userdata)
{
        ((struct heard *)userdata)->progress++;
}

static void on_token(struct tandem_job *job, const struct tandem_token *token, void *userdata)
{
        struct heard *h = userdata;
        struct tandem_status *status;

        assert_int_equal(token->index, h->tokens);
        assert_int_equal(strlen(token->text), token->size);
        h->tokens++;
        if (h->t)
                h->blocking_code = tandem_get_status(h->t, &status, NULL);
        if (h->cancel_in_token)
                assert_int_equal(tandem_cancel(job), TANDEM_OK);
        if (h->free_in_token && h->tokens == 2)
                tandem_job_free(job);
        if (h->close && h->tokens == 2)
                tandem_close(h->close);
}

static void on_done(struct tandem_job *job, const struct tandem_result *result, void *userdata)
{
        ((struct heard *)userdata)->done++;
        assert_true(tandem_job_done(job));
}

static void set_callbacks(struct tandem_callbacks *callbacks)
{
        tandem_callbacks_init(callbacks);
        callbacks->on_accepted = on_accepted;
        callbacks->on_progress = on_progress;
        callbacks->on_token = on_token;
        callbacks->on_done = on_done;
}

static void test_poll_loop(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_callbacks callbacks;
        struct heard a = { 0 }, b = { 0 };
        struct tandem_job *ja, *jb;
        struct tandem *t;
        struct fake fake;

        set_callbacks(&callbacks);
        config.fragment = 1;
        t = connect_to(&fake, &config);
        ja = start(t, "recover", 40, &callbacks, &a);
        jb = start(t, "tale", 60, &callbacks, &b);
        while (!tandem_job_done(ja) || !tandem_job_done(jb)) {
                struct pollfd p = { .fd = tandem_fd(t), .events = tandem_events(t) };

                assert_true(poll(&p, 1, 60000) > 0);
                assert_int_equal(tandem_dispatch(t, 0), TANDEM_OK);
        }
        assert_int_equal(a.accepted, 1);
        assert_int_equal(a.progress, 1);
        assert_int_equal(a.tokens, 40);
        assert_int_equal(a.done, 1);
        assert_int_equal(tandem_job_result(ja)->recoveries, 1);
        assert_int_equal(b.tokens, 60);
        assert_int_equal(b.done, 1);
        assert_int_equal(tandem_job_result(jb)->reason, TANDEM_REASON_LENGTH);
        tandem_job_free(ja);
        tandem_job_free(jb);
        tandem_close(t);
        fake_stop(&fake);
}

static void test_cancel(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_callbacks callbacks;
        struct heard h = { .cancel_in_token = true };
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;

        set_callbacks(&callbacks);
        t = connect_to(&fake, &config);
        job = start(t, "slow", 0, &callbacks, &h);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        assert_int_equal(tandem_job_result(job)->reason, TANDEM_REASON_CANCELLED);
        assert_int_equal(h.done, 1);
        tandem_job_free(job);
        /* Before the daemon has given it a number: Cancel follows as soon as there is one. */
        job = start(t, "slow", 0, NULL, NULL);
        assert_int_equal(tandem_job_id(job), 0);
        assert_int_equal(tandem_cancel(job), TANDEM_OK);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        assert_int_equal(tandem_job_result(job)->reason, TANDEM_REASON_CANCELLED);
        tandem_job_free(job);
        tandem_close(t);
        fake_stop(&fake);
}

static void test_wait_timeout(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_error err;
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;
        uint32_t *ids;
        size_t n;

        t = connect_to(&fake, &config);
        job = start(t, "deaf", 0, NULL, NULL);
        assert_int_equal(tandem_wait(job, 30), TANDEM_E_TIMEOUT);
        assert_int_equal(tandem_wait(job, 0), TANDEM_E_TIMEOUT);
        tandem_set_timeout(t, 30);
        assert_int_equal(tandem_tokenize(t, "deaf", "x", 1, 0, &ids, &n, &err), TANDEM_E_TIMEOUT);
        /* What was given up does not confuse what comes after it. */
        tandem_set_timeout(t, 60000);
        assert_int_equal(tandem_tokenize(t, NULL, "ab", SIZE_MAX, 0, &ids, &n, &err), TANDEM_OK);
        assert_int_equal(n, 3);
        tandem_free(ids);
        tandem_close(t);
        assert_true(tandem_job_done(job));
        assert_int_equal(tandem_job_result(job)->reason, TANDEM_REASON_CANCELLED);
        tandem_job_free(job);
        fake_stop(&fake);
}

static void test_callbacks_may_let_go(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_callbacks callbacks;
        struct heard h = { .free_in_token = true }, c = { 0 }, blocked = { 0 };
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;

        set_callbacks(&callbacks);
        t = connect_to(&fake, &config);
        /* Freed by its own callback while it is waited for: the connection goes on, silently for that job. */
        job = start(t, "tale", 10, &callbacks, &h);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        assert_int_equal(h.tokens, 2);
        assert_int_equal(h.done, 0);
        /* A blocking request from a callback is refused, not a deadlock. */
        blocked.t = t;
        job = start(t, "tale", 3, &callbacks, &blocked);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        assert_int_equal(blocked.blocking_code, TANDEM_E_BAD_REQUEST);
        tandem_job_free(job);
        /* The connection closed by a callback. */
        c.close = t;
        job = start(t, "slow", 0, &callbacks, &c);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        assert_int_equal(c.tokens, 2);
        assert_int_equal(c.done, 0);
        assert_int_equal(tandem_job_result(job)->reason, TANDEM_REASON_CANCELLED);
        tandem_job_free(job);
        fake_stop(&fake);
}

static void test_refused(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        const struct tandem_result *r;
        struct tandem_error err;
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;

        t = connect_to(&fake, &config);
        job = start(t, "busy", 0, NULL, NULL);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        r = tandem_job_result(job);
        assert_int_equal(r->reason, TANDEM_REASON_ERROR);
        assert_int_equal(r->error.code, TANDEM_E_BUSY);
        assert_string_equal(r->error.message, "64 jobs run already");
        tandem_job_free(job);

        job = start(t, "fault", 0, NULL, NULL);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        assert_int_equal(tandem_job_result(job)->error.code, TANDEM_E_DEVICE_FAULT);
        assert_string_equal(tandem_job_text(job, NULL), "Once upon");
        tandem_job_free(job);

        /* A code that this library does not know keeps its name; the message becomes one safe line. */
        assert_int_equal(tandem_unload_model(t, "tale", &err), TANDEM_E_OTHER);
        assert_string_equal(err.name, "a-new-code");
        assert_string_equal(err.message, "a message of two  [31mlines");
        tandem_close(t);
        fake_stop(&fake);
}

static void test_cancelled_before_it_began(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;

        t = connect_to(&fake, &config);
        job = start(t, "unborn", 0, NULL, NULL);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        assert_int_equal(tandem_job_result(job)->reason, TANDEM_REASON_CANCELLED);
        tandem_job_free(job);
        tandem_close(t);
        fake_stop(&fake);
}

/* Options out of their ranges are refused before anything is sent, in the daemon's words. */
static void test_options_refused(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_generate_options options;
        const char *texts[] = { "" };
        struct tandem_error err;
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;

        t = connect_to(&fake, &config);
#define REFUSED(member, value, text)                                                                                   \
        tandem_generate_options_init(&options);                                                                        \
        options.prompt = "x";                                                                                          \
        options.member = value;                                                                                        \
        assert_int_equal(tandem_generate(t, &options, NULL, NULL, &job, &err), TANDEM_E_BAD_REQUEST);                  \
        assert_string_equal(err.message, text)
        REFUSED(temperature, 101, "temperature: '101' is not a number from 0 to 100");
        REFUSED(temperature, NAN, "temperature: 'nan' is not a number from 0 to 100");
        REFUSED(min_p, 1, "min-p: '1' is not a number from 0 to less than 1");
        REFUSED(repeat_penalty, 0.001f, "repeat-penalty: '0.001' is not 0 or a number from 0.01 to 100");
        REFUSED(repeat_last, 257, "repeat-last: '257' is not a whole number from 0 to 256");
        REFUSED(priority, (enum tandem_priority)2, "priority: '2' is not interactive or background");
        REFUSED(placement, "cpu", "placement: 'cpu' is not split, npu or gpu");
#undef REFUSED
        tandem_generate_options_init(&options);
        options.prompt = "x";
        options.stop = texts;
        options.n_stop = 1;
        assert_int_equal(tandem_generate(t, &options, NULL, NULL, &job, &err), TANDEM_E_BAD_REQUEST);
        assert_string_equal(err.message, "stop: a text of 0 bytes is not a text of 1 to 256 bytes");
        tandem_close(t);
        fake_stop(&fake);
}

static void test_refused_here(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_generate_options options;
        struct tandem_score_options score;
        struct tandem_error err;
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;
        uint32_t id = 1;
        char *big;

        config.max_frame = 1000;
        t = connect_to(&fake, &config);
        tandem_generate_options_init(&options);
        assert_int_equal(tandem_generate(t, &options, NULL, NULL, &job, &err), TANDEM_E_BAD_REQUEST);
        options.prompt = "x";
        options.prompt_ids = &id;
        options.n_prompt_ids = 1;
        assert_int_equal(tandem_generate(t, &options, NULL, NULL, &job, &err), TANDEM_E_BAD_REQUEST);
        options.n_prompt_ids = 0;
        options.model = "/nowhere/model.gguf";
        assert_int_equal(tandem_generate(t, &options, NULL, NULL, &job, &err), TANDEM_E_NO_MODEL);
        assert_non_null(strstr(err.message, "/nowhere/model.gguf"));
        options.model = "/dev/null";
        assert_int_equal(tandem_generate(t, &options, NULL, NULL, &job, &err), TANDEM_E_NO_MODEL);
        options.model = "./";
        assert_int_equal(tandem_generate(t, &options, NULL, NULL, &job, &err), TANDEM_E_NO_MODEL);
        options.model = NULL;
        big = calloc(1, 1001);
        memset(big, 'x', 1000);
        options.prompt = big;
        assert_int_equal(tandem_generate(t, &options, NULL, NULL, &job, &err), TANDEM_E_TOO_LONG);
        free(big);
        tandem_score_options_init(&score);
        assert_int_equal(tandem_score(t, &score, NULL, NULL, &job, &err), TANDEM_E_BAD_REQUEST);
        score.text = "x";
        score.top = 65;
        assert_int_equal(tandem_score(t, &score, NULL, NULL, &job, &err), TANDEM_E_BAD_REQUEST);
        assert_int_equal(tandem_restart_worker(t, "cpu", &err), TANDEM_E_BAD_REQUEST);
        assert_int_equal(tandem_restart_worker(t, "npu", NULL), TANDEM_OK);
        assert_int_equal(tandem_unload_model(t, "", &err), TANDEM_E_BAD_REQUEST);
        tandem_close(t);
        fake_stop(&fake);
}

/* A program built against a header without the last fields. */
static void test_older_structs(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_generate_options options;
        struct tandem_callbacks callbacks;
        struct heard h = { 0 };
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;

        memset(&options, 0xa5, sizeof(options));
        tandem_generate_options_init_sized(&options, offsetof(struct tandem_generate_options, stop));
        assert_int_equal(((unsigned char *)&options)[offsetof(struct tandem_generate_options, stop)], 0xa5);
        options.prompt = "x";
        set_callbacks(&callbacks);
        callbacks.struct_size = offsetof(struct tandem_callbacks, on_done);
        t = connect_to(&fake, &config);
        assert_int_equal(tandem_generate(t, &options, &callbacks, &h, &job, NULL), TANDEM_OK);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        assert_int_equal(h.tokens, 5);
        assert_int_equal(h.done, 0);
        tandem_job_free(job);
        tandem_close(t);
        fake_stop(&fake);
}

/* Pictures as bytes and as descriptors: all of the file, wherever the descriptor stands, and no pipe. */
static void test_pictures(void **state)
{
        struct tandem_picture pictures[3] = { { .file = "bytes", .size = 5, .offset = 1 },
                                              { .offset = 1 },
                                              { .offset = 2 } };
        int ends[2], fds[3] = { -1, -1, -1 };
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_generate_options options;
        struct tandem_error err;
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;
        char *log = NULL;
        size_t size;

        config.log = open_memstream(&log, &size);
        assert_non_null(config.log);
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        for (size_t i = 1; i < 3; i++) {
                fds[i] = memfd_create("picture", MFD_CLOEXEC);
                assert_int_equal(write(fds[i], i == 1 ? "first" : "second", i == 1 ? 5 : 6), i == 1 ? 5 : 6);
        }
        t = connect_to(&fake, &config);
        tandem_generate_options_init(&options);
        options.prompt = "xy";
        options.pictures = pictures;
        options.n_pictures = 3;
        options.picture_fds = fds;
        assert_int_equal(tandem_generate(t, &options, NULL, NULL, &job, &err), TANDEM_OK);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        tandem_job_free(job);
        for (size_t i = 1; i < 3; i++)
                assert_int_equal(lseek(fds[i], 0, SEEK_CUR), i == 1 ? 5 : 6); /* still the caller's */
        for (unsigned i = 0; i < 3; i++) {
                static const char *const words[] = { "picture 2: descriptor -1: ", "of no regular file",
                                                     "at most 33554432 are taken" };

                close(fds[1]);
                fds[1] = i == 0 ? -1 : i == 1 ? dup(ends[0]) : memfd_create("large", MFD_CLOEXEC);
                if (i == 2)
                        assert_int_equal(ftruncate(fds[1], (32 << 20) + 1), 0);
                assert_int_not_equal(tandem_generate(t, &options, NULL, NULL, &job, &err), TANDEM_OK);
                assert_non_null(strstr(err.message, words[i]));
        }
        options.pictures = &pictures[0];
        options.n_pictures = 1;
        options.picture_fds = NULL;
        pictures[0] = (struct tandem_picture){ 0 }; /* no file, and no descriptor: the daemon says that it is empty */
        assert_int_equal(tandem_generate(t, &options, NULL, NULL, &job, &err), TANDEM_OK);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        tandem_job_free(job);
        tandem_close(t);
        fake_stop(&fake);
        fclose(config.log);
        assert_non_null(strstr(log, "\"pictures\":[[0,1,\"bytes\"],[0,1,\"first\"],[0,2,\"second\"]]"));
        assert_non_null(strstr(log, "\"pictures\":[[0,0,\"\"]]"));
        free(log);
        close(ends[0]);
        close(ends[1]);
        close(fds[1]);
        close(fds[2]);
}

static void test_score(void **state)
{
        static const uint32_t ids[] = { 2, 5, 6, 7, 8 };
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_score_options options;
        const struct tandem_scores *s;
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;

        config.fragment = 7;
        t = connect_to(&fake, &config);
        tandem_score_options_init(&options);
        options.ids = ids;
        options.n_ids = 5;
        options.top = 3;
        assert_int_equal(tandem_score(t, &options, NULL, NULL, &job, NULL), TANDEM_OK);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        s = tandem_job_scores(job);
        assert_non_null(s);
        assert_int_equal(s->n, 5);
        assert_memory_equal(s->ids, ids, sizeof(ids));
        assert_float_equal(s->nll[3], 3.1, 1e-6);
        assert_float_equal(s->nll[4], 0, 0);
        assert_int_equal(s->n_top[4], 3);
        assert_int_equal(s->top_ids[4 * 3 + 2], 1002);
        assert_float_equal(s->top_logprobs[4 * 3 + 2], -0.3, 1e-6);
        tandem_job_free(job);

        tandem_score_options_init(&options);
        options.text = "ab";
        assert_int_equal(tandem_score(t, &options, NULL, NULL, &job, NULL), TANDEM_OK);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        s = tandem_job_scores(job);
        assert_int_equal(s->n, 3);
        assert_int_equal(s->n_top[0], 0);
        tandem_job_free(job);

        options.model = "oddscore";
        assert_int_equal(tandem_score(t, &options, NULL, NULL, &job, NULL), TANDEM_OK);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        assert_int_equal(tandem_job_result(job)->error.code, TANDEM_E_PROTOCOL);
        assert_null(tandem_job_scores(job));
        tandem_job_free(job);
        tandem_close(t);
        fake_stop(&fake);
}

static void test_listings(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_status *status;
        struct tandem_model_list *models;
        struct tandem_job_list *jobs;
        struct tandem_error err;
        struct tandem *t;
        struct fake fake;

        t = connect_to(&fake, &config);
        assert_int_equal(tandem_get_status(t, &status, &err), TANDEM_OK);
        assert_int_equal(status->n_workers, 2);
        assert_string_equal(status->workers[0]->name, "npu");
        assert_string_equal(status->workers[0]->blocks[0]->kind, "attention");
        assert_string_equal(status->workers[1]->blocks[0]->kind, "ffn");
        assert_int_equal(status->workers[1]->blocks[0]->blocks, 121);
        assert_string_equal(status->workers[1]->last_exit, "killed by \x1b[31m signal 9");
        assert_string_equal(status->models[0]->name, "tale");
        assert_int_equal(tandem_list_models(t, &models, &err), TANDEM_OK);
        assert_int_equal(models->n_models, 1);
        assert_true(models->models[0]->is_default);
        assert_int_equal(tandem_list_jobs(t, &jobs, &err), TANDEM_OK);
        assert_int_equal(jobs->jobs[0]->job, 7);
        assert_int_equal(jobs->jobs[0]->state, TANDEM_JOB_DECODE);
        assert_int_equal(tandem_cancel_job(t, 12345, &err), TANDEM_E_NO_JOB);
        assert_int_equal(tandem_load_model(t, "tale", &err), TANDEM_OK);
        tandem_close(t);
        /* Answers live on their own. */
        assert_string_equal(status->models[0]->chat, "gemma");
        tandem_status_free(status);
        tandem_model_list_free(models);
        tandem_job_list_free(jobs);
        tandem_status_free(NULL);
        fake_stop(&fake);
}

static void test_daemon_lost(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_generate_options options;
        struct tandem_callbacks callbacks;
        struct heard h = { 0 };
        struct tandem_error err;
        struct tandem_job *job, *waiting, *none;
        struct tandem *t;
        struct fake fake;

        set_callbacks(&callbacks);
        t = connect_to(&fake, &config);
        tandem_set_reattach(t, 0);
        waiting = start(t, "stuck", 0, NULL, NULL);
        job = start(t, "die", 0, &callbacks, &h);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        assert_int_equal(h.tokens, 2);
        assert_int_equal(h.done, 1);
        assert_int_equal(tandem_job_result(job)->reason, TANDEM_REASON_ERROR);
        assert_string_equal(tandem_job_result(job)->error.name, "daemon-lost");
        assert_non_null(strstr(tandem_job_result(job)->error.message, "after 2 tokens"));
        assert_int_equal(tandem_wait(waiting, 0), TANDEM_OK);
        assert_int_equal(tandem_job_result(waiting)->error.code, TANDEM_E_DAEMON_LOST);
        assert_int_equal(tandem_connection_error(t)->code, TANDEM_E_DAEMON_LOST);
        assert_int_equal(tandem_dispatch(t, 0), TANDEM_E_DAEMON_LOST);
        tandem_generate_options_init(&options);
        options.prompt = "x";
        assert_int_equal(tandem_generate(t, &options, NULL, NULL, &none, &err), TANDEM_E_DAEMON_LOST);
        assert_int_equal(tandem_load_model(t, NULL, &err), TANDEM_E_DAEMON_LOST);
        tandem_job_free(job);
        tandem_job_free(waiting);
        tandem_close(t);
        fake_stop(&fake);
}

static void test_no_daemon(void **state)
{
        struct tandem_error err;
        struct tandem *t;
        char path[200];

        unsetenv("TANDEM_SOCKET");
        setenv("XDG_RUNTIME_DIR", "/nonexistent-runtime", 1);
        assert_int_equal(tandem_connect(&t, "/nowhere/socket", &err), TANDEM_E_NO_DAEMON);
        assert_non_null(strstr(err.message, "/nowhere/socket"));
        assert_non_null(strstr(err.message, "tandemd --user &"));
        setenv("TANDEM_SOCKET", "/elsewhere/socket", 1);
        assert_int_equal(tandem_connect(&t, NULL, &err), TANDEM_E_NO_DAEMON);
        assert_non_null(strstr(err.message, "/elsewhere/socket"));
        assert_null(strstr(err.message, "/nonexistent-runtime"));
        unsetenv("TANDEM_SOCKET");
        if (tandem_connect(&t, NULL, &err) == TANDEM_OK) {
                tandem_close(t); /* a daemon of the whole system runs here */
        } else {
                assert_non_null(strstr(err.message, "/nonexistent-runtime/tandem/socket"));
                assert_non_null(strstr(err.message, "/run/tandem/socket"));
        }
        memset(path, 'x', sizeof(path) - 1);
        path[sizeof(path) - 1] = '\0';
        assert_int_equal(tandem_connect(&t, path, &err), TANDEM_E_NO_DAEMON);
        assert_non_null(strstr(err.message, "107 bytes"));
}

static unsigned open_fds(void)
{
        unsigned n = 0;

        for (int fd = 0; fd < 256; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

static void test_model_fd(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_error err;
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;
        unsigned before = open_fds();
        FILE *log = tmpfile();
        char line[1024];
        bool seen = false;

        assert_non_null(log);
        config.log = log;
        t = connect_to(&fake, &config);
        job = start(t, "./CMakeLists.txt", 0, NULL, NULL);
        assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
        assert_int_equal(tandem_job_result(job)->reason, TANDEM_REASON_STOP);
        tandem_job_free(job);
        assert_int_equal(tandem_load_model(t, "./CMakeLists.txt", &err), TANDEM_OK);
        tandem_close(t);
        fake_stop(&fake);
        rewind(log);
        while (fgets(line, sizeof(line), log))
                seen |= strstr(line, "\"n_fds\":1") && strstr(line, "\"from_fd\":true") &&
                        !strstr(line, "\"fd_bytes\":0");
        assert_true(seen);
        fclose(log);
        assert_int_equal(open_fds(), before);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_version),
                cmocka_unit_test(test_names),
                cmocka_unit_test(test_blocking),
                cmocka_unit_test(test_poll_loop),
                cmocka_unit_test(test_cancel),
                cmocka_unit_test(test_wait_timeout),
                cmocka_unit_test(test_callbacks_may_let_go),
                cmocka_unit_test(test_refused),
                cmocka_unit_test(test_cancelled_before_it_began),
                cmocka_unit_test(test_options_refused),
                cmocka_unit_test(test_refused_here),
                cmocka_unit_test(test_older_structs),
                cmocka_unit_test(test_pictures),
                cmocka_unit_test(test_score),
                cmocka_unit_test(test_listings),
                cmocka_unit_test(test_daemon_lost),
                cmocka_unit_test(test_no_daemon),
                cmocka_unit_test(test_model_fd),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
