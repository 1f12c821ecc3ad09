/* Jobs for one exchange: one for each choice, on one connection to tandemd.
 *
 * The API's part is a `struct generation_ops`; what it fills in is a `struct generation_request`. A stream begins when
 * all jobs are accepted, so that what the daemon refuses is still an answer with its own status, or after a second,
 * when a model is being read. Nothing is read from the daemon while the client leaves more than a mark unread, so the
 * daemon pauses these jobs and no others. */
#ifndef TDM_HTTP_GENERATION_H
#define TDM_HTTP_GENERATION_H

#include "http-gateway/exchange.h"
#include "http-gateway/params.h"
#include "http-gateway/pictures.h"
#include "http-gateway/sse.h"
#include "http-gateway/stops.h"
#include "http-gateway/tools.h"

#define MAX_CHOICES 64u
#define MAX_INPUTS 2048u       /* texts of one request for vectors */
#define MAX_INPUTS_AT_ONCE 32u /* of them that are with the daemon */
#define MAX_PROMPTS 16u
#define MAX_MESSAGES 4096u
#define MAX_STOPS 16u
#define MAX_COLUMNS 4u
#define MAX_STOP_BYTES 256u

struct prompt {
        const char *text; /* NULL: ids */
        size_t size;
        uint32_t *ids; /* owned */
        size_t n_ids;
};

struct generation_request {
        json_t *json;         /* the request: strings point into it */
        struct exact numbers; /* of it */
        const char *path;     /* the route's */
        size_t bytes;         /* what json and pictures take, about */
        struct params_warnings warnings;
        struct tandem_generate_options options; /* model, sampling, max_tokens */
        char *model;                            /* owned, as the daemon knows it; NULL: the default one */
        char *schema;                           /* owned: of options, where it is not a constant */
        char *logit_bias;                       /* owned: of options */
        char *draft;                            /* owned: of options */
        struct tandem_message *messages;        /* owned, and their texts; or: */
        size_t n_messages;
        struct request_tools tools;
        struct request_pictures pictures; /* that stand in the messages or in the prompt */
        struct prompt prompts[MAX_PROMPTS];
        size_t n_prompts;
        json_t *inputs;      /* texts that are to become vectors or scores, in place of prompts; lies in json */
        uint32_t dimensions; /* of the vectors; 0: all */
        json_t *query;       /* then the texts are documents that are ranked by it; NULL: not so; lies in json */
        bool classifies;     /* the inputs are texts, [text] or [text, text], of which classes are told */
        bool raw;            /* then what the head gives, in place of probabilities */
        const char *stops[MAX_STOPS];
        size_t n_stops;
        unsigned n;             /* choices for each prompt */
        uint32_t context_limit; /* prompt and answer together; 0: none of ours */
        bool stream, with_usage, with_logprobs;
        bool with_progress;        /* a stream tells how much of the prompt has been read */
        bool with_guesses;         /* it asked for them, so it is told how they were */
        bool count_only;           /* only how many tokens the prompt has */
        bool with_thinking;        /* it asked for thoughts, and its API tells them to those alone */
        bool seal_thinking;        /* thoughts are to come in a text that the client hands back, too */
        bool name_the_stop;        /* which stop text it was matters */
        bool unload;               /* Ollama's: without a prompt the model goes */
        const char *thinking_name; /* how the request names what it says of thinking; NULL: it says nothing */
        const char *thinking_else; /* NULL, or what is warned of where the model cannot think: it is asked without */
        bool taken_over;           /* another gateway's: it sees to the rest if this daemon dies */
};

struct handoff;

struct told {
        uint32_t id;
        float logprob;
};

/* A part of an answer that is not a stream, where it stands among others. */
struct choice_piece {
        enum choice_piece_kind { PIECE_THINKING, PIECE_TEXT, PIECE_CALL } kind;
        size_t from, to; /* of the choice's thinking or text; of a call, from is which */
};

/* Tokens of a prompt that is being read. */
struct prompt_progress {
        bool runs;
        uint64_t total, cached, processed; /* cached: those that were there when the daemon first told */
        uint64_t began_ns;
};

struct choice {
        struct generation *generation;
        unsigned index;
        struct tandem_job *job;
        bool accepted, ended;
        bool refused; /* by a daemon that ends, before its first token */
        bool cut;     /* by us: at reason */
        enum tandem_reason reason;
        int stop; /* index of the stop text that was found here; -1 */
        uint32_t prompt_tokens, cached_tokens, generated_tokens, thinking_tokens;
        uint64_t drafted, accepted_guesses;
        double prefill_s, decode_s, load_s;
        uint64_t last_token_ns;
        struct prompt_progress progress;
        struct told *told; /* [n_told], where there are peers: what the client has */
        size_t n_told, told_capacity;
        char drew[192]; /* names the arithmetic that drew them; "": not known, or several */
        size_t n_again; /* of a handoff: how many of them came again, or were read there */
        size_t n_given; /* of a handoff: how many of them the peer was given to read */
        struct handoff *handoff;
        struct buffer tail; /* of a handoff */
        struct stops stopper;
        struct buffer text; /* of an answer that is not a stream */
        struct choice_calls calls;
        struct buffer thinking;      /* of an answer that is not a stream */
        struct choice_piece *pieces; /* [n_pieces] as they came */
        size_t n_pieces, pieces_capacity;
        struct sse_form form; /* the API's own, of events that bring text */
        /* Log-probabilities or a vector of an answer that is not a stream, as JSON without its brackets. Kept as text
         * they take a tenth of the memory that JSON values take. */
        struct buffer columns[MAX_COLUMNS];
        void *state;         /* the API's, malloc'd */
        uint64_t kept_bytes; /* text that the API keeps beside this */
        uint64_t held_bytes; /* of all this, charged to the exchange's owner */
};

/* Each adds to x->out (streams), or answers. end() of an exchange that is not a stream makes the whole answer. */
struct generation_ops {
        const char *content_type;
        void (*begin)(struct exchange *x);
        /* token NULL: text that was held back until the end */
        void (*text)(struct exchange *x, struct choice *c, const struct tandem_token *token, const char *text,
                     size_t size);
        /* What a token adds to thoughts and calls. NULL: they are told at the end, or not at all. */
        void (*calls)(struct exchange *x, struct choice *c, const struct tandem_token *token);
        void (*choice_end)(struct exchange *x, struct choice *c);
        void (*end)(struct exchange *x);
        void (*error)(struct exchange *x, const struct failure *f); /* in the midst of a stream */
        void (*ping)(struct exchange *x);                           /* NULL: none */
        void (*progress)(struct exchange *x, struct choice *c);     /* tells the choice's. NULL: none is told */
        void (*recovering)(struct exchange *x); /* a worker or the daemon was lost; jobs go on. NULL: not told */
        /* A choice's vector is there. NULL where the request is for text. */
        void (*vector)(struct exchange *x, struct choice *c, const float *vector, size_t n);
};

struct generation {
        struct exchange *x;
        const struct generation_ops *ops;
        struct generation_request *request;
        struct tandem *tandem;
        struct ask *connecting;
        struct tdm_source *io;
        short watched;
        bool paused, begun, over, failed;
        bool elsewhere;
        bool lost; /* the daemon has died: what has not ended goes on at a peer */
        bool told_recovering;
        bool anew;          /* a daemon that ends refused some; they are asked for once more */
        bool probabilities; /* its scores are such: see tandem_result */
        unsigned n_choices, n_started, n_accepted, n_refused, n_ended;
        uint64_t started_ns, spoke_ns;
        time_t created;
        struct failure failure;
        struct choice choices[];
};

/* Takes json and what numbers has over; NULL: out of memory. */
struct generation_request *generation_request_new(json_t *json, struct exact *numbers);
void generation_request_free(struct generation_request *r);
void generation_request_freep(struct generation_request **r);

/* False: libtandem would take it for the path of a file. */
bool model_is_a_name(const char *model);
/* Takes the request over. Answers the exchange, now or later. */
void generation_start(struct exchange *x, struct generation_request *request, const struct generation_ops *ops);
void generation_free(struct generation *g);    /* what runs is cancelled; NULL is fine */
void generation_drained(struct generation *g); /* the client has read */
void generation_tick(struct generation *g, uint64_t now_ns);
/* This process stood still for so long: that time does not count for peers (server_forgive()). */
void generation_forgive(struct generation *g, uint64_t late_ns, uint64_t now_ns);

/* Sums over the choices: a prompt counts once, whatever n. */
void generation_usage(const struct generation *g, uint64_t *ret_prompt, uint64_t *ret_cached, uint64_t *ret_generated);
uint64_t generation_thinking_tokens(const struct generation *g); /* of the generated ones */

#endif
