/* The parts of the D-Bus face that need no bus: text that is made well-formed, pipes whose readers are slow or gone,
 * what is kept for whom, and options out of messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "daemon/faces/dbus/private.h"

#include <fcntl.h>
#include <signal.h>

static void clean(const char *in, size_t size, const char *want)
{
        char out[64];
        size_t n = bus_clean_text(in, size, out);

        assert_int_equal(n, strlen(want));
        assert_memory_equal(out, want, n);
        out[n] = '\0';
        assert_true(dbus_validate_utf8(out, NULL));
}

#define R "\xef\xbf\xbd"

static void test_clean_text(void **state)
{
        clean("", 0, "");
        clean("plain", 5, "plain");
        clean("a\0b", 3, "a" R "b");
        clean("\xc3\xa4\xf0\x9f\x98\x80", 6, "\xc3\xa4\xf0\x9f\x98\x80");
        clean("\xc3", 1, R); /* cut off */
        clean("x\xf0\x9f\x98", 4, "x" R R R);
        clean("\xc0\xaf\xed\xa0\x80", 5, R R R R R); /* overlong, surrogate */
        clean("\xff\xfe", 2, R R);
}

static void test_writer_cleans(void **state)
{
        DBusMessage *m = dbus_message_new_signal("/a", "a.b", "C");
        struct bus_writer w;
        const char *s;

        bus_writer_init(&w, m);
        bus_write_string(&w, "broken \xc3 here");
        bus_write_string(&w, NULL);
        m = bus_writer_finish(&w);
        assert_non_null(m);
        assert_true(dbus_message_get_args(m, NULL, DBUS_TYPE_STRING, &s, DBUS_TYPE_INVALID));
        assert_string_equal(s, "broken " R " here");
        dbus_message_unref(m);
        /* What fails, fails as a whole, with containers open. */
        bus_writer_init(&w, dbus_message_new_signal("/a", "a.b", "C"));
        bus_open(&w, DBUS_TYPE_ARRAY, "{sv}");
        bus_open(&w, DBUS_TYPE_DICT_ENTRY, NULL);
        w.failed = true;
        bus_entry_u32(&w, "x", 1);
        assert_null(bus_writer_finish(&w));
        bus_writer_init(&w, NULL);
        bus_entry_string(&w, "x", "y");
        assert_null(bus_writer_finish(&w));
}

/* ---- streams ---- */

struct fixture {
        struct tdm_loop *loop;
        struct bus_stream stream;
        int fd;
};

static int set_up(void **state)
{
        struct fixture *f = calloc(1, sizeof(*f));

        signal(SIGPIPE, SIG_IGN);
        assert_int_equal(tdm_loop_new(&f->loop, NULL), 0);
        assert_int_equal(bus_stream_open(&f->stream, f->loop, &f->fd), 0);
        *state = f;
        return 0;
}

static int tear_down(void **state)
{
        struct fixture *f = *state;

        bus_stream_deinit(&f->stream);
        closep(&f->fd);
        tdm_loop_destroy(f->loop);
        free(f);
        return 0;
}

static void test_stream_slow(void **state)
{
        struct fixture *f = *state;
        static char data[300000], got[sizeof(data)];
        size_t n = 0;

        for (size_t i = 0; i < sizeof(data); i++)
                data[i] = (char)(i * 7 + i / 251);
        assert_int_equal(fcntl(f->fd, F_GETFL) & O_NONBLOCK, 0); /* an ordinary pipe for who reads it */
        for (size_t i = 0; i < sizeof(data); i += 1000)
                assert_true(bus_stream_write(&f->stream, data + i, 1000, 1 << 20));
        assert_true(bus_stream_waiting(&f->stream) > 100000);
        bus_stream_finish(&f->stream);
        assert_true(bus_stream_is_open(&f->stream)); /* it still has something to say */
        for (;;) {
                ssize_t k = read(f->fd, got + n, TDM_MIN(sizeof(got) - n, (size_t)5000));

                assert_true(k >= 0);
                if (k == 0)
                        break;
                n += (size_t)k;
                assert_int_equal(tdm_loop_turn(f->loop, 0), 0);
        }
        assert_int_equal(n, sizeof(data));
        assert_memory_equal(got, data, n);
        assert_false(bus_stream_is_open(&f->stream));
        assert_false(f->stream.cut);
}

static void test_stream_cut(void **state)
{
        struct fixture *f = *state;
        static char data[1000], got[300000];
        size_t n = 0, taken = 0;

        memset(data, 'x', sizeof(data));
        while (bus_stream_write(&f->stream, data, sizeof(data), 50000)) {
                taken += sizeof(data);
                assert_true(taken < 1000000);
        }
        assert_true(f->stream.cut);
        assert_true(bus_stream_waiting(&f->stream) <= 50000);
        assert_false(bus_stream_write(&f->stream, data, 1, 50000)); /* no hole: nothing comes after */
        for (ssize_t k; (k = read(f->fd, got + n, sizeof(got) - n)) > 0; n += (size_t)k)
                assert_int_equal(tdm_loop_turn(f->loop, 0), 0);
        assert_true(n >= taken && n < taken + sizeof(data)); /* all that was taken, and then the end of the file */
}

static void test_stream_dead(void **state)
{
        struct fixture *f = *state;
        char data[100] = "x";

        closep(&f->fd);
        assert_true(bus_stream_write(&f->stream, data, sizeof(data), 1000));
        assert_false(bus_stream_is_open(&f->stream));
        assert_true(bus_stream_write(&f->stream, data, sizeof(data), 1000));
        assert_false(f->stream.cut); /* it left; nothing was cut off */
}

static void test_stream_dies_late(void **state)
{
        struct fixture *f = *state;
        static char data[200000];

        assert_true(bus_stream_write(&f->stream, data, sizeof(data), 1 << 20));
        assert_true(bus_stream_waiting(&f->stream) > 0);
        closep(&f->fd);
        for (int i = 0; i < 10 && bus_stream_is_open(&f->stream); i++)
                assert_int_equal(tdm_loop_turn(f->loop, 100 * TDM_NSEC_PER_MSEC), 0);
        assert_false(bus_stream_is_open(&f->stream));
        assert_int_equal(f->stream.capacity, 0); /* what nobody will read is not kept */
}

/* ---- what is kept ---- */

static struct bus_job *make_job(struct tdm_dbus *bus, uid_t uid, size_t kept, bool ended)
{
        struct bus_job *job = calloc(1, sizeof(*job));
        struct tdm_job_params p = { .text = "x", .text_size = 1 };

        assert_non_null(job);
        assert_int_equal(tdm_job_new(&job->job, &p, NULL), 0);
        job->bus = bus;
        job->uid = job->login = uid;
        job->ended = ended;
        job->stream.fd = -1;
        job->text_capacity = kept;
        job->text = calloc(1, kept + 1);
        tdm_list_append(&bus->jobs, &job->node);
        return job;
}

static unsigned count(const struct tdm_dbus *bus)
{
        unsigned n = 0;

        for (const struct tdm_list *at = bus->jobs.next; at != &bus->jobs; at = at->next)
                n++;
        return n;
}

static void test_kept(void **state)
{
        struct tdm_dbus bus = { 0 };
        const size_t mib = 1 << 20;
        struct bus_job *job;

        tdm_list_init(&bus.jobs);
        tdm_list_init(&bus.peers);
        for (int i = 0; i < 10; i++)
                make_job(&bus, 1, mib, true);
        for (int i = 0; i < 6; i++)
                make_job(&bus, 1, mib, false);
        assert_true(bus_may_keep(&bus, 1, 0));
        assert_false(
                bus_may_keep_journal(&bus, 1, 0)); /* a journal leaves half to text and output, and drops nothing */
        assert_true(bus_may_keep_journal(&bus, 2, 8 * mib));
        assert_false(bus_may_keep_journal(&bus, 2, 8 * mib + 1));
        assert_int_equal(count(&bus), 16);
        assert_true(bus_may_keep(&bus, 1, 2 * mib)); /* two of those that have ended are forgotten */
        assert_int_equal(count(&bus), 14);
        assert_false(bus_may_keep(&bus, 1, 11 * mib)); /* never those that run */
        assert_int_equal(count(&bus), 6);
        /* Another user is not touched by that, and has room of its own; all together have an end. */
        assert_true(bus_may_keep(&bus, 2, 16 * mib));
        for (uid_t uid = 2; uid < 6; uid++)
                for (int i = 0; i < 14; i++)
                        make_job(&bus, uid, mib, false);
        assert_true(bus_may_keep(&bus, 6, 2 * mib));
        assert_false(bus_may_keep(&bus, 6, 3 * mib));
        tdm_list_for_each(job, &bus.jobs, struct bus_job, node) {
                job->ended = true;
                bus_job_free(job);
        }
}

/* The last text of a job that ends finds no room: the job stays, without that text. */
static void test_end_without_room(void **state)
{
        const struct tdm_scheduler_config config = {
                .max_jobs = 1, .max_rows = 1, .prefill_rows = 1, .max_sequences = 1
        };
        struct fixture *f = *state;
        struct tdm_dbus bus = { .loop = f->loop };
        struct bus_job *big, *job;

        tdm_list_init(&bus.jobs);
        assert_int_equal(bus_start_tick(&bus), 0);
        assert_int_equal(tdm_scheduler_new(&bus.scheduler, f->loop, &config), 0);
        tdm_scheduler_drain(bus.scheduler); /* so that the job ends at once */
        big = make_job(&bus, 1, BUS_MAX_KEPT_BYTES_PER_UID - 100, false);
        job = make_job(&bus, 1, 0, true);
        tdm_list_remove(&job->node);
        job->job->text.tail_size = (size_t)snprintf(job->job->text.tail, sizeof(job->job->text.tail), "held back");
        tdm_error_set(&job->lost, TDM_E_NO_MODEL, "it has no model");
        bus_job_restored(job, false);
        assert_int_equal(count(&bus), 2);
        assert_true(job->ended && job->text_truncated);
        assert_int_equal(job->text_bytes, strlen("held back"));
        assert_int_equal(job->job->end, TDM_JOB_END_ERROR);
        bus_job_free(job);
        big->ended = true;
        bus_job_free(big);
        tdm_scheduler_destroy(bus.scheduler);
        tdm_source_destroy(bus.tick);
}

/* ---- jobs of an earlier daemon ---- */

static unsigned take_stored(struct tdm_dbus *bus, const char *owner)
{
        struct tdm_dbus_stored stored = { .name = "job-1" };
        struct bus_journal_head head = { .request_size = 1, .path = BUS_ROOT "/jobs/1" };
        struct bus_journal *journal;
        unsigned n = 0;

        snprintf(head.owner, sizeof(head.owner), "%s", owner);
        assert_int_equal(bus_journal_new(&journal, &head, "x"), 0);
        stored.fd = dup(bus_journal_fd(journal));
        bus_journal_free(journal);
        bus_restore_take(bus, &stored, 1);
        for (const struct tdm_list *at = bus->journals.stored.next; at != &bus->journals.stored; at = at->next)
                n++;
        return n;
}

/* A name that libdbus would end the process over is not asked for, and an end forgets no job. */
static void test_stored(void **state)
{
        struct tdm_dbus bus = { 0 };

        tdm_list_init(&bus.jobs);
        tdm_list_init(&bus.journals.stored);
        tdm_list_init(&bus.journals.words);
        assert_int_equal(take_stored(&bus, ":1.\xff"), 0);
        assert_int_equal(take_stored(&bus, "a.name"), 0);
        assert_int_equal(take_stored(&bus, ""), 0);
        assert_int_equal(take_stored(&bus, ":1.5"), 1);
        bus.draining = true;
        bus_restore_owner_left(&bus, ":1.5");
        assert_false(tdm_list_empty(&bus.journals.stored));
        bus.draining = false;
        bus_restore_owner_left(&bus, ":1.5");
        assert_true(tdm_list_empty(&bus.journals.stored));
        bus_stored_end(&bus);
}

/* ---- options ---- */

static DBusMessage *request_message(struct bus_writer *w, const char *prompt)
{
        DBusMessage *m = dbus_message_new_method_call("a.b", "/a", "a.b", "Generate");

        bus_writer_init(w, m);
        bus_write_string(w, prompt);
        bus_open(w, DBUS_TYPE_ARRAY, "{sv}");
        return m;
}

static int read_back(struct bus_writer *w, struct bus_request *ret, DBusMessage **ret_message, struct tdm_error *err)
{
        DBusMessageIter args;

        bus_close(w);
        *ret_message = bus_writer_finish(w);
        assert_non_null(*ret_message);
        assert_true(dbus_message_iter_init(*ret_message, &args));
        return bus_read_request(&args, false, ret, err);
}

static void test_options(void **state)
{
        struct bus_request request;
        struct tdm_error err = { 0 };
        struct bus_writer w;
        DBusMessage *m;

        request_message(&w, "hello");
        bus_entry_u64(&w, "max-tokens", 7);
        bus_entry_u32(&w, "temperature", 1); /* a whole number where a real one is wanted */
        bus_entry_double(&w, "top-p", 0);    /* off, as over the socket */
        bus_entry_u64(&w, "seed", UINT64_MAX);
        bus_entry_string(&w, "output", "events");
        bus_entry_string(&w, "priority", "background");
        bus_entry_bool(&w, "linger", true);
        assert_int_equal(read_back(&w, &request, &m, &err), 0);
        assert_int_equal(request.params.text_size, 5);
        assert_int_equal(request.params.options.max_tokens, 7);
        assert_true(request.params.options.temperature == 1 && request.params.options.top_p == 0);
        assert_true(tdm_job_options_sampling(&request.params.options).top_p == 1);
        assert_true(request.params.options.seed == UINT64_MAX);
        assert_int_equal(request.params.options.left_open,
                         TDM_OPEN_ALL & ~(TDM_OPEN_TEMPERATURE | TDM_OPEN_TOP_P)); /* the model's file may say these */
        assert_int_equal(request.output, BUS_OUTPUT_EVENTS);
        assert_int_equal(request.params.options.priority, TDM_JOB_BACKGROUND);
        assert_true(request.linger);
        bus_request_deinit(&request);
        dbus_message_unref(m);

        request_message(&w, "hello");
        bus_entry_u32(&w, "max_tokens", 7);
        assert_int_equal(read_back(&w, &request, &m, &err), TDM_E_BAD_REQUEST);
        assert_non_null(strstr(err.message, "\"max_tokens\" is not known"));
        bus_request_deinit(&request);
        dbus_message_unref(m);

        request_message(&w, "hello");
        bus_entry_u32(&w, "top-k", 7);
        bus_entry_u32(&w, "top-k", 8);
        assert_int_equal(read_back(&w, &request, &m, &err), TDM_E_BAD_REQUEST);
        assert_non_null(strstr(err.message, "given twice"));
        bus_request_deinit(&request);
        dbus_message_unref(m);

        request_message(&w, "hello");
        bus_entry_u64(&w, "top-k", UINT64_C(1) << 32);
        assert_int_equal(read_back(&w, &request, &m, &err), TDM_E_BAD_REQUEST);
        bus_request_deinit(&request);
        dbus_message_unref(m);
}

/* A value of the row's type that is just out of its range; false: there is none. */
static bool write_bad(struct bus_writer *w, const struct tdm_job_option *row)
{
        const struct tdm_range *range = &row->range;

        switch (range->type) {
        case TDM_VALUE_U32:
                bus_entry_u64(w, row->name, range->max > 0 ? (uint64_t)range->max + 1 : UINT64_C(1) << 32);
                return true;
        case TDM_VALUE_REAL:
                bus_entry_double(w, row->name, range->below_max ? range->max : range->max + 1);
                return true;
        case TDM_VALUE_CHOICE:
        case TDM_VALUE_NAME:
                bus_entry_string(w, row->name, "nonesuch");
                return true;
        case TDM_VALUE_BOOL:
        case TDM_VALUE_U64:
                bus_entry_string(w, row->name, "x");
                return true;
        default:
                return false;
        }
}

/* Each row of the table is an option here, with a check that speaks in the words of value-range.h. */
static void test_every_row(void **state)
{
        for (size_t i = 0; i < TDM_N_JOB_OPTIONS; i++) {
                const struct tdm_job_option *row = &tdm_job_options[i];
                char wants[TDM_RANGE_TEXT_MAX], is_not[TDM_RANGE_TEXT_MAX + 16];
                struct bus_request request;
                struct tdm_error err = { 0 };
                struct bus_writer w;
                DBusMessage *m;

                request_message(&w, "hello");
                if (!write_bad(&w, row)) /* a wrong type */
                        bus_entry_u32(&w, row->name, 1);
                assert_int_equal(read_back(&w, &request, &m, &err), TDM_E_BAD_REQUEST);
                bus_request_deinit(&request);
                dbus_message_unref(m);
                if (row->range.type == TDM_VALUE_TEXTS) {
                        assert_non_null(strstr(err.message, row->name));
                        continue;
                }
                snprintf(is_not, sizeof(is_not), "' is not %s", tdm_range_text(&row->range, wants));
                assert_ptr_equal(strstr(err.message, row->name), err.message);
                assert_non_null(strstr(err.message, is_not));
        }
}

static void test_error_names(void **state)
{
        for (int code = 1; code < TDM_E_MAX; code++) {
                assert_true(dbus_validate_error_name(bus_error_name(code), NULL));
                assert_true(code == TDM_E_INTERNAL ||
                            strcmp(bus_error_name(code), bus_error_name(TDM_E_INTERNAL)) != 0);
        }
        assert_string_equal(bus_error_name(-EIO), BUS_ERROR "Internal");
        assert_string_equal(bus_error_name(TDM_E_QUOTA), "dev.tandem.Tandem1.Error.Quota");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_clean_text),
                cmocka_unit_test(test_writer_cleans),
                cmocka_unit_test_setup_teardown(test_stream_slow, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stream_cut, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stream_dead, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_stream_dies_late, set_up, tear_down),
                cmocka_unit_test(test_kept),
                cmocka_unit_test_setup_teardown(test_end_without_room, set_up, tear_down),
                cmocka_unit_test(test_stored),
                cmocka_unit_test(test_options),
                cmocka_unit_test(test_every_row),
                cmocka_unit_test(test_error_names),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
