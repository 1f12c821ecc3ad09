/* Hardware contexts: partitions of columns, their configuration, their queues. */
#include "tests/npu-kernel/kernel.h"

unsigned context_count(void)
{
        unsigned n = 0;

        for (const struct client *client = kernel.clients; client; client = client->next)
                for (const struct context *context = client->contexts; context; context = context->next)
                        n++;
        return n;
}

static struct context *lookup(struct client *client, uint32_t id)
{
        for (struct context *context = client->contexts; context; context = context->next)
                if (context->id == id)
                        return context;
        refuse("context %u, which names nothing", id);
        return NULL;
}

/* Partitions start at multiples of their width (Strix). The one whose columns the fewest contexts share. */
static uint32_t place(uint32_t width)
{
        uint32_t best = 0;
        unsigned fewest = UINT32_MAX;

        for (uint32_t start = 0; start + width <= N_COLUMNS; start += width) {
                unsigned n = 0;

                for (const struct client *client = kernel.clients; client; client = client->next)
                        for (const struct context *c = client->contexts; c; c = c->next)
                                if (c->first_column < start + width && start < c->first_column + c->n_columns)
                                        n++;
                if (n < fewest) {
                        fewest = n;
                        best = start;
                }
        }
        return best;
}

static uint32_t free_hw_id(void)
{
        for (uint32_t id = 1;; id++) {
                bool taken = false;

                for (const struct client *client = kernel.clients; client; client = client->next)
                        for (const struct context *c = client->contexts; c; c = c->next)
                                taken |= c->hw_id == id;
                if (!taken)
                        return id;
        }
}

static uint32_t free_id(struct client *client)
{
        uint32_t id = client->last_context;
        const struct context *c;

        do { /* 1 … 255 in turn, so that an old one does not soon mean a new one */
                id = id % 255 + 1;
                for (c = client->contexts; c && c->id != id; c = c->next)
                        ;
        } while (c);
        client->last_context = id;
        return id;
}

int context_create(struct client *client, struct npk_request *r, const uint8_t *extra)
{
        struct xdna_create_context *c = (void *)r->arg;
        uint32_t n_columns = c->n_tiles / N_CORE_ROWS;
        struct context *context;
        int error;

        if (c->ext || c->ext_flags) {
                refuse("an extension of a context");
                return -EINVAL;
        }
        if (r->fault || r->n_extra < sizeof(context->qos)) {
                refuse("a quality of service that cannot be read");
                return -EFAULT;
        }
        if (client->n_heaps == 0) {
                refuse("a context without a heap");
                return -ENOENT;
        }
        if (!bo_heap_is_mapped(client)) {
                refuse("a context with a heap that is not mapped");
                return -EINVAL;
        }
        if (n_columns == 0 || n_columns > N_COLUMNS) {
                refuse("a context of %u tiles", c->n_tiles);
                return -EINVAL;
        }
        if (context_count() >= MAX_CONTEXTS) {
                refuse("more than %u contexts", MAX_CONTEXTS);
                return -ENOSPC;
        }
        context = calloc(1, sizeof(*context));
        if (!context)
                return -ENOMEM;
        error = syncobj_new(client, false, &context->sync, &c->syncobj);
        if (error < 0) {
                free(context);
                return error;
        }
        memcpy(&context->qos, extra, sizeof(context->qos));
        context->client = client;
        context->n_columns = n_columns;
        context->first_column = place(n_columns);
        context->hw_id = free_hw_id();
        context->id = free_id(client);
        context->next = client->contexts;
        client->contexts = context;
        c->handle = context->id;
        c->doorbell = 0;
        if (kernel.control)
                atomic_fetch_add(&kernel.control->n_contexts, 1);
        return 0;
}

static void job_free(struct job *job)
{
        bo_unref(job->command);
        for (uint32_t i = 0; i < job->n_args; i++)
                bo_unref(job->args[i]);
        free(job->args);
        free(job);
}

static void context_free(struct context *context)
{
        context->lost = true;
        pthread_cond_broadcast(&kernel.work);
        while (context->queue || context->running)
                pthread_cond_wait(&kernel.idle, &kernel.lock);
        for (struct context **p = &context->client->contexts; *p; p = &(*p)->next)
                if (*p == context) {
                        *p = context->next;
                        break;
                }
        syncobj_unref(context->sync);
        free(context);
}

int context_destroy(struct client *client, struct npk_request *r)
{
        const struct xdna_destroy_context *d = (void *)r->arg;
        struct context *context;

        if (d->pad) {
                refuse("padding of a context's end");
                return -EINVAL;
        }
        context = lookup(client, d->handle);
        if (!context)
                return -EINVAL;
        context_free(context);
        return 0;
}

void context_destroy_all(struct client *client)
{
        while (client->contexts)
                context_free(client->contexts);
        for (uint32_t i = 0; i < client->syncobjs.n; i++)
                syncobj_unref(client->syncobjs.entry[i]);
        free(client->syncobjs.entry);
        client->syncobjs = (struct table){};
}

static int configure(struct client *client, struct context *context, const uint8_t *extra, uint32_t size)
{
        const struct xdna_cus *cus = (const void *)extra;
        uint32_t programs[TDM_ARRAY_SIZE(context->cu_programs)];

        if (size < sizeof(*cus) || cus->pad[0] || cus->pad[1] || cus->pad[2]) {
                refuse("a configuration that is no configuration");
                return -EINVAL;
        }
        if (context->ready) {
                refuse("a second configuration of a context");
                return -EINVAL;
        }
        if (cus->n_cus == 0 || cus->n_cus > TDM_ARRAY_SIZE(programs) ||
            sizeof(*cus) + cus->n_cus * sizeof(cus->cu[0]) > size) {
                refuse("%u compute units in %u bytes", cus->n_cus, size);
                return -EINVAL;
        }
        for (uint32_t i = 0; i < cus->n_cus; i++) {
                const struct bo *bo = table_get(&client->bos, cus->cu[i].bo);

                if (!bo || bo->type != XDNA_BO_DEV || cus->cu[i].pad[0] || cus->cu[i].pad[1] || cus->cu[i].pad[2]) {
                        refuse("a compute unit's image that is no device buffer");
                        return -EINVAL;
                }
                if (!firmware_pdi(bo->device, bo->size, &programs[i])) {
                        refuse("a compute unit's image that the firmware does not know (was it synced?)");
                        return -EINVAL;
                }
        }
        memcpy(context->cu_programs, programs, cus->n_cus * sizeof(programs[0]));
        context->n_cus = cus->n_cus;
        context->ready = true;
        return 0;
}

int context_config(struct client *client, struct npk_request *r, const uint8_t *extra)
{
        const struct xdna_config_context *c = (void *)r->arg;
        struct context *context;

        if (c->pad || c->type > XDNA_CONFIG_DEBUG_OFF) {
                refuse("a configuration of kind %u", c->type);
                return -EINVAL;
        }
        if (c->type == XDNA_CONFIG_CUS && c->value_bytes > PAGE_BYTES) {
                refuse("a configuration of %u bytes", c->value_bytes);
                return -E2BIG;
        }
        if (c->type == XDNA_CONFIG_CUS && r->fault) {
                refuse("a configuration that cannot be read");
                return -EFAULT;
        }
        context = lookup(client, c->handle);
        if (!context)
                return -EINVAL;
        if (c->type != XDNA_CONFIG_CUS) {
                refuse("a debug buffer");
                return -EOPNOTSUPP;
        }
        return configure(client, context, extra, r->n_extra);
}

int context_execute(struct client *client, struct npk_request *r, const uint8_t *extra)
{
        struct xdna_execute *e = (void *)r->arg;
        uint32_t n_queued = 0, handle;
        struct context *context;
        struct job *job, **last;
        struct bo *command;

        if (e->ext || e->ext_flags || e->type != 0) {
                refuse("a submission of kind %u", e->type);
                return -EINVAL;
        }
        if (e->n_args > 4095 || e->n_commands != 1) {
                refuse("a submission of %u commands and %u arguments", e->n_commands, e->n_args);
                return -EINVAL;
        }
        if (r->fault || r->n_extra < e->n_args * sizeof(uint32_t)) {
                refuse("a list of arguments that cannot be read");
                return -EFAULT;
        }
        command = table_get(&client->bos, (uint32_t)e->commands);
        if (!command || command->type != XDNA_BO_COMMAND) {
                refuse("a command in buffer %u, which is no command buffer", (uint32_t)e->commands);
                return -EINVAL;
        }
        for (uint32_t i = 0; i < e->n_args; i++) {
                memcpy(&handle, extra + i * sizeof(handle), sizeof(handle));
                if (!table_get(&client->bos, handle)) {
                        refuse("an argument in buffer %u, which names nothing", handle);
                        return -ENOENT;
                }
        }
        context = lookup(client, e->context);
        if (!context)
                return -EINVAL;
        if (!context->ready) {
                refuse("a command for a context that was not configured");
                return -EINVAL;
        }
        for (last = &context->queue; *last; last = &(*last)->next)
                n_queued++;
        if (n_queued >= MAX_QUEUED)
                return -EAGAIN;
        job = calloc(1, sizeof(*job));
        if (!job)
                return -ENOMEM;
        job->args = calloc(e->n_args ? e->n_args : 1, sizeof(struct bo *));
        if (!job->args) {
                free(job);
                return -ENOMEM;
        }
        job->context = context;
        job->command = command;
        command->refs++;
        for (uint32_t i = 0; i < e->n_args; i++) {
                memcpy(&handle, extra + i * sizeof(handle), sizeof(handle));
                job->args[i] = table_get(&client->bos, handle);
                job->args[i]->refs++;
        }
        job->n_args = e->n_args;
        job->seq = e->seq = context->seq++;
        context->sync->submitted = TDM_MAX(context->sync->submitted, job->seq + 1);
        *last = job;
        pthread_cond_broadcast(&kernel.work);
        return 0;
}

/* By the firmware's thread, with the lock: the job at the head of the queue ended with this state. */
void context_job_done(struct context *context, struct job *job, uint32_t state)
{
        uint32_t *header = (uint32_t *)job->command->host;

        __atomic_store_n(header, (*header & ~0xfu) | state, __ATOMIC_RELEASE);
        context->completed++;
        if (state != ERT_COMPLETED)
                context->errors++;
        context->sync->done = TDM_MAX(context->sync->done, job->seq + 1);
        context->running = NULL;
        job_free(job);
        pthread_cond_broadcast(&kernel.idle);
}
