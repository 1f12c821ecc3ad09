/* GET /props and /slots, as llama-server answers them, for clients that look there for the context's size and for what
 * runs. Nothing is told of other owners' jobs, and no path of this machine. There are no slots here: each job has its
 * own place in the list while it is there. */
#include "http-gateway/questions.h"

#include <unistd.h>

static const struct tandem_model *default_model(const struct tandem_model_list *list)
{
        for (size_t i = 0; i < list->n_models; i++)
                if (list->models[i]->is_default)
                        return list->models[i];
        return list->n_models > 0 ? list->models[0] : NULL;
}

/* The one that ?model= names, else the default one. NULL: the exchange is answered, since there is none. */
static const struct tandem_model *asked_model(struct exchange *x, const struct tandem_model_list *list)
{
        const struct tandem_model *m = x->arg[0] ? find_model(list, x->arg) : default_model(list);

        if (!m)
                fail_no_model(x, x->arg);
        return m;
}

/* Whether requests of the same owner have this job here. */
static bool owner_asked_for(const struct exchange *x, uint64_t job)
{
        const struct exchange *other;

        tdm_list_for_each(other, &x->server->exchanges, struct exchange, node) {
                const struct generation *g = other->owner == x->owner ? other->generation : NULL;

                for (unsigned i = 0; g && i < g->n_choices; i++)
                        if (g->choices[i].job && tandem_job_id(g->choices[i].job) == job)
                                return true;
        }
        return false;
}

/* The daemon shows root the jobs of all users. Without keys all of the gateway's jobs are its user's: this machine sees
 * them as that user, and another network sees those that it asked for. */
static bool job_is_own(const struct exchange *x, const struct tandem_job_info *job)
{
        if (job->uid != getuid() || strcmp(job->label, x->label ? x->label : "") != 0)
                return false;
        return x->label || owner_is_this_machine(x->owner) || owner_asked_for(x, job->job);
}

/* m: of this model; NULL: of all. */
static bool job_is_shown(const struct exchange *x, const struct ask *ask, const struct tandem_job_info *job,
                         const struct tandem_model *m)
{
        return job_is_own(x, job) && (!m || find_model(ask->models, job->model) == m);
}

static void answer_props(struct exchange *x, struct ask *ask)
{
        const struct tandem_model *m = asked_model(x, ask->models);
        unsigned n = 0;

        if (!m)
                return;
        for (size_t i = 0; i < ask->jobs->n_jobs; i++)
                n += job_is_shown(x, ask, ask->jobs->jobs[i], m);
        exchange_answer_json(x, 200,
                             json_pack("{s:{s:I}, s:i, s:s, s:s+, s:{s:b, s:b}, s:s+}", "default_generation_settings",
                                       "n_ctx", (json_int_t)m->context, "total_slots", (int)TDM_MAX(n, 1u),
                                       "model_alias", m->name, "model_path", m->name, ".gguf", "modalities", "vision",
                                       model_takes_pictures(m), "audio", 0, "build_info", "tandem ", TANDEM_VERSION));
}

static json_t *slot_json(const struct ask *ask, const struct tandem_job_info *job, int id)
{
        const struct tandem_model *m = find_model(ask->models, job->model);
        json_int_t left = job->max_tokens > job->generated_tokens ? job->max_tokens - job->generated_tokens : 0;

        return json_pack("{s:i, s:I, s:s, s:I, s:b, s:I, s:I, s:I, s:[{s:b, s:I, s:I}]}", "id", id, "id_task",
                         (json_int_t)job->job, "model", job->model, "n_ctx", (json_int_t)(m ? m->context : 0),
                         "is_processing", 1, "n_prompt_tokens", (json_int_t)job->prompt_tokens,
                         "n_prompt_tokens_processed", (json_int_t)job->prefilled_tokens, "n_prompt_tokens_cache",
                         (json_int_t)job->cached_tokens, "next_token", "has_next_token", 1, "n_remain", left,
                         "n_decoded", (json_int_t)job->generated_tokens);
}

static void answer_slots(struct exchange *x, struct ask *ask)
{
        const struct tandem_model *m = x->arg[0] ? asked_model(x, ask->models) : NULL;
        json_t *slots;

        if (x->arg[0] && !m)
                return;
        slots = json_array();
        for (size_t i = 0; i < ask->jobs->n_jobs; i++)
                if (job_is_shown(x, ask, ask->jobs->jobs[i], m))
                        json_array_append_new(slots, slot_json(ask, ask->jobs->jobs[i], (int)json_array_size(slots)));
        exchange_answer_json(x, 200, slots);
}

/* The query's model becomes the exchange's arg: these paths have no other. */
static void ask_of_model(struct exchange *x, void (*answered)(struct exchange *x, struct ask *ask))
{
        const char *model = MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, "model");

        if (model && strlen(model) >= sizeof(x->arg)) {
                fail_no_model(x, model);
                return;
        }
        snprintf(x->arg, sizeof(x->arg), "%s", model ? model : "");
        exchange_ask(x, ASK_MODELS | ASK_JOBS, NULL, NULL, 0, 0, answered);
}

void llama_props(struct exchange *x)
{
        ask_of_model(x, answer_props);
}

void llama_slots(struct exchange *x)
{
        ask_of_model(x, answer_slots);
}
