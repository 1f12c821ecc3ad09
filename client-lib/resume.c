/* A job that goes on at another daemon, or at the next life of its own: reattach.c makes the connection, this sends the
 * job again with the tokens that it has.
 *
 * The last COMPARED of them are left out, and drawn again there. Their log-probabilities depend on all that was read
 * before, so equal bits show that it is the same model with the same arithmetic; what repeats is dropped. A daemon
 * whose arithmetic is another one says so. The job then ends, unless its request allows it to degrade: it goes on with
 * all its tokens, and nothing can be compared. Scores and vectors have no tokens: they are made anew. */
#include "client-lib/job.h"

#include "common/id-list.h"

#include <fcntl.h>
#include <inttypes.h>

#define COMPARED TDM_ARRAY_SIZE(((struct tandem_job *)NULL)->last_logprobs)

static struct tandem_job *job_of(const struct call *call)
{
        return (struct tandem_job *)((char *)(uintptr_t)call - offsetof(struct tandem_job, call));
}

static void job_on_away(struct call *call)
{
        struct tandem_job *job = job_of(call);
        struct tandem_progress progress = { .job = job->id, .state = TANDEM_JOB_RECOVERING, .daemon_lost = true };

        job->cancel_sent = false;
        job->is_stale = true;
        if (job->told_accepted && job_is_heard(job) && job->callbacks.on_progress)
                job->callbacks.on_progress(job, &progress, job->userdata);
}

static bool job_is_given_up(const struct call *call)
{
        return job_of(call)->cancel_wanted;
}

/* How many of its tokens a job brings along. */
static size_t n_brought(const struct tandem_job *job)
{
        size_t n = job->ids.n - TDM_MIN(job->ids.n, job->degrades ? 0 : (size_t)COMPARED);

        return job->scoring ? 0 : TDM_MAX(n, (size_t)job->n_given);
}

static int job_send_drawn(struct tandem_job *job, Tandem__Request *request, struct tandem_error *err)
{
        Tandem__Generate *g = request->generate;
        char *given = g->drawn, *numerics = g->drawn_numerics,
             *text = tdm_id_list_format(job->ids.data, n_brought(job));
        protobuf_c_boolean may_degrade = g->may_degrade;
        int code;

        if (!text)
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory for a job's tokens");
        g->drawn = text;
        if (job->drew[0])
                g->drawn_numerics = job->drew;
        g->may_degrade = job->degrades || (job->may_degrade && !job->drew[0]);
        code = lib_send(job->tandem, request, job->model_fd, &job->call, err);
        g->drawn = given;
        g->drawn_numerics = numerics;
        g->may_degrade = may_degrade;
        free(text);
        return code;
}

/* What is left of the time that the request may take. */
static void lessen_deadline(const struct tandem_job *job, uint32_t *deadline_ms)
{
        uint64_t gone_ms = (tdm_now_ns() - job->begun_ns) / TDM_NSEC_PER_MSEC;

        if (*deadline_ms > 0)
                *deadline_ms = gone_ms < *deadline_ms ? *deadline_ms - (uint32_t)gone_ms : 1;
}

/* What came of a score or a vector. */
static void job_forget(struct tandem_job *job)
{
        vector_forget(job);
        if (!job->scoring)
                return;
        score_deinit(&job->score);
        job->score = (struct score_buf){ .top = job->score.top, .n_expected = job->score.n_expected };
        job->ids.n = 0;
}

static int job_send_again(struct tandem_job *job, struct tandem_error *err)
{
        Tandem__Request *request = tandem__request__unpack(NULL, job->request_size, job->request);
        int code;

        if (!request)
                return lib_error(err, TANDEM_E_NO_MEMORY, "no memory to send a job again");
        if (request->kind_case == TANDEM__REQUEST__KIND_GENERATE)
                lessen_deadline(job, &request->generate->deadline_ms);
        else if (request->kind_case == TANDEM__REQUEST__KIND_EMBED)
                lessen_deadline(job, &request->embed->deadline_ms);
        else if (request->kind_case == TANDEM__REQUEST__KIND_RERANK)
                lessen_deadline(job, &request->rerank->deadline_ms);
        else if (request->kind_case == TANDEM__REQUEST__KIND_CLASSIFY)
                lessen_deadline(job, &request->classify->deadline_ms);
        job_forget(job);
        if (n_brought(job) > 0)
                code = job_send_drawn(job, request, err);
        else
                code = lib_send(job->tandem, request, job->model_fd, &job->call, err);
        tandem__request__free_unpacked(request, NULL);
        return code;
}

static void job_again(struct call *call)
{
        struct tandem_job *job = job_of(call);
        struct tandem_error err;

        if (job->cancel_wanted) {
                job_finish_cancelled(job, false);
                return;
        }
        job->n_again += job->was_sent;
        job->was_sent = true;
        if (job_send_again(job, &err) != TANDEM_OK)
                job_finish_error(job, &err, false);
}

int job_keep_request(struct tandem_job *job, const Tandem__Request *request, int fd)
{
        job->request_size = tandem__request__get_packed_size(request);
        job->request = malloc(job->request_size + 1);
        if (!job->request)
                return -ENOMEM;
        tandem__request__pack(request, job->request);
        if (fd >= 0) {
                job->model_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
                if (job->model_fd < 0)
                        return -errno;
        }
        job->begun_ns = tdm_now_ns();
        job->call.on_away = job_on_away;
        job->call.again = job_again;
        job->call.is_given_up = job_is_given_up;
        return 0;
}

void job_drop_request(struct tandem_job *job)
{
        free(steal_ptr(&job->request));
        closep(&job->model_fd);
}

void job_note_logprob(struct tandem_job *job, float logprob)
{
        job->last_logprobs[(job->ids.n - 1) % COMPARED] = logprob;
        job->call.n_losses = 0;
}

void job_finish_changed(struct tandem_job *job, size_t index)
{
        struct tandem_error err;

        lib_error(&err, TANDEM_E_MODEL_CHANGED,
                  "tandemd came back with another model, or other arithmetic, under the same name: token %zu of the "
                  "job is another one there",
                  index);
        if (job->id != 0 && !job->is_stale)
                job_send_cancel(job);
        job_finish_error(job, &err, false);
}

bool job_has_token(struct tandem_job *job, size_t index, const Tandem__Token *token)
{
        const float *logprob = &job->last_logprobs[index % COMPARED];
        bool compares = index + COMPARED >= job->ids.n && index >= job->n_given;

        if (job->ids.data[index] == token->id && (!compares || memcmp(logprob, &token->logprob, sizeof(*logprob)) == 0))
                return true;
        job_finish_changed(job, index);
        return false;
}

static bool message_is_of(const struct tandem_error *err, const char *option)
{
        size_t n = strlen(option);

        return strncmp(err->message, option, n) == 0 && err->message[n] == ':';
}

/* The daemon ends. */
static bool job_waits_for_next(struct tandem_job *job, const struct tandem_error *err)
{
        if (!lib_leave(job->tandem, &job->call, err))
                return false;
        job_on_away(&job->call);
        return true;
}

/* The next one has no room yet, since all come back at once. */
static bool job_waits_for_room(struct tandem_job *job)
{
        if (!lib_send_later(job->tandem))
                return false;
        job->call.id = 0;
        job->n_again--; /* it did not go on there */
        return true;
}

bool job_goes_on_after(struct tandem_job *job, const Tandem__Error *wire)
{
        struct tandem_error err;

        if (!job->call.again || job->cancel_wanted)
                return false;
        lib_error_from_wire(&err, wire);
        if (err.code == TANDEM_E_DRAINING)
                return job_waits_for_next(job, &err);
        if (job->n_again == 0)
                return false;
        if ((err.code == TANDEM_E_BUSY || err.code == TANDEM_E_QUOTA) && job->is_stale)
                return job_waits_for_room(job);
        if (err.code == TANDEM_E_UNSUPPORTED && message_is_of(&err, "drawn-numerics") && !job->degrades &&
            job->may_degrade) {
                job->degrades = job->is_stale = true;
                job->call.id = 0;
                job->n_again--;
                job_again(&job->call);
                return true;
        }
        if (err.code == TANDEM_E_BAD_REQUEST && message_is_of(&err, "drawn") && job->n_given == 0) {
                job_finish_changed(job, n_brought(job) - 1);
                return true;
        }
        return false;
}

/* The job of this connection that had this number at a daemon that was lost; NULL: none, or one has it now. */
static struct tandem_job *job_of_earlier_id(struct tandem *t, uint64_t id)
{
        struct tandem_job *found = NULL;

        for (struct call *call = t->calls; call; call = call->next) {
                const struct tandem_job *job = call->again == job_again ? job_of(call) : NULL;

                if (job && job->id == id && !job->is_stale)
                        return NULL;
                if (job && (job->id == id || job->first_id == id))
                        found = job_of(call);
        }
        return found;
}

int tandem_cancel_job(struct tandem *t, uint64_t job, struct tandem_error *err)
{
        Tandem__Request request = TANDEM__REQUEST__INIT;
        Tandem__Cancel cancel = TANDEM__CANCEL__INIT;
        struct tandem_job *moved = job_of_earlier_id(t, job);

        if (moved)
                return tandem_cancel(moved);
        cancel.job = job;
        request.kind_case = TANDEM__REQUEST__KIND_CANCEL;
        request.cancel = &cancel;
        return lib_request_ok(t, &request, -1, err);
}
