/* Journals of jobs: what is read is what was committed, a killed writer doubles and loses no byte, and one that was
 * damaged is refused in clear words or not damaged at all. */
#include "daemon/faces/dbus/journal.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include "common/hugepage.h"
#include "common/util.h"

#define N_DAMAGED 2000
#define N_KILLS 60
#define REQUEST "a request"

static uint64_t next_random(uint64_t *state)
{
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        return *state;
}

static struct bus_journal *make(void)
{
        struct bus_journal_head head = { .uid = 7, .output = 1, .begun_ns = 5, .request_size = strlen(REQUEST) };
        struct bus_journal *j;

        snprintf(head.path, sizeof(head.path), "/dev/tandem/Tandem1/jobs/4");
        snprintf(head.owner, sizeof(head.owner), ":1.5");
        assert_int_equal(bus_journal_new(&j, &head, REQUEST), 0);
        return j;
}

/* The same, as the next daemon has it. */
static struct bus_journal *reopen(struct bus_journal *old)
{
        int fd = dup(bus_journal_fd(old));
        struct tdm_error err = { 0 };
        struct bus_journal *j = NULL;
        int r;

        bus_journal_free(old);
        r = bus_journal_open(&j, fd, &err);
        if (r != 0)
                print_error("%s\n", err.message);
        assert_int_equal(r, 0);
        return j;
}

static void add(struct bus_journal *j, uint32_t i)
{
        char line[32];

        snprintf(line, sizeof(line), "line %u\n", i);
        assert_int_equal(bus_journal_add_token(j, i, (float)i / 2), 0);
        assert_int_equal(bus_journal_add_text(j, "x", 1), 0);
        assert_int_equal(bus_journal_add_output(j, line, strlen(line)), 0);
        bus_journal_state(j)->sequence = i;
        assert_int_equal(bus_journal_commit(j), 0);
}

static void open_pipe(int ends[2])
{
        assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
}

static void test_the_next_daemon_reads_it(void **unused)
{
        struct bus_journal *j = make();
        struct bus_journal_token *tokens;
        char got[256] = "", *text;
        void *request;
        int ends[2];

        open_pipe(ends);
        for (uint32_t i = 0; i < 3; i++)
                add(j, i);
        assert_int_equal(bus_journal_move(j, ends[1]), 0);
        add(j, 3);
        assert_int_equal(bus_journal_waiting(j), 7);
        bus_journal_state(j)->sequence = 99; /* not committed */
        assert_int_equal(bus_journal_add_output(j, "lost", 4), 0);
        j = reopen(j);
        assert_int_equal(bus_journal_waiting(j), 7);
        assert_int_equal(bus_journal_state(j)->sequence, 3);
        assert_string_equal(bus_journal_head(j)->owner, ":1.5");
        request = bus_journal_read_request(j);
        tokens = bus_journal_read_tokens(j);
        text = bus_journal_read_text(j);
        assert_memory_equal(request, REQUEST, strlen(REQUEST));
        assert_int_equal(tokens[3].id, 3);
        assert_true(tokens[3].logprob == 1.5f);
        assert_memory_equal(text, "xxxx", 4);
        free(request);
        free(tokens);
        free(text);
        add(j, 4);
        assert_int_equal(bus_journal_move(j, ends[1]), 0);
        assert_true(read(ends[0], got, sizeof(got) - 1) > 0);
        assert_string_equal(got, "line 0\nline 1\nline 2\nline 3\nline 4\n");
        close(ends[0]);
        assert_int_equal(bus_journal_move(j, ends[1]), 0);
        add(j, 5);
        assert_int_equal(bus_journal_move(j, ends[1]), -EPIPE);
        close(ends[1]);
        bus_journal_free(j);
}

static void test_memory_is_bounded(void **unused)
{
        char block[4096];
        struct bus_journal *j = make();
        int ends[2];

        open_pipe(ends);
        memset(block, 'a', sizeof(block));
        for (unsigned i = 0; i < 4096; i++) { /* 16 MiB */
                assert_int_equal(bus_journal_add_output(j, block, sizeof(block)), 0);
                assert_int_equal(bus_journal_commit(j), 0);
                assert_int_equal(bus_journal_move(j, ends[1]), 0);
                assert_int_equal(read(ends[0], block, sizeof(block)), sizeof(block));
        }
        assert_true(bus_journal_held(j) < (3u << 20));
        j = reopen(j);
        assert_int_equal(bus_journal_waiting(j), 0);
        bus_journal_free(j);
        close(ends[0]);
        close(ends[1]);
}

static void add_block(struct bus_journal *j, int to)
{
        static uint64_t n;
        uint64_t block[512];

        for (size_t i = 0; i < TDM_ARRAY_SIZE(block); i++)
                block[i] = n++;
        assert_int_equal(bus_journal_add_output(j, (const char *)block, sizeof(block)), 0);
        assert_int_equal(bus_journal_commit(j), 0);
        assert_int_equal(bus_journal_move(j, to), 0);
}

/* How many of the first n bytes of output are no hole. */
static size_t kept_of(struct bus_journal *j, size_t n)
{
        char *at = mmap(NULL, n, PROT_READ, MAP_SHARED, bus_journal_fd(j), 32 << 20);
        unsigned char *in_memory = malloc(n / 4096);
        size_t n_kept = 0;

        assert_true(at != MAP_FAILED && in_memory);
        assert_int_equal(mincore(at, n, in_memory), 0);
        for (size_t i = 0; i < n / 4096; i++)
                n_kept += (in_memory[i] & 1) * 4096u;
        free(in_memory);
        munmap(at, n);
        return n_kept;
}

/* The first 2 MiB of output become one page. false: this kernel does not do that. */
static bool make_huge(struct bus_journal *j)
{
        size_t size = TDM_HUGEPAGE_BYTES;
        char *room = mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char *at = (char *)TDM_ALIGN_UP((uintptr_t)room, size);
        bool huge;

        assert_true(room != MAP_FAILED);
        assert_int_equal(ftruncate(bus_journal_fd(j), (32 << 20) + (off_t)size), 0);
        at = mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, bus_journal_fd(j), 32 << 20);
        assert_true(at != MAP_FAILED);
        huge = tdm_hugepage_make((uint8_t *)at, 1) == 0;
        munmap(room, 2 * size);
        return huge;
}

/* A reader that stands still: its pipe shows pages of the journal, so they stay. Once read they are given back, by the
 * next daemon too. In a huge page a hole is written as zeros, which must not reach the reader. */
static void read_late(bool huge, bool next_daemon)
{
        enum { WORDS = 512, BLOCKS = 8 };
        struct bus_journal *j = make();
        uint64_t got[WORDS], first = 0;
        int ends[2];

        if (huge && !make_huge(j)) {
                print_message("this kernel makes no huge pages of files: not looked at\n");
                bus_journal_free(j);
                return;
        }
        open_pipe(ends);
        for (unsigned i = 0; i < BLOCKS; i++)
                add_block(j, ends[1]);
        assert_int_equal(bus_journal_waiting(j), 0);
        assert_int_equal(kept_of(j, BLOCKS * sizeof(got)), BLOCKS * sizeof(got));
        if (next_daemon)
                j = reopen(j);
        for (unsigned i = 0; i < BLOCKS; i++) {
                assert_int_equal(read(ends[0], got, sizeof(got)), sizeof(got));
                first = i == 0 ? got[0] : first;
                for (unsigned k = 0; k < WORDS; k++)
                        assert_true(got[k] == first + i * WORDS + k);
        }
        for (unsigned i = 0; i < 2; i++) { /* the first one hears that all was read */
                add_block(j, ends[1]);
                assert_int_equal(read(ends[0], got, sizeof(got)), sizeof(got));
                assert_true(got[0] == first + (BLOCKS + i) * WORDS);
        }
        assert_true(huge || kept_of(j, BLOCKS * sizeof(got)) == 0);
        assert_true(bus_journal_held(j) <= 2 * sizeof(got) + strlen(REQUEST));
        bus_journal_free(j);
        close(ends[0]);
        close(ends[1]);
}

static void test_read_late(void **unused)
{
        read_late(false, false);
        read_late(false, true);
        read_late(true, false);
        read_late(true, true);
}

/* As on a full disk: what was not added is not there, and what waits can be read. */
static void test_no_room(void **unused)
{
        struct rlimit limit = { .rlim_cur = (32u << 20) + 40, .rlim_max = RLIM_INFINITY }, unlimited;
        struct bus_journal *j = make();
        char *waiting;

        assert_int_equal(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
        limit.rlim_max = unlimited.rlim_max;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        for (uint32_t i = 0; i < 5; i++)
                add(j, i);
        assert_int_equal(bus_journal_add_output(j, "line 5\n", 7), -EFBIG);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
        assert_int_equal(bus_journal_waiting(j), 35);
        waiting = bus_journal_read_waiting(j);
        assert_memory_equal(waiting, "line 0\nline 1\nline 2\nline 3\nline 4\n", 35);
        free(waiting);
        j = reopen(j);
        assert_int_equal(bus_journal_waiting(j), 35);
        bus_journal_free(j);
}

static void test_end(void **unused)
{
        struct bus_journal *j = make();
        char got[8];

        add(j, 0);
        assert_int_equal(bus_journal_read_end(j, got, 4), -ENODATA);
        assert_int_equal(bus_journal_set_end(j, "over", 4), 0);
        bus_journal_state(j)->flags |= BUS_JOURNAL_ENDED;
        assert_int_equal(bus_journal_commit(j), 0);
        j = reopen(j);
        assert_int_equal(bus_journal_read_end(j, got, 5), -ENODATA);
        assert_int_equal(bus_journal_read_end(j, got, 4), 0);
        assert_memory_equal(got, "over", 4);
        assert_int_equal(bus_journal_state(j)->n_tokens, 0);
        bus_journal_free(j);
}

/* What one state says twice it says alike: else a commit would give back the memory of tokens that are still read. */
static void test_ended_or_not(void **unused)
{
        struct tdm_error err = { 0 };
        struct bus_journal *j = make(), *next;

        add(j, 0);
        bus_journal_state(j)->flags |= BUS_JOURNAL_ENDED; /* without an end */
        assert_int_equal(bus_journal_commit(j), 0);
        assert_int_equal(bus_journal_open(&next, bus_journal_fd(j), &err), TDM_E_BAD_REQUEST);
        assert_string_equal(err.message, "its state is damaged");
        assert_int_equal(bus_journal_set_end(j, "over", 4), 0);
        bus_journal_state(j)->flags = 0; /* an end that is none */
        assert_int_equal(bus_journal_commit(j), 0);
        assert_int_equal(bus_journal_open(&next, bus_journal_fd(j), NULL), TDM_E_BAD_REQUEST);
        bus_journal_state(j)->flags = BUS_JOURNAL_ENDED;
        assert_int_equal(bus_journal_add_token(j, 1, 0), 0); /* a token behind it */
        assert_int_equal(bus_journal_commit(j), 0);
        assert_int_equal(bus_journal_open(&next, bus_journal_fd(j), NULL), TDM_E_BAD_REQUEST);
        bus_journal_free(j);
}

static void write_until_killed(struct bus_journal *j, int to)
{
        for (uint32_t i = 0; i < 200000; i++) {
                char line[32];

                snprintf(line, sizeof(line), "line %u\n", i);
                if (bus_journal_add_token(j, i, 0) < 0 || bus_journal_add_output(j, line, strlen(line)) < 0 ||
                    bus_journal_commit(j) < 0)
                        _exit(1);
                while (bus_journal_move(j, to) == -EAGAIN)
                        usleep(50);
        }
        _exit(0);
}

struct got {
        char *data;
        size_t n, room;
};

/* What the pipe has now. */
static void read_pipe(struct got *got, int fd)
{
        ssize_t n;

        while (got->n < got->room && (n = read(fd, got->data + got->n, got->room - got->n)) > 0)
                got->n += (size_t)n;
}

static void check_lines(const struct got *got, uint64_t n)
{
        size_t at = 0;

        for (uint64_t i = 0; i < n; i++) {
                char line[32];
                int size = snprintf(line, sizeof(line), "line %llu\n", (unsigned long long)i);

                assert_true(at + (size_t)size <= got->n);
                assert_memory_equal(got->data + at, line, (size_t)size);
                at += (size_t)size;
        }
        assert_int_equal(at, got->n);
}

/* All that a reader got, from a writer that was killed and from the one that followed it. */
static void test_killed_writers(void **unused)
{
        struct got got = { .room = 32u << 20 };
        uint64_t random = 88172645463325252u;

        got.data = malloc(got.room);
        assert_non_null(got.data);
        for (unsigned round = 0; round < N_KILLS; round++) {
                struct bus_journal *j = make();
                uint64_t n;
                int ends[2];
                pid_t pid;

                open_pipe(ends);
                got.n = 0;
                pid = fork();
                assert_true(pid >= 0);
                if (pid == 0)
                        write_until_killed(j, ends[1]);
                for (size_t least = next_random(&random) % 40000; got.n < least;)
                        read_pipe(&got, ends[0]);
                kill(pid, SIGKILL);
                assert_int_equal(waitpid(pid, NULL, 0), pid);
                j = reopen(j);
                for (int i = 0; i < 20; i++)
                        add(j, (uint32_t)bus_journal_state(j)->n_tokens);
                while (bus_journal_move(j, ends[1]) == -EAGAIN)
                        read_pipe(&got, ends[0]);
                read_pipe(&got, ends[0]);
                n = bus_journal_state(j)->n_tokens;
                check_lines(&got, n);
                bus_journal_free(j);
                close(ends[0]);
                close(ends[1]);
        }
        free(got.data);
}

static void be_equal(struct bus_journal *j, struct bus_journal *want)
{
        struct bus_journal_token *tokens = bus_journal_read_tokens(j), *want_tokens = bus_journal_read_tokens(want);
        char *text = bus_journal_read_text(j), *want_text = bus_journal_read_text(want);

        assert_memory_equal(bus_journal_head(j), bus_journal_head(want), sizeof(struct bus_journal_head));
        assert_memory_equal(bus_journal_state(j), bus_journal_state(want), sizeof(struct bus_journal_state));
        assert_memory_equal(tokens, want_tokens, bus_journal_state(j)->n_tokens * sizeof(*tokens));
        assert_memory_equal(text, want_text, bus_journal_state(j)->text_size);
        free(tokens);
        free(want_tokens);
        free(text);
        free(want_text);
}

/* One to four bytes of a part that is in use are others, or the file is cut off, or its offset moved. */
static void damage(int fd, uint64_t *random)
{
        static const struct {
                off_t at;
                size_t size;
        } parts[] = { { 0, 800 }, { 2048, 300 }, { 4096, 9 }, { 8 << 20, 320 }, { 16 << 20, 40 }, { 32 << 20, 300 } };
        unsigned kind = (unsigned)(next_random(random) % 16);

        if (kind == 0)
                assert_int_equal(ftruncate(fd, (off_t)(next_random(random) % (33u << 20))), 0);
        else if (kind == 1)
                assert_true(lseek(fd, (off_t)(next_random(random) % (34u << 20)), SEEK_SET) >= 0);
        for (uint64_t n = kind < 2 ? 0 : next_random(random) % 4 + 1; n > 0; n--) {
                uint64_t part = next_random(random) % TDM_ARRAY_SIZE(parts);
                uint8_t byte = (uint8_t)next_random(random);

                assert_int_equal(pwrite(fd, &byte, 1, parts[part].at + (off_t)(next_random(random) % parts[part].size)),
                                 1);
        }
}

static int copy_of(int fd)
{
        static const off_t ends[] = { 8192, (8 << 20) + 4096, (16 << 20) + 4096, (32 << 20) + 4096 };
        static const off_t begins[] = { 0, 8 << 20, 16 << 20, 32 << 20 };
        int copy = memfd_create("copy", MFD_CLOEXEC);
        char page[8192];

        assert_true(copy >= 0);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(ends); i++) {
                ssize_t n = pread(fd, page, (size_t)(ends[i] - begins[i]), begins[i]);

                assert_true(n >= 0);
                assert_int_equal(pwrite(copy, page, (size_t)n, begins[i]), n);
        }
        assert_true(lseek(copy, lseek(fd, 0, SEEK_CUR), SEEK_SET) >= 0);
        return copy;
}

static void test_damaged(void **unused)
{
        struct bus_journal *j = make();
        uint64_t random = 0x9e3779b97f4a7c15u;
        unsigned n_refused = 0;
        int ends[2];

        open_pipe(ends);
        for (uint32_t i = 0; i < 20; i++)
                add(j, i);
        assert_int_equal(bus_journal_move(j, ends[1]), 0);
        for (uint32_t i = 20; i < 40; i++)
                add(j, i);
        for (unsigned i = 0; i < N_DAMAGED; i++) {
                struct tdm_error err = { 0 };
                struct bus_journal *damaged = NULL;
                int fd = copy_of(bus_journal_fd(j));
                int r;

                damage(fd, &random);
                r = bus_journal_open(&damaged, fd, &err);
                if (r == 0) {
                        be_equal(damaged, j);
                        bus_journal_free(damaged);
                        continue;
                }
                assert_int_equal(r, TDM_E_BAD_REQUEST);
                assert_true(strncmp(err.message, "it", 2) == 0 && strlen(err.message) > 8);
                n_refused++;
                close(fd);
        }
        assert_true(n_refused > N_DAMAGED / 2);
        bus_journal_free(j);
        close(ends[0]);
        close(ends[1]);
}

static void test_another_version(void **unused)
{
        struct bus_journal *j = make(), *read = NULL;
        struct tdm_error err = { 0 };
        uint32_t version = BUS_JOURNAL_VERSION + 1;

        assert_int_equal(pwrite(bus_journal_fd(j), &version, sizeof(version), 8), sizeof(version));
        assert_int_equal(bus_journal_open(&read, bus_journal_fd(j), &err), TDM_E_BAD_REQUEST);
        assert_string_equal(err.message, "it is of version 2; this daemon reads version 1");
        bus_journal_free(j);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_the_next_daemon_reads_it),
                cmocka_unit_test(test_memory_is_bounded),
                cmocka_unit_test(test_read_late),
                cmocka_unit_test(test_killed_writers),
                cmocka_unit_test(test_damaged),
                cmocka_unit_test(test_another_version),
                cmocka_unit_test(test_no_room),
                cmocka_unit_test(test_end),
                cmocka_unit_test(test_ended_or_not),
        };

        signal(SIGPIPE, SIG_IGN);
        signal(SIGXFSZ, SIG_IGN);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
