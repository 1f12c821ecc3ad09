/* The journal of a job of the bus: what the next daemon needs to go on with it. It is memory (a memfd) that the service
 * manager keeps, so it outlives a daemon that is killed at any moment. Loop thread only.
 *
 * A token, text and output are added, and count when they are committed, all at once. Output is moved from the journal
 * into the job's pipe, and how much was moved is the file offset of the memfd: the kernel moves both in one call. So a
 * reader gets each byte once. */
#ifndef TDM_DAEMON_FACES_DBUS_JOURNAL_H
#define TDM_DAEMON_FACES_DBUS_JOURNAL_H

#include <stdbool.h>
#include <sys/types.h>
#include "common/error.h"

#define BUS_JOURNAL_VERSION 1u
#define BUS_JOURNAL_MAX_REQUEST (5u << 20)
#define BUS_JOURNAL_MAX_TOKENS (1u << 20)
#define BUS_JOURNAL_MAX_TEXT (1u << 20)
#define BUS_JOURNAL_MAX_END (64u << 10)

struct bus_journal;

/* What is said when the job begins. */
struct bus_journal_head {
        char path[384];
        char owner[256];   /* its unique name */
        char bus[48];      /* the server's id: another one gives the same names to others */
        uint32_t uid;      /* of the owner */
        uint32_t output;   /* enum bus_output */
        uint64_t begun_ns; /* tdm_now_ns(): the clock goes on between daemons */
        uint64_t request_size;
};

enum bus_journal_flag {
        BUS_JOURNAL_ACCEPTED = 1,  /* that was told */
        BUS_JOURNAL_LINGERS = 2,   /* the job */
        BUS_JOURNAL_CUT = 4,       /* its output */
        BUS_JOURNAL_TRUNCATED = 8, /* its text */
        BUS_JOURNAL_ENDED = 16,    /* it */
};

/* What changes. Those with a comment are the journal's own to set. */
struct bus_journal_state {
        uint64_t n_tokens, tokens_sum; /* both */
        uint64_t text_size, text_sum;  /* both */
        uint64_t text_bytes;
        uint64_t log_size, log_from, log_sum; /* all: output that was ever added; what the sum is of, up to the end */
        uint64_t end_size, end_sum;           /* both */
        uint64_t sequence;
        uint64_t flags;
        char numerics[192];
        uint64_t sum; /* of all above */
};

struct bus_journal_token {
        uint32_t id;
        float logprob;
};

/* request [head->request_size]. 0, -E2BIG, or what memfd_create() and writing give. */
int bus_journal_new(struct bus_journal **ret, const struct bus_journal_head *head, const void *request);
/* Reads one that an earlier daemon left. Takes fd on success. TDM_E_BAD_REQUEST says what is wrong with it. */
int bus_journal_open(struct bus_journal **ret, int fd, struct tdm_error *err);
void bus_journal_free(struct bus_journal *journal);
void bus_journal_freep(struct bus_journal **journal);

int bus_journal_fd(const struct bus_journal *journal);
const struct bus_journal_head *bus_journal_head(const struct bus_journal *journal);
struct bus_journal_state *bus_journal_state(struct bus_journal *journal);
/* To be freed: [request_size]; [n_tokens]; [text_size]. NULL: no memory. */
void *bus_journal_read_request(struct bus_journal *journal);
struct bus_journal_token *bus_journal_read_tokens(struct bus_journal *journal);
char *bus_journal_read_text(struct bus_journal *journal);
/* What bus_journal_set_end() was given. -ENODATA: nothing, or of another size. */
int bus_journal_read_end(struct bus_journal *journal, void *end, size_t size);
/* The output that was not moved, to be freed. */
char *bus_journal_read_waiting(struct bus_journal *journal);

/* A negative errno: the journal is of no use any more. */
int bus_journal_add_token(struct bus_journal *journal, uint32_t id, float logprob);
int bus_journal_add_text(struct bus_journal *journal, const char *text, size_t size);
int bus_journal_add_output(struct bus_journal *journal, const char *data, size_t size);
/* How the job has ended; its tokens go, since none follows them. */
int bus_journal_set_end(struct bus_journal *journal, const void *end, size_t size);
int bus_journal_commit(struct bus_journal *journal);
/* Moves committed output into the pipe. 0: all; -EAGAIN: the pipe is full; -EPIPE: nobody reads it. */
int bus_journal_move(struct bus_journal *journal, int pipe_fd);
size_t bus_journal_waiting(const struct bus_journal *journal); /* bytes of output that were not moved */
size_t bus_journal_held(const struct bus_journal *journal);    /* bytes of memory, about */

#endif
