/* A connection that breaks while jobs run is made anew, and the jobs go on.
 *
 * The socket is tried from time to time, for as long as the caller allows. A service manager that starts the daemon
 * anew keeps it open meanwhile. Then each job is sent again with the tokens that it has (Generate.drawn), and the
 * daemon goes on behind them. Nothing here waits: it is done by tandem_dispatch(), which a timer in the polled
 * descriptor wakes. Many clients lose the same daemon at once, so the times between tries grow and are random. A job
 * may be what brings its daemon down, so each is sent to MAX_FRUITLESS more daemons at most without a new token. */
#include "client-lib/internal.h"

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>

#define FIRST_NS (16 * TDM_NSEC_PER_MSEC) /* between tries, half more or less; doubles */
#define MAX_DOUBLINGS 4u
#define MAX_FRUITLESS 3u
#define MAX_SECONDS 3600u

/* What the user wants: $TANDEM_REATTACH, in seconds. */
static int default_reattach_ms(void)
{
        const char *seconds = getenv("TANDEM_REATTACH");
        unsigned long n;
        char *end;

        if (!seconds || *seconds < '0' || *seconds > '9')
                return LIB_REATTACH_MS;
        n = strtoul(seconds, &end, 10);
        return *end || n > MAX_SECONDS ? LIB_REATTACH_MS : (int)n * 1000;
}

void lib_open_poll(struct tandem *t)
{
        t->poll_fd = epoll_create1(EPOLL_CLOEXEC);
        if (t->poll_fd >= 0 && lib_watch(t) < 0)
                closep(&t->poll_fd);
        tandem_set_reattach(t, -1);
}

void tandem_set_reattach(struct tandem *t, int timeout_ms)
{
        t->reattach_ms = t->poll_fd < 0 ? 0 : timeout_ms < 0 ? default_reattach_ms() : timeout_ms;
}

/* ---- time ---- */

static bool open_timer(struct tandem *t)
{
        struct epoll_event e = { .events = EPOLLIN };

        if (t->timer_fd >= 0)
                return true;
        t->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        if (t->timer_fd >= 0 && epoll_ctl(t->poll_fd, EPOLL_CTL_ADD, t->timer_fd, &e) < 0)
                closep(&t->timer_fd);
        return t->timer_fd >= 0;
}

static void arm_timer(struct tandem *t, uint64_t ns)
{
        struct itimerspec when = { .it_value = { (time_t)(ns / TDM_NSEC_PER_SEC),
                                                 (long)(ns % TDM_NSEC_PER_SEC) + (ns == 0) } };

        (void)timerfd_settime(t->timer_fd, 0, &when, NULL);
}

/* Nothing is due any more; a timer that ran out would wake the caller again and again. */
static void do_nothing(struct tandem *t)
{
        const struct itimerspec never = { 0 };

        t->due_ns = 0;
        (void)timerfd_settime(t->timer_fd, 0, &never, NULL);
}

static void do_after(struct tandem *t, uint64_t ns)
{
        t->due_ns = tdm_now_ns() + ns;
        arm_timer(t, ns);
}

static void try_after_a_while(struct tandem *t)
{
        uint64_t ns = FIRST_NS << TDM_MIN(t->n_tries, MAX_DOUBLINGS), random = 0;

        (void)!getrandom(&random, sizeof(random), GRND_NONBLOCK);
        t->n_tries++;
        do_after(t, ns / 2 + random % ns);
}

void lib_wake(struct tandem *t)
{
        if (open_timer(t))
                arm_timer(t, 0);
}

static bool is_out_of_time(const struct tandem *t, uint64_t since_ns)
{
        return tdm_now_ns() - since_ns >= (uint64_t)t->reattach_ms * TDM_NSEC_PER_MSEC;
}

/* ---- calls ---- */

static bool call_may_wait(const struct call *call)
{
        return call->again && call->n_losses <= MAX_FRUITLESS && !(call->is_given_up && call->is_given_up(call));
}

static bool any_may_wait(const struct tandem *t)
{
        for (const struct call *call = t->calls; call; call = call->next)
                if (call_may_wait(call))
                        return true;
        return false;
}

/* Of those that were sent and have no answer yet. */
static struct call *call_under_way(const struct tandem *t)
{
        struct call *call = t->calls;

        while (call && call->id == 0)
                call = call->next;
        return call;
}

/* The oldest of those that are to be sent; the list has the youngest first. */
static struct call *call_to_send(const struct tandem *t)
{
        struct call *found = NULL;

        for (struct call *call = t->calls; call; call = call->next)
                if (call->id == 0)
                        found = call;
        return found;
}

static void call_lose(struct tandem *t, struct call *call)
{
        lib_call_unlink(t, call);
        call->on_lost(call, &t->lost, false);
}

/* Those that were given up hear it now. Callbacks may end others, and the connection. */
static void end_given_up(struct tandem *t)
{
        struct call *call = t->calls;

        t->depth++;
        while (!t->dead && call) {
                if (call->id == 0 && !call_may_wait(call)) {
                        call_lose(t, call);
                        call = t->calls;
                } else {
                        call = call->next;
                }
        }
        t->depth--;
}

/* Those that were under way wait, or end. */
static void tell_away(struct tandem *t)
{
        struct call *call;

        t->depth++;
        while (!t->dead && (call = call_under_way(t))) {
                call->id = 0;
                call->n_losses++;
                if (call_may_wait(call))
                        call->on_away(call);
                else
                        call_lose(t, call);
        }
        t->depth--;
        end_given_up(t);
}

static void send_calls(struct tandem *t)
{
        struct call *call;

        t->depth++;
        while (!t->dead && t->link == LIB_LINK_UP && (call = call_to_send(t)))
                call->again(call);
        t->depth--;
}

/* ---- the connection ---- */

static void hang_up(struct tandem *t)
{
        lib_drop_queue(t);
        if (t->watched) /* closing it does not take it out of poll_fd where a forked child holds it too */
                (void)epoll_ctl(t->poll_fd, EPOLL_CTL_DEL, t->fd, NULL);
        closep(&t->fd);
        t->watched = 0;
        t->send_broken = false;
        t->link = LIB_LINK_AWAY;
        if (t->greeting.linked)
                lib_call_unlink(t, &t->greeting);
}

/* A job is sent with its texts: to a daemon of the user who had them before, of root or of this user. */
static bool is_of_stranger(struct tandem *t)
{
        uid_t uid = lib_listener_uid(t->fd);

        if (uid == t->daemon_uid || uid == 0 || uid == geteuid())
                return false;
        lib_error(&t->lost, TANDEM_E_DAEMON_LOST,
                  "tandemd at %s is gone, and a process of another user (uid %u) listens there now: nothing is sent to "
                  "it",
                  t->socket_path, (unsigned)uid);
        return true;
}

/* A try has failed. */
static void try_again_or_give_up(struct tandem *t)
{
        struct tandem_error why = t->lost;

        hang_up(t);
        if (is_out_of_time(t, t->away_ns))
                lib_fail_calls(t, &why, false);
        else
                try_after_a_while(t);
}

bool lib_go_away(struct tandem *t, const struct tandem_error *why)
{
        if (t->closed || t->reattach_ms == 0 || !any_may_wait(t) || !open_timer(t))
                return false;
        if (t->link != LIB_LINK_UP) { /* the next one was lost before it greeted: it only just began, or ended */
                try_again_or_give_up(t);
                return true;
        }
        t->n_tries = 0;
        t->away_ns = tdm_now_ns();
        lib_error_copy(&t->lost, why);
        hang_up(t);
        tell_away(t);
        if (t->dead)
                return true;
        if (!any_may_wait(t))
                return false;
        try_after_a_while(t);
        return true;
}

bool lib_leave(struct tandem *t, struct call *call, const struct tandem_error *why)
{
        call->n_losses++;
        if (t->closed || t->reattach_ms == 0 || !call_may_wait(call))
                return false;
        call->id = 0;
        return call_under_way(t) || lib_go_away(t, why); /* else the daemon hangs up when the others have ended */
}

bool lib_greeting_failed(struct tandem *t, const struct tandem_error *why)
{
        if (t->link != LIB_LINK_GREETING ||
            (why->code != TANDEM_E_BUSY && why->code != TANDEM_E_QUOTA && why->code != TANDEM_E_DRAINING))
                return false;
        lib_error_copy(&t->lost, why);
        try_again_or_give_up(t);
        return true;
}

static struct tandem *connection_of(struct call *greeting)
{
        return (struct tandem *)((char *)greeting - offsetof(struct tandem, greeting));
}

static bool on_greeting(struct call *call, Tandem__Reply *reply)
{
        struct tandem *t = connection_of(call);
        struct tandem_error err;

        lib_call_unlink(t, call);
        if (reply->kind_case == TANDEM__REPLY__KIND_ERROR) {
                lib_error_from_wire(&err, reply->error);
                if (!lib_greeting_failed(t, &err))
                        lib_fail_calls(t, &err, false);
        } else if (reply->kind_case != TANDEM__REPLY__KIND_HELLO) {
                lib_protocol_error(t, "it answered a greeting with a reply of kind %d", (int)reply->kind_case);
        } else if (lib_check_hello(t, reply->hello, &err) != TANDEM_OK) {
                lib_fail_calls(t, &err, false);
        } else {
                t->link = LIB_LINK_UP;
                t->up_ns = tdm_now_ns();
                t->n_tries = 0;
                do_nothing(t);
                send_calls(t);
        }
        return false;
}

static void on_greeting_lost(struct call *call, const struct tandem_error *err, bool silent)
{
}

static int greet_again(struct tandem *t)
{
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__Hello hello = TANDEM__HELLO__INIT;
        char client[64];

        if (lib_new_reader(t) < 0 || lib_watch(t) < 0)
                return -ENOMEM;
        t->link = LIB_LINK_GREETING;
        t->greeting = (struct call){ .on_reply = on_greeting, .on_lost = on_greeting_lost };
        lib_put_hello(t, &hello, client);
        request.kind_case = TANDEM__REQUEST__KIND_HELLO;
        request.hello = &hello;
        return lib_send(t, &request, -1, &t->greeting, NULL) == TANDEM_OK ? 0 : -ENOMEM;
}

bool lib_send_later(struct tandem *t)
{
        if (!open_timer(t) || is_out_of_time(t, t->up_ns))
                return false;
        if (t->due_ns == 0)
                try_after_a_while(t);
        return true;
}

void lib_do_due(struct tandem *t)
{
        uint64_t now = tdm_now_ns(), n;
        struct tandem_error why = t->lost;

        (void)!read(t->timer_fd, &n, sizeof(n));
        end_given_up(t);
        if (t->dead || (t->link == LIB_LINK_UP && t->due_ns == 0))
                return;
        if (t->link != LIB_LINK_UP && !any_may_wait(t)) {
                lib_fail_calls(t, &why, false);
        } else if (t->due_ns > now) {
                arm_timer(t, t->due_ns - now);
        } else if (t->link == LIB_LINK_UP) {
                t->due_ns = 0;
                send_calls(t);
        } else if (t->link == LIB_LINK_GREETING) {
                lib_fail_calls(t, &why, false);
        } else if (lib_connect_once(t->socket_path, &t->fd) < 0 || is_of_stranger(t) || greet_again(t) < 0) {
                try_again_or_give_up(t);
        } else {
                do_after(t, LIB_HELLO_TIMEOUT_MS * TDM_NSEC_PER_MSEC);
        }
}
