/* Nothing that a daemon can send does more to libtandem than cost the connection: lies, replies of a wrong kind, a
 * stream cut short at every byte, every byte damaged, a small reply that unpacks to a large one. */
#include "client-lib/test-client-util.h"

#include <poll.h>

static void test_odd_daemons(void **state)
{
        static const struct {
                const char *model;
                int code;
        } jobs[] = { { "gap", TANDEM_E_PROTOCOL }, { "future", TANDEM_OK }, { "bytes", TANDEM_OK } };
        static const char *const spans[] = { "longspan", "backspan", "fewspans" };
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_generate_options options;
        struct tandem_rendered *rendered;
        struct tandem_error err;
        struct tandem_job *job;
        struct tandem *t;
        struct fake fake;
        uint32_t *ids;
        size_t n;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(jobs); i++) {
                t = connect_to(&fake, &config);
                job = start(t, jobs[i].model, 0, NULL, NULL);
                assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
                assert_int_equal(tandem_job_result(job)->error.code, jobs[i].code);
                if (strcmp(jobs[i].model, "bytes") == 0)
                        assert_string_equal(tandem_job_result(job)->tail, "\xef\xbf\xbd");
                tandem_job_free(job);
                tandem_close(t);
                fake_stop(&fake);
        }
        t = connect_to(&fake, &config);
        assert_int_equal(tandem_tokenize(t, "wrongkind", "x", 1, 0, &ids, &n, &err), TANDEM_E_PROTOCOL);
        tandem_close(t);
        fake_stop(&fake);

        t = connect_to(&fake, &config);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(spans); i++) {
                tandem_generate_options_init(&options);
                options.model = spans[i];
                options.chat = &(struct tandem_message){ "user", "words", 5 };
                options.n_chat = 1;
                assert_int_equal(tandem_render(t, &options, &rendered, &err), TANDEM_E_PROTOCOL);
        }
        tandem_close(t);
        fake_stop(&fake);

        config.protocol = 2;
        fake_start(&fake, &config);
        assert_int_equal(tandem_connect(&t, fake.path, &err), TANDEM_E_PROTOCOL);
        assert_non_null(strstr(err.message, "speaks protocol 2"));
        fake_stop(&fake);
}

/* A daemon that knows no labels would take what is asked for as the user's own. */
static void test_labels(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_error err;
        struct tandem *t;
        struct fake fake;

        fake_start(&fake, &config);
        assert_int_equal(tandem_connect_for(&t, fake.path, "key:a", &err), TANDEM_OK);
        tandem_close(t);
        fake_stop(&fake);
        config.no_labels = true;
        fake_start(&fake, &config);
        assert_int_equal(tandem_connect_for(&t, fake.path, "key:a", &err), TANDEM_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "update it"));
        fake_stop(&fake);
        fake_start(&fake, &config);
        assert_int_equal(tandem_connect_for(&t, fake.path, NULL, &err), TANDEM_OK);
        tandem_close(t);
        fake_stop(&fake);
}

/* Bytes in place of a greeting. */
static void test_odd_greetings(void **state)
{
        static const uint8_t huge[] = { 0xff, 0xff, 0xff, 0x7f, 0 }, empty[] = { 0, 0, 0, 0 }, half[] = { 9, 0 },
                             garbage[] = { 5, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff },
                             /* id 0, Error { code "quota" message "no" } */
                refusal[] = { 13, 0, 0, 0, 0x42, 0x0b, 0x0a, 5, 'q', 'u', 'o', 't', 'a', 0x12, 2, 'n', 'o' };
        static const struct {
                const uint8_t *data;
                size_t size;
                int code;
        } cases[] = {
                { huge, sizeof(huge), TANDEM_E_PROTOCOL },    { empty, sizeof(empty), TANDEM_E_DAEMON_LOST },
                { half, sizeof(half), TANDEM_E_DAEMON_LOST }, { garbage, sizeof(garbage), TANDEM_E_PROTOCOL },
                { refusal, sizeof(refusal), TANDEM_E_QUOTA }, { huge, 0, TANDEM_E_DAEMON_LOST },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(cases); i++) {
                struct fake_config config = FAKE_CONFIG_INIT;
                struct tandem_error err;
                struct tandem *t;
                struct fake fake;

                config.raw = cases[i].data;
                config.raw_size = cases[i].size;
                fake_start(&fake, &config);
                assert_int_equal(tandem_connect(&t, fake.path, &err), cases[i].code);
                assert_true(strlen(err.message) > 0);
                fake_stop(&fake);
        }
}

/* A small reply that would unpack to far more than it is: two bytes on the wire for each model's status. */
static void test_bomb(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        const size_t n = (12u << 20) / 2;
        uint8_t *raw = malloc(n * 2 + 16), *p = raw;
        struct tandem_error err;
        struct tandem *t;
        struct fake fake;
        size_t body = n * 2, message;

        assert_non_null(raw);
        message = 2 + 1 + 4 + body; /* id, field 11, its length as a padded varint */
        for (unsigned i = 0; i < 4; i++)
                *p++ = (uint8_t)(message >> (8 * i));
        *p++ = 0x08;
        *p++ = 1;
        *p++ = 11 << 3 | 2;
        for (unsigned i = 0; i < 4; i++)
                *p++ = (uint8_t)((body >> (7 * i) & 0x7f) | (i < 3 ? 0x80 : 0));
        for (size_t i = 0; i < n; i++) {
                *p++ = 0x0a;
                *p++ = 0;
        }
        config.raw = raw;
        config.raw_size = (size_t)(p - raw);
        fake_start(&fake, &config);
        assert_int_equal(tandem_connect(&t, fake.path, &err), TANDEM_E_PROTOCOL);
        assert_non_null(strstr(err.message, "cannot be decoded")); /* and not: of the wrong kind */
        fake_stop(&fake);
        free(raw);
}

/* Runs one job; returns its outcome's code, or the connection's. The daemon's stream may be damaged. */
static int try_job(const struct fake_config *config, size_t *ret_sent)
{
        struct tandem_generate_options options;
        struct tandem_job *job = NULL;
        struct tandem *t = NULL;
        struct fake fake;
        int code;

        fake_start(&fake, config);
        code = tandem_connect(&t, fake.path, NULL);
        if (code == TANDEM_OK) {
                tandem_generate_options_init(&options);
                options.prompt = "x";
                options.model = "bytes";
                code = tandem_generate(t, &options, NULL, NULL, &job, NULL);
        }
        if (code == TANDEM_OK) {
                assert_int_equal(tandem_wait(job, 60000), TANDEM_OK);
                code = tandem_job_result(job)->reason == TANDEM_REASON_ERROR ? tandem_job_result(job)->error.code :
                                                                               TANDEM_OK;
        }
        tandem_job_free(job);
        tandem_close(t);
        fake_stop(&fake);
        if (ret_sent)
                *ret_sent = fake.sent;
        return code;
}

/* The same for a status, the reply with the most in it. */
static int try_status(const struct fake_config *config, size_t *ret_sent)
{
        struct tandem_status *status = NULL;
        struct tandem *t = NULL;
        struct fake fake;
        size_t chars = 0;
        int code;

        fake_start(&fake, config);
        code = tandem_connect(&t, fake.path, NULL);
        if (code == TANDEM_OK)
                code = tandem_get_status(t, &status, NULL);
        if (code == TANDEM_OK) {
                for (size_t i = 0; i < status->n_workers; i++)
                        for (size_t b = 0; b < status->workers[i]->n_blocks; b++)
                                chars += strlen(status->workers[i]->blocks[b]->kind);
                for (size_t i = 0; i < status->n_models; i++)
                        chars += strlen(status->models[i]->name) + strlen(status->models[i]->error);
                assert_true(chars < 1000);
        }
        tandem_status_free(status);
        tandem_close(t);
        fake_stop(&fake);
        if (ret_sent)
                *ret_sent = fake.sent;
        return code;
}

static void test_cut_at_every_byte(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        size_t total;

        config.hang_up = true;
        assert_int_equal(try_job(&config, &total), TANDEM_OK);
        assert_true(total > 100);
        for (size_t cut = 0; cut < total; cut++) {
                config.cut_after = cut;
                config.fragment = cut % 3;
                assert_int_equal(try_job(&config, NULL), TANDEM_E_DAEMON_LOST);
        }
}

static void test_every_byte_damaged(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        unsigned refused = 0;
        size_t total;

        config.hang_up = true;
        assert_int_equal(try_job(&config, &total), TANDEM_OK);
        config.idle_ms = 20; /* or it would wait for the rest of a request, and the client for the rest of a reply */
        for (size_t at = 0; at < total; at++) {
                config.flip_at = at;
                config.flip = (uint8_t)(1u << (at % 8));
                refused += try_job(&config, NULL) != TANDEM_OK;
        }
        assert_true(refused > total / 8);

        config.flip_at = SIZE_MAX;
        config.idle_ms = -1;
        assert_int_equal(try_status(&config, &total), TANDEM_OK);
        assert_true(total > 200);
        config.idle_ms = 20;
        for (size_t at = 0; at < total; at++) {
                config.flip_at = at;
                config.flip = (uint8_t)(1u << (at % 8));
                (void)try_status(&config, NULL);
        }
}

/* Output that nobody reads must queue, not block; and what waits has a limit. */
static void test_daemon_that_does_not_read(void **state)
{
        struct fake_config config = FAKE_CONFIG_INIT;
        struct tandem_generate_options options;
        struct tandem_error err;
        struct tandem_job *jobs[16];
        struct tandem *t;
        struct fake fake;
        uint64_t start_ns;
        char *big;

        config.max_frame = 64u << 20;
        t = connect_to(&fake, &config);
        big = calloc(1, (4u << 20) + 1);
        memset(big, 'x', 4u << 20);
        tandem_generate_options_init(&options);
        options.model = "busy";
        options.prompt = big;
        start_ns = tdm_now_ns();
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(jobs); i++)
                assert_int_equal(tandem_generate(t, &options, NULL, NULL, &jobs[i], &err), TANDEM_OK);
        assert_true(tdm_now_ns() - start_ns < 20 * TDM_NSEC_PER_SEC);
        assert_true(tandem_events(t) & POLLOUT);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(jobs); i++) {
                assert_int_equal(tandem_wait(jobs[i], 60000), TANDEM_OK);
                assert_int_equal(tandem_job_result(jobs[i])->error.code, TANDEM_E_BUSY);
                tandem_job_free(jobs[i]);
        }
        assert_false(tandem_events(t) & POLLOUT);
        free(big);
        tandem_close(t);
        fake_stop(&fake);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_odd_daemons),
                cmocka_unit_test(test_labels),
                cmocka_unit_test(test_odd_greetings),
                cmocka_unit_test(test_bomb),
                cmocka_unit_test(test_cut_at_every_byte),
                cmocka_unit_test(test_every_byte_damaged),
                cmocka_unit_test(test_daemon_that_does_not_read),
        };

        setenv("TANDEM_REATTACH", "0", 1); /* each damaged daemon is to end its connection */
        return cmocka_run_group_tests(tests, NULL, NULL);
}
