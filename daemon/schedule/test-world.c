#include "daemon/schedule/test-world.h"

#include <fcntl.h>

uint64_t world_clock;

uint64_t world_now(void)
{
        return world_clock;
}

/* ---- single things ---- */

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
                h = history[i] & TDM_PICTURE_ID ? h : mix(h, history[i]);
        return 300 + (uint32_t)(h % (n_vocab - 300)); /* no control tokens, no killers */
}

uint32_t world_next(const uint32_t *ids, uint32_t n, uint64_t seed, bool penalty, uint32_t n_vocab)
{
        uint32_t n_history = penalty ? TDM_MIN(n, 64u) : 0;
        uint64_t hash = 1;

        for (uint32_t i = 0; i < n; i++)
                hash = mix(hash, ids[i]);
        return choose(hash, n, seed, ids + n - n_history, n_history, n_vocab);
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

const char *tdm_fleet_numerics_id(struct tdm_fleet *f, enum tdm_worker_index worker, uint32_t model_id)
{
        return f->numerics_id ?: "fake";
}

enum tdm_placement tdm_fleet_measured(struct tdm_fleet *f, uint32_t model_id)
{
        if (f->down[TDM_WORKER_GPU])
                return TDM_PLACEMENT_NPU;
        return f->down[TDM_WORKER_NPU] ? TDM_PLACEMENT_GPU : f->differ ? f->found : f->measured;
}

enum tdm_placement tdm_fleet_found(struct tdm_fleet *f, uint32_t model_id)
{
        return f->found;
}

void tdm_fleet_set_found(struct tdm_fleet *f, uint32_t model_id, enum tdm_placement placement, const char *why)
{
        assert_true(tdm_placement_is_fixed(placement));
        f->found = placement;
}

bool tdm_fleet_is_degraded(const struct tdm_fleet *f)
{
        return f->down[0] || f->down[1];
}

bool tdm_fleet_worker_is_up(const struct tdm_fleet *f, enum tdm_worker_index worker)
{
        return f->ready && !f->down[worker] && !f->away[worker];
}

void tdm_fleet_placement_workers(struct tdm_fleet *f, uint32_t model_id, struct tdm_placement_workers *ret)
{
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                ret->of[i].usable = !f->down[i];
                ret->of[i].given_up = f->down[i];
                ret->of[i].up = tdm_fleet_worker_is_up(f, (enum tdm_worker_index)i);
        }
        ret->equal_bits = !f->differ;
        ret->no_link = false;
        ret->shares_cpus = !f->differ && f->measured != TDM_PLACEMENT_BALANCED;
        ret->degraded = tdm_fleet_is_degraded(f);
}

void tdm_fleet_bad_results(struct tdm_fleet *f, enum tdm_worker_index worker)
{
        f->n_bad[worker]++;
}

bool tdm_fleet_cache_room(const struct tdm_fleet *f, uint64_t bytes, const struct tdm_device_needs *n, uint64_t *ret)
{
        *ret = UINT64_MAX;
        return true;
}

bool tdm_fleet_wants_panels(const struct tdm_fleet *f)
{
        return false;
}

uint64_t tdm_fleet_busy_ns(const struct tdm_fleet *f, enum tdm_worker_index worker)
{
        return f->busy_ns[worker];
}

static uint32_t model_index(const struct tdm_fleet *f, uint32_t model_id)
{
        uint32_t i = 0;

        while (f->models[i]->id != model_id)
                i++;
        return i;
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

void tdm_fleet_listen(struct tdm_fleet *f, const struct tdm_fleet_step_events *events, void *userdata)
{
        f->events = events;
        f->events_userdata = userdata;
}

int tdm_fleet_submit(struct tdm_fleet *f, uint32_t model_id, uint32_t slot, const struct tdm_step_head *head)
{
        struct tdm_model *model = f->models[model_index(f, model_id)];
        struct fake_step *s = f->steps;
        struct tdm_error err;

        assert_true(f->ready);
        while (s->used)
                s++;
        assert_true(s < f->steps + TDM_ARRAY_SIZE(f->steps));
        *tdm_steps_head(model->steps->base, &model->layout, slot) = *head;
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
        memcpy(s->plan, head->plan, sizeof(s->plan));
        for (uint32_t i = 0; i < tdm_model_n_blocks(tdm_model_hparams(model)); i++) {
                if (!tdm_fleet_worker_is_up(f, (enum tdm_worker_index)head->plan[i]))
                        fail_msg("a step for a worker that is away");
                if (head->plan[i] != head->plan[0])
                        s->worker = TDM_N_WORKERS;
        }
        for (uint32_t i = 0; i < f->step->head.n_logits; i++) {
                const uint64_t *allowed;

                if (f->step->logits[i].mask && tdm_step_mask(f->step, i, 0, &allowed))
                        s->early |= UINT64_C(1) << i;
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
        s->kills = f->draft_kills && model == f->models[1];
        s->breaks = f->draft_breaks && model == f->models[1];
        for (uint32_t i = 0; i < head->n_rows && world_id(f, s, 0) != 0; i++) {
                s->kills = s->kills || f->step->rows[i].token == KILLER;
                s->breaks = s->breaks || f->step->rows[i].token == BREAKER;
        }
        /* Only probes have a token 0. */
        if (world_id(f, s, 0) == 0 && f->probes_kill)
                s->kills = s->kills || s->worker == f->probes_kill - 1 || s->worker == TDM_N_WORKERS;
        f->n_probes += world_id(f, s, 0) == 0;
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

/* The first allowed token from the chosen one on. The mask that was published after the step may come too late. */
static void choose_allowed(struct tdm_fleet *f, const struct fake_step *s, uint32_t logits, struct tdm_result *r)
{
        uint32_t n_words = f->step->mask_words, at = r->token;
        const uint64_t *allowed;

        if (!tdm_step_mask(f->step, logits, 0, &allowed) ||
            (f->late && !(s->early >> logits & 1) && rand_r(&f->seed) % f->late == 0)) {
                f->n_late++;
                r->token = TDM_NO_TOKEN;
                return;
        }
        f->n_masked++;
        while (!(allowed[at / 64] >> at % 64 & 1))
                at = (at + 1) % (n_words * 64);
        r->token = at;
}

/* Of the first row of a sequence that draws. */
static const struct tdm_step_logits *first_logits(const struct tdm_fleet *f, uint32_t seq)
{
        uint32_t i = 0;

        while (f->step->rows[f->step->logits[i].row].seq != seq)
                i++;
        return &f->step->logits[i];
}

/* Before a sequence's first row in a step: what the state has seen has to be what the sequence has seen, and what the
 * step writes is nobody's state until its rows are run. */
static bool begin_state(struct tdm_fleet *f, uint32_t m, uint32_t i, uint64_t hash)
{
        const struct tdm_step_row *row = &f->step->rows[i];
        const struct tdm_step_seq *seq = &f->step->seqs[row->seq];
        const struct cell *from = &f->states[m][seq->state.from];

        if (world_states == 0 || i > seq->first_row)
                return true;
        f->states[m][seq->state.to] = (struct cell){ UINT32_MAX, 0, 0 };
        if (seq->state.kept != TDM_KV_NO_PAGE)
                f->states[m][seq->state.kept] = (struct cell){ UINT32_MAX, 0, 0 };
        return row->position == 0 || (from->position == row->position && from->hash == hash);
}

static void write_states(struct tdm_fleet *f, uint32_t m, uint32_t i, uint64_t hash)
{
        const struct tdm_step_row *row = &f->step->rows[i];
        const struct tdm_step_seq *seq = &f->step->seqs[row->seq];
        uint32_t n = i + 1 - seq->first_row;

        if (world_states > 0 && n == seq->n_rows)
                f->states[m][seq->state.to] = (struct cell){ row->position + 1, row->token, hash };
        else if (world_states > 0 && n == seq->state.n_kept)
                f->states[m][seq->state.kept] = (struct cell){ row->position + 1, row->token, hash };
}

/* Runs the first n_rows rows of f->step, of model m. */
static void run_rows(struct tdm_fleet *f, const struct fake_step *s, uint32_t m, uint32_t n_rows,
                     struct tdm_result *results)
{
        const enum fault fault = f->fault_model == m ? f->fault : FAULT_NONE;
        const struct tdm_hparams *hp = tdm_model_hparams(s->model);

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
                if (!begin_state(f, m, i, hash))
                        hash = mix(hash, UINT64_C(0xbad));
                hash = mix(hash, world_id(f, s, i));
                write_states(f, m, i, hash);
                for (int g = 0; g < TDM_KV_GROUPS; g++) {
                        struct cell *c = cell(f, m, (enum tdm_kv_group)g, row->seq, row->position);

                        if (fault != FAULT_PAGE || c->position != row->position || c->hash == 0)
                                *c = (struct cell){ row->position, row->token, hash };
                }
                if (row->logits != UINT32_MAX) {
                        const struct tdm_step_logits *l = &f->step->logits[row->logits];
                        struct tdm_result *r = &results[row->logits];

                        const struct tdm_step_logits *first_l = fault == FAULT_HISTORY ? first_logits(f, row->seq) : l;
                        bool late = fault == FAULT_POSITION && l != first_logits(f, row->seq);

                        r->token = choose(hash, row->position + 1 + late, l->sampling.seed,
                                          f->step->history + first_l->history_offset, first_l->n_history, hp->n_vocab);
                        if (f->replay)
                                r->token = f->replay(row->position + 1);
                        if (m == 1 && f->misses && f->misses(row->position + 1))
                                r->token = r->token == 300 ? 301 : 300;
                        if (l->mask)
                                choose_allowed(f, s, row->logits, r);
                        r->logprob = score_of(hash, r->token);
                        if (m == 1 && f->is_sure)
                                r->logprob = f->misses(row->position + 1) ? -3 : -0.01f;
                        r->target_logprob = l->target == UINT32_MAX ? 0 : score_of(hash, l->target);
                        r->n_top = l->sampling.n_top;
                        for (uint32_t t = 0; t < r->n_top; t++)
                                r->top[t] = (struct tdm_top){ t, -1 };
                }
        }
}

/* Runs the first n_rows rows, and what follows them where that is all; with results. */
static void execute(struct tdm_fleet *f, const struct fake_step *s, uint32_t n_rows)
{
        struct tdm_model *model = s->model;
        uint32_t m = model_index(f, model->id);
        const struct tdm_hparams *hp = tdm_model_hparams(model);
        struct tdm_result *results, drawn[TDM_MAX_STEP_LOGITS];
        struct tdm_error err;

        assert_int_equal(tdm_step_read(f->step, model->steps->base, &model->layout, s->slot, s->step_id, f->epoch, hp,
                                       &model->geometry, &err),
                         0);
        results = (struct tdm_result *)(model->results->base + s->slot * model->layout.results_slot_bytes);
        f->pass_ns = 0;
        do {
                bool all = n_rows >= f->step->head.n_rows;

                run_rows(f, s, m, n_rows, drawn);
                if (!all)
                        return;
                n_rows -= f->step->head.n_rows;
                f->n_passes[m]++;
                f->pass_ns += f->step_ns[m] + f->row_ns[m] * f->step->head.n_rows +
                              (f->step->head.n_rows > 1 ? f->several_ns[m] : 0);
                for (uint32_t i = 0; i < f->step->head.n_logits && f->spoil; i++)
                        if (!f->spoil_bursts || f->step->n_passes > 0)
                                f->spoil(&drawn[i], hp->n_vocab);
                tdm_step_take(f->step, drawn, results);
        } while (tdm_step_next_pass(f->step, drawn, hp) > 0);
}

/* ---- single things ---- */

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

        assert_true(c->accepted && !c->done && job->state != TDM_JOB_DONE);
        c->told_position = job->progress.queue_position;
}

static uint64_t text_hash(const char *text, size_t size)
{
        uint64_t h = size;

        for (size_t i = 0; i < size; i++)
                h = mix(h, (uint8_t)text[i]);
        return h;
}

static void on_token(struct tdm_job *job, uint32_t index, const struct tdm_job_token *token, void *userdata)
{
        struct client_job *c = userdata;

        assert_false(c->done);
        assert_int_equal(index, c->n_got);
        c->logprob[c->n_got] = token->logprob;
        c->text[c->n_got] = text_hash(token->text, token->size);
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
        c->incomplete = job->text.incomplete;
        snprintf(c->message, sizeof(c->message), "%s", job->error.message);
}

static const struct tdm_job_events events = { on_accepted, on_progress, on_token, on_scores, on_done };

bool has_wrong_token(const struct client_job *c, uint32_t n_vocab)
{
        uint32_t ids[2 * N_CTX], n = c->n_prompt;

        memcpy(ids, c->prompt, n * sizeof(*ids));
        for (uint32_t i = 0; !c->score && i < c->n_got; i++) {
                if (c->got[i] != world_next(ids, n, c->seed, c->penalty, n_vocab))
                        return true;
                ids[n++] = c->got[i];
        }
        return false;
}

/* Each token came with the text that it makes. */
static void check_text(const struct client_job *c)
{
        _cleanup_(freep) char *room = malloc(TDM_DECODER_ROOM(c->job->text.tokenizer));
        struct tdm_decoder decoder;

        tdm_decoder_init(&decoder, c->job->text.tokenizer, false);
        for (uint32_t i = 0; i < c->n_got; i++) {
                size_t size = tdm_decoder_push(&decoder, c->got[i], room, TDM_DECODER_ROOM(c->job->text.tokenizer));

                assert_true(c->text[i] == text_hash(room, size));
        }
}

void check_result(const struct client_job *c, uint32_t n_vocab)
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
                        assert_true(c->logprob[n - c->n_prompt] == score_of(hash, want));
                        ids[n++] = want;
                }
        }
        if (!c->score && c->n_got > 0)
                check_text(c);
}

/* ---- single things ---- */

uint32_t world_rows_without_piece = 0, world_states = 0;

static struct tdm_model *make_model(struct tdm_models *models, uint32_t id, uint32_t full_pages, uint32_t window_pages,
                                    uint32_t max_rows, uint32_t max_seqs, uint32_t max_logits)
{
        static const char path[] = "models/sprout.gguf";
        struct tdm_model *m = calloc(1, sizeof(*m));
        struct tdm_steps_limits limits = { .max_rows = max_rows,
                                           .max_seqs = max_seqs,
                                           .max_logits = TDM_MAX(max_seqs, TDM_MIN(max_logits, max_rows)),
                                           .n_tables = max_seqs + TDM_PROBE_TABLES,
                                           .table_entries = N_CTX / TDM_KV_PAGE_TOKENS,
                                           .max_pictures = TDM_MIN(MAX_PICTURES, max_rows) };
        struct tdm_hparams *hp;
        uint32_t n_vocab;
        struct tdm_error err;

        m->n_refs = 1;
        tdm_list_init(&m->users);
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
        pthread_mutex_init(&m->metadata->vocabulary_lock, NULL);
        n_vocab = tdm_tokenizer_n_vocab(m->metadata->tokenizer) + world_rows_without_piece;
        limits.mask_words = TDM_DIV_UP(n_vocab, 64u);
        hp = &m->metadata->description.hparams;
        *hp = (struct tdm_hparams){ .n_layers = 6,
                                    .d_model = 64,
                                    .n_heads = 2,
                                    .n_kv_heads = 1,
                                    .head_dim = 32,
                                    .d_ff = 64,
                                    .n_vocab = n_vocab,
                                    .n_ctx = N_CTX,
                                    .window = 40 };
        tdm_hparams_all_layers(hp);
        hp->layers[5].window = 0;
        if (world_states > 0) {
                hp->layers[2].window = 0;
                hp->layers[2].n_state = 2 * hp->d_model;
        }
        assert_int_equal(tdm_kv_geometry_init(&m->geometry, hp, TDM_KV_F16, full_pages, window_pages, world_states), 0);
        assert_int_equal(tdm_steps_limits_check(&limits, &err), 0);
        tdm_steps_layout(&limits, &m->layout);
        assert_int_equal(tdm_segment_create(&m->steps, "steps", m->layout.size_bytes), 0);
        assert_int_equal(tdm_segment_create(&m->activations, "activations", 4 * max_rows * PICTURE_WIDTH * 4), 0);
        assert_int_equal(tdm_segment_create(&m->results, "results", m->layout.results_bytes), 0);
        assert_int_equal(tdm_pages_new(&m->pages, &m->geometry, NULL), 0);
        if (!models->no_prefix_cache)
                assert_int_equal(tdm_prefix_new(&m->prefix, m->pages, hp, &m->geometry), 0);
        tdm_steps_format(m->steps->base, &m->layout);
        m->state = TDM_MODEL_READY;
        return m;
}

void world_open(struct world *w, unsigned seed, uint32_t full_pages, uint32_t window_pages,
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
        for (uint32_t i = 0; i < N_WORLD_MODELS; i++) {
                w->fleet.models[i] = make_model(w->models, i + 1, full_pages, window_pages, config->max_rows,
                                                config->max_sequences, config->speculate.draft_max > 0 ? 64 : 16);
                w->fleet.cache[i][TDM_KV_FULL] = calloc(full_pages * TDM_KV_PAGE_TOKENS, sizeof(struct cell));
                w->fleet.cache[i][TDM_KV_WINDOW] = calloc(window_pages * TDM_KV_PAGE_TOKENS, sizeof(struct cell));
                w->fleet.states[i] = calloc(world_states + 1, sizeof(struct cell));
                tdm_scheduler_on_model_changed(w->s, w->fleet.models[i]);
        }
        assert_int_equal(tdm_step_new(&w->fleet.step, &w->fleet.models[0]->layout.limits), 0);
        tdm_scheduler_set_fleet(w->s, &w->fleet);
}

void world_close(struct world *w)
{
        for (uint32_t i = 0; i < w->n_arrived; i++)
                tdm_job_unref(w->jobs[i].job);
        for (uint32_t i = 0; i < N_WORLD_MODELS; i++) {
                struct tdm_model *m = w->fleet.models[i];

                if (m->pages) {
                        for (int g = 0; g < TDM_KV_POOLS; g++) {
                                assert_int_equal(tdm_pages_used(m->pages, (enum tdm_kv_group)g), 0);
                                assert_int_equal(tdm_pages_reserved(m->pages, (enum tdm_kv_group)g), 0);
                        }
                }
                assert_int_equal(m->use.n_jobs, 0);
                assert_int_equal(m->use.n_steps, 0);
        }
        assert_true(tdm_scheduler_is_idle(w->s));
        assert_int_equal(w->s->n_users, 0);
        assert_int_equal(w->s->pending_bytes, 0);
        tdm_scheduler_destroy(w->s);
        for (uint32_t i = 0; i < N_WORLD_MODELS; i++) {
                tdm_model_leave(w->fleet.models[i]);
                tdm_model_unref(w->fleet.models[i]);
                free(w->fleet.cache[i][0]);
                free(w->fleet.cache[i][1]);
                free(w->fleet.states[i]);
        }
        tdm_step_destroy(w->fleet.step);
        tdm_models_destroy(w->models);
        tdm_loop_destroy(w->loop);
}

void turn(struct world *w)
{
        assert_true(tdm_loop_turn(w->loop, 0) >= 0);
}

void submit(struct world *w, struct client_job *c, uint32_t model, uid_t uid, enum tdm_job_priority priority,
            enum tdm_placement placement, uint32_t chunk)
{
        struct tdm_job_params p = {
                .kind = c->score ? TDM_JOB_SCORE : TDM_JOB_GENERATE,
                .identity = uid,
                .ids = c->prompt,
                .n_ids = c->n_prompt,
                .pictures = c->pictures,
                .n_pictures = c->n_pictures,
                .picture_width = PICTURE_WIDTH,
                .options = { .priority = priority,
                             .placement = placement,
                             .repeat_penalty = c->penalty ? 1.5f : 1,
                             .seed = c->seed,
                             .max_tokens = c->max_tokens,
                             .prefill_chunk = chunk,
                             .deadline_ms = c->deadline_ms,
                             .draft = c->draft,
                             .draft_max = c->draft_max,
                             .json_schema = c->schema,
                             .regex = c->regex,
                             .ignore_end = !c->schema && !c->regex },
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

void make_prompt(struct world *w, struct client_job *c, uint32_t n_prompt, uint32_t max_tokens)
{
        *c = (struct client_job){ .n_prompt = n_prompt, .max_tokens = max_tokens, .seed = w->seed };
        for (uint32_t i = 0; i < n_prompt; i++)
                c->prompt[i] = 300 + pick(w, 1000);
}

struct fake_step *some_step(struct world *w)
{
        uint32_t at = pick(w, TDM_ARRAY_SIZE(w->fleet.steps));

        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(w->fleet.steps); i++) {
                struct fake_step *s = &w->fleet.steps[(at + i) % TDM_ARRAY_SIZE(w->fleet.steps)];

                if (s->used)
                        return s;
        }
        return NULL;
}

void reset(struct world *w, const struct fake_step *guilty)
{
        struct fake_step copy = guilty ? *guilty : (struct fake_step){ 0 };

        /* Whatever was in flight has got anywhere. */
        for (uint32_t i = 0; i < TDM_ARRAY_SIZE(w->fleet.steps); i++)
                if (w->fleet.steps[i].used)
                        execute(&w->fleet, &w->fleet.steps[i], pick(w, 40));
        memset(w->fleet.steps, 0, sizeof(w->fleet.steps));
        w->fleet.ready = false;
        w->fleet.epoch++;
        w->fleet.events->reset("killed in a test", copy.model ? copy.model->id : 0, copy.slot, copy.step_id,
                               w->fleet.events_userdata);
}

void become_ready(struct world *w)
{
        bool equal_bits = w->fleet.measured == TDM_PLACEMENT_STANDBY || w->fleet.measured == TDM_PLACEMENT_BALANCED;

        /* The one that was lost may come later. */
        w->fleet.away[0] = equal_bits && w->away && pick(w, 3) == 0;
        w->fleet.away[1] = equal_bits && w->away && !w->fleet.away[0] && pick(w, 3) == 0;
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
        for (uint32_t b = 0; w->fleet.differ && b < tdm_model_n_blocks(tdm_model_hparams(s->model)); b++) {
                uint8_t worker = s->plan[b];

                if (world_clock - w->fleet.awake_ns[worker] > TDM_NSEC_PER_MSEC)
                        world_clock += w->fleet.wake_ns[worker];
                world_clock += w->fleet.block_ns[worker] + w->fleet.block_row_ns[worker] * w->fleet.step->head.n_rows;
                w->fleet.awake_ns[worker] = world_clock;
        }
        if (w->fleet.row_ns[model_index(&w->fleet, s->model->id)] > 0) {
                uint32_t m = model_index(&w->fleet, s->model->id);
                uint64_t ns = w->fleet.pass_ns;

                world_clock += ns;
                w->fleet.took_ns[m] += ns;
                w->fleet.longest_ns = TDM_MAX(w->fleet.longest_ns, ns);
        }
        if (s->worker < TDM_N_WORKERS)
                w->fleet.busy_ns[s->worker] +=
                        (uint64_t)w->fleet.slowness[s->worker] * (8 + w->fleet.step->head.n_rows);
}

void finish_step(struct world *w, struct fake_step *s)
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
                w->fleet.events->failed(copy.model->id, copy.slot, copy.step_id, &err, w->fleet.events_userdata);
                if (followed)
                        reset(w, NULL);
                return;
        }
        run_step(w, s);
        s->used = false;
        w->fleet.events->done(copy.model->id, copy.slot, copy.step_id, w->fleet.events_userdata);
}

int world_open_draft(void *userdata, const char *name, struct tdm_model **ret, struct tdm_error *err)
{
        struct world *w = userdata;

        if (strcmp(name, "draft") != 0 && strcmp(name, "self") != 0)
                return tdm_error_set(err, TDM_E_NO_MODEL, "no model is named %s", name);
        *ret = tdm_model_ref(w->fleet.models[name[0] == 'd']);
        return 0;
}

bool all_done(const struct world *w)
{
        for (uint32_t i = 0; i < w->n_jobs; i++)
                if (i >= w->n_arrived || !w->jobs[i].done)
                        return false;
        return true;
}

void arrive(struct world *w)
{
        struct client_job *c = &w->jobs[w->n_arrived++];
        enum tdm_placement placement =
                pick(w, 4) ? TDM_PLACEMENT_ANY : (enum tdm_placement)pick(w, TDM_N_ASKED_PLACEMENTS);

        /* Where model 1 draws other tokens, it is a draft only. */
        submit(w, c, (pick(w, 5) == 0) * (w->fleet.misses ? 2 : 1), 1000 + (pick(w, 4) == 0),
               pick(w, 3) ? TDM_JOB_INTERACTIVE : TDM_JOB_BACKGROUND, placement, pick(w, 3) ? 0 : 1 + pick(w, 9));
}
