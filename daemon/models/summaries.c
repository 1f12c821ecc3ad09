/* What lists say of files that nobody used, or that cannot be loaded: their architecture, weights and context.
 *
 * A thread reads the heads one after another, but for file systems that may hang. A list takes what is known by then.
 * What was read of a file holds as long as the file is the same. No user is charged: the files are those of the
 * daemon's own folders, one is read at a time, and of each some hundred bytes are kept. */
#include "daemon/models/private.h"

#define SUMMARIES_MAX 8192u /* as many as a list has */
#define SUMMARIES_SLOTS (2 * SUMMARIES_MAX)
#define SUMMARY_MAX_BYTES (UINT64_C(64) << 20) /* of memory while it is read: what the largest real vocabularies take */

struct summary_entry {
        struct tdm_file_identity identity;
        bool read;
        struct tdm_model_summary summary; /* without an architecture: the file cannot be read */
};

struct tdm_summaries {
        struct tdm_background *reader;
        struct summary_entry *slots[SUMMARIES_SLOTS]; /* by device and inode */
        uint32_t n;
        atomic_bool ending;
};

/* One that is read. */
struct summary_task {
        struct tdm_summaries *summaries;
        struct tdm_file_identity identity;
        struct tdm_model_summary summary;
        char path[];
};

/* Where it is, or may be put. */
static struct summary_entry **summary_slot(struct tdm_summaries *summaries, const struct tdm_file_identity *identity)
{
        uint64_t at = (identity->ino ^ identity->dev << 40) * UINT64_C(0x9e3779b97f4a7c15) >> 40;

        for (;; at++) {
                const struct summary_entry *there = summaries->slots[at % SUMMARIES_SLOTS];

                if (!there || (there->identity.ino == identity->ino && there->identity.dev == identity->dev))
                        break;
        }
        return &summaries->slots[at % SUMMARIES_SLOTS];
}

static void summaries_forget(struct tdm_summaries *summaries)
{
        for (uint32_t i = 0; i < SUMMARIES_SLOTS; i++)
                free(steal_ptr(&summaries->slots[i]));
        summaries->n = 0;
}

static int summary_read(struct summary_task *task, int fd, struct tdm_gguf **gguf, struct tdm_model_parts **parts)
{
        struct tdm_parse_limits limits = { .max_bytes = SUMMARY_MAX_BYTES, .cancelled = &task->summaries->ending };
        struct tdm_model_description description;
        struct tdm_gguf_string architecture;
        struct tdm_error err;
        int r = tdm_gguf_open_within(gguf, fd, task->path, &limits, &err);

        if (r == 0)
                r = tdm_gguf_get_string(*gguf, "general.architecture", &architecture);
        if (r != 0)
                return r;
        snprintf(task->summary.architecture, sizeof(task->summary.architecture), "%.*s",
                 (int)TDM_MIN(architecture.size, (size_t)31), architecture.data);
        tdm_utf8_mend(task->summary.architecture);
        r = tdm_gguf_read_parts(*gguf, task->path, task->path, &limits, parts, &err);
        if (r != 0)
                return r;
        task->summary.n_parameters = tdm_parameters_count(*gguf);
        task->summary.file_bytes = task->identity.size_bytes;
        for (uint32_t i = 0; *parts && i < (*parts)->n; i++)
                task->summary.file_bytes += (*parts)->files[i].identity.size_bytes;
        if (tdm_model_describe(*gguf, &description, &err) != 0)
                return 0; /* a model that is not computed here */
        task->summary.context = description.hparams.n_ctx;
        tdm_quantisation_describe(&description, task->summary.quantisation, sizeof(task->summary.quantisation));
        tdm_model_description_deinit(&description);
        return 0;
}

static void run_reading(void *userdata)
{
        struct summary_task *task = userdata;
        struct tdm_model_parts *parts = NULL;
        struct tdm_file_identity now;
        struct tdm_gguf *gguf = NULL;
        int fd = tdm_open_model_file(task->path);

        if (fd < 0)
                return;
        if (!tdm_file_is_far(fd) && tdm_file_identify(fd, &now) == 0 && tdm_file_identity_equal(&now, &task->identity))
                (void)summary_read(task, fd, &gguf, &parts); /* what it says by then counts */
        tdm_model_parts_free(parts);
        tdm_gguf_close(gguf);
        close(fd);
}

static void on_read(void *userdata, bool ran)
{
        struct summary_task *task = userdata;
        struct summary_entry *entry = *summary_slot(task->summaries, &task->identity);

        if (ran && entry && tdm_file_identity_equal(&entry->identity, &task->identity)) {
                entry->summary = task->summary;
                entry->read = true;
        }
        free(task);
}

static int summaries_new(struct tdm_loop *loop, struct tdm_summaries **ret)
{
        struct tdm_summaries *summaries = calloc(1, sizeof(*summaries));
        int r;

        if (!summaries)
                return -ENOMEM;
        r = tdm_background_new(&summaries->reader, loop);
        if (r < 0)
                free(summaries);
        else
                *ret = summaries;
        return r;
}

void tdm_summaries_free(struct tdm_summaries *summaries)
{
        if (!summaries)
                return;
        atomic_store_explicit(&summaries->ending, true, memory_order_relaxed); /* publishes nothing else */
        tdm_background_destroyp(&summaries->reader);
        summaries_forget(summaries);
        free(summaries);
}

static void summary_want(struct tdm_summaries *summaries, const char *path, struct summary_entry *entry)
{
        struct summary_task *task = calloc(1, sizeof(*task) + strlen(path) + 1);

        entry->read = false;
        if (!task)
                return;
        task->summaries = summaries;
        task->identity = entry->identity;
        memcpy(task->path, path, strlen(path) + 1);
        if (tdm_background_add(summaries->reader, run_reading, on_read, task) < 0)
                free(task);
}

static const struct tdm_model_summary *entry_summary(const struct summary_entry *entry)
{
        return entry->read && entry->summary.architecture[0] ? &entry->summary : NULL;
}

const struct tdm_model_summary *tdm_models_known_summary(const struct tdm_models *m,
                                                         const struct tdm_file_identity *identity)
{
        const struct summary_entry *entry = m->summaries ? *summary_slot(m->summaries, identity) : NULL;

        return entry && tdm_file_identity_equal(&entry->identity, identity) ? entry_summary(entry) : NULL;
}

const struct tdm_model_summary *tdm_models_summary_of(struct tdm_models *m, const char *path,
                                                      const struct tdm_file_identity *identity)
{
        struct summary_entry **slot, *entry;

        if (!m->summaries && summaries_new(m->loop, &m->summaries) < 0)
                return NULL;
        slot = summary_slot(m->summaries, identity);
        if (!*slot && m->summaries->n == SUMMARIES_MAX) { /* of files that have gone, for the most part */
                summaries_forget(m->summaries);
                slot = summary_slot(m->summaries, identity);
        }
        entry = *slot;
        if (entry && tdm_file_identity_equal(&entry->identity, identity))
                return entry_summary(entry);
        if (!entry) {
                entry = *slot = calloc(1, sizeof(*entry));
                if (!entry)
                        return NULL;
                m->summaries->n++;
        }
        entry->identity = *identity;
        summary_want(m->summaries, path, entry);
        return NULL;
}

static void want_scanned(const char *name, const char *path, uint64_t size_bytes,
                         const struct tdm_file_identity *identity, void *userdata)
{
        (void)tdm_models_summary_of(userdata, path, identity);
}

void tdm_models_read_summaries(struct tdm_models *m)
{
        (void)tdm_models_scan(m, want_scanned, m);
}
