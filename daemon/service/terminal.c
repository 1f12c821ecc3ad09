/* A process loses its controlling terminal when that hangs up, and when the shell that leads its session ends. Then
 * /dev/tty cannot be opened any more. */
#include "daemon/service/terminal.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#define LOOK_AGAIN_NS TDM_NSEC_PER_SEC

struct tdm_terminal {
        bool counts; /* there was one, and its end is to end the daemon */
        struct tdm_source *look_again;
        void (*on_gone)(void *userdata);
        void *userdata;
};

static bool terminal_is_there(void)
{
        _cleanup_(closep) int fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);

        return fd >= 0;
}

static int on_look_again(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_terminal *t = userdata;

        if (!terminal_is_there())
                t->on_gone(t->userdata);
        return 0;
}

int tdm_terminal_new(struct tdm_terminal **ret, struct tdm_loop *loop, void (*on_gone)(void *userdata), void *userdata)
{
        _cleanup_(tdm_terminal_destroyp) struct tdm_terminal *t = calloc(1, sizeof(*t));
        struct sigaction hangup = { .sa_handler = SIG_DFL };
        int r;

        if (!t)
                return -ENOMEM;
        t->on_gone = on_gone;
        t->userdata = userdata;
        (void)sigaction(SIGHUP, NULL, &hangup);
        t->counts = hangup.sa_handler != SIG_IGN && terminal_is_there();
        r = tdm_loop_add_timer(loop, on_look_again, t, &t->look_again);
        if (r < 0)
                return r;
        *ret = steal_ptr(&t);
        return 0;
}

bool tdm_terminal_hang_up(struct tdm_terminal *t)
{
        if (!t->counts)
                return false;
        if (!terminal_is_there()) {
                t->on_gone(t->userdata);
                return true;
        }
        tdm_source_arm(t->look_again, tdm_now_ns() + LOOK_AGAIN_NS);
        return false;
}

void tdm_terminal_destroyp(struct tdm_terminal **terminal)
{
        struct tdm_terminal *t = *terminal;

        if (!t)
                return;
        tdm_source_destroyp(&t->look_again);
        free(t);
        *terminal = NULL;
}
