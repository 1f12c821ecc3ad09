/* The writing end of a pipe whose reader may be slow, stopped, or gone. Writing never waits: what the pipe does not
 * take is kept up to a limit and goes when there is room. Past the limit nothing is taken any more (there would be a
 * hole), and the reader finds the end of the file after what was kept; what it missed it can still ask for with
 * GetText(). */
#include "daemon/faces/dbus/private.h"

#include <fcntl.h>
#include <sys/epoll.h>

int bus_stream_open(struct bus_stream *s, struct tdm_loop *loop, int *ret_read_fd)
{
        int ends[2], flags;

        if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
                return -errno;
        /* The reader's end is an ordinary pipe: cat and Python's open() expect it to wait. */
        flags = fcntl(ends[0], F_GETFL);
        if (flags < 0 || fcntl(ends[0], F_SETFL, flags & ~O_NONBLOCK) < 0) {
                int r = -errno;

                close(ends[0]);
                close(ends[1]);
                return r;
        }
        s->loop = loop;
        s->fd = ends[1];
        *ret_read_fd = ends[0];
        return 0;
}

bool bus_stream_is_open(const struct bus_stream *s)
{
        return s->fd >= 0;
}

size_t bus_stream_waiting(const struct bus_stream *s)
{
        return s->journal ? bus_journal_waiting(s->journal) : s->size - s->first;
}

static void drop_data(struct bus_stream *s)
{
        if (s->data)
                explicit_bzero(s->data, s->capacity);
        free(steal_ptr(&s->data));
        s->first = s->size = s->capacity = 0;
}

static void shut(struct bus_stream *s)
{
        tdm_source_destroyp(&s->writable);
        closep(&s->fd);
        drop_data(s);
}

/* Writes as much as the reader takes now. false: the reader is gone. */
static bool stream_flush(struct bus_stream *s)
{
        while (s->first < s->size) {
                ssize_t n = write(s->fd, s->data + s->first, s->size - s->first);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return errno == EAGAIN;
                s->first += (size_t)n;
        }
        drop_data(s);
        return true;
}

static int on_writable(struct tdm_source *source, int fd, uint32_t events, void *userdata)
{
        struct bus_stream *s = userdata;

        if (s->journal)
                s->on_writable(s->userdata);
        else if (!stream_flush(s))
                shut(s);
        else if (s->size == 0) {
                tdm_source_destroyp(&s->writable);
                if (s->over)
                        shut(s);
        }
        return 0;
}

int bus_stream_settle(struct bus_stream *s)
{
        int r;

        if (s->fd < 0)
                return 0;
        r = bus_journal_move(s->journal, s->fd);
        if (r == -EAGAIN && s->writable)
                return 0;
        if (r == -EAGAIN)
                return tdm_loop_add_io(s->loop, s->fd, EPOLLOUT, on_writable, s, &s->writable);
        if (r < 0 && r != -EPIPE)
                return r;
        tdm_source_destroyp(&s->writable);
        if (r == -EPIPE || s->over)
                shut(s);
        return 0;
}

static bool stream_keep(struct bus_stream *s, const char *data, size_t size, size_t room)
{
        if (bus_stream_waiting(s) + size > room)
                return false;
        if (s->size + size > s->capacity && s->first > 0) {
                memmove(s->data, s->data + s->first, bus_stream_waiting(s));
                s->size -= s->first;
                s->first = 0;
        }
        if (s->size + size > s->capacity) {
                size_t capacity = TDM_MAX((size_t)1024, 2 * (s->size + size));
                char *bigger = malloc(capacity); /* not realloc(): no copy of the text may stay behind */

                if (!bigger)
                        return false;
                if (s->size)
                        memcpy(bigger, s->data, s->size);
                if (s->data)
                        explicit_bzero(s->data, s->capacity);
                free(s->data);
                s->data = bigger;
                s->capacity = capacity;
        }
        memcpy(s->data + s->size, data, size);
        s->size += size;
        return true;
}

bool bus_stream_write(struct bus_stream *s, const char *data, size_t size, size_t room)
{
        if (s->fd < 0 || s->over)
                return !s->cut;
        while (size > 0 && s->size == 0) {
                ssize_t n = write(s->fd, data, size);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0 && errno != EAGAIN) {
                        shut(s); /* the reader is gone, which is its right */
                        return true;
                }
                if (n < 0)
                        break;
                data += n;
                size -= (size_t)n;
        }
        if (size == 0)
                return true;
        if (!stream_keep(s, data, size, room) ||
            (!s->writable && tdm_loop_add_io(s->loop, s->fd, EPOLLOUT, on_writable, s, &s->writable) < 0)) {
                s->cut = true;
                bus_stream_finish(s);
                return false;
        }
        return true;
}

void bus_stream_finish(struct bus_stream *s)
{
        s->over = true;
        if (s->fd >= 0 && (bus_stream_waiting(s) == 0 || (!s->journal && !s->writable)))
                shut(s);
}

void bus_stream_leave_journal(struct bus_stream *s)
{
        struct bus_journal *journal = steal_ptr(&s->journal);
        size_t size = bus_journal_waiting(journal);
        _cleanup_(freep) char *waiting = NULL;
        bool over = s->over;

        tdm_source_destroyp(&s->writable);
        if (s->fd < 0)
                return;
        s->over = false;
        if (size > 0)
                waiting = bus_journal_read_waiting(journal);
        if (size > 0 && (!waiting || !bus_stream_write(s, waiting, size, SIZE_MAX)))
                shut(s); /* no hole */
        s->cut |= s->fd < 0;
        if (waiting)
                explicit_bzero(waiting, size);
        if (over)
                bus_stream_finish(s);
}

void bus_stream_deinit(struct bus_stream *s)
{
        shut(s);
}
