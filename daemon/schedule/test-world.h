/* Shared by the tests of the scheduler: a fleet that is a double, jobs as a client sees them, and a world of both.
 *
 * The double checks every step with the workers' own reader, keeps a paged cache as a device would, and chooses tokens
 * by a function of everything a sequence has seen. So a wrong page, a page that was freed too early, a row that was
 * issued twice or lost, or a wrong position changes a token, and every job's tokens are known in advance. */
#ifndef TDM_DAEMON_SCHEDULE_TEST_WORLD_H
#define TDM_DAEMON_SCHEDULE_TEST_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "daemon/models/private.h"
#include "daemon/schedule/private.h"

#define MAX_JOBS 24
#define N_CTX 320u
#define N_WORLD_MODELS 3u
#define KILLER 7u  /* a prompt with this token kills every worker that runs it */
#define BREAKER 8u /* a step with this token fails, its device stays well */
#define PICTURE_WIDTH 64u
#define MAX_PICTURES 3u

/* What a scheduler, or a worker, could do wrong with guesses. The double does it, to show that the tests find it. */
enum fault {
        FAULT_NONE,
        FAULT_POSITION, /* a guess's row draws with the number of the next position */
        FAULT_HISTORY,  /* all rows of a sequence have the penalty history of the first */
        FAULT_PAGE,     /* keys of a wrong guess are kept */
        N_FAULTS
};

struct cell {
        uint32_t position, token;
        uint64_t hash;
};

struct fake_step {
        bool used;
        uint32_t slot;
        uint64_t step_id;
        uint32_t n_seqs;
        struct tdm_model *model;
        uint64_t after;
        uint8_t worker; /* TDM_N_WORKERS: both */
        uint8_t plan[TDM_MAX_BLOCKS + 1];
        bool marks;
        bool executed;
        bool kills, breaks;
        uint64_t early; /* of its logits, those whose mask was there when it was submitted */
};

struct tdm_fleet {
        const struct tdm_fleet_step_events *events;
        void *events_userdata;
        bool ready;
        uint32_t epoch;
        struct tdm_model *models[N_WORLD_MODELS];
        struct cell *cache[N_WORLD_MODELS][TDM_KV_GROUPS]; /* [pages * 32] */
        struct cell *states[N_WORLD_MODELS];               /* [world_states]; position: how many it has seen */
        struct tdm_step *step;
        struct fake_step steps[8];
        uint32_t n_submitted, n_max_seqs, n_passes[N_WORLD_MODELS];
        bool down[TDM_N_WORKERS], away[TDM_N_WORKERS];
        enum tdm_placement measured;
        /* The devices differ in bits; then this is what was found, and a step takes by world_clock this many ns for
         * each of its blocks, and for each row of these. */
        bool differ;
        enum tdm_placement found;
        uint64_t block_ns[TDM_N_WORKERS], block_row_ns[TDM_N_WORKERS];
        /* A worker that computed nothing for a millisecond takes this much longer for its next step. */
        uint64_t wake_ns[TDM_N_WORKERS], awake_ns[TDM_N_WORKERS];
        uint32_t n_probes;
        uint8_t probes_kill; /* 1 + the worker whose probes kill it; 0: none */
        uint64_t busy_ns[TDM_N_WORKERS];
        uint32_t slowness[TDM_N_WORKERS]; /* in ns for a row; 0: it does not tell */
        uint32_t n_relayed, n_rows[TDM_N_WORKERS];
        const char *numerics_id;
        unsigned seed;
        void (*spoil)(struct tdm_result *r, uint32_t n_vocab); /* what a bad worker makes of a result */
        bool spoil_bursts;                                     /* only of those that rows do not have */
        /* By world_clock: of a step, more for each row (0: the clock stands still), and more where there are several;
         * all time; the longest step. */
        uint64_t step_ns[N_WORLD_MODELS], row_ns[N_WORLD_MODELS], several_ns[N_WORLD_MODELS];
        uint64_t took_ns[N_WORLD_MODELS], longest_ns;
        uint64_t pass_ns;              /* of the step that was run last */
        uint32_t n_bad[TDM_N_WORKERS]; /* calls of tdm_fleet_bad_results() */
        unsigned late; /* of this many rows with a mask one finds that it has not come; 0: all find it */
        uint32_t n_late, n_masked;
        enum fault fault;
        uint32_t fault_model;                  /* the double does it there only */
        bool (*misses)(uint32_t position);     /* model 1 draws another token there; NULL: nowhere */
        bool is_sure;                          /* its log-probabilities say where it does */
        bool draft_kills, draft_breaks;        /* so do all steps of model 1 */
        uint32_t (*replay)(uint32_t position); /* the token at a position, whatever stands before it; NULL: see above */
};

struct client_job {
        struct tdm_job *job;
        uint32_t prompt[N_CTX];
        uint32_t n_prompt, max_tokens;
        uint64_t seed;
        uint32_t deadline_ms;
        bool penalty, score, cancelled, killer, breaker;
        const char *draft; /* "draft" is model 1, "self" model 0; NULL: none */
        uint32_t draft_max;
        const char *schema, *regex; /* what its text must follow */
        bool incomplete;
        char message[TDM_ERROR_MESSAGE_MAX];
        uint32_t got[N_CTX];
        float nll[N_CTX];
        float logprob[N_CTX];
        uint64_t text[N_CTX]; /* a hash of each token's */
        uint32_t n_got;
        struct tdm_job_picture pictures[MAX_PICTURES];
        uint32_t n_pictures;
        bool accepted, done;
        uint32_t told_position; /* in the queue */
        enum tdm_job_end end;
        int error;
        uint32_t arrival;
};

struct world {
        struct tdm_loop *loop;
        struct tdm_models *models;
        struct tdm_fleet fleet;
        struct tdm_scheduler *s;
        struct client_job jobs[MAX_JOBS];
        uint32_t n_jobs, n_arrived;
        bool away; /* workers may come back one after the other */
        unsigned seed;
};

extern uint64_t world_clock;
uint64_t world_now(void);

/* The token that the double draws behind ids. */
uint32_t world_next(const uint32_t *ids, uint32_t n, uint64_t seed, bool penalty, uint32_t n_vocab);
/* Whether the job has got a token that is not the one that the double draws. */
bool has_wrong_token(const struct client_job *c, uint32_t n_vocab);
void check_result(const struct client_job *c, uint32_t n_vocab);
static inline uint32_t pick(struct world *w, uint32_t n)
{
        return (uint32_t)rand_r(&w->seed) % n;
}
/* What a row of f->step is to the double: its token, or the id that the row of a picture has in the prompt. */
static inline uint32_t world_id(const struct tdm_fleet *f, const struct fake_step *s, uint32_t i)
{
        const float *hidden = s->model->activations ? (const float *)s->model->activations->base : NULL;
        size_t row = (size_t)s->slot * s->model->layout.limits.max_rows + i;

        if (!f->step->rows[i].picture)
                return f->step->rows[i].token;
        return (uint32_t)hidden[row * PICTURE_WIDTH] << 16 | (uint32_t)hidden[row * PICTURE_WIDTH + 1];
}
/* Of the models of a world that is opened: rows of their matrices for which the tokenizer has no piece. */
extern uint32_t world_rows_without_piece;
/* Of a world that is opened: pages for states, which one of the layers has then; 0: none has. */
extern uint32_t world_states;
void world_open(struct world *w, unsigned seed, uint32_t full_pages, uint32_t window_pages,
                const struct tdm_scheduler_config *config);
void world_close(struct world *w);
void turn(struct world *w);
void submit(struct world *w, struct client_job *c, uint32_t model, uid_t uid, enum tdm_job_priority priority,
            enum tdm_placement placement, uint32_t chunk);
void make_prompt(struct world *w, struct client_job *c, uint32_t n_prompt, uint32_t max_tokens);
struct fake_step *some_step(struct world *w);
void reset(struct world *w, const struct fake_step *guilty);
void become_ready(struct world *w);
void finish_step(struct world *w, struct fake_step *s);
/* As tdm_scheduler_config.open_draft; userdata is the world. */
int world_open_draft(void *userdata, const char *name, struct tdm_model **ret, struct tdm_error *err);
bool all_done(const struct world *w);
void arrive(struct world *w);

#endif
