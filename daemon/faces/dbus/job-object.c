/* A job as an object: its properties and methods. */
#include "daemon/faces/dbus/private.h"
#include "daemon/faces/status.h"

enum property {
        ID,
        MODEL,
        PRIORITY,
        STARTED_BY_UID,
        LINGERS,
        OWNER,
        STATE,
        PROGRESS,
        PROGRESS_DONE,
        PROGRESS_TOTAL,
        QUEUE_POSITION,
        PROMPT_TOKENS,
        CACHED_TOKENS,
        GENERATED_TOKENS,
        MAX_TOKENS,
        RECOVERIES,
        EVICTIONS,
        DRAFTED,
        ACCEPTED,
        GUESSES,
        UNGUESSED,
        DEGRADED,
        TEXT_BYTES,
        TEXT_TRUNCATED,
        OUTPUT_CUT,
        RESULT,
        ERROR_NAME,
        ERROR_MESSAGE,
        N_PROPERTIES
};

static const struct bus_property properties[N_PROPERTIES] = {
        [ID] = { "Id", "t", false },
        [MODEL] = { "Model", "s", false },
        [PRIORITY] = { "Priority", "s", false },
        [STARTED_BY_UID] = { "StartedByUID", "u", false },
        [LINGERS] = { "Lingers", "b", false },
        [OWNER] = { "Owner", "s", true },
        [STATE] = { "State", "s", true },
        [PROGRESS] = { "Progress", "d", true },
        [PROGRESS_DONE] = { "ProgressDone", "t", true },
        [PROGRESS_TOTAL] = { "ProgressTotal", "t", true },
        [QUEUE_POSITION] = { "QueuePosition", "u", true },
        [PROMPT_TOKENS] = { "PromptTokens", "u", true },
        [CACHED_TOKENS] = { "CachedTokens", "u", true },
        [GENERATED_TOKENS] = { "GeneratedTokens", "u", true },
        [MAX_TOKENS] = { "MaxTokens", "u", true },
        [RECOVERIES] = { "Recoveries", "u", true },
        [EVICTIONS] = { "Evictions", "u", true },
        [DRAFTED] = { "Drafted", "t", false },
        [ACCEPTED] = { "Accepted", "t", false },
        [GUESSES] = { "Guesses", "u", false },
        [UNGUESSED] = { "Unguessed", "s", false },
        [DEGRADED] = { "Degraded", "b", true },
        [TEXT_BYTES] = { "TextBytes", "t", true },
        [TEXT_TRUNCATED] = { "TextTruncated", "b", true },
        [OUTPUT_CUT] = { "OutputCut", "b", true },
        [RESULT] = { "Result", "s", true },
        [ERROR_NAME] = { "ErrorName", "s", true },
        [ERROR_MESSAGE] = { "ErrorMessage", "s", true },
};

static const char *const ends[] = { [TDM_JOB_END_STOP] = "stop",
                                    [TDM_JOB_END_LENGTH] = "length",
                                    [TDM_JOB_END_CANCELLED] = "cancelled",
                                    [TDM_JOB_END_ERROR] = "error" };

/* How much of the phase that State names is done, from 0 to 1; 1 once the job has ended. */
static double bus_job_progress(const struct bus_job *job)
{
        const struct tdm_job *j = job->job;

        if (job->ended)
                return 1;
        if (j->state == TDM_JOB_DECODE || j->state == TDM_JOB_RECOVERING)
                return j->max_tokens ? (double)TDM_MIN(j->generated, j->max_tokens) / j->max_tokens : 0;
        return j->progress.total ? (double)TDM_MIN(j->progress.done, j->progress.total) / (double)j->progress.total : 0;
}

static void write_property(struct bus_writer *w, struct tdm_dbus *bus, void *object, size_t i)
{
        const struct bus_job *job = object;
        const struct tdm_job *j = job->job;
        bool failed = job->ended && j->end == TDM_JOB_END_ERROR;
        const struct tdm_status_source owner = { .sees_all = !bus->system, .viewer = j->account };

        switch ((enum property)i) {
        case ID:
                bus_write_u64(w, j->id);
                break;
        case MODEL:
                bus_write_string(w, job->model ? tdm_status_name_of(&owner, job->model) : job->asked_model);
                break;
        case PRIORITY:
                bus_write_string(w, j->request.priority == TDM_JOB_BACKGROUND ? "background" : "interactive");
                break;
        case STARTED_BY_UID:
                bus_write_u32(w, (uint32_t)job->uid);
                break;
        case LINGERS:
                bus_write_bool(w, job->lingers);
                break;
        case OWNER:
                bus_write_string(w, job->owner ? job->owner->name : "");
                break;
        case STATE:
                bus_write_string(w, tdm_job_state_name(job->ended ? TDM_JOB_DONE : j->state));
                break;
        case PROGRESS:
                bus_write_double(w, bus_job_progress(job));
                break;
        case PROGRESS_DONE:
                bus_write_u64(w, j->progress.done);
                break;
        case PROGRESS_TOTAL:
                bus_write_u64(w, j->progress.total);
                break;
        case QUEUE_POSITION:
                bus_write_u32(w, !job->ended && j->state == TDM_JOB_QUEUED ? j->progress.queue_position : 0);
                break;
        case PROMPT_TOKENS:
                bus_write_u32(w, j->prompt_tokens);
                break;
        case CACHED_TOKENS:
                bus_write_u32(w, j->stats.cached_tokens);
                break;
        case GENERATED_TOKENS:
                bus_write_u32(w, j->generated);
                break;
        case MAX_TOKENS:
                bus_write_u32(w, j->max_tokens);
                break;
        case RECOVERIES:
                bus_write_u32(w, j->stats.recoveries);
                break;
        case EVICTIONS:
                bus_write_u32(w, j->stats.evictions);
                break;
        case DRAFTED:
                bus_write_u64(w, j->stats.n_drafted);
                break;
        case ACCEPTED:
                bus_write_u64(w, j->stats.n_accepted);
                break;
        case GUESSES:
                bus_write_u32(w, j->stats.n_guesses);
                break;
        case UNGUESSED:
                bus_write_string(w, tdm_unguessed_text(j->stats.unguessed));
                break;
        case DEGRADED:
                bus_write_bool(w, j->stats.degraded);
                break;
        case TEXT_BYTES:
                bus_write_u64(w, job->text_bytes);
                break;
        case TEXT_TRUNCATED:
                bus_write_bool(w, job->text_truncated);
                break;
        case OUTPUT_CUT:
                bus_write_bool(w, job->stream.cut);
                break;
        case RESULT:
                bus_write_string(w, job->ended ? ends[j->end] : "");
                break;
        case ERROR_NAME:
                bus_write_string(w, failed ? bus_error_name(j->error.code) : "");
                break;
        case ERROR_MESSAGE:
                bus_write_string(w, failed ? j->error.message : "");
                break;
        case N_PROPERTIES:
                break;
        }
}

void bus_job_write_end(struct bus_writer *w, const struct bus_job *job)
{
        const struct tdm_job *j = job->job;

        bus_entry_u32(w, "prompt-tokens", j->prompt_tokens);
        bus_entry_u32(w, "cached-tokens", j->stats.cached_tokens);
        bus_entry_u32(w, "generated-tokens", j->generated);
        bus_entry_u32(w, "thinking-tokens", tdm_job_thinking_tokens(j));
        bus_entry_u32(w, "recoveries", j->stats.recoveries);
        bus_entry_u32(w, "evictions", j->stats.evictions);
        bus_entry_u32(w, "reread-tokens", j->stats.reread_tokens);
        bus_entry_bool(w, "degraded", j->stats.degraded);
        bus_entry_bool(w, "incomplete", j->text.incomplete);
        bus_entry_u64(w, "drafted", j->stats.n_drafted);
        bus_entry_u64(w, "accepted", j->stats.n_accepted);
        bus_entry_string(w, "unguessed", tdm_unguessed_text(j->stats.unguessed));
        bus_entry_double(w, "ttft-ms", tdm_job_ttft_ms(j));
        bus_entry_double(w, "prefill-tps", tdm_job_prefill_tps(j));
        bus_entry_double(w, "decode-tps", tdm_job_decode_tps(j));
        bus_entry_u64(w, "text-bytes", job->text_bytes);
        bus_entry_bool(w, "text-truncated", job->text_truncated);
        bus_entry_bool(w, "output-cut", job->stream.cut);
        bus_entry_string(w, "numerics-id", j->stats.numerics_id);
        if (j->end == TDM_JOB_END_ERROR) {
                bus_entry_string(w, "error-name", bus_error_name(j->error.code));
                bus_entry_string(w, "error-message", j->error.message);
        }
}

/* ---- methods ---- */

static void cancel(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        bus_job_cancel(object); /* one that has ended is as good as cancelled */
        bus_reply_ok(peer->bus, message);
}

/* Borders are those of characters: an offset from an earlier answer always is one. */
static void get_text(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        struct bus_job *job = object;
        dbus_uint64_t offset;
        struct bus_writer w;
        size_t first, size;
        char *piece;

        dbus_message_iter_get_basic(args, &offset);
        if (offset > job->text_size || (offset < job->text_size && ((uint8_t)job->text[offset] & 0xc0) == 0x80)) {
                bus_reply_failed(peer->bus, message, TDM_E_BAD_REQUEST,
                                 "the offset is past the end of the text, or within a character; take those that "
                                 "GetText returns");
                return;
        }
        first = (size_t)offset;
        size = TDM_MIN(job->text_size - first, (size_t)BUS_TEXT_REPLY_BYTES);
        while (first + size < job->text_size && ((uint8_t)job->text[first + size] & 0xc0) == 0x80)
                size--;
        piece = malloc(size + 1);
        if (!piece) {
                bus_reply_failed(peer->bus, message, TDM_E_NO_MEMORY, "out of memory");
                return;
        }
        if (size)
                memcpy(piece, job->text + first, size);
        piece[size] = '\0';
        bus_writer_init(&w, bus_reply_new(message));
        bus_write_string(&w, piece);
        bus_write_u64(&w, first + size);
        bus_write_bool(&w, job->ended && first + size == job->text_size);
        bus_reply_finish(peer->bus, message, &w);
        explicit_bzero(piece, size);
        free(piece);
}

static void watch_call(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        struct bus_job *job = object;
        struct bus_peer **room = NULL;

        for (unsigned i = 0; i < BUS_MAX_WATCHERS; i++) {
                if (job->watchers[i] == peer || job->owner == peer) {
                        bus_reply_ok(peer->bus, message);
                        return;
                }
                if (!job->watchers[i])
                        room = &job->watchers[i];
        }
        if (!room) {
                bus_reply_failed(peer->bus, message, TDM_E_QUOTA, "too many watch this job already");
                return;
        }
        *room = peer;
        bus_reply_ok(peer->bus, message);
}

static void release_call(struct bus_peer *peer, DBusMessage *message, DBusMessageIter *args, void *object)
{
        struct bus_job *job = object;

        bus_reply_ok(peer->bus, message);
        job->lingers = false; /* it goes at its end; if it has ended, now */
        if (job->ended)
                bus_job_forget(job);
}

static const struct bus_method methods[] = {
        { "Cancel", "", BUS_ANYBODY, cancel },
        { "GetText", "t", BUS_ANYBODY, get_text },
        { "Watch", "", BUS_ANYBODY, watch_call },
        { "Release", "", BUS_ANYBODY, release_call },
};

const struct bus_interface bus_job_interface = {
        .name = BUS_JOB,
        .methods = methods,
        .n_methods = TDM_ARRAY_SIZE(methods),
        .properties = properties,
        .n_properties = N_PROPERTIES,
        .write = write_property,
};
