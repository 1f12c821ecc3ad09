/* A worker program against a tandemd that does not keep to the protocol: it leaves with an error or refuses the model,
 * it never hangs and never touches what it was not given. The right use is tested by daemon/fleet/test-fleet.c. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "engine/worker/abi.h"
#include "proto/worker.pb-c.h"

#define PATIENCE_MS 20000
#define CHUNK 131072u /* of a weights segment: its half is longer than its head */

struct child {
        pid_t pid;
        int fd;
        struct tdm_segment *progress;
        struct tdm_frame_reader *reader;
};

static pid_t spawn(int fd, const char *arg)
{
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
                int null = open("/dev/null", O_WRONLY);

                dup2(null, STDERR_FILENO); /* its complaints are expected here */
                if (fd >= 0)
                        dup2(fd, TDM_WORKER_CONTROL_FD);
                else
                        close(TDM_WORKER_CONTROL_FD);
                execl(TANDEM_BIN_DIR "/tandem-gpu-worker", "tandem-gpu-worker", arg, (char *)NULL);
                _exit(127);
        }
        return pid;
}

static struct child child_new(void)
{
        struct child c;
        int pair[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        c.pid = spawn(pair[1], NULL);
        close(pair[1]);
        c.fd = pair[0];
        assert_int_equal(tdm_segment_create(&c.progress, "progress", TDM_PROGRESS_BYTES), 0);
        ((struct tdm_progress *)c.progress->base)->magic = TDM_PROGRESS_MAGIC;
        ((struct tdm_progress *)c.progress->base)->abi = TDM_PROGRESS_ABI;
        assert_int_equal(tdm_frame_reader_new(&c.reader, TDM_WORKER_MAX_FRAME), 0);
        return c;
}

/* Exit status, or minus the signal. */
static int child_end(struct child *c)
{
        int status = 0;
        pid_t r = 0;

        for (int ms = 0; ms < PATIENCE_MS && r == 0; ms += 2) {
                r = waitpid(c->pid, &status, WNOHANG);
                if (r == 0)
                        usleep(2000);
        }
        if (r == 0) {
                kill(c->pid, SIGKILL);
                waitpid(c->pid, &status, 0);
                fail_msg("the worker does not leave");
        }
        close(c->fd);
        tdm_segment_destroy(c->progress);
        tdm_frame_reader_destroy(c->reader);
        return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void send_message(struct child *c, Tandem__Worker__ToWorker__KindCase kind, void *body, const int *fds,
                         unsigned n_fds)
{
        Tandem__Worker__ToWorker message = TANDEM__WORKER__TO_WORKER__INIT;
        uint8_t data[4096];

        message.kind_case = kind;
        message.init = body;
        assert_true(tandem__worker__to_worker__get_packed_size(&message) <= sizeof(data));
        (void)tdm_frame_send(c->fd, data, tandem__worker__to_worker__pack(&message, data), fds, n_fds);
}

static void send_init(struct child *c, uint32_t abi, uint32_t worker, const char *requested)
{
        Tandem__Worker__Init init = TANDEM__WORKER__INIT__INIT;
        int fd;

        assert_int_equal(tdm_segment_dup_fds(c->progress, true, &fd), 0);
        init.abi = abi;
        init.worker = worker;
        init.requested = (char *)requested;
        init.n_threads = 1;
        send_message(c, TANDEM__WORKER__TO_WORKER__KIND_INIT, &init, &fd, 1);
        close(fd);
}

/* Next message, or NULL at the end of the stream. */
static Tandem__Worker__FromWorker *receive(struct child *c)
{
        const uint8_t *data;
        size_t size;
        int *fds, r;
        unsigned n_fds;

        while ((r = tdm_frame_reader_next(c->reader, &data, &size, &fds, &n_fds)) == 0) {
                struct pollfd p = { .fd = c->fd, .events = POLLIN };

                assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
                if (tdm_frame_reader_fill(c->reader, c->fd) <= 0)
                        return NULL;
        }
        assert_int_equal(r, 1);
        return tandem__worker__from_worker__unpack(NULL, size, data);
}

static void expect(struct child *c, Tandem__Worker__FromWorker__KindCase kind)
{
        Tandem__Worker__FromWorker *message = receive(c);

        assert_non_null(message);
        assert_int_equal(message->kind_case, kind);
        tandem__worker__from_worker__free_unpacked(message, NULL);
}

static struct child child_up(void)
{
        struct child c = child_new();

        send_init(&c, TDM_WORKER_ABI, TDM_WORKER_GPU, "host");
        expect(&c, TANDEM__WORKER__FROM_WORKER__KIND_HELLO);
        return c;
}

static void by_hand(void **state)
{
        int status = 0;
        pid_t pid = spawn(-1, NULL);

        waitpid(pid, &status, 0);
        assert_int_equal(WEXITSTATUS(status), 2);
        pid = spawn(-1, "--help");
        waitpid(pid, &status, 0);
        assert_int_equal(WEXITSTATUS(status), 2);
}

static void bad_init(void **state)
{
        struct child c = child_new();
        Tandem__Worker__FromWorker *message;

        send_init(&c, TDM_WORKER_ABI + 1, TDM_WORKER_GPU, "host");
        assert_int_equal(child_end(&c), 1);
        c = child_new();
        send_init(&c, TDM_WORKER_ABI, TDM_WORKER_NPU, "host");
        assert_int_equal(child_end(&c), 1);
        c = child_new();
        assert_int_equal(tdm_frame_send(c.fd, "\xff\xff\xff\xff", 4, NULL, 0), 0);
        assert_int_equal(child_end(&c), 1);
        c = child_new();
        assert_int_equal(write(c.fd, "\xff\xff\xff\x7f", 4), 4); /* a frame of 2 GB */
        assert_int_equal(child_end(&c), 1);
        c = child_new();
        ((struct tdm_progress *)c.progress->base)->magic = 1;
        send_init(&c, TDM_WORKER_ABI, TDM_WORKER_GPU, "host");
        assert_int_equal(child_end(&c), 1);

        c = child_new();
        send_init(&c, TDM_WORKER_ABI, TDM_WORKER_GPU, "vulkan");
        message = receive(&c);
        assert_non_null(message);
        assert_int_equal(message->kind_case, TANDEM__WORKER__FROM_WORKER__KIND_NO_DEVICE);
        assert_non_null(strstr(message->no_device->reason, "ulkan")); /* not in this build, or no driver */
        tandem__worker__from_worker__free_unpacked(message, NULL);
        assert_int_equal(child_end(&c), 1);
}

static void daemon_gone(void **state)
{
        struct child c = child_new();
        uint64_t t0;

        shutdown(c.fd, SHUT_RDWR);
        assert_int_equal(child_end(&c), 1); /* before it was told anything */
        c = child_up();
        t0 = tdm_now_ns();
        shutdown(c.fd, SHUT_RDWR);
        assert_int_equal(child_end(&c), 0);
        assert_true(tdm_now_ns() - t0 < 15 * TDM_NSEC_PER_SEC);
}

static void quit(void **state)
{
        struct child c = child_up();
        Tandem__Worker__Quit body = TANDEM__WORKER__QUIT__INIT;

        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_QUIT, &body, NULL, 0);
        assert_int_equal(child_end(&c), 0);
}

/* Frames that end the worker: it cannot know what tandemd meant. */
static void nonsense(void **state)
{
        Tandem__Worker__Epoch epoch = TANDEM__WORKER__EPOCH__INIT;
        Tandem__Worker__Load load = TANDEM__WORKER__LOAD__INIT;
        Tandem__Worker__Kv kv = TANDEM__WORKER__KV__INIT;
        Tandem__Worker__Unload unload = TANDEM__WORKER__UNLOAD__INIT;
        Tandem__Worker__Weights weights = TANDEM__WORKER__WEIGHTS__INIT;
        Tandem__Worker__Segment segment = TANDEM__WORKER__SEGMENT__INIT;
        struct child c = child_up();
        int fds[3] = { c.fd, c.fd, c.fd };

        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_EPOCH, &epoch, NULL, 0); /* without rings */
        assert_int_equal(child_end(&c), 1);
        c = child_up();
        fds[0] = fds[1] = fds[2] = c.fd;
        epoch.epoch = 1;
        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_EPOCH, &epoch, fds, 3); /* with things that are no rings */
        assert_int_equal(child_end(&c), 1);
        c = child_up();
        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_LOAD, &load, NULL, 0); /* without segments */
        assert_int_equal(child_end(&c), 1);
        c = child_up();
        segment.n_fds = UINT32_MAX;
        segment.size_bytes = UINT64_MAX;
        load.weights = load.steps = load.activations = load.results = &segment;
        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_LOAD, &load, fds, 0);
        assert_int_equal(child_end(&c), 1);
        c = child_up();
        segment.n_fds = 1;
        segment.dmabuf = true;
        fds[0] = c.fd;
        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_LOAD, &load, fds, 1); /* a dma-buf that did not come */
        assert_int_equal(child_end(&c), 1);
        segment.n_fds = UINT32_MAX;
        segment.dmabuf = false;
        c = child_up();
        kv.kv = &segment;
        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_KV, &kv, NULL, 0);
        assert_int_equal(child_end(&c), 1);
        c = child_up();
        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_WEIGHTS, &weights, NULL, 0); /* no weights */
        assert_int_equal(child_end(&c), 1);
        c = child_up();
        weights.n_fds = 2;
        fds[0] = c.fd;
        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_WEIGHTS, &weights, fds, 1); /* fewer than it says */
        assert_int_equal(child_end(&c), 1);
        c = child_up();
        fds[0] = c.fd;
        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_UNLOAD, &unload, fds, 1); /* an fd that nobody asked for */
        assert_int_equal(child_end(&c), 1);
        c = child_up();
        assert_int_equal(tdm_frame_send(c.fd, "abc", 3, NULL, 0), 0);
        assert_int_equal(child_end(&c), 1);
}

/* Models that are refused, and the worker goes on. */
static void bad_models(void **state)
{
        Tandem__Worker__Load load = TANDEM__WORKER__LOAD__INIT;
        Tandem__Worker__Kv kv = TANDEM__WORKER__KV__INIT;
        Tandem__Worker__Quit body = TANDEM__WORKER__QUIT__INIT;
        Tandem__Worker__Segment segment = TANDEM__WORKER__SEGMENT__INIT;
        Tandem__Worker__Segment with_dmabuf = TANDEM__WORKER__SEGMENT__INIT;
        Tandem__Worker__FromWorker *message;
        struct child c = child_up();
        struct tdm_segment *zeros;
        int fds[5];

        assert_int_equal(tdm_segment_create(&zeros, "zeros", 4096), 0);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(fds); i++)
                assert_int_equal(tdm_segment_dup_fds(zeros, true, &fds[i]), 0);
        segment.n_fds = 1;
        segment.size_bytes = segment.chunk_bytes = 4096;
        with_dmabuf = segment;
        with_dmabuf.dmabuf = true;
        load.weights = load.steps = load.activations = load.results = &segment;
        load.model_id = 1;
        load.kv_type = TDM_KV_F16;
        load.name = (char *)"zeros";
        load.activations = &with_dmabuf;
        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_LOAD, &load, fds, 5); /* a memfd as its dma-buf */
        message = receive(&c);
        assert_non_null(message);
        assert_int_equal(message->kind_case, TANDEM__WORKER__FROM_WORKER__KIND_LOAD_FAILED);
        assert_non_null(strstr(message->load_failed->message, "segment activations: what came as its dma-buf is none"));
        tandem__worker__from_worker__free_unpacked(message, NULL);
        load.activations = &segment;
        for (unsigned i = 0; i < 5; i++) {
                load.index = i == 1 ? TDM_PROGRESS_MODELS : i == 2 ? UINT32_MAX : 0;
                load.precision = i == 3 ? 1000 : 0;
                segment.size_bytes = i == 4 ? 8192 : 4096; /* more than the memfd has */
                segment.chunk_bytes = segment.size_bytes;
                send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_LOAD, &load, fds, 4);
                expect(&c, TANDEM__WORKER__FROM_WORKER__KIND_LOAD_FAILED);
        }
        segment.size_bytes = segment.chunk_bytes = 4096;
        kv.kv = &segment;
        kv.model_id = 1; /* which is not there */
        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_KV, &kv, fds, 1);
        expect(&c, TANDEM__WORKER__FROM_WORKER__KIND_LOAD_FAILED);

        /* Fds ahead of the message that names them. */
        load.index = 0;
        load.precision = 0;
        {
                Tandem__Worker__Fds ahead = TANDEM__WORKER__FDS__INIT;

                send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_FDS, &ahead, fds, 3);
                send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_LOAD, &load, fds + 3, 1);
        }
        expect(&c, TANDEM__WORKER__FROM_WORKER__KIND_LOAD_FAILED);
        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_QUIT, &body, NULL, 0);
        assert_int_equal(child_end(&c), 0);
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(fds); i++)
                close(fds[i]);
        tdm_segment_destroy(zeros);
}

/* The head of a weights segment of one small layer, whose table is all zeros. */
static void small_header(struct tdm_weights_header *header, uint64_t size_bytes, uint64_t tensors_offset)
{
        *header = (struct tdm_weights_header){
                .magic = TDM_WEIGHTS_MAGIC,
                .abi = TDM_WEIGHTS_ABI,
                .size_bytes = size_bytes,
                .hparams = { .n_layers = 1,
                             .d_model = 64,
                             .n_heads = 1,
                             .n_kv_heads = 1,
                             .head_dim = 32,
                             .d_ff = 64,
                             .n_vocab = 64,
                             .n_ctx = 64,
                             .window = 32 },
                .n_tensors = 16,
                .tensors_offset = tensors_offset,
        };
        tdm_hparams_all_layers(&header->hparams);
        tdm_gemma3_recipe(&header->recipe, &header->hparams);
}

/* A header whose table has not come with it; chunks that are too many, of another size, or of a model that nobody
 * knows. */
static void bad_pieces(void **state)
{
        static const char *const refused[] = { "its table has not come with its header",
                                               /* with both chunks: it was looked at */
                                               "a tensor's shape is not the model's" };
        Tandem__Worker__Load load = TANDEM__WORKER__LOAD__INIT;
        Tandem__Worker__Weights weights = TANDEM__WORKER__WEIGHTS__INIT;
        Tandem__Worker__Quit body = TANDEM__WORKER__QUIT__INIT;
        Tandem__Worker__Segment pieces = TANDEM__WORKER__SEGMENT__INIT, whole = TANDEM__WORKER__SEGMENT__INIT;
        struct tdm_segment *segment, *zeros;
        struct tdm_weights_header *header;
        struct child c = child_up();
        int fds[5];

        assert_int_equal(tdm_segment_create_in_chunks(&segment, "pieces", 2 * CHUNK, CHUNK), 0);
        assert_int_equal(tdm_segment_create(&zeros, "zeros", 4096), 0);
        header = (struct tdm_weights_header *)segment->base;
        small_header(header, 2 * CHUNK, CHUNK);
        load.model_id = 1;
        load.kv_type = TDM_KV_F16;
        load.name = (char *)"pieces";
        load.weights = &pieces;
        load.steps = load.activations = load.results = &whole;
        whole.n_fds = 1;
        whole.size_bytes = whole.chunk_bytes = 4096;
        pieces.size_bytes = 2 * CHUNK;
        pieces.chunk_bytes = CHUNK;
        for (unsigned n = 1; n <= 2; n++) {
                Tandem__Worker__FromWorker *message;

                pieces.n_fds = n;
                assert_int_equal(tdm_segment_dup_chunks(segment, 0, n, fds), 0);
                for (unsigned k = n; k < n + 3; k++)
                        assert_int_equal(tdm_segment_dup_fds(zeros, true, &fds[k]), 0);
                send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_LOAD, &load, fds, n + 3);
                message = receive(&c);
                assert_non_null(message);
                assert_int_equal(message->kind_case, TANDEM__WORKER__FROM_WORKER__KIND_LOAD_FAILED);
                if (!strstr(message->load_failed->message, refused[n - 1]))
                        fail_msg("%s", message->load_failed->message);
                tandem__worker__from_worker__free_unpacked(message, NULL);
                for (unsigned k = 0; k < n + 3; k++)
                        close(fds[k]);
        }
        /* Of a model that failed they are dropped; of one that was never told of they are refused. */
        assert_int_equal(tdm_segment_dup_fds(zeros, true, fds), 0);
        weights.n_fds = 1;
        for (weights.model_id = 1; weights.model_id <= 2; weights.model_id++)
                send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_WEIGHTS, &weights, fds, 1);
        close(fds[0]);
        {
                Tandem__Worker__FromWorker *message = receive(&c);

                assert_non_null(message);
                assert_int_equal(message->kind_case, TANDEM__WORKER__FROM_WORKER__KIND_LOAD_FAILED);
                assert_int_equal(message->load_failed->model_id, 2);
                tandem__worker__from_worker__free_unpacked(message, NULL);
        }
        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_QUIT, &body, NULL, 0);
        assert_int_equal(child_end(&c), 0);
        tdm_segment_destroy(segment);
        tdm_segment_destroy(zeros);
}

/* Recipes in the head of a weights segment: each is refused with its reason, and the worker goes on. */
static void bad_recipes(void **state)
{
#define IN(field, new_value, message)                                                                                  \
        {                                                                                                              \
                offsetof(struct tdm_weights_header, field), sizeof(((struct tdm_weights_header *)0)->field),           \
                        new_value, message                                                                             \
        }
        static const struct {
                size_t at, n_bytes;
                uint32_t value;
                const char *why;
        } changes[] = {
                IN(hparams.residual_width, 65, "cannot hold streams"),
                IN(hparams.residual_width, 128, "streams that do not fill the residual"),
                IN(hparams.layers[0].window, 1u << 30, "the attention window is 1073741824"),
                IN(hparams.layers[0].kv_layer, 7, "layer 0: it reads the keys of layer 7"),
                IN(hparams.layers[200].n_heads, 1, "layer 200 has sizes"),
                IN(recipe.architecture[0], 0, "no name of an architecture"),
                IN(recipe.norm_eps, 0x7fc00000, "the epsilon of the norms is nan"),
                IN(recipe.n_ropes, UINT32_MAX, "more kinds of RoPE"),
                IN(recipe.ropes[1].style, 9, "a RoPE of no known style"),
                IN(recipe.ropes[3].n_dims, 2, "a RoPE behind its last one"),
                IN(recipe.n_streams, UINT32_MAX, "several streams"),
                IN(recipe.active_stream, 1, "an active stream that is not there"),
                IN(recipe.layers[0].rope, 2, "layer 0: its recipe has a RoPE that it does not describe"),
                IN(recipe.layers[0].norms, UINT32_MAX, "norms or biases of no known place"),
                IN(recipe.layers[0].activation, 0, "no known activation"),
                IN(recipe.layers[0].n_experts, 8, "an impossible number of experts in use"),
                IN(recipe.layers[0].has_sinks, 2, "a flag that is neither 0 nor 1"),
                IN(recipe.layers[TDM_MAX_LAYERS - 1].d_expert, 1, "a layer behind its last one"),
                IN(abi, 1, "wrong ABI version"),
                IN(magic, TDM_WEIGHTS_MAGIC, "a tensor's shape is not the model's"), /* nothing else is wrong */
        };
#undef IN
        Tandem__Worker__Load load = TANDEM__WORKER__LOAD__INIT;
        Tandem__Worker__Quit body = TANDEM__WORKER__QUIT__INIT;
        Tandem__Worker__Segment weights = TANDEM__WORKER__SEGMENT__INIT, other = TANDEM__WORKER__SEGMENT__INIT;
        struct child c = child_up();
        struct tdm_segment *zeros;

        assert_int_equal(tdm_segment_create(&zeros, "zeros", 4096), 0);
        load.model_id = 1;
        load.kv_type = TDM_KV_F16;
        load.name = (char *)"recipes";
        load.weights = &weights;
        load.steps = load.activations = load.results = &other;
        weights.n_fds = other.n_fds = 1;
        weights.size_bytes = weights.chunk_bytes = CHUNK;
        other.size_bytes = other.chunk_bytes = 4096;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(changes); i++) {
                Tandem__Worker__FromWorker *message;
                struct tdm_segment *segment;
                int fds[4];

                assert_int_equal(tdm_segment_create(&segment, "recipe", CHUNK), 0);
                small_header((struct tdm_weights_header *)segment->base, CHUNK, CHUNK / 2);
                memcpy(segment->base + changes[i].at, &changes[i].value, changes[i].n_bytes);
                assert_int_equal(tdm_segment_dup_fds(segment, true, &fds[0]), 0);
                for (unsigned k = 1; k < 4; k++)
                        assert_int_equal(tdm_segment_dup_fds(zeros, true, &fds[k]), 0);
                send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_LOAD, &load, fds, 4);
                message = receive(&c);
                assert_non_null(message);
                assert_int_equal(message->kind_case, TANDEM__WORKER__FROM_WORKER__KIND_LOAD_FAILED);
                if (!strstr(message->load_failed->message, changes[i].why))
                        fail_msg("wanted \"%s\": %s", changes[i].why, message->load_failed->message);
                tandem__worker__from_worker__free_unpacked(message, NULL);
                for (unsigned k = 0; k < 4; k++)
                        close(fds[k]);
                tdm_segment_destroy(segment);
        }
        send_message(&c, TANDEM__WORKER__TO_WORKER__KIND_QUIT, &body, NULL, 0);
        assert_int_equal(child_end(&c), 0);
        tdm_segment_destroy(zeros);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(by_hand),    cmocka_unit_test(bad_init),    cmocka_unit_test(daemon_gone),
                cmocka_unit_test(quit),       cmocka_unit_test(nonsense),    cmocka_unit_test(bad_models),
                cmocka_unit_test(bad_pieces), cmocka_unit_test(bad_recipes),
        };

        signal(SIGPIPE, SIG_IGN);
        setenv("VK_DRIVER_FILES", "/nowhere", 1); /* a driver that is there does not count */
        setenv("VK_ICD_FILENAMES", "/nowhere", 1);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
