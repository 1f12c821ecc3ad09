/* The way to tandemd.
 *
 * A request that generates has a connection of its own while it runs: the daemon pauses the jobs of a connection that
 * is not read, so a client that reads slowly holds up its own request alone. Connections are kept for the next request
 * when all their jobs are done. Whatever libtandem marks [blocking] (connecting, questions) runs on threads beside the
 * loop; the functions here and their callbacks belong to the loop's thread.
 *
 * A label is whom a connection speaks for (tandem_connect_for()): that of the request's key, NULL without keys. A kept
 * connection serves requests of its own label and no others. Labels are borrowed for as long as the backend lives.
 *
 * Owners take turns on the threads, and one owner's questions come one after another: a slow one delays the questions
 * of its owner and no others. Loads, connects and other questions do not wait for each other. */
#ifndef TDM_HTTP_BACKEND_H
#define TDM_HTTP_BACKEND_H

#include "client-lib/include/tandem.h"
#include "common/loop.h"
#include "http-gateway/owners.h"

struct backend;
struct ask;
struct exchange;

int backend_new(struct backend **ret, struct tdm_loop *loop, const char *socket);
void backend_free(struct backend *b); /* waits for the questions that are asked; NULL is fine */
unsigned backend_n_asks(const struct backend *b);
/* Lets go of kept connections that the daemon has closed, and of many that have long been idle. */
void backend_tick(struct backend *b);

/* Puts a connection that has no open job back. */
void backend_keep(struct backend *b, struct tandem *t, const char *label);

/* Closes those that are kept: their daemon is about to end. */
void backend_drop_kept(struct backend *b);

/* Questions. The answer comes once, unless the ask is forgotten before. */
#define ASK_CONNECT 1u /* nothing but a connection, which the callback takes from ask->tandem */
#define ASK_MODELS 2u  /* after ASK_TOKENIZE: tokenizing has the daemon read the head of the model's file */
#define ASK_STATUS 4u
#define ASK_TOKENIZE 8u /* model, text, flags */
#define ASK_LOAD 16u    /* model */
#define ASK_UNLOAD 32u  /* model */
#define ASK_JOBS 64u

struct ask {
        struct backend *backend;
        void (*answered)(struct ask *ask, void *userdata); /* NULL: forgotten */
        void *userdata;
        unsigned what;
        const char *label;
        struct owner *owner; /* charged with what it takes, also when it is forgotten */
        uint64_t held_bytes;
        _Atomic bool forgotten; /* nothing is asked when its turn comes */
        char *model;            /* owned; may be NULL */
        char *text;             /* owned */
        size_t text_size;
        unsigned flags;

        int code; /* TANDEM_OK, or what error says */
        struct tandem_error error;
        struct tandem *tandem;
        struct tandem_model_list *models;
        struct tandem_status *status;
        struct tandem_job_list *jobs;
        uint32_t *ids;
        size_t n_ids;
};

/* Takes over model and text (malloc'd) in any case. *ret is valid until `answered` returns; the callback may be called
 * before this returns when a connection is kept. 0, or a failure: no memory, or the owner has no share of it left. */
int backend_ask(struct backend *b, struct owner *owner, const char *label, unsigned what, char *model, char *text,
                size_t text_size, unsigned flags, void (*answered)(struct ask *ask, void *userdata), void *userdata,
                struct ask **ret, struct failure *f);
/* No answer is wanted any more. */
void backend_forget(struct ask *ask);

#endif
