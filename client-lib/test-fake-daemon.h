/* A daemon that only talks: it speaks tandem.proto, knows no model, and does what the model's name says. For tests of
 * the library (a thread in the test) and of the command (test-fake-daemon, a program that logs requests as JSON lines).
 *
 *   ""/"tale"   five tokens, or max_tokens of them where that is at most 200; chat answers "turn N"
 *   "slow"      a token every 20 ms until max_tokens or Cancel
 *   "stuck"     accepted, and nothing more; Cancel is logged and not answered
 *   "deaf"      not even accepted
 *   "loading", "reading", "queued", "recover"   shows the progress of that name, 150 ms each, then as "tale"
 *   "loads"     shows the progress of loading, and nothing more until Cancel
 *   "die"       two tokens, then the connection is cut
 *   "fault"     two tokens, then DONE_ERROR device-fault
 *   "busy"      Error busy; "ending": Error draining
 *   "unborn"    Error cancelled
 *   "long"      Error too-long; "short": where the texts of a chat have more than 100 bytes
 *   "bytes"     tokens with control characters, quotes, invalid UTF-8, and a tail
 *   "markup"    a text with Markdown
 *   "calls"     calls a tool; "callcut": and is cut off within the arguments
 *   "gap"       a token index is skipped
 *   "future"    a reply of an unknown kind, an unknown progress state and fields come in between
 *   "flood"     tokens without end until the connection closes
 *   "oddscore"  score chunks out of order */
#ifndef TANDEM_TEST_FAKE_DAEMON_H
#define TANDEM_TEST_FAKE_DAEMON_H

#include <pthread.h>
#include "common/util.h"
#include "proto/tandem.pb-c.h"

struct fake_config {
        size_t fragment;  /* bytes in one write, 0: all */
        size_t cut_after; /* bytes sent in all before the connection is cut; SIZE_MAX: never */
        size_t flip_at;   /* this byte of the stream is XORed with flip; SIZE_MAX: none */
        uint8_t flip;
        bool hang_up;       /* after the first job is done */
        bool too_many;      /* jobs get tokens without end, whatever they asked for */
        int idle_ms;        /* hang up after this long without a request; -1: never */
        uint32_t protocol;  /* in the greeting; 0: 1 */
        uint32_t max_frame; /* in the greeting; 0: 1 MiB */
        bool no_labels;     /* the greeting does not say for whom the client speaks */
        const uint8_t *raw; /* sent instead of the greeting, then the connection is cut */
        size_t raw_size;
        FILE *log; /* requests, one JSON object a line */
};
#define FAKE_CONFIG_INIT                                                                                               \
        {                                                                                                              \
                .cut_after = SIZE_MAX, .flip_at = SIZE_MAX, .idle_ms = -1                                              \
        }

/* test-fake-log.c: writes a request; nothing where log is NULL. */
void fake_log_request(FILE *log, const Tandem__Request *r, const int *fds, unsigned n_fds);

/* Serves one connection until it ends; closes fd. Returns the bytes sent. */
size_t fake_serve(int fd, const struct fake_config *config);

/* One connection on a socket of its own, served by a thread. */
struct fake {
        char dir[64], path[96];
        int listen_fd;
        struct fake_config config;
        size_t sent; /* after fake_stop() */
        pthread_t thread;
};
void fake_start(struct fake *fake, const struct fake_config *config);
void fake_stop(struct fake *fake); /* waits for the connection's end; removes the socket */

#endif
