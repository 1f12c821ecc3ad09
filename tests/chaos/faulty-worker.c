/* A worker with faults that can be asked for: the shipped worker loop and host device, and between the two a device
 * that dies, hangs or is slow on purpose. Built for tests only, into a folder of its own and never installed; the
 * shipped programs have none of it.
 *
 * TANDEM_FAULT_NPU and TANDEM_FAULT_GPU, a list like "poison=5,slow=200":
 *   poison=TOKEN    aborts when a row of a step holds this token
 *   hang=TOKEN      loops for ever on it
 *   long=TOKEN      works on it for 3 s, and its heartbeat tells
 *   slow=PERCENT    blocks take this much of their time (200: twice)
 *   slow-after=MS   … from this long after the start on
 *   slow-file=PATH  … or as many as the file's first four bytes say at the moment
 *   accuse=MS       from this long after the start on, accuses its peer once in every epoch; at once when it has joined
 *   cry=MS          the same, again and again in every epoch
 *   results=KIND    says of every token something that cannot be: nan, inf, minus-inf, positive, id, top, top-nan,
 *                   target-nan, n-top
 *   load=abort      any model is its end
 *   f32=KIND        a model of precision f32 is its end: it aborts (abort) or loops for ever (hang) while it takes it
 *   device=PATH     has an accelerator beside the CPU, while the file PATH is there
 *   numerics=TEXT   calls its bits by another name, so that tandemd takes the two devices for different ones */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/conn.h"
#include "common/util.h"
#include "engine/device/progress.h"
#include "engine/worker/abi.h"
#include "engine/worker/worker.h"
#include "proto/worker.pb-c.h"

#define LONG_NS (3 * TDM_NSEC_PER_SEC)

static struct {
        struct tdm_device *inner;
        _Atomic uint64_t *heartbeat;
        uint64_t poison, hang, long_token; /* UINT64_MAX: none */
        uint64_t slow_percent, slow_from_ns;
        const _Atomic uint32_t *slow_file;    /* mapped */
        uint64_t accuse_from_ns, cry_from_ns; /* 0: never */
        char results[16], f32[16], load[16];
        char numerics[64], *description, *numerics_id;
} fault = { .poison = UINT64_MAX, .hang = UINT64_MAX, .long_token = UINT64_MAX };

static struct tdm_device device;

/* Before the sandbox is there, which admits no such file. */
static void map_slow_file(const char *faults)
{
        const char *path = strstr(faults ?: "", "slow-file=");
        _cleanup_(freep) char *copy = path ? strdup(path + strlen("slow-file=")) : NULL;
        _cleanup_(closep) int fd = -1;
        void *page = MAP_FAILED;

        if (!copy)
                return;
        copy[strcspn(copy, ",")] = 0;
        fd = open(copy, O_RDONLY | O_CLOEXEC);
        if (fd >= 0)
                page = mmap(NULL, sizeof(*fault.slow_file), PROT_READ, MAP_SHARED, fd, 0);
        if (page != MAP_FAILED)
                fault.slow_file = page;
}

static uint64_t slow_percent(void)
{
        return fault.slow_file ? atomic_load(fault.slow_file) : fault.slow_percent;
}

static int read_faults(const char *text, struct tdm_error *err)
{
        _cleanup_(freep) char *copy = strdup(text ?: "");
        char *rest = copy, *word;

        if (!copy)
                return -ENOMEM;
        while ((word = strsep(&rest, ","))) {
                char *value = strchr(word, '=');

                if (!*word)
                        continue;
                if (!value)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "fault \"%s\" has no value", word);
                *value++ = 0;
                if (strcmp(word, "poison") == 0)
                        fault.poison = strtoull(value, NULL, 10);
                else if (strcmp(word, "hang") == 0)
                        fault.hang = strtoull(value, NULL, 10);
                else if (strcmp(word, "long") == 0)
                        fault.long_token = strtoull(value, NULL, 10);
                else if (strcmp(word, "slow") == 0)
                        fault.slow_percent = strtoull(value, NULL, 10);
                else if (strcmp(word, "slow-after") == 0)
                        fault.slow_from_ns = tdm_now_ns() + strtoull(value, NULL, 10) * TDM_NSEC_PER_MSEC;
                else if (strcmp(word, "slow-file") == 0 && !fault.slow_file)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "cannot map %s", value);
                else if (strcmp(word, "slow-file") == 0 || strcmp(word, "device") == 0)
                        continue; /* read before */
                else if (strcmp(word, "accuse") == 0)
                        fault.accuse_from_ns = tdm_now_ns() + strtoull(value, NULL, 10) * TDM_NSEC_PER_MSEC;
                else if (strcmp(word, "cry") == 0)
                        fault.cry_from_ns = tdm_now_ns() + strtoull(value, NULL, 10) * TDM_NSEC_PER_MSEC;
                else if (strcmp(word, "results") == 0)
                        snprintf(fault.results, sizeof(fault.results), "%s", value);
                else if (strcmp(word, "f32") == 0)
                        snprintf(fault.f32, sizeof(fault.f32), "%s", value);
                else if (strcmp(word, "load") == 0)
                        snprintf(fault.load, sizeof(fault.load), "%s", value);
                else if (strcmp(word, "numerics") == 0)
                        snprintf(fault.numerics, sizeof(fault.numerics), "%s", value);
                else
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "there is no fault \"%s\"", word);
        }
        return 0;
}

/* A thread beside the executor: a frame is sent with one call, so the two do not mix. */
static void *accuse(void *unused)
{
        struct tdm_progress *progress = (void *)((uint8_t *)fault.heartbeat - offsetof(struct tdm_progress, heartbeat));
        uint64_t from_ns = fault.cry_from_ns ? fault.cry_from_ns : fault.accuse_from_ns;
        uint32_t last = 0;

        for (;;) {
                Tandem__Worker__RingFault body = TANDEM__WORKER__RING_FAULT__INIT;
                const Tandem__Worker__FromWorker message = {
                        .base = PROTOBUF_C_MESSAGE_INIT(&tandem__worker__from_worker__descriptor),
                        .kind_case = TANDEM__WORKER__FROM_WORKER__KIND_RING_FAULT,
                        .ring_fault = &body,
                };
                uint8_t data[256];

                body.epoch = atomic_load(&progress->epoch);
                if (body.epoch == 0 || (body.epoch == last && !fault.cry_from_ns) || tdm_now_ns() < from_ns) {
                        usleep(100);
                        continue;
                }
                usleep(1000); /* the executor acknowledges the epoch first */
                last = body.epoch;
                body.ring = TANDEM__WORKER__RING_NAME__RING_FROM_PEER;
                body.reason = (char *)"a lie\n\xff";
                tandem__worker__from_worker__pack(&message, data);
                (void)tdm_frame_send(TDM_WORKER_CONTROL_FD, data,
                                     tandem__worker__from_worker__get_packed_size(&message), NULL, 0);
        }
        return NULL;
}

static void spoil(struct tdm_result *r)
{
        const char *kind = fault.results;

        if (strcmp(kind, "nan") == 0)
                r->logprob = NAN;
        else if (strcmp(kind, "inf") == 0)
                r->logprob = INFINITY;
        else if (strcmp(kind, "minus-inf") == 0)
                r->logprob = -INFINITY;
        else if (strcmp(kind, "positive") == 0)
                r->logprob = 0.5f;
        else if (strcmp(kind, "id") == 0)
                r->token = 1u << 22; /* no vocabulary is as big */
        else if (strcmp(kind, "top") == 0)
                r->top[0].id = UINT32_MAX;
        else if (strcmp(kind, "top-nan") == 0)
                r->top[0].logprob = NAN;
        else if (strcmp(kind, "target-nan") == 0)
                r->target_logprob = NAN;
        else if (strcmp(kind, "n-top") == 0)
                r->n_top = UINT32_MAX;
}

static int faulty_open(struct tdm_device **ret, const struct tdm_device_config *config, struct tdm_error *err)
{
        int r = read_faults(getenv(FAULTY_INDEX == TDM_WORKER_NPU ? "TANDEM_FAULT_NPU" : "TANDEM_FAULT_GPU"), err);

        if (r != 0)
                return r;
        r = tdm_host_device_ops.open(&fault.inner, config, err);
        if (r != 0)
                return r;
        fault.heartbeat = config->heartbeat;
        if (fault.accuse_from_ns || fault.cry_from_ns) {
                pthread_t thread;

                r = pthread_create(&thread, NULL, accuse, NULL);
                if (r != 0)
                        return -r;
        }
        if (asprintf(&fault.description, "faulty: %s", tdm_host_device_ops.describe(fault.inner)) < 0 ||
            asprintf(&fault.numerics_id, "%s%s", tdm_host_device_ops.numerics_id(fault.inner), fault.numerics) < 0)
                return -ENOMEM;
        *ret = &device;
        return 0;
}

static void faulty_close(struct tdm_device *unused)
{
        tdm_host_device_ops.close(fault.inner);
}

static const char *faulty_describe(const struct tdm_device *unused)
{
        return fault.description;
}

static const char *faulty_numerics_id(const struct tdm_device *unused)
{
        return fault.numerics_id;
}

static int faulty_model_load(struct tdm_device *unused, const struct tdm_device_model_config *config,
                             struct tdm_device_model **ret, struct tdm_error *err)
{
        if (strcmp(fault.load, "abort") == 0 ||
            (config->precision == TDM_PRECISION_F32 && strcmp(fault.f32, "abort") == 0))
                abort();
        while (config->precision == TDM_PRECISION_F32 && strcmp(fault.f32, "hang") == 0)
                __asm__ volatile("");
        return tdm_host_device_ops.model_load(fault.inner, config, ret, err);
}

static void faulty_model_unload(struct tdm_device_model *model)
{
        tdm_host_device_ops.model_unload(model);
}

static void faulty_set_kv(struct tdm_device_model *model, uint8_t *kv_base)
{
        tdm_host_device_ops.set_kv(model, kv_base);
}

static uint64_t faulty_scratch(const struct tdm_device_model *model)
{
        return tdm_host_device_ops.model_scratch_bytes(model);
}

static uint64_t faulty_saturated(const struct tdm_device_model *model)
{
        return tdm_host_device_ops.n_saturated(model);
}

struct slowed {
        void (*on_block)(uint32_t block, void *userdata);
        void *userdata;
        uint64_t last_ns;
};

/* Busy, like a device that is slower; not asleep, which would leave the CPU to the other worker. */
static void slow_block(uint32_t block, void *userdata)
{
        struct slowed *s = userdata;
        uint64_t now = tdm_now_ns(), percent = TDM_MAX(slow_percent(), UINT64_C(100));
        uint64_t until = now + (now - s->last_ns) * (percent - 100) / 100;

        while ((now = tdm_now_ns()) < until)
                if (now % 16 == 0)
                        atomic_fetch_add_explicit(fault.heartbeat, 1, memory_order_relaxed);
        s->last_ns = now;
        s->on_block(block, s->userdata);
}

static void work_long(void)
{
        for (uint64_t until = tdm_now_ns() + LONG_NS; tdm_now_ns() < until; usleep(1000))
                atomic_fetch_add_explicit(fault.heartbeat, 1, memory_order_relaxed);
}

static int faulty_run(struct tdm_device_model *model, const struct tdm_step *step, uint32_t first, uint32_t n,
                      float *hidden, struct tdm_result *results, void (*on_block)(uint32_t block, void *userdata),
                      void *userdata, struct tdm_error *err)
{
        struct slowed slowed = { .on_block = on_block, .userdata = userdata, .last_ns = tdm_now_ns() };
        int r;

        for (uint32_t i = 0; i < step->head.n_rows; i++) {
                if (step->rows[i].token == fault.poison)
                        abort();
                if (step->rows[i].token == fault.long_token && first == 0)
                        work_long();
                while (step->rows[i].token == fault.hang)
                        __asm__ volatile("");
        }
        if (slow_percent() > 100 && slowed.last_ns >= fault.slow_from_ns)
                return tdm_host_device_ops.run(model, step, first, n, hidden, results, slow_block, &slowed, err);
        r = tdm_host_device_ops.run(model, step, first, n, hidden, results, on_block, userdata, err);
        for (uint32_t i = 0; r == 0 && fault.results[0] && i < step->head.n_logits; i++)
                spoil(&results[i]);
        return r;
}

static const struct tdm_device_ops ops = {
        .name = "host",
        .open = faulty_open,
        .close = faulty_close,
        .describe = faulty_describe,
        .numerics_id = faulty_numerics_id,
        .model_load = faulty_model_load,
        .model_unload = faulty_model_unload,
        .set_kv = faulty_set_kv,
        .model_scratch_bytes = faulty_scratch,
        .run = faulty_run,
        .n_saturated = faulty_saturated,
};
static struct tdm_device device = { .ops = &ops };

static int probe_accelerator(const struct tdm_device_config *config, struct tdm_error *err)
{
        const char *faults = getenv(FAULTY_INDEX == TDM_WORKER_NPU ? "TANDEM_FAULT_NPU" : "TANDEM_FAULT_GPU");
        const char *path = strstr(faults ?: "", "device=");
        _cleanup_(freep) char *copy = path ? strdup(path + strlen("device=")) : NULL;

        if (copy)
                copy[strcspn(copy, ",")] = 0;
        if (copy && access(copy, F_OK) == 0)
                return 0;
        return tdm_error_set(err, TDM_E_UNSUPPORTED, "there is no file %s", copy ?: "");
}

int main(int argc, char **argv)
{
        static const struct tdm_worker_device devices[] = {
                { .name = "host", .ops = &ops },
                { .name = "faulty", .ops = &ops, .is_accelerator = true, .probe = probe_accelerator },
        };
        static const struct tdm_worker_program program = {
                .name = FAULTY_INDEX == TDM_WORKER_NPU ? "faulty-npu-worker" : "faulty-gpu-worker",
                .index = FAULTY_INDEX,
                .devices = devices,
                .n_devices = TDM_ARRAY_SIZE(devices),
        };

        map_slow_file(getenv(FAULTY_INDEX == TDM_WORKER_NPU ? "TANDEM_FAULT_NPU" : "TANDEM_FAULT_GPU"));
        return tdm_worker_main(&program, argc, argv);
}
