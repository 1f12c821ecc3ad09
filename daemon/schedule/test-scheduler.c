/* The scheduler against a fleet that is a double: it checks every step with the workers' own reader, keeps a paged
 * cache as a device would, and chooses tokens by a function of everything a sequence has seen. So a wrong page, a page
 * freed too early, a row issued twice or lost, or a wrong position changes a token, and every job's tokens are known in
 * advance. Schedules are random: chunks, batches, arrivals, cancels, pauses, losses at any moment, jobs that kill their
 * worker; a step that follows another may be done before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include "common/log.h"
#include "common/sigbus.h"
#include "daemon/models/private.h"
#include "daemon/schedule/private.h"

#define MAX_JOBS 24
#define N_CTX 320u
#define KILLER 7u  /* a prompt with this token kills every worker that runs it */
#define BREAKER 8u /* a step with this token fails, its device stays well */

/* ---- the fake fleet ---- */

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
        bool marks;
        bool executed;
        bool kills, breaks;
};

struct tdm_fleet {
        bool ready;
        uint32_t epoch;
        struct tdm_model *models[2];
        struct cell *cache[2][TDM_KV_GROUPS]; /* [pages * 32] */
        struct tdm_step *step;
        struct fake_step steps[8];
        uint32_t n_submitted, n_max_seqs;
        bool down[TDM_N_WORKERS], away[TDM_N_WORKERS];
        enum tdm_placement measured;
        uint64_t busy_ns[TDM_N_WORKERS];
        uint32_t slowness[TDM_N_WORKERS]; /* in ns for a row; 0: it does not tell */
        uint32_t n_relayed, n_rows[TDM_N_WORKERS];
        const char *numerics_id;
        unsigned seed;
};

static uint64_t mix(uint64_t a, uint64_t b)
{
        a ^= b + UINT64_C(0x9e3779b97f4a7c15) + (a << 6) + (a >> 2);
        a *= UINT64_C(0xff51afd7ed558ccd);
        return a ^ (a >> 33);
}

static uint32_t choose(uint64_t hash, uint32_t position, uint64_t seed, const uint32_t *history, uint32_t n,
                       uint32_t n_vocab)
{
        uint64_t h = mix(mix(hash, position), seed);

        for (uint32_t i = 0; i < n; i++)
                h = mix(h, history[i]);
        return 300 + (uint32_t)(h % (n_vocab - 300)); /* no control tokens, no killers */
}

static float score_of(uint64_t hash, uint32_t target)
{
        return -(float)(mix(hash, target) % 1000) / 100.0f;
}

bool tdm_fleet_is_ready(const struct tdm_fleet *f)
{
        return f->ready;
}

uint32_t tdm_fleet_epoch(const struct tdm_fleet *f)
{
        return f->epoch;
}

int tdm_fleet_add_model(struct tdm_fleet *f, const struct tdm_fleet_model *model, struct tdm_error *err)
{
        return 0;
}

void tdm_fleet_weights_sealed(struct tdm_fleet *f, uint32_t model_id, unsigned n_chunks)
{
}

void tdm_fleet_remove_model(struct tdm_fleet *f, uint32_t model_id)
{
}

void tdm_fleet_worker_status(struct tdm_fleet *f, enum tdm_worker_index worker, struct tdm_worker_status *ret)
{
        *ret = (struct tdm_worker_status){ .numerics_id = f->numerics_id ?: "fake" };
}

enum tdm_placement tdm_fleet_measured(struct tdm_fleet *f, uint32_t model_id)
{
        if (f->down[TDM_WORKER_GPU])
                return TDM_PLACEMENT_NPU;
        return f->down[TDM_WORKER_NPU] ? TDM_PLACEMENT_GPU : f->measured;
}

bool tdm_fleet_is_degraded(const struct tdm_fleet *f)
{
        return f->down[0] || f->down[1];
}

bool tdm_fleet_worker_is_up(const struct tdm_fleet *f, enum tdm_worker_index worker)
{
        return f->ready && !f->down[worker] && !f->away[worker];
}

void tdm_fleet_placement_workers(const struct tdm_fleet *f, struct tdm_placement_workers *ret)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                ret->of[i].usable = !f->down[i];
                ret->of[i].given_up = f->down[i];
                ret->of[i].up = tdm_fleet_worker_is_up(f, (enum tdm_worker_index)i);
        }
        ret->equal_bits = true;
        ret->shares_cpus = f->measured != TDM_PLACEMENT_BALANCED;
        ret->degraded = tdm_fleet_is_degraded(f);
}

uint64_t tdm_fleet_busy_ns(const struct tdm_fleet *f, enum tdm_worker_index worker)
{
        return f->busy_ns[worker];
}

static uint32_t model_index(const struct tdm_fleet *f, uint32_t model_id)
{
        return f->models[0]->id == model_id ? 0 : 1;
}

static struct fake_step *find_step(struct tdm_fleet *f, uint64_t step_id)
{
        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(f->steps); i++)
                if (f->steps[i].used && f->steps[i].step_id == step_id)
                        return &f->steps[i];
        return NULL;
}

static struct fake_step *find_follower(struct tdm_fleet *f, uint64_t step_id)
{
        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(f->steps); i++)
                if (f->steps[i].used && f->steps[i].after == step_id)
                        return &f->steps[i];
        return NULL;
}

int tdm_fleet_submit(struct tdm_fleet *f, uint32_t model_id, uint32_t slot)
{
        struct tdm_model *model = f->models[model_index(f, model_id)];
        const struct tdm_step_head *head = tdm_steps_head(model->steps->base, &model->layout, slot);
        struct fake_step *s = f->steps;
        struct tdm_error err;

        assert_true(f->ready);
        while (s->used)
                s++;
        assert_true(s < f->steps + TDM_ARRAY_SIZE(f->steps));
        if (tdm_step_read(f->step, model->steps->base, &model->layout, slot, head->step_id, f->epoch,
                          tdm_model_hparams(model), &model->geometry, &err) != 0)
                fail_msg("a worker would refuse the step: %s", err.message);
        *s = (struct fake_step){ .used = true,
                                 .slot = slot,
                                 .step_id = head->step_id,
                                 .model = model,
                                 .n_seqs = head->n_seqs,
                                 .after = head->after_step,
                                 .marks = head->marks,
                                 .worker = head->plan[0] };
        for (uint32_t i = 0; i < tdm_model_n_blocks(tdm_model_hparams(model)); i++) {
                if (!tdm_fleet_worker_is_up(f, (enum tdm_worker_index)head->plan[i]))
                        fail_msg("a step for a worker that is away");
                if (head->plan[i] != head->plan[0])
                        s->worker = TDM_N_WORKERS;
        }
        if (s->after) {
                const struct fake_step *before = find_step(f, s->after);

                f->n_relayed++;
                if (!before || before->slot != head->after_slot || before->model != model || !before->marks ||
                    before->worker == s->worker || s->worker == TDM_N_WORKERS)
                        fail_msg("step %llu cannot follow step %llu", (unsigned long long)s->step_id,
                                 (unsigned long long)s->after);
        }
        if (s->worker < TDM_N_WORKERS)
                f->n_rows[s->worker] += head->n_rows;
        for (uint32_t i = 0; i < head->n_rows; i++) {
                s->kills = s->kills || f->step->rows[i].token == KILLER;
                s->breaks = s->breaks || f->step->rows[i].token == BREAKER;
        }
        f->n_submitted++;
        f->n_max_seqs = TDM_MAX(f->n_max_seqs, head->n_seqs);
        return 0;
}

static struct cell *cell(struct tdm_fleet *f, uint32_t m, enum tdm_kv_group group, uint32_t seq, uint32_t position)
{
        uint32_t page = f->step->tables[group][seq * f->step->table_entries + position / TDM_KV_PAGE_TOKENS];

        assert_true(page < f->models[m]->geometry.n_pages[group]);
        return &f->cache[m][group][page * TDM_KV_PAGE_TOKENS + position % TDM_KV_PAGE_TOKENS];
}

/* Runs the first n_rows rows; with results when that is all of them. */
static void execute(struct tdm_fleet *f, const struct fake_step *s, uint32_t n_rows)
{
        struct tdm_model *model = s->model;
        uint32_t m = model_index(f, model->id);
        const struct tdm_hparams *hp = tdm_model_hparams(model);
        struct tdm_result *results;
        struct tdm_error err;

        assert_int_equal(tdm_step_read(f->step, model->steps->base, &model->layout, s->slot, s->step_id, f->epoch, hp,
                                       &model->geometry, &err),
                         0);
        results = (struct tdm_result *)(model->results->base + s->slot * model->layout.results_slot_bytes);
        for (uint32_t i = 0; i < TDM_MIN(n_rows, f->step->head.n_rows); i++) {
                const struct tdm_step_row *row = &f->step->rows[i];
                uint32_t first = tdm_window_first(hp, TDM_KV_WINDOW, row->position);
                uint64_t hash = row->position ? cell(f, m, TDM_KV_FULL, row->seq, row->position - 1)->hash : 1;

                /* All keys that a window layer sees have to be there, and be this sequence's. */
                for (uint32_t p = first; p < row->position; p++) {
                        struct cell *w = cell(f, m, TDM_KV_WINDOW, row->seq, p),
                                    *k = cell(f, m, TDM_KV_FULL, row->seq, p);

                        if (w->position != p || k->position != p || w->hash != k->hash)
                                hash = mix(hash, UINT64_C(0xdead));
                }
                hash = mix(hash, row->token);
                for (int g = 0; g < TDM_KV_GROUPS; g++)
                        *cell(f, m, (enum tdm_kv_group)g, row->seq, row->position) =
                                (struct cell){ row->position, row->token, hash };
                if (row->logits != UINT32_MAX) {
                        const struct tdm_step_logits *l = &f->step->logits[row->logits];
                        struct tdm_result *r = &results[row->logits];

                        r->token = choose(hash, row->position + 1, l->sampling.seed,
                                          f->step->history + l->history_offset, l->n_history, hp->n_vocab);
                        r->logprob = -1;
                        r->target_logprob = l->target == UINT32_MAX ? 0 : score_of(hash, l->target);
                        r->n_top = l->sampling.n_top;
                        for (uint32_t t = 0; t < r->n_top; t++)
                                r->top[t] = (struct tdm_top){ t, -1 };
                }
        }
}

/* ---- jobs as a client sees them ---- */

struct client_job {
        struct tdm_job *job;
        uint32_t prompt[N_CTX];
        uint32_t n_prompt, max_tokens;
        uint64_t seed;
        uint32_t deadline_ms;
        bool penalty, score, cancelled, killer, breaker;
        uint32_t got[N_CTX];
        float nll[N_CTX];
        uint32_t n_got;
        bool accepted, done;
        enum tdm_job_end end;
        int error;
        uint32_t arrival;
};

static void on_accepted(struct tdm_job *job, void *userdata)
{
        struct client_job *c = userdata;

        assert_false(c->accepted);
        c->accepted = true;
        assert_int_equal(job->prompt_tokens, c->n_prompt);
}

static void on_progress(struct tdm_job *job, void *userdata)
{
        struct client_job *c = userdata;

        assert_true(c->accepted && !c->done);
        assert_true(job->state != TDM_JOB_DONE);
}

static void on_token(struct tdm_job *job, uint32_t index, const struct tdm_job_token *token, void *userdata)
{
        struct client_job *c = userdata;

        assert_false(c->done);
        assert_int_equal(index, c->n_got);
        c->got[c->n_got++] = token->id;
}

static void on_scores(struct tdm_job *job, uint32_t first, const struct tdm_result *results, uint32_t n, void *userdata)
{
        struct client_job *c = userdata;

        assert_false(c->done);
        assert_int_equal(first, c->n_got);
        for (uint32_t i = 0; i < n; i++)
                c->nll[c->n_got++] = -results[i].target_logprob;
}

static void on_done(struct tdm_job *job, void *userdata)
{
        struct client_job *c = userdata;

        assert_false(c->done);
        c->done = true;
        c->end = job->end;
        c->error = job->error.code;
}

static const struct tdm_job_events events = { on_accepted, on_progress, on_token, on_scores, on_done };

static void check_result(const struct client_job *c, uint32_t n_vocab)
{
        uint32_t ids[2 * N_CTX], n = c->n_prompt;
        uint64_t hash = 1;

        assert_true(c->done);
        memcpy(ids, c->prompt, n * sizeof(*ids));
        if (c->killer || c->breaker) {
                assert_true(c->end == TDM_JOB_END_ERROR || c->cancelled);
                if (!c->cancelled)
                        assert_int_equal(c->error, TDM_E_DEVICE_FAULT);
                return;
        }
        if (!c->cancelled) {
                if (c->end == TDM_JOB_END_ERROR)
                        fail_msg("a job ended with %s", tdm_error_name(c->error));
                assert_int_equal(c->n_got, c->score ? c->n_prompt : c->max_tokens);
        }
        for (uint32_t i = 0; i < n; i++) {
                hash = mix(hash, ids[i]);
                if (c->score) {
                        float want = i + 1 < n ? -score_of(hash, ids[i + 1]) : 0;

                        if (i < c->n_got && i + 1 < n)
                                assert_true(c->nll[i] == want);
                } else if (i + 1 == n && n - c->n_prompt < c->n_got) {
                        uint32_t n_history = c->penalty ? TDM_MIN(n, 64u) : 0;
                        uint32_t want = choose(hash, i + 1, c->seed, ids + n - n_history, n_history, n_vocab);

                        assert_int_equal(c->got[n - c->n_prompt], want);
                        ids[n++] = want;
                }
        }
}

/* ---- a world: loop, models, fleet, scheduler ---- */

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

static uint32_t pick(struct world *w, uint32_t n)
{
        return (uint32_t)rand_r(&w->seed) % n;
}

static struct tdm_model *make_model(struct tdm_models *models, uint32_t id, uint32_t full_pages, uint32_t window_pages,
                                    uint32_t max_rows, uint32_t max_seqs)
{
        static const char path[] = "models/sprout.gguf";
        struct tdm_model *m = calloc(1, sizeof(*m));
        struct tdm_steps_limits limits = { .max_rows = max_rows,
                                           .max_seqs = max_seqs,
                                           .max_logits = TDM_MAX(max_seqs, 16u),
                                           .n_tables = max_seqs,
                                           .table_entries = N_CTX / TDM_KV_PAGE_TOKENS };
        struct tdm_hparams *hp;
        struct tdm_error err;

        m->n_refs = 1;
        m->models = models;
        m->id = id;
        m->name = strdup("fake");
        m->path = strdup(path);
        m->fd = tdm_open_model_file(path);
        assert_true(m->fd >= 0);
        assert_int_equal(tdm_file_identify(m->fd, &m->identity), 0);
        m->metadata = calloc(1, sizeof(*m->metadata));
        assert_int_equal(tdm_gguf_open(&m->metadata->gguf, m->fd, path, &err), 0);
        assert_int_equal(tdm_tokenizer_new(&m->metadata->tokenizer, m->metadata->gguf, &err), 0);
        hp = &m->metadata->description.hparams;
        *hp = (struct tdm_hparams){ .n_layers = 6,
                                    .d_model = 64,
                                    .n_heads = 2,
                                    .n_kv_heads = 1,
                                    .head_dim = 32,
                                    .d_ff = 64,
                                    .n_vocab = tdm_tokenizer_n_vocab(m->metadata->tokenizer),
                                    .n_ctx = N_CTX,
                                    .window = 40 };
        tdm_hparams_all_layers(hp);
        hp->layers[5].window = 0;
        assert_int_equal(tdm_kv_geometry_init(&m->geometry, hp, TDM_KV_F16, full_pages, window_pages), 0);
        assert_int_equal(tdm_steps_limits_check(&limits, &err), 0);
        tdm_steps_layout(&limits, &m->layout);
        assert_int_equal(tdm_segment_create(&m->steps, "steps", m->layout.size_bytes), 0);
        assert_int_equal(tdm_segment_create(&m->results, "results", m->layout.results_bytes), 0);
        assert_int_equal(tdm_pages_new(&m->pages, &m->geometry, NULL), 0);
        if (!models->no_prefix_cache)
                assert_int_equal(tdm_prefix_new(&m->prefix, m->pages, hp, &m->geometry), 0);
        tdm_steps_format(m->steps->base, &m->layout);
        m->state = TDM_MODEL_READY;
        return m;
}

static void world_open(struct world *w, unsigned seed, uint32_t full_pages, uint32_t window_pages,
                       const struct tdm_scheduler_config *config)
{
        struct tdm_models_config mc = { .max_rows = config->max_rows,
                                        .max_sequences = config->max_sequences,
                                        .no_prefix_cache = seed % 4 == 0 };
        struct tdm_error err;

        *w = (struct world){ .seed = seed };
        assert_int_equal(tdm_loop_new(&w->loop, &err), 0);
        assert_int_equal(tdm_models_new(&w->models, w->loop, &mc, &err), 0);
        assert_int_equal(tdm_scheduler_new(&w->s, w->loop, config), 0);
        w->fleet.ready = true;
        w->fleet.epoch = 1;
        for (uint32_t i = 0; i < 2; i++) {
                w->fleet.models[i] =
                        make_model(w->models, i + 1, full_pages, window_pages, config->max_rows, config->max_sequences);
                w->fleet.cache[i][TDM_KV_FULL] = calloc(full_pages * TDM_KV_PAGE_TOKENS, sizeof(struct cell));
                w->fleet.cache[i][TDM_KV_WINDOW] = calloc(window_pages * TDM_KV_PAGE_TOKENS, sizeof(struct cell));
                tdm_scheduler_on_model_changed(w->s, w->fleet.models[i]);
        }
        assert_int_equal(tdm_step_new(&w->fleet.step, &w->fleet.models[0]->layout.limits), 0);
        tdm_scheduler_set_fleet(w->s, &w->fleet);
}

static void world_close(struct world *w)
{
        for (uint32_t i = 0; i < w->n_arrived; i++)
                tdm_job_unref(w->jobs[i].job);
        for (uint32_t i = 0; i < 2; i++) {
                struct tdm_model *m = w->fleet.models[i];

                if (m->pages) {
                        for (int g = 0; g < TDM_KV_GROUPS; g++) {
                                assert_int_equal(tdm_pages_used(m->pages, (enum tdm_kv_group)g), 0);
                                assert_int_equal(tdm_pages_reserved(m->pages, (enum tdm_kv_group)g), 0);
                        }
                }
                assert_int_equal(m->n_jobs, 0);
                assert_int_equal(m->n_steps, 0);
        }
        assert_true(tdm_scheduler_is_idle(w->s));
        assert_int_equal(w->s->n_users, 0);
        assert_int_equal(w->s->pending_bytes, 0);
        tdm_scheduler_destroy(w->s);
        for (uint32_t i = 0; i < 2; i++) {
                tdm_model_leave(w->fleet.models[i]);
                tdm_model_unref(w->fleet.models[i]);
                free(w->fleet.cache[i][0]);
                free(w->fleet.cache[i][1]);
        }
        tdm_step_destroy(w->fleet.step);
        tdm_models_destroy(w->models);
        tdm_loop_destroy(w->loop);
}

static void turn(struct world *w)
{
        assert_true(tdm_loop_turn(w->loop, 0) >= 0);
}

static void submit(struct world *w, struct client_job *c, uint32_t model, uid_t uid, enum tdm_job_priority priority,
                   enum tdm_placement placement, uint32_t chunk)
{
        struct tdm_job_params p = {
                .kind = c->score ? TDM_JOB_SCORE : TDM_JOB_GENERATE,
                .uid = uid,
                .ids = c->prompt,
                .n_ids = c->n_prompt,
                .options = { .priority = priority,
                             .placement = placement,
                             .repeat_penalty = c->penalty ? 1.5f : 1,
                             .seed = c->seed,
                             .max_tokens = c->max_tokens,
                             .prefill_chunk = chunk,
                             .deadline_ms = c->deadline_ms,
                             .ignore_end = true },
                .n_top = c->score ? 2 : 0,
        };
        struct tdm_error err = { 0 };

        if (tdm_job_new(&c->job, &p, &err) != 0)
                fail_msg("%s", err.message);
        c->job->events = &events;
        c->job->userdata = c;
        if (tdm_scheduler_submit(w->s, c->job, w->fleet.models[model], &err) != 0)
                fail_msg("%s", err.message);
}

static void make_prompt(struct world *w, struct client_job *c, uint32_t n_prompt, uint32_t max_tokens)
{
        *c = (struct client_job){ .n_prompt = n_prompt, .max_tokens = max_tokens, .seed = w->seed };
        for (uint32_t i = 0; i < n_prompt; i++)
                c->prompt[i] = 300 + pick(w, 1000);
}

static struct fake_step *some_step(struct world *w)
{
        uint32_t at = pick(w, TDM_ARRAY_SIZE(w->fleet.steps));

        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(w->fleet.steps); i++) {
                struct fake_step *s = &w->fleet.steps[(at + i) % TDM_ARRAY_SIZE(w->fleet.steps)];

                if (s->used)
                        return s;
        }
        return NULL;
}

static void reset(struct world *w, const struct fake_step *guilty)
{
        struct fake_step copy = guilty ? *guilty : (struct fake_step){ 0 };

        /* Whatever was in flight has got anywhere. */
        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(w->fleet.steps); i++)
                if (w->fleet.steps[i].used)
                        execute(&w->fleet, &w->fleet.steps[i], pick(w, 40));
        memset(w->fleet.steps, 0, sizeof(w->fleet.steps));
        w->fleet.ready = false;
        w->fleet.epoch++;
        tdm_scheduler_on_reset(w->s, "killed in a test", copy.model ? copy.model->id : 0, copy.slot, copy.step_id);
}

static void become_ready(struct world *w)
{
        bool either = w->fleet.measured == TDM_PLACEMENT_EITHER || w->fleet.measured == TDM_PLACEMENT_BALANCED;

        /* The one that was lost may come later. */
        w->fleet.away[0] = either && w->away && pick(w, 3) == 0;
        w->fleet.away[1] = either && w->away && !w->fleet.away[0] && pick(w, 3) == 0;
        w->fleet.ready = true;
        tdm_scheduler_on_fleet_ready(w->s);
        turn(w);
}

/* All its rows, once, behind those that it follows; so it may be told to be done before them. */
static void run_step(struct world *w, struct fake_step *s)
{
        struct fake_step *before = s->after ? find_step(&w->fleet, s->after) : NULL;

        if (s->executed)
                return;
        if (before)
                run_step(w, before);
        execute(&w->fleet, s, UINT32_MAX);
        s->executed = true;
        if (s->worker < TDM_N_WORKERS)
                w->fleet.busy_ns[s->worker] +=
                        (uint64_t)w->fleet.slowness[s->worker] * (8 + w->fleet.step->head.n_rows);
}

static void finish_step(struct world *w, struct fake_step *s)
{
        struct fake_step copy = *s;
        bool followed;

        if (s->kills) {
                reset(w, s);
                return;
        }
        if (s->breaks) {
                struct tdm_error err;

                tdm_error_set(&err, TDM_E_DEVICE_FAULT, "a test's reason");
                s->used = false;
                followed = find_follower(&w->fleet, copy.step_id);
                tdm_scheduler_on_step_failed(w->s, copy.model->id, copy.slot, copy.step_id, &err);
                if (followed)
                        reset(w, NULL);
                return;
        }
        run_step(w, s);
        s->used = false;
        tdm_scheduler_on_step_done(w->s, copy.model->id, copy.slot, copy.step_id);
}

static bool all_done(const struct world *w)
{
        for (uint32_t i = 0; i < w->n_jobs; i++)
                if (i >= w->n_arrived || !w->jobs[i].done)
                        return false;
        return true;
}

static void arrive(struct world *w)
{
        struct client_job *c = &w->jobs[w->n_arrived++];
        enum tdm_placement placement =
                pick(w, 4) ? TDM_PLACEMENT_ANY : (enum tdm_placement)pick(w, TDM_N_ASKED_PLACEMENTS);

        submit(w, c, pick(w, 5) == 0, 1000 + (pick(w, 4) == 0), pick(w, 3) ? TDM_JOB_INTERACTIVE : TDM_JOB_BACKGROUND,
               placement, pick(w, 3) ? 0 : 1 + pick(w, 9));
}

static void come_back(struct world *w)
{
        w->fleet.away[0] = w->fleet.away[1] = false;
        tdm_scheduler_on_fleet_ready(w->s);
}

/* One thing that may happen. */
static void happen(struct world *w, bool losses)
{
        struct fake_step *step = some_step(w);
        struct client_job *c;

        switch (pick(w, 16)) {
        case 0:
                if (w->n_arrived < w->n_jobs)
                        arrive(w);
                break;
        case 1:
                c = w->n_arrived ? &w->jobs[pick(w, w->n_arrived)] : NULL;
                if (c && !c->done && pick(w, 12) == 0) {
                        c->cancelled = true;
                        tdm_scheduler_cancel(w->s, c->job, NULL);
                }
                break;
        case 2:
                c = w->n_arrived ? &w->jobs[pick(w, w->n_arrived)] : NULL;
                if (c && !c->done) {
                        c->job->paused = !c->job->paused;
                        tdm_scheduler_kick(w->s);
                }
                break;
        case 3:
                if (losses && w->fleet.ready && pick(w, 3) == 0)
                        reset(w, NULL);
                break;
        default:
                if (!w->fleet.ready)
                        become_ready(w);
                else if ((w->fleet.away[0] || w->fleet.away[1]) && (!step || pick(w, 4) == 0))
                        come_back(w);
                else if (step)
                        finish_step(w, step);
                else if (w->n_arrived < w->n_jobs)
                        arrive(w);
        }
        turn(w);
}

static uint32_t n_hits, n_evictions; /* over all random runs */

/* How many steps followed another. */
static uint32_t run_random(unsigned seed, bool losses, bool culprits)
{
        struct tdm_scheduler_stats stats;
        struct world w;
        unsigned draw = seed;
        uint32_t n_relayed, max_rows = 8 + (uint32_t)rand_r(&draw) % 40, max_seqs = 1 + (uint32_t)rand_r(&draw) % 8;
        struct tdm_scheduler_config config = {
                .max_jobs = MAX_JOBS,
                .max_jobs_per_uid = MAX_JOBS,
                .max_pending_bytes = 1 << 20,
                .max_rows = max_rows,
                .prefill_rows = 1 + (uint32_t)rand_r(&draw) % max_rows,
                .max_sequences = max_seqs,
                .steps_in_flight = (uint32_t)rand_r(&draw) % 5,
                .no_relay = (uint32_t)rand_r(&draw) % 4 == 0,
        };
        static const enum tdm_placement kinds[] = { TDM_PLACEMENT_SPLIT,    TDM_PLACEMENT_NPU,
                                                    TDM_PLACEMENT_GPU,      TDM_PLACEMENT_EITHER,
                                                    TDM_PLACEMENT_BALANCED, TDM_PLACEMENT_BALANCED,
                                                    TDM_PLACEMENT_BALANCED };

        /* Enough for one job of full size at least, often not for all at once. */
        world_open(&w, seed, 10 + (uint32_t)rand_r(&draw) % 40, 5 + (uint32_t)rand_r(&draw) % 20, &config);
        w.n_jobs = 1 + pick(&w, MAX_JOBS - 1);
        w.away = losses;
        w.fleet.measured = kinds[pick(&w, TDM_ARRAY_SIZE(kinds))];
        w.fleet.slowness[0] = pick(&w, 3) * 1000;
        w.fleet.slowness[1] = pick(&w, 3) * 1000;
        for (uint32_t i = 0; i < w.n_jobs; i++) {
                uint32_t n = pick(&w, 4) ? 1 + pick(&w, 20) : 1 + pick(&w, 250);

                const struct client_job *like = i > 0 && pick(&w, 2) ? &w.jobs[pick(&w, i)] : NULL;

                for (uint32_t k = 0; like && k < i; k++)
                        if (w.jobs[k].n_prompt > 3 * like->n_prompt)
                                like = &w.jobs[k];
                if (like && pick(&w, 4))
                        n = TDM_MAX(n, like->n_prompt);
                make_prompt(&w, &w.jobs[i], n, 1 + pick(&w, pick(&w, 4) ? 12 : 60));
                if (like) { /* it begins like another one */
                        if (!like->killer && !like->breaker)
                                memcpy(w.jobs[i].prompt, like->prompt, (1 + pick(&w, TDM_MIN(n, like->n_prompt))) * 4);
                }
                w.jobs[i].penalty = pick(&w, 3) == 0;
                w.jobs[i].score = pick(&w, 6) == 0;
                w.jobs[i].seed = pick(&w, 1000);
                if (culprits && pick(&w, 6) == 0) {
                        w.jobs[i].killer = pick(&w, 2);
                        w.jobs[i].breaker = !w.jobs[i].killer;
                        w.jobs[i].prompt[pick(&w, n)] = w.jobs[i].killer ? KILLER : BREAKER;
                }
        }
        for (uint32_t i = 0; i < 20000 && !all_done(&w); i++)
                happen(&w, losses && i < 400);
        for (uint32_t i = 0; i < w.n_arrived; i++) /* the paused ones too */
                w.jobs[i].job->paused = false;
        tdm_scheduler_kick(w.s);
        turn(&w);
        for (uint32_t i = 0; i < 50000 && !all_done(&w); i++) {
                for (uint32_t k = 0; k < w.n_arrived; k++)
                        w.jobs[k].job->paused = false;
                tdm_scheduler_kick(w.s);
                happen(&w, false);
        }
        for (uint32_t i = 0; i < w.n_jobs; i++)
                check_result(&w.jobs[i], tdm_model_hparams(w.fleet.models[0])->n_vocab);
        while (some_step(&w))
                finish_step(&w, some_step(&w));
        turn(&w);
        n_relayed = w.fleet.n_relayed;
        tdm_scheduler_stats(w.s, &stats);
        n_hits += (uint32_t)stats.prefix_hits;
        n_evictions += (uint32_t)stats.evictions;
        world_close(&w);
        return n_relayed;
}

static unsigned n_rounds(void)
{
        const char *rounds = getenv("TANDEM_TEST_ROUNDS");

        return rounds ? (unsigned)atoi(rounds) : 60;
}

static void test_random(void **state)
{
        uint32_t n_relayed = 0;

        for (unsigned seed = 1; seed <= n_rounds(); seed++)
                n_relayed += run_random(seed, false, false);
        assert_true(n_relayed > n_rounds());
        assert_true(n_hits > n_rounds() / 3);
        assert_true(n_evictions > n_rounds() / 3);
}

static void test_random_losses(void **state)
{
        uint32_t n_relayed = 0;

        for (unsigned seed = 1; seed <= n_rounds(); seed++)
                n_relayed += run_random(100000 + seed, true, false);
        assert_true(n_relayed > n_rounds());
}

static void test_random_culprits(void **state)
{
        uint32_t n_relayed = 0;

        for (unsigned seed = 1; seed <= n_rounds(); seed++)
                n_relayed += run_random(200000 + seed, true, true);
        assert_true(n_relayed > n_rounds());
}

/* ---- single things ---- */

static const struct tdm_scheduler_config plain = {
        .max_jobs = 8,
        .max_jobs_per_uid = 6,
        .max_pending_bytes = 1 << 20,
        .max_rows = 32,
        .prefill_rows = 16,
        .max_sequences = 4,
        .steps_in_flight = 1,
};

static void drive(struct world *w)
{
        w->n_jobs = w->n_arrived;
        for (uint32_t i = 0; i < 20000 && !all_done(w); i++) {
                struct fake_step *s = some_step(w);

                if (!w->fleet.ready)
                        become_ready(w);
                else if (s)
                        finish_step(w, s);
                turn(w);
        }
        assert_true(all_done(w));
}

static void add_job(struct world *w, uint32_t n_prompt, uint32_t max_tokens, uid_t uid, enum tdm_job_priority priority)
{
        struct client_job *c = &w->jobs[w->n_arrived++];

        make_prompt(w, c, n_prompt, max_tokens);
        submit(w, c, 0, uid, priority, TDM_PLACEMENT_ANY, 0);
}

static void test_batches(void **state)
{
        struct world w;

        world_open(&w, 1, 64, 64, &plain);
        for (int i = 0; i < 4; i++)
                add_job(&w, 3, 10, 1, TDM_JOB_INTERACTIVE);
        turn(&w);
        drive(&w);
        assert_int_equal(w.fleet.n_max_seqs, 4);
        assert_true(w.fleet.n_submitted <= 12); /* and not 40 */
        world_close(&w);
}

static void test_refusals(void **state)
{
        struct tdm_error err;
        struct tdm_job *job;
        struct tdm_job_params p = { .uid = 7, .ids = (uint32_t[]){ 400 }, .n_ids = 1 };
        struct world w;

        world_open(&w, 1, 64, 64, &plain);
        for (int i = 0; i < 6; i++)
                add_job(&w, 3, 10, 7, TDM_JOB_INTERACTIVE);
        assert_int_equal(tdm_job_new(&job, &p, &err), 0);
        assert_int_equal(tdm_scheduler_submit(w.s, job, w.fleet.models[0], &err), TDM_E_QUOTA);
        for (int i = 0; i < 2; i++)
                add_job(&w, 3, 10, 8, TDM_JOB_INTERACTIVE);
        assert_int_equal(tdm_scheduler_submit(w.s, job, w.fleet.models[0], &err), TDM_E_BUSY);
        tdm_scheduler_drain(w.s);
        assert_int_equal(tdm_scheduler_submit(w.s, job, w.fleet.models[0], &err), TDM_E_DRAINING);
        tdm_job_unref(job);
        drive(&w); /* nothing had begun: all end as draining */
        for (uint32_t i = 0; i < w.n_jobs; i++)
                assert_int_equal(w.jobs[i].error, TDM_E_DRAINING);
        world_close(&w);
}

static void test_bad_prompts(void **state)
{
        struct world w;
        struct client_job *c;

        world_open(&w, 1, 8, 64, &plain);
        add_job(&w, N_CTX, 1, 1, TDM_JOB_INTERACTIVE); /* no room for an answer */
        c = &w.jobs[w.n_arrived++];
        make_prompt(&w, c, 4, 4);
        c->prompt[2] = 1000000;
        submit(&w, c, 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
        add_job(&w, 200, 100, 1, TDM_JOB_INTERACTIVE); /* 10 pages; there are 8 */
        drive(&w);
        assert_int_equal(w.jobs[0].error, TDM_E_TOO_LONG);
        assert_int_equal(w.jobs[1].error, TDM_E_BAD_REQUEST);
        assert_int_equal(w.jobs[2].error, TDM_E_NO_MEMORY);
        assert_false(w.jobs[0].accepted || w.jobs[1].accepted || w.jobs[2].accepted);
        world_close(&w);
}

static void test_implicit_limit(void **state)
{
        struct world w;

        world_open(&w, 1, 4, 64, &plain);
        add_job(&w, 20, 0, 1, TDM_JOB_INTERACTIVE); /* the rest of the context would be 300; the cache holds 128 */
        drive(&w);
        assert_int_equal(w.jobs[0].end, TDM_JOB_END_LENGTH);
        assert_int_equal(w.jobs[0].n_got, 4 * TDM_KV_PAGE_TOKENS - 20);
        world_close(&w);
}

static void test_fair_and_interactive_first(void **state)
{
        struct tdm_scheduler_config config = plain;
        uint32_t order[8], n = 0;
        struct world w;

        config.max_sequences = 1;
        world_open(&w, 1, 64, 64, &config);
        for (int i = 0; i < 3; i++)
                add_job(&w, 3, 2, 1, TDM_JOB_INTERACTIVE);
        add_job(&w, 3, 2, 1, TDM_JOB_BACKGROUND);
        add_job(&w, 3, 2, 2, TDM_JOB_INTERACTIVE); /* another user: not behind all of the first one's */
        w.n_jobs = w.n_arrived;
        while (n < 5) {
                struct fake_step *s;

                turn(&w);
                s = some_step(&w);
                if (s)
                        finish_step(&w, s);
                for (uint32_t i = 0; i < 5; i++) {
                        bool known = false;

                        for (uint32_t k = 0; k < n; k++)
                                known = known || order[k] == i;
                        if (w.jobs[i].done && !known)
                                order[n++] = i;
                }
        }
        assert_int_equal(order[0], 0);
        assert_int_equal(order[1], 4);
        assert_int_equal(order[2], 1);
        assert_int_equal(order[4], 3); /* background at last */
        world_close(&w);
}

static void test_culprit_alone(void **state)
{
        struct world w;

        world_open(&w, 1, 64, 64, &plain);
        for (int i = 0; i < 4; i++)
                add_job(&w, 3, 20, 1, TDM_JOB_INTERACTIVE);
        w.jobs[2].job->ids[1] = KILLER; /* before it is looked at */
        w.jobs[2].killer = true;
        drive(&w);
        for (uint32_t i = 0; i < 4; i++)
                check_result(&w.jobs[i], tdm_model_hparams(w.fleet.models[0])->n_vocab);
        assert_int_equal(w.jobs[2].error, TDM_E_DEVICE_FAULT);
        assert_true(w.fleet.epoch <= 7); /* halving, not one by one without end */
        world_close(&w);
}

static void test_no_worker(void **state)
{
        struct world w;
        struct client_job *c;

        world_open(&w, 1, 64, 64, &plain);
        w.fleet.down[TDM_WORKER_NPU] = true;
        c = &w.jobs[w.n_arrived++];
        make_prompt(&w, c, 4, 4);
        submit(&w, c, 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_SPLIT, 0);
        add_job(&w, 4, 4, 1, TDM_JOB_INTERACTIVE);
        drive(&w);
        assert_int_equal(w.jobs[0].error, TDM_E_NO_WORKER);
        assert_int_equal(w.jobs[1].end, TDM_JOB_END_LENGTH);
        assert_true(w.jobs[1].job->degraded);
        world_close(&w);
}

static const struct client_job *add_alike(struct world *w, uint32_t like, uint32_t n_prompt, uid_t uid)
{
        struct client_job *c = &w->jobs[w->n_arrived++];

        make_prompt(w, c, n_prompt, 4);
        memcpy(c->prompt, w->jobs[like].prompt, TDM_MIN(n_prompt, w->jobs[like].n_prompt) * sizeof(c->prompt[0]));
        submit(w, c, 0, uid, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
        drive(w);
        check_result(c, tdm_model_hparams(w->fleet.models[0])->n_vocab);
        return c;
}

static void test_known_beginnings(void **state)
{
        struct tdm_scheduler_stats stats;
        struct client_job *c;
        struct world w;

        world_open(&w, 1, 64, 64, &plain);
        add_job(&w, 150, 20, 1, TDM_JOB_INTERACTIVE);
        drive(&w);
        assert_int_equal(w.jobs[0].job->cached_tokens, 0);
        assert_int_equal(add_alike(&w, 0, 150, 1)->job->cached_tokens, 128);
        assert_int_equal(add_alike(&w, 0, 128, 1)->job->cached_tokens, 96); /* the last row is computed */
        assert_int_equal(add_alike(&w, 0, 129, 1)->job->cached_tokens, 128);
        assert_int_equal(add_alike(&w, 0, 31, 1)->job->cached_tokens, 0);
        assert_int_equal(add_alike(&w, 0, 150, 2)->job->cached_tokens, 0); /* another user */
        tdm_scheduler_stats(w.s, &stats);
        assert_int_equal(stats.prefix_hits, 3);
        assert_int_equal(stats.cached_tokens, 128 + 96 + 128);

        /* What was generated is known too. */
        c = &w.jobs[w.n_arrived++];
        make_prompt(&w, c, 168, 4);
        memcpy(c->prompt, w.jobs[0].prompt, 150 * sizeof(c->prompt[0]));
        memcpy(c->prompt + 150, w.jobs[0].got, 18 * sizeof(c->prompt[0]));
        submit(&w, c, 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
        drive(&w);
        assert_int_equal(c->job->cached_tokens, 160);

        /* A worker that comes back as another device. */
        w.fleet.numerics_id = "another";
        reset(&w, NULL);
        assert_int_equal(add_alike(&w, 0, 150, 1)->job->cached_tokens, 0);
        assert_int_equal(add_alike(&w, 0, 150, 1)->job->cached_tokens, 128);
        w.fleet.numerics_id = "fake";
        reset(&w, NULL);
        assert_int_equal(add_alike(&w, 0, 150, 1)->job->cached_tokens, 128);

        /* One that is lost half way leaves what was committed, and nothing else. */
        add_job(&w, 150, 20, 1, TDM_JOB_INTERACTIVE);
        turn(&w);
        for (int i = 0; i < 3; i++)
                finish_step(&w, some_step(&w));
        reset(&w, NULL);
        drive(&w);
        check_result(&w.jobs[w.n_arrived - 1], tdm_model_hparams(w.fleet.models[0])->n_vocab);
        world_close(&w);
}

/* A cache for one: whoever is less important goes, comes back, and nobody notices. */
static void test_pushed_out(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct tdm_scheduler_stats stats;
        struct world w;

        config.max_jobs_per_uid = 8;
        for (unsigned seed = 1; seed <= 4; seed++) { /* 4: without a prefix cache */
                world_open(&w, seed, 9, 20, &config);
                for (int i = 0; i < 4; i++)
                        add_job(&w, 30, 200, 1 + i % 2, i == 0 ? TDM_JOB_BACKGROUND : TDM_JOB_INTERACTIVE);
                drive(&w);
                for (uint32_t i = 0; i < 4; i++)
                        check_result(&w.jobs[i], tdm_model_hparams(w.fleet.models[0])->n_vocab);
                tdm_scheduler_stats(w.s, &stats);
                assert_true(stats.evictions >= 3);
                assert_int_equal(w.jobs[1].job->evictions, 0); /* interactive, and the oldest */
                assert_true(w.jobs[0].job->evictions >= 1);
                /* More each time before it comes back: 64, 128, 256 tokens. */
                for (uint32_t i = 0; i < 4; i++)
                        assert_true(w.jobs[i].job->evictions <= 4);
                assert_true(stats.reread_tokens + stats.cached_tokens > 0);
                assert_int_equal(stats.prompt_tokens, 4 * 30);
                world_close(&w);
        }
}

/* Someone at the screen does not wait for what runs in the background: not for memory, not for a place. */
static void test_interactive_takes_room(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        for (int places = 0; places < 2; places++) {
                config.max_sequences = places ? 2 : 4;
                world_open(&w, 4, places ? 40 : 10, 20, &config);
                add_job(&w, 100, 60, 1, TDM_JOB_BACKGROUND);
                add_job(&w, 100, 60, 1, TDM_JOB_BACKGROUND);
                for (int i = 0; i < 20; i++) {
                        turn(&w);
                        finish_step(&w, some_step(&w));
                }
                assert_int_equal(w.jobs[0].job->state, TDM_JOB_DECODE);
                add_job(&w, 200, 10, 2, TDM_JOB_INTERACTIVE);
                while (!w.jobs[2].done) {
                        turn(&w);
                        finish_step(&w, some_step(&w));
                }
                assert_false(w.jobs[0].done || w.jobs[1].done);
                assert_int_equal(w.jobs[0].job->evictions, places ? 0 : 1);
                assert_int_equal(w.jobs[1].job->evictions, 1);
                drive(&w);
                for (uint32_t i = 0; i < 3; i++)
                        check_result(&w.jobs[i], tdm_model_hparams(w.fleet.models[0])->n_vocab);
                world_close(&w);
        }
}

static uint32_t rows_of_next_step(struct world *w)
{
        struct fake_step *s;
        uint32_t n;

        turn(w);
        s = some_step(w);
        n = tdm_steps_head(s->model->steps->base, &s->model->layout, s->slot)->n_rows;
        finish_step(w, s);
        return n;
}

/* Steps are short while somebody is at the screen, and as long as they may be when nobody is. */
static void test_polite(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        config.max_rows = config.prefill_rows = 64;
        world_open(&w, 1, 64, 64, &config);
        add_job(&w, 300, 2, 1, TDM_JOB_BACKGROUND);
        assert_int_equal(rows_of_next_step(&w), 64);
        add_job(&w, 20, 2, 1, TDM_JOB_INTERACTIVE);
        finish_step(&w, some_step(&w));
        assert_int_equal(rows_of_next_step(&w), 20 + 64 / 32); /* with its prompt */
        assert_int_equal(rows_of_next_step(&w), 1 + 64 / 8);   /* while it generates */
        assert_true(w.jobs[1].done);
        assert_int_equal(rows_of_next_step(&w), 64 / 8); /* there may be another one soon */
        w.s->interactive_ns -= 60 * TDM_NSEC_PER_SEC;
        finish_step(&w, some_step(&w));
        assert_int_equal(rows_of_next_step(&w), 64);
        drive(&w);
        world_close(&w);
}

/* A prompt is read in longer steps while nobody generates, if they are quick. */
static void test_lone(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        config.max_rows = config.lone_rows = 64;
        world_open(&w, 1, 64, 64, &config);
        add_job(&w, 16 + 64 + 64 + 16 + 64 + 20, 2, 1, TDM_JOB_INTERACTIVE);
        assert_int_equal(rows_of_next_step(&w), 16); /* nothing is known */
        assert_int_equal(rows_of_next_step(&w), 64);
        usleep(270000);
        assert_int_equal(rows_of_next_step(&w), 64); /* was issued before */
        assert_int_equal(rows_of_next_step(&w), 16); /* that one took too long */
        add_job(&w, 3, 20, 1, TDM_JOB_INTERACTIVE);
        assert_int_equal(rows_of_next_step(&w), 64); /* was issued before */
        assert_int_equal(rows_of_next_step(&w), 23); /* the end of the one, all of the other */
        assert_int_equal(rows_of_next_step(&w), 2);  /* now it generates */
        drive(&w);
        world_close(&w);

        world_open(&w, 1, 64, 64, &config);
        add_job(&w, 3, 40, 1, TDM_JOB_INTERACTIVE);
        assert_int_equal(rows_of_next_step(&w), 3);
        add_job(&w, 200, 2, 1, TDM_JOB_INTERACTIVE);
        finish_step(&w, some_step(&w));
        for (int i = 0; i < 5; i++)
                assert_int_equal(rows_of_next_step(&w), 16); /* somebody generates */
        drive(&w);
        world_close(&w);
}

/* One user has all the places; another one comes and gets as many, no more. */
static void test_shares(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        config.max_jobs = 16;
        config.max_jobs_per_uid = 8;
        world_open(&w, 1, 64, 64, &config);
        for (int i = 0; i < 8; i++)
                add_job(&w, 20, 100, 1, TDM_JOB_INTERACTIVE);
        for (int i = 0; i < 10; i++) {
                turn(&w);
                finish_step(&w, some_step(&w));
        }
        assert_int_equal(w.s->users[0].n_running, 4);
        for (int i = 0; i < 4; i++)
                add_job(&w, 20, 100, 2, TDM_JOB_INTERACTIVE);
        for (int i = 0; i < 6; i++) {
                turn(&w);
                finish_step(&w, some_step(&w));
        }
        assert_int_equal(w.s->users[0].n_running, 2);
        assert_int_equal(w.s->users[1].n_running, 2);
        assert_true(w.jobs[8].n_got > 0 && w.jobs[9].n_got > 0);
        assert_int_equal(w.jobs[0].job->evictions + w.jobs[1].job->evictions, 0); /* the younger ones went */
        assert_int_equal(w.jobs[2].job->evictions + w.jobs[3].job->evictions, 2);
        drive(&w);
        for (uint32_t i = 0; i < 12; i++) {
                check_result(&w.jobs[i], tdm_model_hparams(w.fleet.models[0])->n_vocab);
                assert_true(w.jobs[i].job->evictions <= 1);
        }
        world_close(&w);
}

static void test_caps_of_a_user(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct world w;

        config.max_running_per_uid = 1;
        config.max_tokens_per_uid = 100;
        world_open(&w, 1, 64, 64, &config);
        add_job(&w, 30, 20, 1, TDM_JOB_INTERACTIVE);
        add_job(&w, 30, 20, 1, TDM_JOB_INTERACTIVE);
        add_job(&w, 3, 1, 1, TDM_JOB_INTERACTIVE); /* 104 */
        add_job(&w, 30, 20, 2, TDM_JOB_INTERACTIVE);
        turn(&w);
        assert_true(w.jobs[2].done && !w.jobs[2].accepted);
        assert_int_equal(w.jobs[2].error, TDM_E_QUOTA);
        assert_int_equal(w.s->users[0].n_running, 1);
        assert_int_equal(w.s->users[1].n_running, 1);
        drive(&w);
        add_job(&w, 3, 1, 1, TDM_JOB_INTERACTIVE);
        drive(&w);
        assert_int_equal(w.jobs[4].end, TDM_JOB_END_LENGTH);
        world_close(&w);
}

static void test_deadline(void **state)
{
        struct tdm_scheduler_config config = plain;
        struct client_job *c;
        struct world w;

        config.max_sequences = 1;
        world_open(&w, 1, 64, 64, &config);
        for (int i = 0; i < 3; i++) { /* one runs, one waits, one has time */
                c = &w.jobs[w.n_arrived++];
                make_prompt(&w, c, 30, 20);
                c->deadline_ms = i < 2 ? 30 : 600000;
                submit(&w, c, 0, 1, TDM_JOB_INTERACTIVE, TDM_PLACEMENT_ANY, 0);
        }
        turn(&w);
        finish_step(&w, some_step(&w));
        finish_step(&w, some_step(&w));
        for (uint64_t begin = tdm_now_ns(); tdm_now_ns() - begin < 40 * TDM_NSEC_PER_MSEC;)
                turn(&w);
        assert_int_equal(w.jobs[1].error, TDM_E_DEADLINE);
        assert_false(w.jobs[0].done); /* in flight still */
        drive(&w);
        assert_int_equal(w.jobs[0].error, TDM_E_DEADLINE);
        assert_int_equal(w.jobs[0].n_got, 1);
        check_result(&w.jobs[2], tdm_model_hparams(w.fleet.models[0])->n_vocab);
        world_close(&w);
}

/* Nobody goes in vain: what would not be enough stays. */
static void test_not_in_vain(void **state)
{
        struct world w;

        world_open(&w, 4, 12, 20, &plain);
        add_job(&w, 200, 60, 1, TDM_JOB_INTERACTIVE); /* 9 pages */
        add_job(&w, 20, 40, 1, TDM_JOB_BACKGROUND);   /* 2 pages */
        turn(&w);
        add_job(&w, 150, 10, 1, TDM_JOB_INTERACTIVE); /* 5 pages: with the background's there would be 3 */
        drive(&w);
        assert_int_equal(w.jobs[1].job->evictions, 0);
        for (uint32_t i = 0; i < 3; i++)
                check_result(&w.jobs[i], tdm_model_hparams(w.fleet.models[0])->n_vocab);
        world_close(&w);
}

/* Rows of two kinds of bits in one sequence: nobody may have them. */
static void test_mixed_numerics(void **state)
{
        struct world w;

        world_open(&w, 1, 64, 64, &plain);
        add_job(&w, 150, 4, 1, TDM_JOB_INTERACTIVE);
        turn(&w);
        for (int i = 0; i < 5; i++) /* 80 rows */
                finish_step(&w, some_step(&w));
        reset(&w, NULL);
        w.fleet.numerics_id = "another";
        drive(&w);
        assert_int_equal(add_alike(&w, 0, 150, 1)->job->cached_tokens, 0); /* of the new kind: none from the start */
        w.fleet.numerics_id = "fake";
        reset(&w, NULL);
        assert_int_equal(add_alike(&w, 0, 150, 1)->job->cached_tokens, 64);
        world_close(&w);
}

static void test_model_changed(void **state)
{
        struct tdm_error err;
        struct world w;

        world_open(&w, 1, 64, 64, &plain);
        add_job(&w, 3, 20, 1, TDM_JOB_INTERACTIVE);
        add_job(&w, 3, 20, 1, TDM_JOB_INTERACTIVE);
        turn(&w);
        assert_non_null(some_step(&w));
        tdm_error_set(&err, TDM_E_MODEL_CHANGED, "the file was rewritten");
        w.fleet.models[0]->state = TDM_MODEL_FAILED;
        w.fleet.models[0]->error = err;
        tdm_scheduler_on_model_changed(w.s, w.fleet.models[0]);
        drive(&w); /* the step in flight still lands */
        assert_int_equal(w.jobs[0].error, TDM_E_MODEL_CHANGED);
        assert_int_equal(w.jobs[1].error, TDM_E_MODEL_CHANGED);
        assert_null(w.fleet.models[0]->pages); /* and then its memory goes */
        world_close(&w);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_batches),
                cmocka_unit_test(test_refusals),
                cmocka_unit_test(test_bad_prompts),
                cmocka_unit_test(test_implicit_limit),
                cmocka_unit_test(test_fair_and_interactive_first),
                cmocka_unit_test(test_culprit_alone),
                cmocka_unit_test(test_no_worker),
                cmocka_unit_test(test_known_beginnings),
                cmocka_unit_test(test_mixed_numerics),
                cmocka_unit_test(test_pushed_out),
                cmocka_unit_test(test_polite),
                cmocka_unit_test(test_lone),
                cmocka_unit_test(test_not_in_vain),
                cmocka_unit_test(test_shares),
                cmocka_unit_test(test_caps_of_a_user),
                cmocka_unit_test(test_deadline),
                cmocka_unit_test(test_interactive_takes_room),
                cmocka_unit_test(test_model_changed),
                cmocka_unit_test(test_random),
                cmocka_unit_test(test_random_losses),
                cmocka_unit_test(test_random_culprits),
        };

        tdm_log_set_level(TDM_LOG_ERROR);
        return tdm_sigbus_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
