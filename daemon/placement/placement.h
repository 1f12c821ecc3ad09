/* Placement: which worker runs which block of a step.
 *
 * A placement is a rule; a plan says for each block of one step which worker runs it. The scheduler asks for the plan
 * of each step, the fleet for the plans that it tries out. This module knows neither of them, and starts nothing. They
 * describe the workers and their load in struct tdm_placement_workers and struct tdm_placement_load.
 *
 *   plan.c     names; the plan of a placement; which placement "measured" is
 *   route.c    the next step of a model: where it may go now, and how much of the work
 *   measure.c  the trial that finds the cheapest placement of two devices that differ in bits
 *   outlook.c  the same again and again while jobs run: what new jobs take
 *   store.c    the results of trials, kept in a file
 *
 * Loop thread only. */
#ifndef TDM_DAEMON_PLACEMENT_PLACEMENT_H
#define TDM_DAEMON_PLACEMENT_PLACEMENT_H

#include "common/util.h"
#include "engine/step/step.h"

enum tdm_placement {
        /* None was asked for. A job then gets the daemon's; the daemon's is then as measured. */
        TDM_PLACEMENT_ANY,
        TDM_PLACEMENT_SPLIT, /* attention on the NPU worker, the rest on the GPU worker */
        TDM_PLACEMENT_NPU,   /* all blocks on that worker */
        TDM_PLACEMENT_GPU,
        TDM_N_ASKED_PLACEMENTS, /* jobs and the configuration can ask for those above */
        /* Only for workers that give the same bits. Each step runs wholly on one of them. */
        TDM_PLACEMENT_STANDBY = TDM_N_ASKED_PLACEMENTS, /* they share CPUs: one of them runs, the other is in reserve */
        TDM_PLACEMENT_BALANCED,                         /* they do not: both run, and sequences are shared out */
        /* Only found by measuring, for workers that differ in bits. */
        TDM_PLACEMENT_FRONT_QUARTER, /* the first quarter of the layers on the NPU worker, the rest on the GPU worker */
        TDM_PLACEMENT_FRONT_HALF,    /* the first half */
        TDM_PLACEMENT_SPLIT_HALF,    /* attention of every second layer on the NPU worker, the rest on the GPU worker */
        TDM_N_PLACEMENTS,
};

const char *tdm_placement_name(enum tdm_placement placement); /* "" of TDM_PLACEMENT_ANY, else "split", … */
int tdm_placement_from_name(const char *name);                /* of those that can be asked for; -EINVAL */
const char *tdm_placement_text(enum tdm_placement placement); /* as status and log say it: "gpu alone" */

/* The workers as the fleet sees them now. */
struct tdm_placement_workers {
        struct {
                bool usable;   /* neither off nor quarantined */
                bool given_up; /* off, or quarantined and not expected back soon */
                bool up;       /* steps with blocks on it can be submitted now */
        } of[TDM_N_WORKERS];
        bool equal_bits;  /* both devices give the same bits */
        bool no_link;     /* the workers have no rings to each other for a while: no step may use both */
        bool shares_cpus; /* both are host devices, and a CPU may be used by both */
        bool degraded;    /* a worker is quarantined */
};

/* The placement that "measured" means. found: the result of a model's trial, which workers with equal bits need not. */
enum tdm_placement tdm_placement_measured(const struct tdm_placement_workers *workers, enum tdm_placement found);

/* Whether a placement has a plan of its own that does not follow the load, so that a job can keep it. */
bool tdm_placement_is_fixed(enum tdm_placement placement);
/* Whether the plan of a fixed placement has blocks on that worker, when both workers are usable. */
bool tdm_placement_uses(enum tdm_placement placement, enum tdm_worker_index worker);

/* Fills plan [tdm_model_n_blocks(hp)], with an enum tdm_worker_index for each block. TDM_PLACEMENT_ANY gives the split,
 * or all blocks to the only usable worker. *ret_degraded (may be NULL): a worker that should run blocks is missing.
 * -EHOSTDOWN: a worker that the placement needs is given up; -EINVAL: the placement has no plan of its own. */
int tdm_placement_plan(const struct tdm_placement_workers *workers, const struct tdm_hparams *hp,
                       enum tdm_placement placement, uint8_t *plan, bool *ret_degraded);

/* ---- the next step (route.c) ---- */

/* How fast the workers were with a model lately. All zero: nothing is known. */
struct tdm_pace {
        struct {
                double rows_per_ns; /* 0: not known */
                uint64_t measured_ns;
        } now[TDM_N_WORKERS][2]; /* in steps of few rows, of many rows */
        double best[TDM_N_WORKERS][2];
        bool prefers_npu;  /* TDM_PLACEMENT_STANDBY: steps go there */
        uint32_t quota;    /* TDM_PLACEMENT_BALANCED: sequences that generate on worker 0 … */
        uint32_t quota_of; /* … of these many */
};

/* A model, as far as its next step is concerned. */
struct tdm_placement_model {
        const struct tdm_hparams *hparams;
        enum tdm_placement asked;    /* by job or configuration */
        enum tdm_placement measured; /* of tdm_placement_measured() */
        struct tdm_pace *pace;
};

struct tdm_placement_load {
        struct tdm_placement_workers workers;
        uint32_t n_steps[TDM_N_WORKERS]; /* in flight, with blocks on that worker */
        uint32_t max_steps;              /* the configuration's steps-in-flight; 0: what the placement needs */
};

/* A way for a step. */
struct tdm_route {
        uint8_t plan[TDM_MAX_BLOCKS + 1];
        int error;     /* a negative errno of tdm_placement_plan(): no step can ever go this way */
        bool degraded; /* a worker that should run blocks is missing */
        bool whole;    /* all blocks run on `worker`; tell tdm_pace_note() how long */
        bool shared;   /* whole, and the other worker has its share: ask tdm_placement_share() */
        enum tdm_worker_index worker;
        uint32_t width; /* steps of the class that share its sequences; 0: tdm_placement_share() says how many */
};

/* Where the model's next step can go now, best first: 0, 1 or 2 routes. */
uint32_t tdm_placement_choose(const struct tdm_placement_model *model, const struct tdm_placement_load *load,
                              struct tdm_route ret[2]);
/* A step of n_rows rows, the only one on its worker, kept that worker busy for busy_ns. share_read: of the weights that
 * it has read (tdm_recipe_share_read()). */
void tdm_pace_note(struct tdm_pace *pace, enum tdm_worker_index worker, uint32_t n_rows, double share_read,
                   uint64_t busy_ns);

struct tdm_placement_work {
        uint32_t n_decode;    /* sequences that generate */
        uint64_t prompt_rows; /* rows of prompts */
        uint32_t max_rows;    /* of a step */
        bool may_relay;       /* a prompt may be in two steps at once, one on each worker */
};

/* How much of the work a step on this route may have. */
struct tdm_share {
        uint32_t n_decode;
        uint32_t prompt_rows;
        uint32_t chunk_rows; /* of one prompt, so that the next chunk can follow on the other worker */
        bool relay;
};
void tdm_placement_share(struct tdm_pace *pace, const struct tdm_route *route, const struct tdm_placement_work *work,
                         struct tdm_share *ret);

/* ---- trials (measure.c) ----
 *
 * The caller runs the steps that tdm_placement_trial_next() names, one after the other, and says how long each took,
 * until tdm_placement_trial_took() says that this was the last one. All zero: a trial that has not begun. */
#define TDM_N_TRIAL_PLACEMENTS 3u /* split, npu, gpu */
struct tdm_placement_trial {
        unsigned choice, shape, n; /* the step: placement, one row or many, how often before */
        unsigned n_losses;
        uint32_t many_rows; /* of a step of many rows */
        uint64_t spent_ns;  /* on this shape */
        uint64_t best_ns[TDM_N_TRIAL_PLACEMENTS][2];
};

/* The next step. max_rows: of a step of this model. */
enum tdm_placement tdm_placement_trial_next(struct tdm_placement_trial *trial, uint32_t max_rows, uint32_t *ret_n_rows);
/* The step took ns. False: it was the last one. */
bool tdm_placement_trial_took(struct tdm_placement_trial *trial, uint64_t ns);
/* A worker was lost in the step, or could not run it. False: the trial has failed. */
bool tdm_placement_trial_lost(struct tdm_placement_trial *trial);
/* The cheapest placement, after the last step. */
enum tdm_placement tdm_placement_trial_result(const struct tdm_placement_trial *trial);
/* The times as one line for the log. */
void tdm_placement_trial_describe(const struct tdm_placement_trial *trial, char *text, size_t size);

/* ---- the outlook (outlook.c) ----
 *
 * What the placements of a model cost now, on two devices that differ in bits. The caller runs probes: steps that
 * belong to no job, with nothing else of the model in flight. A round probes each placement with a step of one row
 * and with many rows. A round follows when some time has passed, or at once when the steps of jobs have become slower
 * or faster. Probes take at most a tenth of the time while a round lasts (a quarter once a change was seen), and a
 * fiftieth over many rounds. All zero: nothing is known, and a round is due. */
#define TDM_N_CANDIDATES 6u
#define TDM_N_TIMES 12u
#define TDM_PROBE_TABLES 2u /* page tables that its steps need */
struct tdm_probe {
        unsigned candidate; /* index in struct tdm_outlook */
        bool many;
        enum tdm_placement placement;
        uint32_t n_steps, n_rows; /* steps at once, and the rows of each */
};

struct tdm_outlook {
        struct tdm_candidate {
                /* With one row, with many: the last times, newest first; 0: not known. The shortest counts. */
                uint64_t took_ns[2][TDM_N_TIMES];
                double times;    /* as long as with one row it takes with many, as last probed; 0: not known */
                bool old[2];     /* jobs' steps have changed since: the next time replaces all of them */
                uint64_t at_ns;  /* when it was probed last */
                unsigned n_lost; /* probes that killed a worker or failed */
        } of[TDM_N_CANDIDATES];
        enum tdm_placement found; /* the cheapest for a job that is alone; TDM_PLACEMENT_ANY: not known */
        uint32_t many_rows;
        unsigned at, n_rounds;
        unsigned n_again; /* urgent rounds one after the other */
        bool again;       /* the round has seen a change: another one follows at once */
        bool urgent;      /* so has the one before it, or jobs' steps have */
        bool learned;     /* the first rounds of all are over */
        uint64_t round_ns,
                rounds_ns; /* what urgent rounds, and the one after them, took so far; what the last ones took */
        uint64_t due_ns, alarm_ns; /* the last urgent round, or what caused it */
        struct {
                double now, base; /* ns for a row of a job's step: lately, and for longer */
        } pace[TDM_N_PLACEMENTS];
};

/* The next probe. idle: no job waits, so it may take long. pipelined: a placement that uses both workers has two steps
 * in flight. False: the round is over; the outlook has a new due time, and perhaps a new placement that it found. */
bool tdm_outlook_next(struct tdm_outlook *outlook, uint32_t max_rows, bool idle, bool pipelined, uint64_t now_ns,
                      struct tdm_probe *ret);
/* How long the probe took, and how long jobs waited for it before. */
void tdm_outlook_took(struct tdm_outlook *outlook, const struct tdm_probe *probe, uint64_t ns, uint64_t held_ns,
                      uint64_t now_ns);
/* It could not be run, or is void; lost: it killed a worker, or failed. */
void tdm_outlook_void(struct tdm_outlook *outlook, const struct tdm_probe *probe, bool lost, uint64_t now_ns);
/* How long a step of jobs with this placement took. */
void tdm_outlook_note_step(struct tdm_outlook *outlook, enum tdm_placement placement, uint32_t n_rows, uint64_t ns,
                           uint64_t now_ns);

/* The placement for a new sequence, beside n_on [TDM_N_PLACEMENTS] sequences that have their placement already. apart:
 * the workers do not take each other's time. TDM_PLACEMENT_ANY: nothing is known. */
enum tdm_placement tdm_outlook_choose(const struct tdm_outlook *outlook, const uint32_t *n_on, bool apart,
                                      uint64_t now_ns);
/* The costs as one line for the log. */
void tdm_outlook_describe(const struct tdm_outlook *outlook, char *text, size_t size);

/* ---- results of trials, over the daemon's lives (store.c) ---- */
#define TDM_PLACEMENT_IDENTITY 384u /* bytes: of a model and two devices, as text without tab and newline */
struct tdm_placement_store;

/* Holds at most max_entries; a further one replaces the oldest. Reads the file. */
int tdm_placement_store_new(struct tdm_placement_store **ret, unsigned max_entries);
void tdm_placement_store_destroy(struct tdm_placement_store *store);
/* TDM_PLACEMENT_ANY: it is not known. */
enum tdm_placement tdm_placement_store_find(const struct tdm_placement_store *store, const char *identity);
/* In place of what it has of this identity. */
void tdm_placement_store_add(struct tdm_placement_store *store, const char *identity, enum tdm_placement placement);
/* Writes the file. A failure is logged: the trials are then run again at the next start. */
void tdm_placement_store_save(const struct tdm_placement_store *store);
unsigned tdm_placement_store_n_added(
        const struct tdm_placement_store *store); /* by tdm_placement_store_add() and from the file */

#endif
