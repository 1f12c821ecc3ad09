/* Any damage to the journal of a job of the bus, as the service manager may hand it to the next daemon.
 *
 * An input is edits of a good journal, each with a byte that says where, the place there (two bytes), how many bytes
 * follow (one byte), and these. Its first byte says whether the job had ended, and which sums are mended behind the
 * edits: they are no seal, and with wrong ones little is read. A journal that is taken can be read, and is written on,
 * moved into a pipe and taken again. */
#include <assert.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "common/fnv.h"
#include "daemon/faces/dbus/journal.h"
#include "daemon/jobs/job.h"
#include "tests/fuzz/fuzz-time.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUEST "a call as it came"
#define INPUT_MAX 4096u

/* The layout, as journal.c has it: make_good() finds out where it is not. */
#define FRONT_BYTES (16 + sizeof(struct bus_journal_head) + 16)
#define STATE_AT 2048

enum part { HEAD, STATE, CALL, END, TOKENS, TEXT, LOG, N_PARTS };

static const off_t begins[N_PARTS] = {
        [STATE] = STATE_AT, [CALL] = 4096, [END] = 6 << 20, [TOKENS] = 8 << 20, [TEXT] = 16 << 20, [LOG] = 32 << 20
};
static const size_t sizes[N_PARTS] = { FRONT_BYTES, sizeof(struct bus_journal_state), 64, 4096, 256, 64, 4096 };

enum mend { MEND_REQUEST = 1, MEND_FRONT = 2, MEND_PARTS = 4, MEND_STATE = 8 };
#define MEND_ALL 15u
#define HAD_ENDED 16u

static struct good_journal {
        uint8_t bytes[N_PARTS][4096];
        off_t at;
} running, over;

static int pipe_ends[2];

static void add(struct bus_journal *j, uint32_t i)
{
        assert(bus_journal_add_token(j, i, (float)i) == 0 && bus_journal_add_text(j, "x", 1) == 0);
        assert(bus_journal_add_output(j, "a line\n", 7) == 0 && bus_journal_commit(j) == 0);
}

static void end(struct bus_journal *j)
{
        struct tdm_job_ended how;

        memset(&how, 0, sizeof(how));
        assert(bus_journal_set_end(j, &how, sizeof(how)) == 0);
        bus_journal_state(j)->flags = BUS_JOURNAL_ENDED;
        assert(bus_journal_commit(j) == 0);
}

static uint64_t sum_at(int fd, off_t at, uint64_t size)
{
        uint64_t sum = TDM_FNV64_BEGIN;
        uint8_t bytes[16384];

        for (ssize_t n; size > 0; size -= (uint64_t)n, at += n) {
                n = pread(fd, bytes, (size_t)TDM_MIN(size, (uint64_t)sizeof(bytes)), at);
                if (n <= 0)
                        break;
                sum = tdm_fnv64(sum, bytes, (size_t)n);
        }
        return sum;
}

static void put_sum(int fd, uint64_t sum, off_t at)
{
        assert(pwrite(fd, &sum, sizeof(sum), at) == sizeof(sum));
}

static void mend_state(int fd, unsigned which)
{
        struct bus_journal_state s = { 0 };

        if (pread(fd, &s, sizeof(s), STATE_AT) != sizeof(s))
                return;
        if (which & MEND_PARTS && s.n_tokens <= BUS_JOURNAL_MAX_TOKENS && s.text_size <= BUS_JOURNAL_MAX_TEXT &&
            s.end_size <= BUS_JOURNAL_MAX_END && s.log_size - s.log_from <= BUS_JOURNAL_MAX_TEXT) {
                s.tokens_sum = sum_at(fd, begins[TOKENS], s.n_tokens * sizeof(struct bus_journal_token));
                s.text_sum = sum_at(fd, begins[TEXT], s.text_size);
                s.end_sum = sum_at(fd, begins[END], s.end_size);
                s.log_sum = sum_at(fd, begins[LOG] + (off_t)(s.log_from & INT32_MAX), s.log_size - s.log_from);
        }
        if (which & MEND_STATE)
                s.sum = tdm_fnv64(TDM_FNV64_BEGIN, &s, offsetof(struct bus_journal_state, sum));
        assert(pwrite(fd, &s, sizeof(s), STATE_AT) == sizeof(s));
}

static void mend(int fd, unsigned which)
{
        struct bus_journal_head head;

        if (which & MEND_REQUEST && pread(fd, &head, sizeof(head), 16) == sizeof(head) &&
            head.request_size <= BUS_JOURNAL_MAX_REQUEST)
                put_sum(fd, sum_at(fd, begins[CALL], head.request_size), FRONT_BYTES - 16);
        if (which & MEND_FRONT)
                put_sum(fd, sum_at(fd, 0, FRONT_BYTES - 8), FRONT_BYTES - 8);
        mend_state(fd, which);
}

/* A copy of the good one, with its own offset. */
static int copy_of(const struct good_journal *good)
{
        int fd = memfd_create("fuzz", MFD_CLOEXEC);

        assert(fd >= 0);
        for (int i = 0; i < N_PARTS; i++)
                assert(pwrite(fd, good->bytes[i], sizes[i], begins[i]) == (ssize_t)sizes[i]);
        assert(lseek(fd, good->at, SEEK_SET) == good->at);
        return fd;
}

static struct bus_journal *take(int fd)
{
        struct tdm_error err = { 0 };
        struct bus_journal *j = NULL;
        int r = bus_journal_open(&j, fd, &err);

        assert(r == 0 || (r == TDM_E_BAD_REQUEST && err.code == r && err.message[0]));
        assert((r == 0) == (j != NULL));
        if (r != 0)
                close(fd);
        return j;
}

/* With sums that are mended and no edits it is what it was. */
static void make_good(struct good_journal *good, bool has_ended)
{
        struct bus_journal_head head = { .uid = 7, .output = 1, .begun_ns = 5, .request_size = strlen(REQUEST) };
        uint8_t bytes[4096];
        struct bus_journal *j;
        int fd;

        snprintf(head.path, sizeof(head.path), "/dev/tandem/Tandem1/jobs/4");
        snprintf(head.owner, sizeof(head.owner), ":1.5");
        assert(bus_journal_new(&j, &head, REQUEST) == 0);
        add(j, 0);
        assert(bus_journal_move(j, pipe_ends[1]) == 0);
        add(j, 1);
        if (has_ended)
                end(j);
        fd = bus_journal_fd(j);
        for (int i = 0; i < N_PARTS; i++)
                (void)!pread(fd, good->bytes[i], sizes[i], begins[i]);
        good->at = lseek(fd, 0, SEEK_CUR);
        bus_journal_free(j);
        fd = copy_of(good);
        mend(fd, MEND_ALL);
        for (int i = 0; i < N_PARTS; i++)
                assert(pread(fd, bytes, sizes[i], begins[i]) == (ssize_t)sizes[i] &&
                       memcmp(bytes, good->bytes[i], sizes[i]) == 0);
        j = take(fd);
        assert(j);
        bus_journal_free(j);
}

/* Where N_PARTS or more: the file is cut there, or its offset moved. */
static void edit(int fd, const uint8_t *data, size_t size)
{
        while (size >= 4) {
                unsigned where = data[0] % (N_PARTS + 2);
                size_t place = (size_t)(data[1] | data[2] << 8), n = TDM_MIN((size_t)data[3], size - 4);

                if (where < N_PARTS) {
                        place %= sizes[where];
                        n = TDM_MIN(n, sizes[where] - place);
                        assert(pwrite(fd, data + 4, n, begins[where] + (off_t)place) == (ssize_t)n);
                } else if (where == N_PARTS)
                        assert(ftruncate(fd, begins[data[3] % N_PARTS] + (off_t)place) == 0);
                else
                        assert(lseek(fd, begins[data[3] % N_PARTS] + (off_t)place, SEEK_SET) >= 0);
                if (where >= N_PARTS)
                        n = 0;
                data += 4 + n;
                size -= 4 + n;
        }
}

/* How it ended, as restore.c takes it. */
static void read_end(struct bus_journal *j)
{
        struct tdm_job_ended ended;
        struct tdm_job job;

        memset(&job, 0, sizeof(job));
        if (bus_journal_read_end(j, &ended, sizeof(ended)) < 0 || tdm_job_restore_end(&job, &ended) < 0)
                return;
        assert(job.finished && job.end <= TDM_JOB_END_ERROR && job.stats.unguessed < TDM_N_UNGUESSED);
        assert(strlen(job.error.message) < sizeof(job.error.message));
        assert(tdm_job_ttft_ms(&job) >= 0 && tdm_job_prefill_tps(&job) >= 0 && tdm_job_decode_tps(&job) >= 0);
}

static void read_all(struct bus_journal *j)
{
        const struct bus_journal_head *head = bus_journal_head(j);
        const struct bus_journal_state *s = bus_journal_state(j);
        void *request = bus_journal_read_request(j);
        struct bus_journal_token *tokens = bus_journal_read_tokens(j);
        char *text = bus_journal_read_text(j), *waiting = bus_journal_read_waiting(j);

        assert(request && tokens && text && waiting);
        assert(strlen(head->path) < sizeof(head->path) && strlen(head->owner) < sizeof(head->owner) &&
               strlen(head->bus) < sizeof(head->bus) && strlen(s->numerics) < sizeof(s->numerics));
        free(request);
        free(tokens);
        free(text);
        free(waiting);
        read_end(j);
}

static void empty_pipe(void)
{
        static uint8_t bytes[1 << 16];

        while (read(pipe_ends[0], bytes, sizeof(bytes)) > 0)
                ;
}

/* As the next daemon does: what it adds is there for the one behind it. */
static struct bus_journal *write_on(struct bus_journal *j)
{
        bool has_ended = bus_journal_state(j)->flags & BUS_JOURNAL_ENDED;
        uint64_t n_tokens = bus_journal_state(j)->n_tokens, text_size = bus_journal_state(j)->text_size;
        int fd = fcntl(bus_journal_fd(j), F_DUPFD_CLOEXEC, 0);

        assert(fd >= 0);
        if (!has_ended) {
                n_tokens += bus_journal_add_token(j, 9, 0.5f) == 0;
                text_size += bus_journal_add_text(j, "yy", 2) == 0 ? 2 : 0;
                assert(bus_journal_add_output(j, "more\n", 5) == 0 && bus_journal_waiting(j) >= 5);
        }
        assert(bus_journal_commit(j) == 0);
        while (bus_journal_move(j, pipe_ends[1]) == -EAGAIN)
                empty_pipe();
        empty_pipe();
        assert(bus_journal_waiting(j) == 0);
        bus_journal_free(j);
        j = take(fd);
        assert(j && bus_journal_waiting(j) == 0);
        assert(bus_journal_state(j)->n_tokens == n_tokens && bus_journal_state(j)->text_size == text_size);
        return j;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct bus_journal *j;
        int fd;

        if (size == 0 || size > INPUT_MAX)
                return 0;
        if (!running.at) {
                assert(pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) == 0);
                make_good(&running, false);
                make_good(&over, true);
        }
        fd = copy_of(data[0] & HAD_ENDED ? &over : &running);
        edit(fd, data + 1, size - 1);
        mend(fd, data[0] & MEND_ALL);
        j = take(fd);
        if (!j)
                return 0;
        read_all(j);
        j = write_on(j);
        read_all(j);
        bus_journal_free(j);
        return 0;
}
