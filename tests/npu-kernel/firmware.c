/* What stands for the NPU and its firmware: takes jobs of all contexts in turn, reads commands as the driver hands them
 * on, and runs the emulated NPU's own programs (npu-worker/emulated/program.h) from the instructions and at the
 * addresses that arrive in the command. It knows no handles of arguments: what a command means is in its words.
 *
 * Where silicon reads whatever lies at an address, this refuses: an address in no buffer, instructions that are not
 * aligned, outputs that overlap inputs and, with --shadow, data that the processes changed and did not sync. */
#include "tests/npu-kernel/kernel.h"

#include <sys/eventfd.h>
#include <sys/uio.h>

#include "npu-worker/emulated/program.h"

#define PDI_MAGIC UINT32_C(0x49445054) /* "TPDI", then the number of the set */
#define OPCODE_INSTRUCTIONS 3u
#define SLEEP_MS 500u
#define MAX_WORDS 19u /* of a command's arguments that firmware takes */

bool firmware_pdi(const void *pdi, uint64_t size, uint32_t *ret_program)
{
        uint32_t words[2];

        if (size < sizeof(words))
                return false;
        memcpy(words, pdi, sizeof(words));
        *ret_program = words[1];
        return words[0] == PDI_MAGIC;
}

struct range {
        uint64_t address, len;
        uint8_t *at;
        struct bo *bo;
        bool output, input; /* a cache is both */
};

static bool user_copy(const struct client *client, const struct range *range, bool in)
{
        struct iovec local = { range->at, range->len }, remote = { (void *)(uintptr_t)range->address, range->len };
        ssize_t n;

        if (client->pid == getpid()) { /* a process that is no other's needs no right to itself */
                memcpy(in ? local.iov_base : remote.iov_base, in ? remote.iov_base : local.iov_base, range->len);
                return true;
        }
        n = in ? process_vm_readv(client->pid, &local, 1, &remote, 1, 0) :
                 process_vm_writev(client->pid, &local, 1, &remote, 1, 0);

        return n == (ssize_t)range->len;
}

static bool find(struct client *client, struct range *range)
{
        range->at = bo_at(client, range->address, range->len, &range->bo);
        if (!range->at) {
                refuse(range->bo ? "a command reaches beyond a buffer at 0x%llx (%llu bytes)" :
                                   "a command reaches address 0x%llx (%llu bytes), where no buffer is",
                       (unsigned long long)range->address, (unsigned long long)range->len);
                return false;
        }
        if (range->bo->user_va)
                return !range->input || user_copy(client, range, true);
        if (!range->output && range->bo->device != range->bo->host) {
                const uint8_t *host = range->bo->host + (range->at - range->bo->device);

                if (memcmp(host, range->at, range->len) != 0) {
                        refuse("a command reads 0x%llx, which was changed and not synced",
                               (unsigned long long)range->address);
                        kernel.n.unsynced++;
                        return false;
                }
        }
        return true;
}

/* A command that starts a compute unit, as its checks have found it. */
struct start {
        const uint32_t *args;
        uint32_t n_words; /* of args */
        uint64_t instructions;
        uint32_t n_instructions; /* words */
        struct tdm_emulated_program program;
        struct range ranges[TDM_EMULATED_MAX_ARGS + 1]; /* the instructions, then the arguments */
        void *data[TDM_EMULATED_MAX_ARGS];
        unsigned n_data;
};

/* The command's own words. ERT_COMPLETED: they are in order. */
static uint32_t read_start(const struct context *context, const uint32_t *command, uint64_t bytes, struct start *s)
{
        uint32_t n_masks = 1 + ERT_EXTRA_MASKS(command[0]), count = ERT_COUNT(command[0]), mask = 0;
        uint64_t opcode;

        if (count <= n_masks || (1 + (uint64_t)count) * 4 > bytes) {
                refuse("a command of %u words", count);
                return ERT_ABORT;
        }
        for (uint32_t i = 0; i < n_masks && mask == 0; i++)
                mask = command[1 + i] ? (uint32_t)__builtin_ctz(command[1 + i]) + 32 * i + 1 : 0;
        if (mask == 0 || mask > context->n_cus) {
                refuse("a command for compute unit %d of %u", (int)mask - 1, context->n_cus);
                return ERT_ABORT;
        }
        s->args = command + 1 + n_masks;
        s->n_words = count - n_masks;
        if (s->n_words < 6 || s->n_words > MAX_WORDS) {
                refuse("a command with %u words of arguments", s->n_words);
                return ERT_ERROR;
        }
        memcpy(&opcode, s->args, 8);
        memcpy(&s->instructions, s->args + 2, 8);
        s->n_instructions = s->args[4];
        if (opcode != OPCODE_INSTRUCTIONS || s->n_instructions == 0 || s->n_instructions > 4096) {
                refuse("a command with operation %llu and %u words of instructions", (unsigned long long)opcode,
                       s->n_instructions);
                return ERT_ERROR;
        }
        if (s->instructions % 16 != 0) {
                refuse("instructions at 0x%llx, which is not aligned", (unsigned long long)s->instructions);
                return ERT_ERROR;
        }
        return ERT_COMPLETED;
}

static bool find_program(struct client *client, struct start *s)
{
        s->ranges[0] = (struct range){ .address = s->instructions, .len = s->n_instructions * 4ull };
        if (!find(client, &s->ranges[0]))
                return false;
        if (s->ranges[0].bo->type != XDNA_BO_DEV) {
                refuse("instructions that lie outside of the heap");
                return false;
        }
        if (!tdm_emulated_program_check(s->ranges[0].at, s->n_instructions, &s->program)) {
                refuse("instructions that are no program");
                return false;
        }
        return true;
}

static bool find_arguments(struct client *client, struct start *s)
{
        uint64_t needed[TDM_EMULATED_MAX_ARGS];

        s->n_data = tdm_emulated_program_bytes(&s->program, needed);
        if (s->n_words < 6 + 2 * s->n_data) {
                refuse("a command with arguments for less than %u buffers", s->n_data);
                return false;
        }
        for (unsigned i = 0; i < s->n_data; i++) {
                struct range *range = &s->ranges[i + 1];

                memcpy(&range->address, s->args + 6 + 2 * i, 8);
                range->len = needed[i];
                range->output = i == 2 || i == 4;
                range->input = i != 2;
                if (range->address % 64 != 0) {
                        refuse("argument %u at 0x%llx, which is not aligned", i, (unsigned long long)range->address);
                        return false;
                }
                if (!find(client, range))
                        return false;
                if (i == 4) { /* a cache: what its head says, within its buffer */
                        range->len = range->bo->size - (uint64_t)(range->at - range->bo->device);
                        if (!find(client, range))
                                return false;
                }
                s->data[i] = range->at;
        }
        for (unsigned i = 1; i <= s->n_data; i++)
                for (unsigned j = 0; j <= s->n_data; j++)
                        if (i != j && s->ranges[i].output && s->ranges[i].at < s->ranges[j].at + s->ranges[j].len &&
                            s->ranges[j].at < s->ranges[i].at + s->ranges[i].len) {
                                refuse("an output that overlaps argument %d", (int)j - 1);
                                return false;
                        }
        return true;
}

/* One command that starts a compute unit. Returns its state; the lock is released while it computes. */
static uint32_t start_cu(struct client *client, struct context *context, const uint32_t *command, uint64_t bytes)
{
        struct start s = {};
        uint32_t state = read_start(context, command, bytes, &s);
        bool ok;

        if (state != ERT_COMPLETED)
                return state;
        if (!find_program(client, &s) || !find_arguments(client, &s))
                return ERT_ERROR;
        for (unsigned i = 0; i <= s.n_data; i++) /* a handle that is closed meanwhile leaves the memory in place */
                s.ranges[i].bo->refs++;
        pthread_mutex_unlock(&kernel.lock);
        ok = tdm_emulated_program_run(&s.program, s.data, s.n_data == 5 ? s.ranges[5].len : 0);
        pthread_mutex_lock(&kernel.lock);
        for (unsigned i = 1; ok && i <= s.n_data; i++)
                if (s.ranges[i].output && s.ranges[i].bo->user_va)
                        ok = user_copy(client, &s.ranges[i], false);
        for (unsigned i = 0; i <= s.n_data; i++)
                bo_unref(s.ranges[i].bo);
        if (ok) {
                kernel.n.commands++;
                kernel.n.macs += tdm_emulated_program_macs(&s.program);
                if (kernel.control) {
                        atomic_fetch_add(&kernel.control->n_commands, 1);
                        atomic_fetch_add(&kernel.control->n_macs, tdm_emulated_program_macs(&s.program));
                }
        }
        return ok ? ERT_COMPLETED : ERT_ERROR;
}

static uint32_t one(struct client *client, struct context *context, const struct bo *bo)
{
        const uint32_t *command = (const uint32_t *)bo->host;

        if (ERT_OP(command[0]) != ERT_START_CU) {
                refuse("a command with operation %u", ERT_OP(command[0]));
                return ERT_ABORT;
        }
        return start_cu(client, context, command, bo->size);
}

static uint32_t chain(struct client *client, struct context *context, struct job *job)
{
        uint32_t header = *(const uint32_t *)job->command->host, state = ERT_COMPLETED;
        struct ert_chain *c = (struct ert_chain *)(job->command->host + 4);
        uint32_t n = c->n_commands;

        if (ERT_COUNT(header) * 4ull < sizeof(*c) + n * sizeof(c->command[0]) ||
            sizeof(*c) + n * sizeof(c->command[0]) > job->command->size - 4) {
                refuse("a chain of %u commands in %u words", n, ERT_COUNT(header));
                return ERT_ABORT;
        }
        kernel.n.chains++;
        for (uint32_t i = 0; i < n && state == ERT_COMPLETED; i++) {
                uint64_t handle;
                struct bo *bo;

                memcpy(&handle, &c->command[i], sizeof(handle));
                bo = table_get(&client->bos, (uint32_t)handle);
                if (!bo || bo->type != XDNA_BO_COMMAND) {
                        refuse("a chain's command in buffer %u, which is no command buffer", (uint32_t)handle);
                        state = ERT_ABORT;
                } else {
                        bo->refs++;
                        state = one(client, context, bo);
                        bo_unref(bo);
                }
                if (state != ERT_COMPLETED)
                        c->error_index = i;
        }
        return state;
}

/* Waits for at most this long; ends early when the context goes. */
static void pause_for(const struct context *context, unsigned ms)
{
        struct timespec end;

        clock_gettime(CLOCK_REALTIME, &end);
        end.tv_nsec += (long)(ms % 1000) * 1000000;
        end.tv_sec += ms / 1000 + end.tv_nsec / 1000000000;
        end.tv_nsec %= 1000000000;
        while (!context->lost && !kernel.quitting &&
               pthread_cond_timedwait(&kernel.work, &kernel.lock, &end) != ETIMEDOUT)
                ;
}

static void lose_all(bool files)
{
        for (struct client *client = kernel.clients; client; client = client->next) {
                client->dead = client->dead || files;
                for (struct context *c = client->contexts; c; c = c->next)
                        c->lost = true;
        }
}

/* The next one for a command, if any: from a line to the server, or from the page of tests. */
static enum fault take_fault(void)
{
        static const enum fault of_page[TDM_EMULATED_N_FAULTS] = {
                [TDM_EMULATED_FAULT_ERROR] = FAULT_ERROR,       [TDM_EMULATED_FAULT_HANG] = FAULT_HANG,
                [TDM_EMULATED_FAULT_CONTEXT] = FAULT_CONTEXT,   [TDM_EMULATED_FAULT_GONE] = FAULT_GONE,
                [TDM_EMULATED_FAULT_FIRMWARE] = FAULT_FIRMWARE, [TDM_EMULATED_FAULT_SLOW] = FAULT_SLOW,
                [TDM_EMULATED_FAULT_SUSPEND] = FAULT_ASLEEP,
        };
        enum fault fault = kernel.fault;
        uint32_t asked = kernel.control ? atomic_exchange(&kernel.control->fault, 0) : 0;

        kernel.fault = FAULT_NONE;
        if (asked > 0 && asked < TDM_EMULATED_N_FAULTS) {
                fault = of_page[asked];
                atomic_fetch_add(&kernel.control->n_faults, 1);
        }
        if (fault != FAULT_NONE)
                kernel.n.faults++;
        return fault;
}

static uint32_t run(struct context *context, struct job *job)
{
        enum fault fault = context->lost ? FAULT_NONE : take_fault();
        uint32_t header = *(const uint32_t *)job->command->host;

        if (context->lost)
                return ERT_ABORT;
        switch (fault) {
        case FAULT_ERROR:
                return ERT_ERROR;
        case FAULT_HANG: /* the watchdog stops the context and makes it anew: what was queued is aborted */
                pause_for(context, kernel.timeout_ms);
                for (struct job *queued = context->queue; queued; queued = queued->next) {
                        uint32_t *word = (uint32_t *)queued->command->host;

                        *word = (*word & ~0xfu) | ERT_ABORT;
                }
                return ERT_TIMEOUT;
        case FAULT_CONTEXT:
                context->lost = true;
                return ERT_ABORT;
        case FAULT_FIRMWARE:
                while (!context->lost && !kernel.quitting)
                        pause_for(context, 1000);
                return ERT_ABORT;
        case FAULT_REMOVED:
                kernel.absent_until_ns = tdm_now_ns() + TDM_NSEC_PER_SEC;
                __attribute__((fallthrough));
        case FAULT_GONE:
                lose_all(true);
                return ERT_ABORT;
        case FAULT_ASLEEP:
                pause_for(context, SLEEP_MS);
                lose_all(false);
                return ERT_ABORT;
        case FAULT_SUSPEND:
                pause_for(context, SLEEP_MS);
                break;
        case FAULT_SLOW:
                pause_for(context, 300);
                break;
        default:
                break;
        }
        return ERT_OP(header) == ERT_CHAIN ? chain(context->client, context, job) :
                                             one(context->client, context, job->command);
}

void *firmware_thread(void *unused)
{
        pthread_mutex_lock(&kernel.lock);
        while (!kernel.quitting) {
                struct context *context = NULL;
                struct job *job;
                uint32_t state;

                for (struct client *client = kernel.clients; client && !context; client = client->next)
                        for (context = client->contexts; context && !context->queue; context = context->next)
                                ;
                if (!context) {
                        pthread_cond_wait(&kernel.work, &kernel.lock);
                        continue;
                }
                job = context->queue;
                context->queue = job->next;
                context->running = job;
                state = run(context, job);
                context_job_done(context, job, state);
                eventfd_write(kernel.wake_fd, 1);
        }
        pthread_mutex_unlock(&kernel.lock);
        return unused;
}
