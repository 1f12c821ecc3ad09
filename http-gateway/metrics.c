/* Prometheus' text format. The vllm: names are those of the model server protocol of Kubernetes' inference extension
 * and of vLLM's router, so that both can balance over Tandem; the rest are ours. */
#include "http-gateway/metrics.h"

static const double bounds[METRICS_BUCKETS] = { 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60 };

void histogram_add(struct histogram *h, double seconds)
{
        unsigned i = 0;

        while (i < METRICS_BUCKETS && seconds > bounds[i])
                i++;
        h->counts[i]++;
        h->n++;
        h->sum_s += seconds;
}

static void write_head(struct buffer *out, const char *name, const char *type, const char *help)
{
        buffer_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void write_one(struct buffer *out, const char *name, const char *type, const char *help, double value)
{
        write_head(out, name, type, help);
        buffer_printf(out, "%s %.17g\n", name, value);
}

static void write_histogram(struct buffer *out, const char *name, const char *help, const struct histogram *h)
{
        uint64_t sum = 0;

        write_head(out, name, "histogram", help);
        for (unsigned i = 0; i < METRICS_BUCKETS; i++) {
                sum += h->counts[i];
                buffer_printf(out, "%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)sum);
        }
        buffer_printf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name, (unsigned long long)h->n,
                      name, h->sum_s, name, (unsigned long long)h->n);
}

/* A label's value: quotes, backslashes and line ends are escaped. */
static void write_label(struct buffer *out, const char *value)
{
        for (; *value; value++) {
                if (*value == '"' || *value == '\\')
                        buffer_add(out, "\\", 1);
                if (*value == '\n')
                        buffer_add_text(out, "\\n");
                else
                        buffer_add(out, value, 1);
        }
}

static void of_models(struct buffer *out, const struct tandem_status *s, const char *name, const char *help,
                      double (*value)(const struct tandem_model *m))
{
        write_head(out, name, "gauge", help);
        for (size_t i = 0; i < s->n_models; i++) {
                buffer_printf(out, "%s{model=\"", name);
                write_label(out, s->models[i]->name);
                buffer_printf(out, "\"} %.17g\n", value(s->models[i]));
        }
}

static void of_workers(struct buffer *out, const struct tandem_status *s, const char *name, const char *type,
                       const char *help, double (*value)(const struct tandem_worker *w))
{
        write_head(out, name, type, help);
        for (size_t i = 0; i < s->n_workers; i++) {
                double v = value(s->workers[i]);

                if (v < 0)
                        continue; /* not known */
                buffer_printf(out, "%s{worker=\"", name);
                write_label(out, s->workers[i]->name);
                buffer_printf(out, "\"} %.17g\n", v);
        }
}

static double pages(const struct tandem_model *m)
{
        return (double)m->kv_pages_full + m->kv_pages_window;
}

static double pages_used(const struct tandem_model *m)
{
        return (double)m->kv_pages_full_used + m->kv_pages_window_used;
}

static double is_ready(const struct tandem_worker *w)
{
        return strcmp(w->state, "ready") == 0;
}

static double restarts(const struct tandem_worker *w)
{
        return w->restarts;
}

static double busy(const struct tandem_worker *w)
{
        return (double)w->busy_ns / 1e9;
}

static double waiting(const struct tandem_worker *w)
{
        return (double)w->waiting_ns / 1e9;
}

static double power(const struct tandem_worker *w)
{
        return w->use && w->use->has_telemetry ? w->use->power_w : -1;
}

static double temperature(const struct tandem_worker *w)
{
        return w->use && w->use->has_telemetry ? w->use->temperature_c : -1;
}

/* The used share of the fullest page group, because the group that runs out first decides. The daemon does not count
 * pages that only the prefix cache holds. */
static double cache_share(const struct tandem_status *s)
{
        double most = 0;

        for (size_t i = 0; i < s->n_models; i++) {
                const struct tandem_model *m = s->models[i];

                if (m->kv_pages_full > 0)
                        most = TDM_MAX(most, (double)m->kv_pages_full_used / m->kv_pages_full);
                if (m->kv_pages_window > 0)
                        most = TDM_MAX(most, (double)m->kv_pages_window_used / m->kv_pages_window);
        }
        return most;
}

static void write_status(struct buffer *out, const struct tandem_status *s)
{
        write_one(out, "vllm:num_requests_running", "gauge", "Jobs that run.", s->jobs_running);
        write_one(out, "vllm:num_requests_waiting", "gauge", "Jobs that wait.", s->jobs_queued);
        write_one(out, "vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use, 0 to 1.", cache_share(s));
        write_one(out, "vllm:gpu_cache_usage_perc", "gauge", "The same under its older name.", cache_share(s));
        write_one(out, "vllm:gpu_prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.",
                  (double)s->cached_tokens);
        write_one(out, "vllm:gpu_prefix_cache_queries_total", "counter", "Prompt tokens that were looked for.",
                  (double)s->prompt_tokens);
        write_one(out, "tandem_jobs_running", "gauge", "Jobs that run.", s->jobs_running);
        write_one(out, "tandem_jobs_queued", "gauge", "Jobs that wait.", s->jobs_queued);
        write_one(out, "tandem_jobs_done_total", "counter", "Jobs that ended well.", (double)s->jobs_done);
        write_one(out, "tandem_jobs_failed_total", "counter", "Jobs that ended with an error.", (double)s->jobs_failed);
        write_one(out, "tandem_jobs_cancelled_total", "counter", "Jobs that were cancelled.",
                  (double)s->jobs_cancelled);
        write_one(out, "tandem_generated_tokens_total", "counter", "Tokens of answers.", (double)s->tokens_generated);
        write_one(out, "tandem_prompt_tokens_total", "counter", "Tokens of prompts.", (double)s->prompt_tokens);
        write_one(out, "tandem_prefix_hits_total", "counter", "Jobs that began with something known.",
                  (double)s->prefix_hits);
        write_one(out, "tandem_cached_tokens_total", "counter", "Prompt tokens that were not read again.",
                  (double)s->cached_tokens);
        write_one(out, "tandem_evictions_total", "counter", "Times a job made room for another.", (double)s->evictions);
        write_one(out, "tandem_recoveries_total", "counter", "Losses of a worker that jobs lived through.",
                  (double)s->recoveries);
        write_one(out, "tandem_steps_total", "counter", "Steps done.", (double)s->steps_done);
        write_one(out, "tandem_arena_bytes", "gauge", "Shared segments in memory.", (double)s->arena_bytes);
        write_one(out, "tandem_uptime_seconds", "gauge", "How long the daemon runs.", s->uptime_s);
        write_one(out, "tandem_draining", "gauge", "1: the daemon is shutting down.", s->draining);
        of_models(out, s, "tandem_kv_pages", "Pages of a model's KV cache.", pages);
        of_models(out, s, "tandem_kv_pages_used", "Those in use.", pages_used);
        of_workers(out, s, "tandem_worker_ready", "gauge", "1: the worker can run blocks.", is_ready);
        of_workers(out, s, "tandem_worker_restarts_total", "counter", "Restarts of a worker.", restarts);
        of_workers(out, s, "tandem_worker_busy_seconds_total", "counter", "Time in blocks.", busy);
        of_workers(out, s, "tandem_worker_waiting_seconds_total", "counter", "Time without work.", waiting);
        of_workers(out, s, "tandem_worker_power_watts", "gauge", "As the device's driver says.", power);
        of_workers(out, s, "tandem_worker_temperature_celsius", "gauge", "As the device's driver says.", temperature);
}

void metrics_write(struct buffer *out, const struct metrics *m, const struct tandem_status *status,
                   unsigned n_connections, unsigned n_exchanges)
{
        write_one(out, "tandem_up", "gauge", "1: the daemon answers.", status != NULL);
        if (status)
                write_status(out, status);
        write_one(out, "tandem_http_connections", "gauge", "Open connections of clients.", n_connections);
        write_one(out, "tandem_http_requests_active", "gauge", "Requests under way.", n_exchanges);
        write_head(out, "tandem_http_requests_total", "counter", "Answers by the first digit of their status.");
        for (unsigned i = 2; i < TDM_ARRAY_SIZE(m->by_class); i++)
                buffer_printf(out, "tandem_http_requests_total{class=\"%uxx\"} %llu\n", i,
                              (unsigned long long)m->by_class[i]);
        write_head(out, "tandem_http_refused_total", "counter", "Requests that the guard refused.");
        buffer_printf(out, "tandem_http_refused_total{why=\"host\"} %llu\n", (unsigned long long)m->refused_hosts);
        buffer_printf(out, "tandem_http_refused_total{why=\"origin\"} %llu\n", (unsigned long long)m->refused_origins);
        buffer_printf(out, "tandem_http_refused_total{why=\"key\"} %llu\n", (unsigned long long)m->refused_keys);
        write_one(out, "tandem_http_hang_ups_total", "counter", "Clients that left before their answer.",
                  (double)m->hang_ups);
        write_one(out, "tandem_http_stream_errors_total", "counter", "Streams that ended with an error.",
                  (double)m->stream_errors);
        write_one(out, "tandem_http_handoffs_total", "counter",
                  "Requests that went on at a peer, since the daemon had died.", (double)m->handoffs);
        write_histogram(out, "tandem_http_time_to_first_token_seconds", "From the request to its first token.",
                        &m->first_token);
        write_histogram(out, "tandem_http_time_between_tokens_seconds", "Between two tokens of a choice.",
                        &m->between_tokens);
}
