/* The emulated kernel driver against its own interface: what is right works, and each wrong use is refused, with the
 * errno or the command's state that a driver has for it and for the reason that was meant. Needs no XRT: the library
 * that is preloaded elsewhere is linked in here, so open(), ioctl() and mmap() below are its. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "npu-worker/emulated/program.h"
#include "tests/npu-kernel/protocol.h"
#include "tests/npu-kernel/uapi.h"

#define HEAP_BYTES (UINT64_C(64) << 20)
#define STATE(state) (1000 + (state))
#define M 1u
#define K 8u
#define N 8u

/* ---- servers ---- */

enum server { FIRST, LATE, SHADOW, N_SERVERS };
static struct {
        pid_t pid;
        char directory[64];
        int control;
} servers[N_SERVERS];

static void start(enum server which)
{
        static const char *const profiles[] = { "first", "userptr", "userptr" };
        char ready[16], byte;
        int ends[2];

        snprintf(servers[which].directory, sizeof(servers[which].directory), "/tmp/tandem-npu-kernel-XXXXXX");
        assert_non_null(mkdtemp(servers[which].directory));
        assert_int_equal(pipe(ends), 0);
        snprintf(ready, sizeof(ready), "%d", ends[1]);
        servers[which].pid = fork();
        if (servers[which].pid == 0) {
                close(ends[0]);
                execl(NPU_KERNEL, "npu-kernel", "--profile", profiles[which], "--ready-fd", ready, "--timeout-ms",
                      "200", servers[which].directory, which == SHADOW ? "--shadow" : NULL, NULL);
                _exit(127);
        }
        close(ends[1]);
        assert_int_equal(read(ends[0], &byte, 1), 1); /* this end stays open: the server ends with the test */
}

static void use_server(enum server which)
{
        setenv(NPK_ENV, servers[which].directory, 1);
}

/* A line to the server and its answer: as a test of the worker would. */
static void ask(enum server which, const char *line, char *ret, size_t size)
{
        struct npk_request r = { .kind = NPK_CONTROL, .n_extra = (uint32_t)strlen(line) };
        struct npk_reply answer;
        struct iovec out[2] = { { &r, sizeof(r) }, { (void *)(uintptr_t)line, r.n_extra } },
                     in[2] = { { &answer, sizeof(answer) }, { ret, size } };
        union {
                struct cmsghdr head;
                char bytes[CMSG_SPACE(sizeof(int))];
        } control = { .head = {
                              .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) } };
        struct msghdr msg = {
                .msg_iov = out, .msg_iovlen = 2, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
        };
        int pair[2];

        if (servers[which].control <= 0) {
                struct sockaddr_un address = { .sun_family = AF_UNIX };

                snprintf(address.sun_path, sizeof(address.sun_path), "%s/" NPK_SOCKET, servers[which].directory);
                servers[which].control = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
                assert_int_equal(connect(servers[which].control, (struct sockaddr *)&address, sizeof(address)), 0);
        }
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
        memcpy(CMSG_DATA(&control.head), &pair[1], sizeof(int));
        assert_true(sendmsg(servers[which].control, &msg, 0) > 0);
        close(pair[1]);
        msg = (struct msghdr){ .msg_iov = in, .msg_iovlen = 2 };
        assert_true(recvmsg(pair[0], &msg, 0) >= (ssize_t)sizeof(answer));
        close(pair[0]);
        assert_int_equal(answer.result, 0);
}

static uint64_t counter(enum server which, const char *name)
{
        static char text[65536];
        char key[64];
        const char *at;

        ask(which, "counters", text, sizeof(text));
        snprintf(key, sizeof(key), "\"%s\": ", name);
        at = strstr(text, key);
        assert_non_null(at);
        return strtoull(at + strlen(key), NULL, 10);
}

/* ---- a program that uses the NPU as it should ---- */

struct npu {
        int fd;
        uint32_t heap, context, syncobj, pdi, instructions, command, a, b, c;
        uint8_t *heap_at;
        uint64_t instructions_address;
        uint32_t *instructions_at, *command_at;
        uint16_t *a_at, *b_at;
        float *c_at;
        uint64_t seq;
};

/* 0 or the errno. */
#define CALL(fd, nr, arg) call(fd, _IOC(_IOC_READ | _IOC_WRITE, XDNA_IOCTL_TYPE, nr, sizeof(*(arg))), arg)
static int call(int fd, unsigned long code, void *arg)
{
        return ioctl(fd, code, arg) < 0 ? errno : 0;
}

static int create(const struct npu *n, uint32_t type, uint64_t size, uint32_t *ret)
{
        struct xdna_create_bo c = { .type = type, .size = size };
        int r = CALL(n->fd, XDNA_NR_CREATE_BO, &c);

        *ret = c.handle;
        return r;
}

static struct xdna_bo_info info_of(const struct npu *n, uint32_t handle)
{
        struct xdna_bo_info info = { .handle = handle };

        assert_int_equal(CALL(n->fd, XDNA_NR_BO_INFO, &info), 0);
        return info;
}

static void *map_bo(const struct npu *n, uint32_t handle, uint64_t size)
{
        void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, n->fd, (off_t)info_of(n, handle).map_offset);

        assert_ptr_not_equal(p, MAP_FAILED);
        return p;
}

static int sync_bo(const struct npu *n, uint32_t handle, uint32_t direction, uint64_t size)
{
        struct xdna_sync_bo s = { .handle = handle, .direction = direction, .size = size };

        return CALL(n->fd, XDNA_NR_SYNC_BO, &s);
}

static int create_context(struct npu *n, uint32_t n_tiles)
{
        struct xdna_qos qos = { .priority = 0x200 };
        struct xdna_create_context c = { .qos = (uintptr_t)&qos, .n_tiles = n_tiles };
        int r = CALL(n->fd, XDNA_NR_CREATE_CONTEXT, &c);

        n->context = c.handle;
        n->syncobj = c.syncobj;
        return r;
}

static int configure(const struct npu *n, uint32_t bo, uint16_t n_cus)
{
        struct {
                uint16_t n_cus, pad[3];
                uint32_t bo;
                uint8_t function, pad1[3];
        } cus = { .n_cus = n_cus, .bo = bo };
        struct xdna_config_context c = {
                .handle = n->context, .type = XDNA_CONFIG_CUS, .value = (uintptr_t)&cus, .value_bytes = sizeof(cus)
        };

        return CALL(n->fd, XDNA_NR_CONFIG_CONTEXT, &c);
}

static void open_npu(struct npu *n)
{
        *n = (struct npu){ .fd = open("/dev/accel/accel0", O_RDWR | O_CLOEXEC) };
        assert_true(n->fd >= 0);
}

static void open_heap(struct npu *n)
{
        open_npu(n);
        assert_int_equal(create(n, XDNA_BO_HEAP, HEAP_BYTES, &n->heap), 0);
        n->heap_at = map_bo(n, n->heap, HEAP_BYTES);
}

static void write_command(struct npu *n)
{
        uint64_t opcode = 3, args[3] = { (uintptr_t)n->a_at, (uintptr_t)n->b_at, (uintptr_t)n->c_at };
        uint32_t words = 1 + 12;

        n->command_at[0] = ERT_NEW | words << 12 | (uint32_t)ERT_START_CU << 23;
        n->command_at[1] = 1; /* compute unit 0 */
        memcpy(n->command_at + 2, &opcode, 8);
        memcpy(n->command_at + 4, &n->instructions_address, 8);
        n->command_at[6] = TDM_EMULATED_GEMM_WORDS;
        n->command_at[7] = 0;
        memcpy(n->command_at + 8, args, sizeof(args));
}

/* Heap, context, compute unit, program and buffers; synced as a driver library would. */
static void open_ready(struct npu *n)
{
        const struct tdm_emulated_program program = { .magic = TDM_EMULATED_MAGIC,
                                                      .op = TDM_EMULATED_OP_GEMM,
                                                      .type = TDM_EMULATED_BF16,
                                                      .b_layout = TDM_EMULATED_COLUMNS,
                                                      .m = M,
                                                      .k = K,
                                                      .n = N };
        uint32_t *pdi;

        open_heap(n);
        assert_int_equal(create_context(n, 4), 0);
        assert_int_equal(create(n, XDNA_BO_DEV, 4096, &n->pdi), 0);
        pdi = (uint32_t *)(uintptr_t)info_of(n, n->pdi).vaddr;
        pdi[0] = 0x49445054;
        pdi[1] = 1;
        assert_int_equal(sync_bo(n, n->pdi, XDNA_SYNC_TO_DEVICE, 4096), 0);
        assert_int_equal(configure(n, n->pdi, 1), 0);
        assert_int_equal(create(n, XDNA_BO_DEV, 4096, &n->instructions), 0);
        n->instructions_address = info_of(n, n->instructions).device_address;
        n->instructions_at = (uint32_t *)(uintptr_t)info_of(n, n->instructions).vaddr;
        memcpy(n->instructions_at, &program, TDM_EMULATED_GEMM_WORDS * sizeof(uint32_t));
        assert_int_equal(sync_bo(n, n->instructions, XDNA_SYNC_TO_DEVICE, 4096), 0);
        assert_int_equal(create(n, XDNA_BO_SHARE, 4096, &n->a), 0);
        assert_int_equal(create(n, XDNA_BO_SHARE, 4096, &n->b), 0);
        assert_int_equal(create(n, XDNA_BO_SHARE, 4096, &n->c), 0);
        n->a_at = map_bo(n, n->a, 4096);
        n->b_at = map_bo(n, n->b, 4096);
        n->c_at = map_bo(n, n->c, 4096);
        for (unsigned i = 0; i < K; i++)
                n->a_at[i] = 0x3f80; /* 1.0 */
        for (unsigned i = 0; i < K * N; i++)
                n->b_at[i] = 0x4000; /* 2.0 */
        assert_int_equal(sync_bo(n, n->a, XDNA_SYNC_TO_DEVICE, 4096), 0);
        assert_int_equal(sync_bo(n, n->b, XDNA_SYNC_TO_DEVICE, 4096), 0);
        assert_int_equal(create(n, XDNA_BO_COMMAND, 4096, &n->command), 0);
        n->command_at = map_bo(n, n->command, 4096);
        write_command(n);
}

static int execute(struct npu *n, uint32_t command, const uint32_t *args, uint32_t n_args)
{
        struct xdna_execute e = {
                .context = n->context, .commands = command, .n_commands = 1, .args = (uintptr_t)args, .n_args = n_args
        };
        int r = CALL(n->fd, XDNA_NR_EXECUTE, &e);

        n->seq = e.seq;
        return r;
}

static int wait_for(const struct npu *n, uint32_t syncobj, uint64_t point, int64_t ns, uint32_t flags)
{
        struct drm_timeline_wait w = { .handles = (uintptr_t)&syncobj,
                                       .points = (uintptr_t)&point,
                                       .timeout_ns = (int64_t)tdm_now_ns() + ns,
                                       .n_handles = 1,
                                       .flags = flags };

        return CALL(n->fd, DRM_NR_TIMELINE_WAIT, &w);
}

/* The errno of the submission, or the state that the command ended with. */
static int run(struct npu *n)
{
        const uint32_t args[] = { n->instructions, n->a, n->b, n->c };
        int r = execute(n, n->command, args, 4);

        if (r)
                return r;
        assert_int_equal(wait_for(n, n->syncobj, n->seq, 60000000000, DRM_WAIT_FOR_SUBMIT), 0);
        return STATE(ERT_STATE(__atomic_load_n(n->command_at, __ATOMIC_ACQUIRE)));
}

static void close_npu(struct npu *n)
{
        if (n->heap_at)
                munmap(n->heap_at, HEAP_BYTES);
        if (n->a_at)
                munmap(n->a_at, 4096);
        if (n->b_at)
                munmap(n->b_at, 4096);
        if (n->c_at)
                munmap(n->c_at, 4096);
        if (n->command_at)
                munmap(n->command_at, 4096);
        close(n->fd);
}

/* ---- what is right ---- */

static void right_use(void **state)
{
        (void)state;
        for (enum server s = 0; s < N_SERVERS; s++) {
                struct npu n;

                use_server(s);
                open_ready(&n);
                for (unsigned i = 0; i < 3; i++) {
                        assert_int_equal(run(&n), STATE(ERT_COMPLETED));
                        assert_int_equal(n.seq, i);
                }
                assert_int_equal(sync_bo(&n, n.c, XDNA_SYNC_FROM_DEVICE, 4096), 0);
                for (unsigned i = 0; i < N; i++)
                        assert_true(n.c_at[i] == 2.0f * K);
                close_npu(&n);
        }
}

/* A chain is one submission; its commands run in order, and the one that failed is told. */
static void chains(void **state)
{
        uint32_t bo, second;
        struct ert_chain *chain;
        uint32_t *at, *second_at;
        struct npu n;

        (void)state;
        use_server(LATE);
        open_ready(&n);
        assert_int_equal(create(&n, XDNA_BO_COMMAND, 4096, &second), 0);
        second_at = map_bo(&n, second, 4096);
        memcpy(second_at, n.command_at, 4096);
        assert_int_equal(create(&n, XDNA_BO_COMMAND, 4096, &bo), 0);
        at = map_bo(&n, bo, 4096);
        at[0] = ERT_NEW | (uint32_t)(sizeof(*chain) + 16) / 4 << 12 | (uint32_t)ERT_CHAIN << 23;
        chain = (struct ert_chain *)(at + 1);
        chain->n_commands = 2;
        memcpy(chain->command, (uint64_t[]){ n.command, second }, 16);
        for (unsigned bad = 0; bad < 2; bad++) {
                second_at[2] = bad ? 99 : 3; /* the operation */
                assert_int_equal(execute(&n, bo, NULL, 0), 0);
                assert_int_equal(wait_for(&n, n.syncobj, n.seq, 60000000000, DRM_WAIT_FOR_SUBMIT), 0);
                assert_int_equal(ERT_STATE(at[0]), bad ? ERT_ERROR : ERT_COMPLETED);
        }
        assert_int_equal(chain->error_index, 1);
        munmap(at, 4096);
        munmap(second_at, 4096);
        close_npu(&n);
}

/* What one file exports another imports: the same memory, a handle of its own; the file itself gets its old one. */
static void shared_buffers(void **state)
{
        struct drm_prime p = { .flags = O_CLOEXEC | O_RDWR };
        struct npu n, other;
        uint16_t *at;

        (void)state;
        use_server(LATE);
        open_ready(&n);
        open_npu(&other);
        p.handle = n.a;
        assert_int_equal(CALL(n.fd, DRM_NR_PRIME_EXPORT, &p), 0);
        assert_int_equal(lseek(p.fd, 0, SEEK_END), 4096);
        p.handle = 0;
        assert_int_equal(CALL(n.fd, DRM_NR_PRIME_IMPORT, &p), 0);
        assert_int_equal(p.handle, n.a);
        assert_int_equal(CALL(other.fd, DRM_NR_PRIME_IMPORT, &p), 0);
        at = map_bo(&other, p.handle, 4096);
        assert_int_equal(at[0], 0x3f80);
        at[0] = 0x4040;
        assert_int_equal(n.a_at[0], 0x4040);
        munmap(at, 4096);
        close(p.fd);
        close_npu(&other);
        close_npu(&n);
}

/* User memory is read and written where it lies. */
static void user_memory(void **state)
{
        struct {
                int32_t dmabuf_fd;
                uint32_t n_entries;
                uint64_t vaddr, len;
        } table = { .dmabuf_fd = -1, .n_entries = 1, .len = 4096 };
        struct xdna_create_bo c = { .type = XDNA_BO_SHARE, .vaddr = (uintptr_t)&table };
        struct npu n;
        float *out;

        (void)state;
        use_server(LATE);
        open_ready(&n);
        out = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        table.vaddr = (uintptr_t)out;
        assert_int_equal(CALL(n.fd, XDNA_NR_CREATE_BO, &c), 0);
        memcpy(n.command_at + 12, &table.vaddr, 8);
        assert_int_equal(run(&n), STATE(ERT_COMPLETED));
        assert_true(out[0] == 2.0f * K);
        munmap(out, 4096);
        close_npu(&n);
}

/* All that a process had is gone when its file is, whatever it left open. */
static void nothing_leaks(void **state)
{
        (void)state;
        for (enum server s = 0; s < N_SERVERS; s++) {
                use_server(s);
                for (unsigned i = 0; i < 20; i++) {
                        pid_t child = fork();
                        int status;

                        if (child == 0) {
                                struct npu n;

                                open_ready(&n);
                                _exit(run(&n) == STATE(ERT_COMPLETED) ? 0 : 1);
                        }
                        assert_int_equal(waitpid(child, &status, 0), child);
                        assert_int_equal(status, 0);
                }
                for (unsigned tries = 0; tries < 3000 && counter(s, "files") > 0; tries++)
                        usleep(10000);
                assert_int_equal(counter(s, "files"), 0);
                assert_int_equal(counter(s, "buffers"), 0);
                assert_int_equal(counter(s, "contexts"), 0);
                assert_int_equal(counter(s, "mappings"), 0);
                assert_int_equal(counter(s, "heap_used"), 0);
        }
}

static void faults(void **state)
{
        static const struct {
                const char *name;
                int first, then;
        } kinds[] = {
                { "fault error", STATE(ERT_ERROR), STATE(ERT_COMPLETED) },
                { "fault hang", STATE(ERT_TIMEOUT), STATE(ERT_COMPLETED) },
                { "fault context", STATE(ERT_ABORT), STATE(ERT_ABORT) },
                { "fault slow", STATE(ERT_COMPLETED), STATE(ERT_COMPLETED) },
        };
        char room[64];

        (void)state;
        use_server(LATE);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(kinds); i++) {
                struct npu n;

                open_ready(&n);
                ask(LATE, kinds[i].name, room, sizeof(room));
                assert_int_equal(run(&n), kinds[i].first);
                write_command(&n);
                assert_int_equal(run(&n), kinds[i].then);
                close_npu(&n);
        }
}

static void device_gone(void **state)
{
        char room[64];
        struct npu n;

        (void)state;
        use_server(LATE);
        open_ready(&n);
        ask(LATE, "fault gone", room, sizeof(room));
        assert_int_equal(execute(&n, n.command, NULL, 0), 0);
        for (unsigned i = 0; i < 100 && wait_for(&n, n.syncobj, n.seq, 100000000, DRM_WAIT_FOR_SUBMIT) != ENODEV; i++)
                ;
        assert_int_equal(run(&n), ENODEV);
        close_npu(&n);
        open_ready(&n); /* opened anew it works */
        assert_int_equal(run(&n), STATE(ERT_COMPLETED));
        close_npu(&n);
}

#include "tests/npu-kernel/wrong-uses.h"

static int start_all(void **state)
{
        (void)state;
        for (enum server s = 0; s < N_SERVERS; s++)
                start(s);
        return 0;
}

static int stop_all(void **state)
{
        (void)state;
        for (enum server s = 0; s < N_SERVERS; s++) {
                char command[128];

                kill(servers[s].pid, SIGTERM);
                waitpid(servers[s].pid, NULL, 0);
                snprintf(command, sizeof(command), "rm -rf '%s'", servers[s].directory);
                if (system(command) != 0)
                        return -1;
        }
        return 0;
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(right_use),     cmocka_unit_test(chains),     cmocka_unit_test(shared_buffers),
                cmocka_unit_test(user_memory),   cmocka_unit_test(faults),     cmocka_unit_test(device_gone),
                cmocka_unit_test(nothing_leaks), cmocka_unit_test(wrong_uses),
        };

        return cmocka_run_group_tests(tests, start_all, stop_all);
}
