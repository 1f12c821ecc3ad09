/* tandem-picture-decoder as its starter sees it: pixels, refusals, streams that never end, its bounds, its sandbox. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "engine/image/decoder-abi.h"
#include "engine/image/decoder.h"

#define PROGRAM TANDEM_BIN_DIR "/tandem-picture-decoder"
#define FOLDER "tests/golden/images/"
/* How long a decoder may take that is not meant to reach it, however busy the machine is. */
#define LONG_NS (60 * TDM_NSEC_PER_SEC)

static struct tdm_decoder_limits limits_for(uint64_t ns)
{
        return (struct tdm_decoder_limits){ .most_bytes = 1 << 20,
                                            .most_pixels = 1 << 20,
                                            .most_side = TDM_DECODER_MOST_SIDE,
                                            .deadline_ns = tdm_now_ns() + ns };
}

static int decode_file(const char *path, struct tdm_picture **ret, struct tdm_error *err)
{
        const struct tdm_decoder_limits limits = limits_for(LONG_NS);
        int fd = open(path, O_RDONLY | O_CLOEXEC), r;

        assert_true(fd >= 0);
        r = tdm_picture_decode(ret, PROGRAM, fd, &limits, err);
        close(fd);
        return r;
}

static void test_pixels(void **state)
{
        const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
        struct tdm_picture *picture = NULL;
        struct tdm_error err = { 0 };

        if (decode_file(FOLDER "pictures/gradient.png", &picture, &err) != 0)
                fail_msg("%s", err.message);
        assert_int_equal(picture->size.width, 300);
        assert_int_equal(picture->size.height, 180);
        assert_memory_equal(picture->rgb, "\x00\x00\xe3", 3);
        assert_memory_equal(picture->rgb + 300 * 180 * 3 - 3, "\xff\xff\xcd", 3);
        assert_int_equal(fcntl(picture->fd, F_GET_SEALS), seals);
        assert_int_equal(lseek(picture->fd, 0, SEEK_END), 300 * 180 * 3);
        tdm_picture_destroy(picture);
}

static void test_refused(void **state)
{
        static const struct {
                const char *path, *says;
        } files[] = {
                { FOLDER "refused/bomb.png", "30000 x 30000 pixels" },
                { FOLDER "refused/bomb.jpg", "65500 x 65500" },
                { FOLDER "refused/crc.png", "IDAT" },
                { FOLDER "refused/empty.png", "empty" },
                { "/dev/zero", "more than 1048576 bytes" },
                { FOLDER, "cannot read the picture" },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(files); i++) {
                struct tdm_picture *picture = NULL;
                struct tdm_error err = { 0 };

                assert_int_equal(decode_file(files[i].path, &picture, &err), TDM_E_BAD_REQUEST);
                assert_null(picture);
                if (!strstr(err.message, files[i].says))
                        fail_msg("%s is refused with other words: %s", files[i].path, err.message);
        }
}

/* The writer says nothing more and does not close. */
static void test_silent_stream(void **state)
{
        const struct tdm_decoder_limits limits = limits_for(300 * TDM_NSEC_PER_MSEC);
        struct tdm_picture *picture = NULL;
        struct tdm_error err = { 0 };
        int pipe_fds[2];

        assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
        assert_int_equal(write(pipe_fds[1], "\x89PNG", 4), 4);
        assert_int_equal(tdm_picture_decode(&picture, PROGRAM, pipe_fds[0], &limits, &err), TDM_E_DEADLINE);
        assert_true(tdm_now_ns() >= limits.deadline_ns);
        assert_non_null(strstr(err.message, "in the time that a picture has"));
        close(pipe_fds[0]);
        close(pipe_fds[1]);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no process is left */
}

struct waiting {
        int file;
        struct tdm_picture *picture;
        struct tdm_error err;
        int r;
};

static void *wait_for_picture(void *arg)
{
        struct waiting *waiting = arg;
        const struct tdm_decoder_limits limits = limits_for(LONG_NS);

        waiting->r = tdm_picture_decode(&waiting->picture, PROGRAM, waiting->file, &limits, &waiting->err);
        return NULL;
}

/* The line of /proc/PID/name that begins so, or "". */
static void proc_line(int pid, const char *name, const char *begin, char *ret, size_t size)
{
        char path[64];
        FILE *f;

        snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
        f = fopen(path, "re");
        ret[0] = 0;
        while (f && fgets(ret, (int)size, f) && strncmp(ret, begin, strlen(begin)) != 0)
                ret[0] = 0;
        if (f)
                fclose(f);
}

/* The process that this one has started; 0: none yet. */
static int find_child(void)
{
        DIR *proc = opendir("/proc");
        struct dirent *entry;
        char line[64];
        int found = 0;

        assert_non_null(proc);
        while (!found && (entry = readdir(proc)))
                if (atoi(entry->d_name) > 0) {
                        proc_line(atoi(entry->d_name), "status", "PPid:", line, sizeof(line));
                        if (line[0] && atoi(line + strlen("PPid:")) == getpid())
                                found = atoi(entry->d_name);
                }
        closedir(proc);
        return found;
}

static int n_filters(int pid)
{
        char line[64];

        proc_line(pid, "status", "Seccomp_filters:", line, sizeof(line));
        return line[0] ? atoi(line + strlen("Seccomp_filters:")) : 0;
}

/* While it waits for the file it has given up what a worker gives up, and is bounded. Then it gets the file. */
static void test_confined(void **state)
{
        static uint8_t bytes[64 << 10];
        struct waiting waiting = { 0 };
        int file = open(FOLDER "pictures/gradient.png", O_RDONLY | O_CLOEXEC), pipe_fds[2], pid = 0;
        ssize_t size = read(file, bytes, sizeof(bytes));
        char line[256] = "";
        pthread_t thread;

        assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
        waiting.file = pipe_fds[0];
        assert_int_equal(pthread_create(&thread, NULL, wait_for_picture, &waiting), 0);
        for (unsigned i = 0; i < 3000 && !pid; i++) {
                usleep(10000);
                pid = find_child();
        }
        assert_true(pid > 0);
#ifndef TANDEM_SANITIZED
        /* Two filters: one before it has the order, and one before it reads the file. */
        for (unsigned i = 0; i < 3000 && n_filters(pid) < n_filters(getpid()) + 2; i++)
                usleep(10000);
        assert_int_equal(n_filters(pid), n_filters(getpid()) + 2);
        proc_line(pid, "status", "NoNewPrivs:", line, sizeof(line));
        assert_string_equal(line, "NoNewPrivs:\t1\n");
        proc_line(pid, "limits", "Max address space", line, sizeof(line));
        assert_true(strlen(line) > 0 && !strstr(line, "unlimited"));
        proc_line(pid, "limits", "Max cpu time", line, sizeof(line));
        assert_true(strlen(line) > 0 && !strstr(line, "unlimited"));
#endif
        assert_int_equal(write(pipe_fds[1], bytes, (size_t)size), size);
        close(pipe_fds[1]);
        pthread_join(thread, NULL);
        if (waiting.r != 0)
                fail_msg("%s", waiting.err.message);
        assert_int_equal(waiting.picture->size.width, 300);
        tdm_picture_destroy(waiting.picture);
        close(pipe_fds[0]);
        close(file);
}

static const char *write_script(const char *text)
{
        static char path[] = "/tmp/tandem-test-decoder-XXXXXX";
        int fd = mkstemp(path);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, strlen(text)), strlen(text));
        assert_int_equal(fchmod(fd, 0700), 0);
        close(fd);
        return path;
}

/* A program that is not there, one that answers nothing, and one that does not even end. */
static void test_no_decoder(void **state)
{
        const char *script;
        const struct tdm_decoder_limits limits = limits_for(LONG_NS);
        struct tdm_picture *picture = NULL;
        struct tdm_error err = { 0 };
        int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

        assert_int_equal(tdm_picture_decode(&picture, "/nowhere/decoder", fd, &limits, &err), -ENOENT);
        assert_non_null(strstr(err.message, "/nowhere/decoder"));
        assert_int_equal(tdm_picture_decode(&picture, "/bin/true", fd, &limits, &err), TDM_E_INTERNAL);
        /* It closes its socket, and lives on through all signals that it may hold off. */
        script = write_script("#!/bin/sh\ntrap '' ALRM TERM\nexec 3>&-\nexec sleep 600\n");
        assert_int_equal(tdm_picture_decode(&picture, script, fd, &limits, &err), TDM_E_INTERNAL);
        unlink(script);
        assert_null(picture);
        close(fd);
}

#define HOLDS "TANDEM_TEST_DECODER_HOLDS"

/* This program as a decoder, whose memory somebody holds when it is gone. */
static int decode_and_be_held(void)
{
        struct tdm_decoder_answer answer = { .magic = TDM_DECODER_MAGIC, .width = 1, .height = 1 };
        struct tdm_decoder_order order;
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(2 * sizeof(int))];
        } control;
        struct iovec iov = { .iov_base = &order, .iov_len = sizeof(order) };
        struct msghdr msg = {
                .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
        };
        int fds[2];
        uint8_t *rgb;

        if (recvmsg(TDM_DECODER_SOCKET_FD, &msg, 0) != sizeof(order) || !CMSG_FIRSTHDR(&msg))
                return 1;
        memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fds));
        rgb = mmap(NULL, order.most_pixels * 3, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
        if (rgb == MAP_FAILED)
                return 1;
        memcpy(rgb, "rgb", 3);
        if (fork() == 0) {
                usleep(300000);
                _exit(0);
        }
        return send(TDM_DECODER_SOCKET_FD, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer);
}

static void test_held_memory(void **state)
{
        const struct tdm_decoder_limits limits = limits_for(LONG_NS);
        struct tdm_picture *picture = NULL;
        struct tdm_error err = { 0 };
        int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), r;

        assert_int_equal(setenv(HOLDS, "1", 1), 0);
        r = tdm_picture_decode(&picture, "/proc/self/exe", fd, &limits, &err);
        assert_int_equal(unsetenv(HOLDS), 0);
        if (r != 0)
                fail_msg("%d: %s", r, err.message);
        assert_int_equal(picture->size.width, 1);
        assert_memory_equal(picture->rgb, "rgb", 3);
        assert_true(fcntl(picture->fd, F_GET_SEALS) & F_SEAL_WRITE);
        tdm_picture_destroy(picture);
        close(fd);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_pixels),        cmocka_unit_test(test_refused),
                cmocka_unit_test(test_silent_stream), cmocka_unit_test(test_confined),
                cmocka_unit_test(test_no_decoder),    cmocka_unit_test(test_held_memory),
        };

        if (getenv(HOLDS))
                return decode_and_be_held();
        return cmocka_run_group_tests(tests, NULL, NULL);
}
