/* The watchdog against a made-up manager (a datagram socket) and made-up work: pings while things move or nothing is to
 * be done, none when work stands still or the loop does not turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "daemon/service/watchdog.h"

#define INTERVAL_MS 90u

static char dir[] = "/tmp/tandem-test-watchdog-XXXXXX";
static char path[100];
static int manager = -1;

struct work {
        bool is_there;
        bool moves;
        uint64_t done;
};

static bool has_work(void *userdata)
{
        return ((struct work *)userdata)->is_there;
}

static uint64_t progress(void *userdata)
{
        struct work *w = userdata;

        return w->moves ? ++w->done : w->done;
}

static void describe(char *text, size_t size, void *userdata)
{
        snprintf(text, size, "work %d", ((struct work *)userdata)->is_there);
}

static const struct tdm_watchdog_ops ops = { .has_work = has_work, .progress = progress, .describe = describe };

/* Pings that lie there; the last one's text. */
static unsigned heard(char *text, size_t size)
{
        unsigned n = 0;
        ssize_t got;

        while ((got = recv(manager, text, size - 1, MSG_DONTWAIT)) >= 0) {
                text[got] = '\0';
                assert_int_equal(strncmp(text, "WATCHDOG=1", 10), 0);
                n++;
        }
        return n;
}

static void turn_for(struct tdm_loop *loop, unsigned ms)
{
        uint64_t end = tdm_now_ns() + ms * TDM_NSEC_PER_MSEC, now;

        while ((now = tdm_now_ns()) < end)
                assert_int_equal(tdm_loop_turn(loop, end - now), 0);
}

/* Ticks of a timer as often as pings shall be: both are late where this thread has no CPU. */
static unsigned n_ticks;

static int on_tick(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        n_ticks++;
        tdm_source_arm(source, now_ns + INTERVAL_MS * TDM_NSEC_PER_MSEC / 3);
        return 0;
}

/* Returns the pings meanwhile. They are read at once: a socket holds eleven, as some machines are set up. */
static unsigned turn_for_ticks(struct tdm_loop *loop, unsigned n, char *text, size_t size)
{
        unsigned n_heard = 0;

        for (n_ticks = 0; n_ticks < n;) {
                assert_int_equal(tdm_loop_turn(loop, UINT64_MAX), 0);
                n_heard += heard(text, size);
        }
        return n_heard;
}

static void start(struct tdm_loop **loop, struct tdm_watchdog **watchdog, struct work *work)
{
        struct tdm_error err;
        char number[24];

        snprintf(number, sizeof(number), "%u", INTERVAL_MS * 1000);
        setenv("WATCHDOG_USEC", number, 1);
        snprintf(number, sizeof(number), "%d", getpid());
        setenv("WATCHDOG_PID", number, 1);
        assert_int_equal(tdm_loop_new(loop, &err), 0);
        assert_int_equal(tdm_watchdog_new(watchdog, *loop, &ops, work), 0);
        assert_null(getenv("WATCHDOG_USEC"));
        assert_int_equal(tdm_watchdog_interval_ns(*watchdog), INTERVAL_MS * TDM_NSEC_PER_MSEC);
}

static void test_pings(void **state)
{
        struct work work = { 0 };
        _cleanup_(tdm_loop_destroyp) struct tdm_loop *loop = NULL;
        _cleanup_(tdm_watchdog_destroyp) struct tdm_watchdog *watchdog = NULL;
        _cleanup_(tdm_source_destroyp) struct tdm_source *ticks = NULL;
        char text[200] = "";
        unsigned n;

        start(&loop, &watchdog, &work);
        assert_int_equal(tdm_loop_add_timer(loop, on_tick, NULL, &ticks), 0);
        tdm_source_arm(ticks, 1);
        n = turn_for_ticks(loop, 12, text, sizeof(text));
        assert_true(n >= 11 && n <= 13); /* idle */
        assert_string_equal(text, "WATCHDOG=1\nSTATUS=work 0");
        work = (struct work){ .is_there = true, .moves = true };
        n = turn_for_ticks(loop, 12, text, sizeof(text));
        assert_true(n >= 11 && n <= 13); /* busy */
        assert_string_equal(text, "WATCHDOG=1\nSTATUS=work 1");
}

static void test_stuck_work(void **state)
{
        struct work work = { .is_there = true, .moves = true };
        _cleanup_(tdm_loop_destroyp) struct tdm_loop *loop = NULL;
        _cleanup_(tdm_watchdog_destroyp) struct tdm_watchdog *watchdog = NULL;
        char text[200];

        start(&loop, &watchdog, &work);
        turn_for(loop, INTERVAL_MS);
        work.moves = false;
        turn_for(loop, 2 * INTERVAL_MS);
        (void)heard(text, sizeof(text));
        turn_for(loop, 3 * INTERVAL_MS);
        assert_int_equal(heard(text, sizeof(text)), 0);
        /* It was only slow: what works is not ended. */
        work.moves = true;
        for (unsigned i = 0; heard(text, sizeof(text)) == 0; i++) {
                assert_true(i < 100);
                turn_for(loop, INTERVAL_MS);
        }
}

static void test_stuck_loop(void **state)
{
        struct work work = { 0 };
        _cleanup_(tdm_loop_destroyp) struct tdm_loop *loop = NULL;
        _cleanup_(tdm_watchdog_destroyp) struct tdm_watchdog *watchdog = NULL;
        char text[200];

        start(&loop, &watchdog, &work);
        turn_for(loop, INTERVAL_MS);
        (void)heard(text, sizeof(text));
        usleep(2 * INTERVAL_MS * 1000);
        assert_int_equal(heard(text, sizeof(text)), 0);
}

static void test_no_watchdog(void **state)
{
        static const char *const bad[] = { "0", "-5", "soon", "12x", "99999999999999999999999", "" };
        struct work work = { 0 };
        struct tdm_error err;
        _cleanup_(tdm_loop_destroyp) struct tdm_loop *loop = NULL;
        struct tdm_watchdog *watchdog = NULL;

        assert_int_equal(tdm_loop_new(&loop, &err), 0);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(bad); i++) {
                setenv("WATCHDOG_USEC", bad[i], 1);
                assert_int_equal(tdm_watchdog_new(&watchdog, loop, &ops, &work), 0);
                assert_int_equal(tdm_watchdog_interval_ns(watchdog), 0);
                tdm_watchdog_destroyp(&watchdog);
        }
        setenv("WATCHDOG_USEC", "90000", 1);
        setenv("WATCHDOG_PID", "1", 1); /* another process is meant */
        assert_int_equal(tdm_watchdog_new(&watchdog, loop, &ops, &work), 0);
        assert_int_equal(tdm_watchdog_interval_ns(watchdog), 0);
        tdm_watchdog_destroyp(&watchdog);
}

static int set_up(void **state)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };

        if (!mkdtemp(dir))
                return -1;
        snprintf(path, sizeof(path), "%s/notify", dir);
        snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        setenv("NOTIFY_SOCKET", path, 1);
        return manager < 0 ? -1 : bind(manager, (struct sockaddr *)&address, sizeof(address));
}

static int tear_down(void **state)
{
        close(manager);
        unlink(path);
        return rmdir(dir);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_pings),
                cmocka_unit_test(test_stuck_work),
                cmocka_unit_test(test_stuck_loop),
                cmocka_unit_test(test_no_watchdog),
        };
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
