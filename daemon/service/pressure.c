#include "daemon/service/pressure.h"

#include "common/log.h"
#include "common/util.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>

/* Some process waited for memory during 200 ms of 2 s. Windows that are no multiple of 2 s need privileges. */
#define TRIGGER "some 200000 2000000"
#define QUIET_NS (2 * TDM_NSEC_PER_SEC)

struct tdm_pressure {
        int fd;
        bool is_fifo; /* the manager's own way to tell: a byte is one event */
        struct tdm_source *source;
        uint64_t last_ns;
        void (*fn)(void *userdata);
        void *userdata;
};

static int on_pressure(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        struct tdm_pressure *p = userdata;
        uint64_t now = tdm_now_ns();
        char bytes[64];

        if (events & (EPOLLERR | EPOLLHUP)) { /* the cgroup is gone */
                tdm_source_destroy(p->source);
                p->source = NULL;
                return 0;
        }
        if (p->is_fifo)
                while (read(fd, bytes, sizeof(bytes)) > 0)
                        ;
        if (p->last_ns && now - p->last_ns < QUIET_NS)
                return 0;
        p->last_ns = now;
        p->fn(p->userdata);
        return 0;
}

int tdm_pressure_new(struct tdm_pressure **ret, struct tdm_loop *loop, void (*fn)(void *userdata), void *userdata)
{
        const char *named = getenv("MEMORY_PRESSURE_WATCH");
        const char *path = named && named[0] == '/' ? named : "/proc/pressure/memory";
        struct tdm_pressure *p;
        struct stat st;
        int r;

        *ret = NULL;
        if (strcmp(path, "/dev/null") == 0) /* the manager says that nothing shall be watched */
                return 0;
        p = calloc(1, sizeof(*p));
        if (!p)
                return -ENOMEM;
        p->fn = fn;
        p->userdata = userdata;
        p->fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        p->is_fifo = p->fd >= 0 && fstat(p->fd, &st) == 0 && S_ISFIFO(st.st_mode);
        if (p->fd < 0 || (!p->is_fifo && write(p->fd, TRIGGER, sizeof(TRIGGER)) < 0)) {
                tdm_log_debug("memory pressure is not watched: %s: %s", path, strerror(errno));
                tdm_pressure_destroy(p);
                return 0;
        }
        r = tdm_loop_add_io(loop, p->fd, p->is_fifo ? EPOLLIN : EPOLLPRI, on_pressure, p, &p->source);
        if (r < 0) {
                tdm_pressure_destroy(p);
                return r;
        }
        *ret = p;
        return 0;
}

void tdm_pressure_destroy(struct tdm_pressure *p)
{
        if (!p)
                return;
        tdm_source_destroy(p->source);
        if (p->fd >= 0)
                close(p->fd);
        free(p);
}
