/* The memfd has seven parts at fixed places: head, state, request, end, tokens, text, and the output, which grows and
 * has no end. Parts that are not written take no memory, and output that was moved is given back.
 *
 * Every part has a sum, so that a journal that was damaged is refused and makes no wrong text. A sum grows with what is
 * added. That of the output begins anew when all was moved. The state is written by one call within a page, which a
 * signal cannot cut in two: it commits what was added before. */
#include "daemon/faces/dbus/journal.h"

#include <assert.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/fnv.h"
#include "common/util.h"

#define MAGIC UINT64_C(0x6c6e726a6d646e74) /* "tndmjrnl" */
#define STATE_AT 2048
#define REQUEST_AT 4096
#define END_AT (6 << 20)
#define TOKENS_AT (8 << 20)
#define TEXT_AT (16 << 20)
#define LOG_AT (32 << 20)
#define PAGE 4096
#define MOST_BEHIND (256u << 10) /* output that was moved and is still summed */
#define GIVEN_BACK (16u << 10)   /* output, at a time */
#define MOST_WAITING (64u << 20) /* of a journal that is read */

struct journal_front {
        uint64_t magic;
        uint32_t version;
        uint16_t head_size, state_size;
        struct bus_journal_head head;
        uint64_t request_sum;
        uint64_t sum; /* of all above */
};
static_assert(sizeof(struct journal_front) <= STATE_AT, "the state follows");
static_assert(STATE_AT + sizeof(struct bus_journal_state) <= REQUEST_AT, "the request follows");
static_assert(REQUEST_AT + BUS_JOURNAL_MAX_REQUEST <= END_AT, "the end follows");
static_assert(END_AT + BUS_JOURNAL_MAX_END <= TOKENS_AT, "tokens follow");
static_assert(TOKENS_AT + BUS_JOURNAL_MAX_TOKENS * sizeof(struct bus_journal_token) <= TEXT_AT, "text follows");
static_assert(TEXT_AT + BUS_JOURNAL_MAX_TEXT <= LOG_AT, "output follows");

struct bus_journal {
        int fd;
        struct bus_journal_head head;
        struct bus_journal_state state;
        uint64_t committed; /* output */
        uint64_t moved;     /* output: the file's offset, less LOG_AT */
        uint64_t taken;     /* output: a reader has it, so the pipe does not show it */
        uint64_t punched;   /* output: its pages were given back up to here */
        bool unsure;        /* whether the earlier daemon has given back all of those */
};

/* ---- bytes ---- */

static int journal_write(int fd, const void *data, size_t size, off_t at)
{
        const uint8_t *bytes = data;

        while (size > 0) {
                ssize_t n = pwrite(fd, bytes, size, at);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n < 0 ? -errno : -EIO;
                bytes += n;
                size -= (size_t)n;
                at += n;
        }
        return 0;
}

static int journal_read(int fd, void *data, size_t size, off_t at)
{
        uint8_t *bytes = data;

        while (size > 0) {
                ssize_t n = pread(fd, bytes, size, at);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n < 0 ? -errno : -ENODATA;
                bytes += n;
                size -= (size_t)n;
                at += n;
        }
        return 0;
}

/* Sums bytes of the file on. */
static int sum_file(int fd, off_t at, uint64_t size, uint64_t *sum)
{
        uint8_t buffer[16384];

        while (size > 0) {
                size_t n = (size_t)TDM_MIN(size, (uint64_t)sizeof(buffer));
                int r = journal_read(fd, buffer, n, at);

                if (r < 0)
                        return r;
                *sum = tdm_fnv64(*sum, buffer, n);
                size -= n;
                at += (off_t)n;
        }
        return 0;
}

static uint64_t front_sum(const struct journal_front *front)
{
        return tdm_fnv64(TDM_FNV64_BEGIN, front, offsetof(struct journal_front, sum));
}

static uint64_t state_sum(const struct bus_journal_state *state)
{
        return tdm_fnv64(TDM_FNV64_BEGIN, state, offsetof(struct bus_journal_state, sum));
}

/* ---- beginning ---- */

static struct bus_journal *journal_alloc(void)
{
        struct bus_journal *j = calloc(1, sizeof(*j));

        if (j)
                j->fd = -1;
        return j;
}

int bus_journal_new(struct bus_journal **ret, const struct bus_journal_head *head, const void *request)
{
        _cleanup_(bus_journal_freep) struct bus_journal *j = NULL;
        struct journal_front front;
        int r;

        if (head->request_size > BUS_JOURNAL_MAX_REQUEST)
                return -E2BIG;
        j = journal_alloc();
        if (!j)
                return -ENOMEM;
        j->fd = memfd_create("tandem-job", MFD_CLOEXEC);
        if (j->fd < 0)
                return -errno;
        j->head = *head;
        j->state.tokens_sum = j->state.text_sum = j->state.log_sum = j->state.end_sum = TDM_FNV64_BEGIN;
        memset(&front, 0, sizeof(front)); /* padding is summed too */
        front.magic = MAGIC;
        front.version = BUS_JOURNAL_VERSION;
        front.head_size = sizeof(front.head);
        front.state_size = sizeof(j->state);
        front.head = *head;
        front.request_sum = tdm_fnv64(TDM_FNV64_BEGIN, request, head->request_size);
        front.sum = front_sum(&front);
        r = journal_write(j->fd, request, head->request_size, REQUEST_AT);
        if (r == 0)
                r = bus_journal_commit(j);
        if (r == 0 && lseek(j->fd, LOG_AT, SEEK_SET) != LOG_AT)
                r = -errno;
        if (r == 0)
                r = journal_write(j->fd, &front, sizeof(front), 0); /* at last: without it there is no journal */
        if (r < 0)
                return r;
        *ret = steal_ptr(&j);
        return 0;
}

/* ---- reading what an earlier daemon left ---- */

static bool is_terminated(const char *text, size_t size)
{
        return memchr(text, '\0', size) != NULL;
}

static int check_front(const struct bus_journal *j, const struct journal_front *front, struct tdm_error *err)
{
        uint64_t sum = TDM_FNV64_BEGIN;

        if (front->magic != MAGIC)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "it is no journal");
        if (front->version != BUS_JOURNAL_VERSION || front->head_size != sizeof(front->head) ||
            front->state_size != sizeof(j->state))
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "it is of version %u; this daemon reads version %u",
                                     front->version, BUS_JOURNAL_VERSION);
        if (front->sum != front_sum(front) || !is_terminated(front->head.path, sizeof(front->head.path)) ||
            !is_terminated(front->head.owner, sizeof(front->head.owner)) ||
            !is_terminated(front->head.bus, sizeof(front->head.bus)) ||
            front->head.request_size > BUS_JOURNAL_MAX_REQUEST)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "its head is damaged");
        if (sum_file(j->fd, REQUEST_AT, front->head.request_size, &sum) < 0 || sum != front->request_sum)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "its request is damaged");
        return 0;
}

/* Tokens go when the end is written, and the next commit gives their memory back. */
static bool is_over_or_not(const struct bus_journal_state *s)
{
        bool over = s->flags & BUS_JOURNAL_ENDED;

        return over ? s->end_size > 0 && s->n_tokens == 0 : s->end_size == 0;
}

static int check_state(const struct bus_journal *j, const struct bus_journal_state *s, struct tdm_error *err)
{
        uint64_t tokens = TDM_FNV64_BEGIN, text = TDM_FNV64_BEGIN, log = TDM_FNV64_BEGIN, end = TDM_FNV64_BEGIN;

        if (s->sum != state_sum(s) || !is_terminated(s->numerics, sizeof(s->numerics)) ||
            s->n_tokens > BUS_JOURNAL_MAX_TOKENS || s->text_size > BUS_JOURNAL_MAX_TEXT ||
            s->end_size > BUS_JOURNAL_MAX_END || s->log_from > s->log_size ||
            s->log_size - s->log_from > MOST_WAITING || s->log_size > (uint64_t)INT64_MAX / 2 ||
            j->moved < s->log_from || j->moved > s->log_size || !is_over_or_not(s))
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "its state is damaged");
        if (sum_file(j->fd, TOKENS_AT, s->n_tokens * sizeof(struct bus_journal_token), &tokens) < 0 ||
            tokens != s->tokens_sum)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "its tokens are damaged");
        if (sum_file(j->fd, TEXT_AT, s->text_size, &text) < 0 || text != s->text_sum)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "its text is damaged");
        if (sum_file(j->fd, END_AT, s->end_size, &end) < 0 || end != s->end_sum)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "its end is damaged");
        if (sum_file(j->fd, LOG_AT + (off_t)s->log_from, s->log_size - s->log_from, &log) < 0 || log != s->log_sum)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "its output is damaged");
        return 0;
}

int bus_journal_open(struct bus_journal **ret, int fd, struct tdm_error *err)
{
        _cleanup_(bus_journal_freep) struct bus_journal *j = journal_alloc();
        struct journal_front front;
        struct stat st;
        off_t at;
        int r;

        if (!j)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        at = lseek(fd, 0, SEEK_CUR);
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || at < 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "it is no file");
        j->fd = fd;
        r = journal_read(fd, &front, sizeof(front), 0) < 0 ? tdm_error_set(err, TDM_E_BAD_REQUEST, "it is cut off") :
                                                             check_front(j, &front, err);
        if (r == 0 && journal_read(fd, &j->state, sizeof(j->state), STATE_AT) < 0)
                r = tdm_error_set(err, TDM_E_BAD_REQUEST, "it is cut off");
        if (r == 0 && at < LOG_AT)
                r = tdm_error_set(err, TDM_E_BAD_REQUEST, "its offset is not within its output");
        if (r == 0) {
                j->moved = (uint64_t)(at - LOG_AT);
                r = check_state(j, &j->state, err);
        }
        if (r != 0) {
                j->fd = -1; /* the caller's */
                return r;
        }
        j->head = front.head;
        j->committed = j->state.log_size;
        j->punched = TDM_MIN(j->moved, j->state.log_from) / PAGE * PAGE;
        j->unsure = j->punched > 0;
        *ret = steal_ptr(&j);
        return 0;
}

void bus_journal_free(struct bus_journal *j)
{
        if (!j)
                return;
        closep(&j->fd);
        explicit_bzero(j, sizeof(*j));
        free(j);
}

void bus_journal_freep(struct bus_journal **j)
{
        bus_journal_free(*j);
        *j = NULL;
}

int bus_journal_fd(const struct bus_journal *j)
{
        return j->fd;
}

const struct bus_journal_head *bus_journal_head(const struct bus_journal *j)
{
        return &j->head;
}

struct bus_journal_state *bus_journal_state(struct bus_journal *j)
{
        return &j->state;
}

static void *read_part(struct bus_journal *j, off_t at, size_t size)
{
        void *data = malloc(size + 1);

        if (data && journal_read(j->fd, data, size, at) < 0)
                free(steal_ptr(&data));
        return data;
}

void *bus_journal_read_request(struct bus_journal *j)
{
        return read_part(j, REQUEST_AT, j->head.request_size);
}

struct bus_journal_token *bus_journal_read_tokens(struct bus_journal *j)
{
        return read_part(j, TOKENS_AT, j->state.n_tokens * sizeof(struct bus_journal_token));
}

char *bus_journal_read_text(struct bus_journal *j)
{
        return read_part(j, TEXT_AT, j->state.text_size);
}

int bus_journal_read_end(struct bus_journal *j, void *end, size_t size)
{
        if (j->state.end_size != size)
                return -ENODATA;
        return journal_read(j->fd, end, size, END_AT);
}

char *bus_journal_read_waiting(struct bus_journal *j)
{
        return read_part(j, LOG_AT + (off_t)j->moved, (size_t)(j->state.log_size - j->moved));
}

/* ---- adding ---- */

int bus_journal_add_token(struct bus_journal *j, uint32_t id, float logprob)
{
        const struct bus_journal_token token = { .id = id, .logprob = logprob };
        struct bus_journal_state *s = &j->state;
        int r;

        if (s->n_tokens >= BUS_JOURNAL_MAX_TOKENS)
                return -E2BIG;
        r = journal_write(j->fd, &token, sizeof(token), TOKENS_AT + (off_t)(s->n_tokens * sizeof(token)));
        if (r < 0)
                return r;
        s->n_tokens++;
        s->tokens_sum = tdm_fnv64(s->tokens_sum, &token, sizeof(token));
        return 0;
}

int bus_journal_add_text(struct bus_journal *j, const char *text, size_t size)
{
        struct bus_journal_state *s = &j->state;
        int r;

        if (size > BUS_JOURNAL_MAX_TEXT - s->text_size)
                return -E2BIG;
        r = journal_write(j->fd, text, size, TEXT_AT + (off_t)s->text_size);
        if (r < 0)
                return r;
        s->text_size += size;
        s->text_sum = tdm_fnv64(s->text_sum, text, size);
        return 0;
}

/* The sum is of what waits from now on. What was moved goes when that is committed. */
static int forget_moved(struct bus_journal *j)
{
        struct bus_journal_state *s = &j->state;
        uint64_t sum = TDM_FNV64_BEGIN;
        int r = sum_file(j->fd, LOG_AT + (off_t)j->moved, s->log_size - j->moved, &sum);

        if (r < 0)
                return r;
        s->log_from = j->moved;
        s->log_sum = sum;
        return 0;
}

static void punch(struct bus_journal *j, off_t at, uint64_t size)
{
        (void)fallocate(j->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, (off_t)size);
}

/* What no committed sum is of any more, and no pipe shows: where the kernel keeps the file in huge pages, a hole in one
 * is written as zeros, which a reader would find. From the beginning: an earlier daemon may have left some. */
static void give_back(struct bus_journal *j)
{
        uint64_t end = TDM_MIN(j->state.log_from, j->taken) / PAGE * PAGE;

        if (end >= j->punched + GIVEN_BACK || (j->unsure && end >= j->punched)) {
                punch(j, LOG_AT, end);
                j->punched = end;
                j->unsure = false;
        }
        if (j->state.end_size > 0)
                punch(j, TOKENS_AT, TEXT_AT - TOKENS_AT);
}

int bus_journal_add_output(struct bus_journal *j, const char *data, size_t size)
{
        struct bus_journal_state *s = &j->state;
        int r = 0;

        if (j->moved == s->log_size || j->moved - s->log_from > MOST_BEHIND)
                r = forget_moved(j);
        if (r == 0)
                r = journal_write(j->fd, data, size, LOG_AT + (off_t)s->log_size);
        if (r < 0)
                return r;
        s->log_size += size;
        s->log_sum = tdm_fnv64(s->log_sum, data, size);
        return 0;
}

int bus_journal_set_end(struct bus_journal *j, const void *end, size_t size)
{
        struct bus_journal_state *s = &j->state;
        int r;

        if (size > BUS_JOURNAL_MAX_END)
                return -E2BIG;
        r = journal_write(j->fd, end, size, END_AT);
        if (r < 0)
                return r;
        s->end_size = size;
        s->end_sum = tdm_fnv64(TDM_FNV64_BEGIN, end, size);
        s->n_tokens = 0;
        s->tokens_sum = TDM_FNV64_BEGIN;
        return 0;
}

int bus_journal_commit(struct bus_journal *j)
{
        int r;

        j->state.sum = state_sum(&j->state);
        r = journal_write(j->fd, &j->state, sizeof(j->state), STATE_AT);
        if (r < 0)
                return r;
        j->committed = j->state.log_size;
        give_back(j);
        return 0;
}

static void note_taken(struct bus_journal *j, int pipe_fd)
{
        int unread;

        if (ioctl(pipe_fd, FIONREAD, &unread) == 0 && unread >= 0 && (uint64_t)unread <= j->moved)
                j->taken = j->moved - (uint64_t)unread;
}

int bus_journal_move(struct bus_journal *j, int pipe_fd)
{
        note_taken(j, pipe_fd);
        while (j->moved < j->committed) {
                ssize_t n = splice(j->fd, NULL, pipe_fd, NULL, (size_t)(j->committed - j->moved),
                                   SPLICE_F_NONBLOCK | SPLICE_F_MOVE);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n < 0 ? -errno : -EIO;
                j->moved += (uint64_t)n;
        }
        return 0;
}

size_t bus_journal_waiting(const struct bus_journal *j)
{
        return (size_t)(j->state.log_size - j->moved);
}

size_t bus_journal_held(const struct bus_journal *j)
{
        return (size_t)(j->head.request_size + j->state.text_size +
                        j->state.n_tokens * sizeof(struct bus_journal_token) + (j->state.log_size - j->punched));
}
