/* What the gateway counts itself, and everything as Prometheus' text. */
#ifndef TDM_HTTP_METRICS_H
#define TDM_HTTP_METRICS_H

#include "client-lib/include/tandem.h"
#include "http-gateway/buffer.h"

#define METRICS_BUCKETS 14u

struct histogram {
        uint64_t counts[METRICS_BUCKETS + 1]; /* the last: above all bounds */
        uint64_t n;
        double sum_s;
};

struct metrics {
        uint64_t by_class[6]; /* answers by the first digit of their status */
        uint64_t refused_hosts, refused_origins, refused_keys, hang_ups, stream_errors, handoffs;
        uint64_t prompt_tokens, cached_tokens, generated_tokens;
        struct histogram first_token, between_tokens;
};

void histogram_add(struct histogram *h, double seconds);
/* status: NULL when the daemon did not answer. */
void metrics_write(struct buffer *out, const struct metrics *m, const struct tandem_status *status,
                   unsigned n_connections, unsigned n_exchanges);

#endif
