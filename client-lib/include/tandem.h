/* libtandem: ask tandemd, the daemon that runs language models on a machine's NPU and GPU together, for text.
 *
 * A `struct tandem` is one connection to the daemon, a `struct tandem_job` one running request on it. Nothing here
 * keeps a thread or a signal handler: the caller either blocks in tandem_wait() and the request functions, or polls
 * tandem_fd() for tandem_events() in its own loop and calls tandem_dispatch(). Both may be mixed.
 *
 * Threads: a connection and its jobs belong to one thread at a time; different connections are independent.
 *
 * Callbacks run inside tandem_dispatch(), tandem_wait() and the blocking requests. They may call anything but the
 * functions that are marked [blocking]; those fail there with TANDEM_E_BAD_REQUEST.
 *
 * Errors: functions that can fail return TANDEM_OK (0) or a TANDEM_E_* (> 0), and fill `err` where they take one (it
 * may be NULL). Outputs are written on success only. What the daemon sends is checked: a daemon that breaks the rules
 * of the wire costs the connection (TANDEM_E_PROTOCOL), never the process.
 *
 * Growth: structs that the caller fills begin with struct_size and are set up by their _init() function; structs that
 * the library fills only ever grow at their end and come as pointers. So a program built against an older header keeps
 * working. Text is UTF-8. Strings inside structs that the library fills live as long as the struct does.
 *
 *         struct tandem_generate_options options;
 *         struct tandem_error err;
 *         struct tandem_job *job;
 *         struct tandem *tandem;
 *
 *         if (tandem_connect(&tandem, NULL, &err) != TANDEM_OK)
 *                 ...
 *         tandem_generate_options_init(&options);
 *         options.prompt = "Once upon a time";
 *         if (tandem_generate(tandem, &options, NULL, NULL, &job, &err) != TANDEM_OK)
 *                 ...
 *         tandem_wait(job, -1);
 *         puts(tandem_job_text(job, NULL));
 *         tandem_job_free(job);
 *         tandem_close(tandem);
 */
#ifndef TANDEM_H
#define TANDEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TANDEM_API __attribute__((visibility("default")))
#else
#define TANDEM_API
#endif

#define TANDEM_VERSION_MAJOR 0
#define TANDEM_VERSION_MINOR 1
#define TANDEM_VERSION_PATCH 0

/* Version of the library that runs, "0.1.0". */
TANDEM_API const char *tandem_version(void);

/* ---- errors ---------------------------------------------------------------------------------------------------- */

enum tandem_code {
        TANDEM_OK = 0,
        TANDEM_E_INTERNAL = 1,      /* "internal": a defect, here or in the daemon */
        TANDEM_E_NO_MODEL = 2,      /* "no-model": no such model file or name */
        TANDEM_E_BAD_MODEL = 3,     /* "bad-model": the file is damaged or lies about itself */
        TANDEM_E_UNSUPPORTED = 4,   /* "unsupported": architecture, tensor type or feature not known */
        TANDEM_E_MODEL_CHANGED = 5, /* "model-changed": cut short or rewritten while in use */
        TANDEM_E_BAD_REQUEST = 6,   /* "bad-request": arguments out of range or contradictory */
        TANDEM_E_TOO_LONG = 7,      /* "too-long": the prompt does not fit the context */
        TANDEM_E_BUSY = 8,          /* "busy": too many jobs or connections in all */
        TANDEM_E_QUOTA = 9,         /* "quota": too many for this user */
        TANDEM_E_NO_MEMORY = 10,    /* "no-memory": model or cache does not fit the budget */
        TANDEM_E_DENIED = 11,       /* "denied": this user may not */
        TANDEM_E_NO_JOB = 12,       /* "no-job": no such job */
        TANDEM_E_DRAINING = 13,     /* "draining": the daemon is shutting down */
        TANDEM_E_CANCELLED = 14,    /* "cancelled" */
        TANDEM_E_DEVICE_FAULT = 15, /* "device-fault": the device died on this job, twice, alone */
        TANDEM_E_DAEMON_LOST = 16,  /* "daemon-lost": the connection is gone */
        TANDEM_E_PROTOCOL = 17,     /* "protocol": the daemon broke the rules of the wire */
        TANDEM_E_NO_WORKER = 18,    /* "no-worker": no worker can run the model now */
        TANDEM_E_DEADLINE = 19,     /* "deadline": deadline_ms passed before the job was done */
        /* The library's own: */
        TANDEM_E_NO_DAEMON = 100, /* "no-daemon": nobody listens on the socket */
        TANDEM_E_TIMEOUT = 101,   /* "timeout": no answer in the time that was given */
        TANDEM_E_OTHER = 199      /* a newer daemon's code; its name is in tandem_error.name */
};

/* What went wrong, for a program (code, name) and for a person (message: what was tried, on what, why it failed, what
 * to do). Filled by value, so that it needs no freeing. */
struct tandem_error {
        int code;           /* enum tandem_code */
        char name[32];      /* "no-model" */
        char message[1024]; /* UTF-8, one line, no "tandem:" in front */
};

TANDEM_API const char *tandem_code_name(int code); /* never NULL */

/* ---- connection ------------------------------------------------------------------------------------------------ */

struct tandem;
struct tandem_job;

/* [blocking] Connects and greets; waits up to 30 s for the daemon's greeting. path NULL: $TANDEM_SOCKET, or when that
 * is unset that of the user's own daemon ($XDG_RUNTIME_DIR/tandem/socket) and then /run/tandem/socket.
 * TANDEM_E_NO_DAEMON says which were tried. */
TANDEM_API int tandem_connect(struct tandem **ret, const char *path, struct tandem_error *err);
/* The same for a program that serves several people under one uid. What this connection asks for counts as `label`'s:
 * quotas, turns, cached prompts, and the jobs and models that it sees. A label has 1 to 80 printing ASCII characters,
 * no space. Only the HTTP gateway's user may do so with the system's daemon, and only the user itself with its own.
 * TANDEM_E_DENIED: another user. TANDEM_E_UNSUPPORTED: a daemon that knows no labels. label NULL: tandem_connect(). */
TANDEM_API int tandem_connect_for(struct tandem **ret, const char *path, const char *label, struct tandem_error *err);
/* Hangs up; the daemon stops this connection's jobs. Jobs still running end here with TANDEM_REASON_CANCELLED and no
 * callback; their handles stay valid until tandem_job_free(). NULL is fine. Allowed in callbacks. */
TANDEM_API void tandem_close(struct tandem *tandem);

/* The descriptor to poll. Never read from it, never close it. Stays the same until tandem_close(), whatever becomes of
 * the daemon. It has POLLIN also when something can be sent, and when it is time to look for a lost daemon. */
TANDEM_API int tandem_fd(const struct tandem *tandem);
/* What to poll it for: POLLIN, and POLLOUT while something waits to be sent. Ask again before every poll. */
TANDEM_API short tandem_events(const struct tandem *tandem);
/* Sends and reads what can be sent and read now, and calls the callbacks. timeout_ms: how long to wait when there is
 * nothing to do (0: not at all, -1: without limit); a signal ends the wait early, with TANDEM_OK. TANDEM_E_*: the
 * connection has ended; every job has had its on_done. [blocking] unless timeout_ms is 0; not from callbacks. */
TANDEM_API int tandem_dispatch(struct tandem *tandem, int timeout_ms);
/* Why the connection ended, or NULL while it stands. */
TANDEM_API const struct tandem_error *tandem_connection_error(const struct tandem *tandem);
/* How long a [blocking] request waits for its answer before TANDEM_E_TIMEOUT. -1 (at first): without limit. */
TANDEM_API void tandem_set_timeout(struct tandem *tandem, int timeout_ms);

/* How long a daemon that is lost is waited for while jobs run. It may be started anew: the jobs are then sent to it
 * with the tokens that they have, and go on. They are told TANDEM_JOB_RECOVERING, then tokens; none comes twice.
 * Scores, vectors and tandem_load_model() begin anew. All else ends with TANDEM_E_DAEMON_LOST, and so do the jobs when
 * no daemon comes. One that accepts the connection has 30 s to greet, as in tandem_connect().
 *
 * A job whose tokens are others there ends with TANDEM_E_MODEL_CHANGED. Where the arithmetic is another one it ends
 * with TANDEM_E_UNSUPPORTED, unless tandem_generate_options.may_degrade is set. Handles stay valid, tandem_job_id()
 * changes, and tandem_cancel_job() takes the first number too. $TANDEM_REATTACH is a number of seconds, else it is 5 s:
 * that at first, and for -1. 0: not at all. It counts for jobs that are begun afterwards. */
TANDEM_API void tandem_set_reattach(struct tandem *tandem, int timeout_ms);

TANDEM_API const char *tandem_socket_path(const struct tandem *tandem);
TANDEM_API const char *tandem_daemon_version(const struct tandem *tandem);

/* ---- jobs ------------------------------------------------------------------------------------------------------ */

enum tandem_priority { TANDEM_PRIORITY_INTERACTIVE = 0, TANDEM_PRIORITY_BACKGROUND = 1 };

/* Guesses at tokens, several of which are checked in one step. They change the time, and no token. */
enum tandem_speculation {
        TANDEM_SPECULATION_AUTO = 0, /* what the configuration says */
        TANDEM_SPECULATION_OFF = 1,
        TANDEM_SPECULATION_LOOKUP = 2, /* what stood behind the same tokens before, in prompt or text */
        TANDEM_SPECULATION_DRAFT = 3   /* a draft model */
};

/* Whether a model thinks before it answers in a chat. */
enum tandem_thinking {
        TANDEM_THINKING_AUTO = 0, /* as its template has it */
        TANDEM_THINKING_OFF = 1,
        TANDEM_THINKING_ON = 2,
        TANDEM_THINKING_LOW = 3, /* on, where the template has no levels */
        TANDEM_THINKING_MEDIUM = 4,
        TANDEM_THINKING_HIGH = 5
};

enum tandem_job_state {
        TANDEM_JOB_QUEUED = 0,
        TANDEM_JOB_LOADING = 1, /* its model is being loaded: done and total are bytes */
        TANDEM_JOB_PREFILL = 2, /* prompt and drawn tokens are being read: done and total count them */
        TANDEM_JOB_DECODE = 3,
        TANDEM_JOB_RECOVERING = 4, /* a worker or the daemon was lost; the job goes on by itself */
        TANDEM_JOB_DONE = 5
};

enum tandem_reason {
        TANDEM_REASON_STOP = 0,   /* the model ended, or a stop text came */
        TANDEM_REASON_LENGTH = 1, /* max_tokens, or the context is full */
        TANDEM_REASON_CANCELLED = 2,
        TANDEM_REASON_ERROR = 3 /* see tandem_result.error */
};

TANDEM_API const char *tandem_priority_name(int priority); /* "interactive"; "unknown" for what is not known */
TANDEM_API const char *tandem_job_state_name(int state);   /* "queued", … */
TANDEM_API const char *tandem_reason_name(int reason);     /* "stop", … */

struct tandem_message {
        const char *role; /* "system", "user", "assistant", "tool" */
        const char *text;
        size_t size;
};

/* A call of a tool. Never grows. */
struct tandem_call {
        const char *id;
        const char *name;
        const char *arguments; /* a JSON object */
};

/* What a message has beside its text. */
struct tandem_message_details {
        size_t struct_size;
        const char *thinking;            /* assistant: what it thought before the text, or NULL */
        const struct tandem_call *calls; /* assistant: [n_calls] that it made */
        size_t n_calls;
        const char *call_id; /* tool: the call that the text answers */
        const char *name;    /* tool: which tool */
};

/* A picture's file: PNG, JPEG or WebP. It stands in front of the byte `offset` of the prompt, or of the text of the
 * message with this index. Never grows. */
struct tandem_picture {
        const void *file;
        size_t size;
        uint32_t message;
        uint32_t offset;
};

/* One of prompt, chat and prompt_ids. A model is named by nothing (NULL or "": the daemon's default), by a name that
 * tandem_list_models() knows, or by a path (it contains '/', or ends in .gguf and such a file exists): the library then
 * opens the file and hands it over, so the daemon needs no right to read it. Everything is copied before the call
 * returns. */
/* For which a model's file may recommend a value. */
enum tandem_sampling_option {
        TANDEM_SAMPLING_TEMPERATURE = 1,
        TANDEM_SAMPLING_TOP_K = 2,
        TANDEM_SAMPLING_TOP_P = 4,
        TANDEM_SAMPLING_MIN_P = 8,
        TANDEM_SAMPLING_REPEAT_PENALTY = 16,
        TANDEM_SAMPLING_REPEAT_LAST = 32
};

struct tandem_generate_options {
        size_t struct_size;
        const char *model;
        const char *prompt; /* raw text to go on from; control pieces of the vocabulary are recognised */
        size_t prompt_size; /* SIZE_MAX (as set by _init): up to the NUL */
        /* [n_chat]; the model's own template is applied. The model answers the last message, or goes on with its text
         * where that message is the assistant's. */
        const struct tandem_message *chat;
        size_t n_chat;
        const uint32_t *prompt_ids; /* [n_prompt_ids] token ids, as they are (no BOS is added) */
        size_t n_prompt_ids;
        uint32_t max_tokens;     /* 0: until the model ends or the context is full */
        float temperature;       /* 0.8; 0: greedy */
        uint32_t top_k;          /* 40; 0: off */
        float top_p;             /* 0.95; 0 or 1: off */
        float min_p;             /* 0: off */
        float repeat_penalty;    /* 1; 0 or 1: off */
        uint32_t repeat_last;    /* tokens the penalty looks back on; 0: 64 */
        uint64_t seed;           /* random from _init(); the same seed and request give the same tokens */
        const char *const *stop; /* [n_stop] texts that end the job and are not part of the output */
        size_t n_stop;
        enum tandem_priority priority;
        bool ignore_end;        /* benchmarks: end tokens do not end the job */
        uint32_t prefill_chunk; /* tests: prompt tokens in one step; 0: the daemon decides */
        const char *placement;  /* tests: "split", "npu", "gpu"; NULL: the daemon decides */
        uint32_t deadline_ms;   /* after this long the job ends with TANDEM_E_DEADLINE, wherever it is; 0: never */
        /* What the text must follow; at most one of the three. NULL: nothing. See tandem_result.incomplete. */
        const char *json_schema; /* a JSON Schema: the text is JSON that satisfies it */
        const char *grammar;     /* in GBNF, with a rule `root` */
        const char *regex;       /* an ECMA regular expression that the whole text matches */
        enum tandem_speculation speculation;
        uint32_t draft_max;      /* guesses in a step at most, up to 16; 0: what the configuration says */
        float frequency_penalty; /* 0: off; taken off a token's logit for each time that the text has it */
        float presence_penalty;  /* 0: off; taken off once if the text has it */
        const char *logit_bias;  /* "ID:BIAS,…": added to the logits of these tokens; NULL: none */
        uint32_t top_logprobs;   /* likeliest tokens to report for each position, at most 20; 0: none */
        /* Tools that the model may call in a chat: a JSON array of {"type": "function", "function": {"name",
         * "description", "parameters"}}, the parameters being a JSON Schema that the arguments satisfy. Instead of the
         * three above. Calls come with the tokens and from tandem_job_calls(), not in the text. NULL: none. */
        const char *tools;
        const char *tool_choice; /* "auto" (NULL), "none", "required", "function:NAME" */
        bool one_call;           /* at most one call */
        const struct tandem_message_details *const *chat_details; /* [n_chat], or NULL; each may be NULL */
        /* The name of a model that guesses at the next tokens, or the whole path of a file that this user passed as the
         * model of some call shortly before. Its vocabulary is the model's own, or the first part of it; any other is
         * refused. NULL: what the configuration says. */
        const char *draft;
        uint32_t keep_alive; /* seconds that the model stays in memory after this job; 0: what the configuration says */
        /* For chats. What the model cannot do is refused with TANDEM_E_UNSUPPORTED. Thoughts come with the tokens, not
         * in the text; stop texts, json_schema, grammar and regex are about the answer behind them. */
        enum tandem_thinking thinking;
        uint32_t thinking_budget; /* its thoughts end after this number of tokens; 0: when the model ends them */
        /* A model's file may recommend how to draw: its value goes before that of _init(). Sums of enum
         * tandem_sampling_option: options that are meant though they have the value of _init(), and options that are
         * open though they have another one, as where a program has defaults of its own. */
        uint32_t meant, left_open;
        /* Of a chat: a JSON object whose members the model's chat template sees as variables. NULL: none. */
        const char *chat_variables;
        /* "ID,…": tokens that a job of the same request has drawn already, with the same seed. They are not drawn again
         * but read, and the job goes on exactly as that one would have. They count as generated: they come first in
         * tandem_job_ids(), and the first on_token has their number as its index. Their text does not come again, what
         * follows from it does: a stop text may begin in them. A call of a tool that began in them has no name here.
         * NULL: none. */
        const char *drawn;
        const char *drawn_numerics; /* tandem_token.numerics_id of theirs; another one is TANDEM_E_UNSUPPORTED */
        bool may_degrade;           /* then the job goes on all the same, and its result says degraded */
        /* [n_pictures] that stand in the prompt or in the chat, in order; not with prompt_ids. A model without a vision
         * tower is TANDEM_E_UNSUPPORTED. */
        const struct tandem_picture *pictures;
        size_t n_pictures;
        /* [n_pictures], or NULL: where a picture's file is NULL, the descriptor of its file, which stays the caller's.
         * All of the file is read before the call returns, wherever the descriptor stands in it. It has to be a regular
         * file or a memfd: another one is TANDEM_E_BAD_REQUEST, as a pipe might keep the caller waiting. */
        const int *picture_fds;
};

struct tandem_score_options {
        size_t struct_size;
        const char *model;
        const uint32_t *ids; /* [n_ids] */
        size_t n_ids;
        const char *text; /* instead of ids: BOS is put in front, control pieces are not recognised */
        size_t text_size; /* SIZE_MAX (as set by _init): up to the NUL */
        uint32_t top;     /* alternatives for each position, at most 64 */
};

struct tandem_embed_options {
        size_t struct_size;
        const char *model;
        const char *text;    /* control pieces are not recognised; may be empty */
        size_t text_size;    /* SIZE_MAX (as set by _init): up to the NUL */
        uint32_t dimensions; /* numbers of the vector, from its begin, made length 1; 0: all */
        enum tandem_priority priority;
        uint32_t deadline_ms; /* as of a job that generates; 0: never */
};

struct tandem_rerank_options {
        size_t struct_size;
        const char *model;
        const char *query;    /* control pieces are not recognised; not empty */
        size_t query_size;    /* SIZE_MAX (as set by _init): up to the NUL */
        const char *document; /* the same; may be empty */
        size_t document_size;
        enum tandem_priority priority;
        uint32_t deadline_ms; /* as of a job that generates; 0: never */
};

struct tandem_classify_options {
        size_t struct_size;
        const char *model;
        const char *text;   /* control pieces are not recognised; may be empty */
        size_t text_size;   /* SIZE_MAX (as set by _init): up to the NUL */
        const char *second; /* the same, of a pair of texts; NULL: it is no pair */
        size_t second_size;
        bool raw; /* what the head gives, in place of probabilities */
        enum tandem_priority priority;
        uint32_t deadline_ms; /* as of a job that generates; 0: never */
};

struct tandem_accepted {
        uint64_t job; /* the daemon's number, as in tandem_list_jobs() */
        uint32_t prompt_tokens;
        uint32_t max_tokens; /* what was asked for, or the most that can come */
        const char *model;
};

struct tandem_progress {
        uint64_t job;
        int state; /* enum tandem_job_state; a newer daemon may send others */
        uint64_t done, total;
        uint32_t queue_position; /* waiting jobs before this one */
        bool daemon_lost;        /* TANDEM_JOB_RECOVERING: not a worker; total is 0 until there is a daemon again */
};

/* One of the likeliest tokens at a position, before filters, penalties and biases. */
struct tandem_alternative {
        uint32_t id;
        float logprob;
        const char *text; /* the bytes of its piece, maybe a part of a character; no NUL follows */
        size_t size;
};

/* What a token adds to a call. The first delta of a call has its id and name, others a piece of its arguments. */
struct tandem_call_delta {
        uint32_t call;    /* which, from 0 */
        const char *id;   /* "" but in the first */
        const char *name; /* "" but in the first */
        const char *arguments;
        size_t arguments_size;
};

struct tandem_token {
        uint32_t index; /* from 0, without gaps */
        uint32_t id;
        float logprob;
        const char *text; /* whole characters, NUL-terminated; may be empty */
        size_t size;
        const struct tandem_alternative *top; /* [n_top] by falling log-probability: see top_logprobs */
        size_t n_top;
        const char *thinking; /* of chats: what it adds to the model's thoughts */
        size_t thinking_size;
        const struct tandem_call_delta *const *calls; /* [n_calls] of jobs with tools */
        size_t n_calls;
        /* The token's own bytes, whatever text has been released: part of a character, of a stop text, of a call. From
         * an older daemon the text. */
        const char *piece;
        size_t piece_size;
        const char *numerics_id; /* names the arithmetic that drew it; "" from an older daemon */
};

struct tandem_result {
        uint64_t job; /* 0: refused before it had a number */
        enum tandem_reason reason;
        struct tandem_error error; /* of TANDEM_REASON_ERROR */
        uint32_t prompt_tokens;
        uint32_t cached_tokens; /* of the prompt, found in the prefix cache */
        uint32_t generated_tokens;
        double ttft_ms;      /* from acceptance to the first token */
        double prefill_tps;  /* tokens a second */
        double decode_tps;   /* from the first token on */
        uint32_t recoveries; /* times a worker was lost while this job ran; no token was */
        /* Its tokens may not be those of the same request at another time: a worker was out of service and the other
         * one did its work, or another arithmetic went on behind the first ones (may_degrade). */
        bool degraded;
        const char *numerics_id; /* names the arithmetic: equal ids, equal bits */
        const char *tail;        /* text that still waited for more tokens (an unfinished character), at the very end */
        size_t tail_size;
        bool incomplete; /* it ended before its text satisfied json_schema, grammar or regex: at max_tokens, say */
        uint64_t drafted, accepted;               /* guesses that were checked, and of those that were right */
        uint64_t drafted_at[16], accepted_at[16]; /* the same by place in their step, while all before were right */
        const char *unguessed;                    /* why the last step had no guesses; "": it had some */
        uint32_t thinking_tokens;                 /* of the generated ones: thoughts, and the marks around them */
        bool probability; /* of scores of tandem_rerank() and tandem_classify(): from 0 to 1; else without bounds */
        uint32_t picture_tokens; /* of the prompt's: rows of pictures; 0 from an older daemon */
};

/* What a job tells while it runs; any may be NULL, and the whole struct too. The pointers they get are valid during the
 * call. on_done is the last one and comes exactly once, unless the job is freed or the connection closed before. */
struct tandem_callbacks {
        size_t struct_size;
        void (*on_accepted)(struct tandem_job *job, const struct tandem_accepted *accepted, void *userdata);
        void (*on_progress)(struct tandem_job *job, const struct tandem_progress *progress, void *userdata);
        void (*on_token)(struct tandem_job *job, const struct tandem_token *token, void *userdata);
        void (*on_done)(struct tandem_job *job, const struct tandem_result *result, void *userdata);
};

TANDEM_API void tandem_generate_options_init_sized(struct tandem_generate_options *options, size_t size);
TANDEM_API void tandem_score_options_init_sized(struct tandem_score_options *options, size_t size);
TANDEM_API void tandem_embed_options_init_sized(struct tandem_embed_options *options, size_t size);
TANDEM_API void tandem_rerank_options_init_sized(struct tandem_rerank_options *options, size_t size);
TANDEM_API void tandem_classify_options_init_sized(struct tandem_classify_options *options, size_t size);
TANDEM_API void tandem_callbacks_init_sized(struct tandem_callbacks *callbacks, size_t size);

/* Fills in the defaults that stand beside the fields, and a random seed. */
static inline void tandem_generate_options_init(struct tandem_generate_options *options)
{
        tandem_generate_options_init_sized(options, sizeof(*options));
}

static inline void tandem_score_options_init(struct tandem_score_options *options)
{
        tandem_score_options_init_sized(options, sizeof(*options));
}

static inline void tandem_embed_options_init(struct tandem_embed_options *options)
{
        tandem_embed_options_init_sized(options, sizeof(*options));
}

static inline void tandem_rerank_options_init(struct tandem_rerank_options *options)
{
        tandem_rerank_options_init_sized(options, sizeof(*options));
}

static inline void tandem_classify_options_init(struct tandem_classify_options *options)
{
        tandem_classify_options_init_sized(options, sizeof(*options));
}

static inline void tandem_callbacks_init(struct tandem_callbacks *callbacks)
{
        tandem_callbacks_init_sized(callbacks, sizeof(*callbacks));
}

/* Start a job; do not wait for it. Fails only for what can be seen here (no such file, nothing to do, too large for the
 * wire, connection gone); what the daemon refuses comes through on_done and tandem_job_result(). */
TANDEM_API int tandem_generate(struct tandem *tandem, const struct tandem_generate_options *options,
                               const struct tandem_callbacks *callbacks, void *userdata, struct tandem_job **ret,
                               struct tandem_error *err);
TANDEM_API int tandem_score(struct tandem *tandem, const struct tandem_score_options *options,
                            const struct tandem_callbacks *callbacks, void *userdata, struct tandem_job **ret,
                            struct tandem_error *err);

/* The vector of one text. Start many jobs at once: they share steps, and each gets the bits that it would get alone. */
TANDEM_API int tandem_embed(struct tandem *tandem, const struct tandem_embed_options *options,
                            const struct tandem_callbacks *callbacks, void *userdata, struct tandem_job **ret,
                            struct tandem_error *err);

/* How well one document answers a query, by a reranker. Start a job for each document at once: they share steps, and
 * each gets the bits that it would get alone. */
TANDEM_API int tandem_rerank(struct tandem *tandem, const struct tandem_rerank_options *options,
                             const struct tandem_callbacks *callbacks, void *userdata, struct tandem_job **ret,
                             struct tandem_error *err);

/* Of which class a text is, or a pair of texts, by a model whose head has several labels. Start many jobs at once, as
 * of the others. */
TANDEM_API int tandem_classify(struct tandem *tandem, const struct tandem_classify_options *options,
                               const struct tandem_callbacks *callbacks, void *userdata, struct tandem_job **ret,
                               struct tandem_error *err);

/* [blocking] Until the job is done (TANDEM_OK, however it ended), or TANDEM_E_TIMEOUT. timeout_ms -1: without limit. */
TANDEM_API int tandem_wait(struct tandem_job *job, int timeout_ms);
/* Asks the daemon to stop the job at the next step; on_done follows with TANDEM_REASON_CANCELLED. Never waits. Nothing
 * happens when the job is done already. The request may still be in the queue: see tandem_events(). */
TANDEM_API int tandem_cancel(struct tandem_job *job);
/* Lets go of the handle: what runs is cancelled, and no callback comes any more. NULL is fine. */
TANDEM_API void tandem_job_free(struct tandem_job *job);

TANDEM_API uint64_t tandem_job_id(const struct tandem_job *job); /* 0 until the daemon has given one */
TANDEM_API bool tandem_job_done(const struct tandem_job *job);
TANDEM_API const struct tandem_result *tandem_job_result(const struct tandem_job *job); /* NULL until done */
/* All text so far, the tail included, NUL-terminated; valid until the next dispatch. ret_size may be NULL. */
TANDEM_API const char *tandem_job_text(const struct tandem_job *job, size_t *ret_size);
/* The calls of tools so far, [*ret_n]; the last one's arguments may be cut off. NULL: none. Valid until the job's next
 * event or tandem_job_free(). */
TANDEM_API const struct tandem_call *tandem_job_calls(const struct tandem_job *job, size_t *ret_n);
/* All token ids so far: ret_n of them. Of tandem_score(): the ids that were scored. */
TANDEM_API const uint32_t *tandem_job_ids(const struct tandem_job *job, size_t *ret_n);

/* What tandem_score() found. Position i is the distribution after ids[0..i]. */
struct tandem_scores {
        size_t n;                  /* positions, as many as ids */
        const uint32_t *ids;       /* [n] */
        const float *nll;          /* [n] -log p(ids[i+1]); 0 at the last position, which has no next id */
        uint32_t top;              /* most alternatives at any position */
        const uint32_t *n_top;     /* [n] alternatives at each position */
        const uint32_t *top_ids;   /* [n][top] */
        const float *top_logprobs; /* [n][top] */
};

/* What tandem_embed() made: [*ret_n], of length 1. Of tandem_rerank(): one number, the score, which is larger the
 * better the document answers. It is what the model's head gives: a logit of any size, or a probability where the head
 * tells "yes" from "no". Of tandem_classify(): a number for each class, in the order of its labels. NULL unless the job
 * is done without an error. Lives as long as the job. */
TANDEM_API const float *tandem_job_vector(const struct tandem_job *job, size_t *ret_n);
/* [*ret_n] names of classes, UTF-8. NULL unless the job is one of tandem_classify() that is done without an error. It
 * lives as long as the job. */
TANDEM_API const char *const *tandem_job_labels(const struct tandem_job *job, size_t *ret_n);
/* NULL unless the job is a score job that is done without an error. Lives as long as the job. */
TANDEM_API const struct tandem_scores *tandem_job_scores(const struct tandem_job *job);

/* ---- requests -------------------------------------------------------------------------------------------------- */

#define TANDEM_TOKENIZE_SPECIAL 1u /* recognise control pieces in the text */
#define TANDEM_TOKENIZE_NO_BOS 2u  /* put no BOS in front */

/* [blocking] *ret_ids is freed with tandem_free(). */
TANDEM_API int tandem_tokenize(struct tandem *tandem, const char *model, const char *text, size_t size, unsigned flags,
                               uint32_t **ret_ids, size_t *ret_n, struct tandem_error *err);
TANDEM_API void tandem_free(void *memory);

/* A part of a prompt, from the end of the one before. Never grows. */
struct tandem_span {
        size_t end;       /* in bytes */
        bool of_template; /* the template wrote it; else it came with the conversation, and no control token is in it */
};

/* The prompt that a chat becomes. Never grows. */
struct tandem_rendered {
        const char *text; /* [size], and a NUL */
        size_t size;
        const uint32_t *ids; /* [n_ids] */
        size_t n_ids;
        const struct tandem_span *spans; /* [n_spans], which cover the text */
        size_t n_spans;
};

/* [blocking] Of options as for tandem_generate(), with a chat. Refuses what that refuses of a chat. Nothing is
 * generated, and the model's weights are not loaded. *ret is freed with tandem_free(). */
TANDEM_API int tandem_render(struct tandem *tandem, const struct tandem_generate_options *options,
                             struct tandem_rendered **ret, struct tandem_error *err);

/* Finished blocks of one kind ("attention", "ffn", …) since the worker's first start. */
struct tandem_block_count {
        const char *kind;
        uint64_t blocks, rows;
        double seconds;
};

struct tandem_device_use; /* below */

struct tandem_worker {
        const char *name;      /* "npu", "gpu" */
        const char *requested; /* what was asked for: "auto", "host", … */
        const char *device;    /* what runs: "host", "vulkan", "xrt", "emulated"; "" when off */
        const char *detail;    /* "AVX-512 VNNI, 2 threads" */
        const char *state;     /* "off", "starting", "ready", "restarting", "quarantined" */
        uint64_t pid;
        uint32_t restarts;
        const char *last_exit;
        size_t n_blocks;
        const struct tandem_block_count *const *blocks; /* [n_blocks] */
        double busy_s, uptime_s;
        const char *sandbox;
        const char *numerics_id;
        /* Since the worker's first start; rates are differences of two answers. */
        uint64_t handovers;                  /* steps taken over, from tandemd and from the other worker */
        uint64_t handover_ns;                /* from being handed on to being taken, summed */
        uint64_t waiting_ns;                 /* without anything to do */
        uint64_t busy_ns;                    /* in blocks */
        const char *reason;                  /* why "auto" took this device; "" where there is nothing to say */
        const char *plan;                    /* "MODEL: what of it runs where", of each model */
        const struct tandem_device_use *use; /* NULL where the device does not count */
};

/* What a device that is not the CPU did since the worker's present start. */
struct tandem_device_use {
        uint64_t device_macs, host_macs; /* multiplications of its kind of blocks: on it, and on the CPU beside it */
        uint64_t blocks;                 /* in which it had a part */
        uint64_t submissions, commands;
        uint64_t repeats, contexts; /* submissions sent again, contexts made anew after a fault */
        bool has_telemetry;         /* the rest, from its driver; negative: not given */
        double age_s;
        double power_w, utilisation, temperature_c;
        uint32_t driver_contexts;
        uint64_t context_errors;
};

struct tandem_model {
        const char *name, *path;
        const char *state; /* "available", "loading", "loaded", "failed" */
        const char *error;
        const char *architecture, *quantisation;
        uint64_t file_bytes, weights_bytes;
        uint64_t kv_bytes, kv_used_bytes; /* budget, and what is in use */
        uint64_t activations_bytes, scratch_bytes;
        uint32_t context; /* tokens */
        const char *placement, *precision, *chat;
        uint32_t kv_pages_full, kv_pages_full_used;
        uint32_t kv_pages_window, kv_pages_window_used;
        double load_ms;
        bool is_default;
        const char *kv_type; /* "f16"; "" from an older daemon */
        /* kept by the prefix cache though no job uses them; not among the used ones */
        uint32_t kv_pages_full_idle, kv_pages_window_idle;
        double progress;         /* of loading, 0 to 1 */
        uint64_t resident_bytes; /* of its segments, as they stand in memory now */
        /* words with spaces between: "completion", "vision", "tools", "thinking", "embedding", "rerank", "classify"; ""
         * until the file's head was read, and from an older daemon */
        const char *capabilities;
        uint64_t modified_s; /* when the file was last written, in seconds since 1970; 0 from an older daemon */
        uint64_t expires_s;  /* when it leaves unless it is used, in seconds since 1970; 0: not by itself */
        uint64_t parameters; /* weights of all its tensors; 0 until the file's head was read */
};

struct tandem_status {
        const char *version;
        uint64_t pid;
        double uptime_s;
        size_t n_workers;
        const struct tandem_worker *const *workers; /* [n_workers] */
        size_t n_models;
        const struct tandem_model *const *models; /* [n_models], loaded and loading ones */
        uint32_t jobs_running, jobs_queued;
        uint64_t jobs_done, jobs_failed, jobs_cancelled;
        uint64_t tokens_generated, prompt_tokens;
        uint32_t epoch;
        uint64_t recoveries, steps_done;
        uint64_t arena_bytes; /* shared segments as they stand in memory now */
        const char *socket;
        bool draining;
        uint32_t steps_in_flight;
        /* gone through the model; what is read again after a loss counts again */
        uint64_t prefill_tokens, decode_tokens;
        uint64_t prefix_hits, cached_tokens; /* jobs that began with something known; tokens not read because of it */
        uint64_t evictions, reread_tokens;   /* times a job made room for another; tokens read again because of it */
        uint64_t disk_tokens,
                disk_refused; /* from disk into the prefix cache; damaged pages there, which were not used */
};

struct tandem_model_list {
        size_t n_models;
        const struct tandem_model *const *models; /* [n_models] */
};

struct tandem_job_info {
        uint64_t job;
        int state; /* enum tandem_job_state */
        const char *model;
        uint32_t uid;
        int priority; /* enum tandem_priority */
        uint32_t prompt_tokens, prefilled_tokens, generated_tokens, max_tokens;
        double age_s;
        uint32_t recoveries;
        uint32_t cached_tokens;     /* of the prompt, found in the prefix cache */
        uint32_t evictions;         /* times it gave its cache pages back for another job */
        uint64_t drafted, accepted; /* guesses that were checked, and of those that were right */
        uint32_t guesses;           /* in its last step */
        const char *unguessed;      /* why that had none; "": it had some */
        const char *label;          /* whom its client speaks for (tandem_connect_for()); "": itself */
};

struct tandem_job_list {
        size_t n_jobs;
        const struct tandem_job_info *const *jobs; /* [n_jobs] */
};

/* [blocking] each; the answer is freed with its _free(), NULL is fine. */
TANDEM_API int tandem_get_status(struct tandem *tandem, struct tandem_status **ret, struct tandem_error *err);
TANDEM_API void tandem_status_free(struct tandem_status *status);
TANDEM_API int tandem_list_models(struct tandem *tandem, struct tandem_model_list **ret, struct tandem_error *err);
TANDEM_API void tandem_model_list_free(struct tandem_model_list *list);
TANDEM_API int tandem_list_jobs(struct tandem *tandem, struct tandem_job_list **ret, struct tandem_error *err);
TANDEM_API void tandem_job_list_free(struct tandem_job_list *list);

/* [blocking] Stops a job of any connection of this user (root: of anybody). */
TANDEM_API int tandem_cancel_job(struct tandem *tandem, uint64_t job, struct tandem_error *err);
/* [blocking] worker: "npu" or "gpu". Its jobs go on afterwards; a quarantine ends. */
TANDEM_API int tandem_restart_worker(struct tandem *tandem, const char *worker, struct tandem_error *err);
/* [blocking] Loads a model now rather than at its first job; returns when it is ready. Unloads by name. */
TANDEM_API int tandem_load_model(struct tandem *tandem, const char *model, struct tandem_error *err);
TANDEM_API int tandem_unload_model(struct tandem *tandem, const char *name, struct tandem_error *err);

/* ---- traces ---------------------------------------------------------------------------------------------------- */

/* What tandemd and its workers do, block by block. For root and the daemon's own user. */
struct tandem_trace;

enum tandem_trace_track { TANDEM_TRACK_TANDEMD = 0, TANDEM_TRACK_NPU = 1, TANDEM_TRACK_GPU = 2 };

enum tandem_trace_kind {
        TANDEM_TRACE_BLOCK_BEGIN = 1, /* step, block, layer, rows */
        TANDEM_TRACE_BLOCK_END = 2,   /* the same */
        /* a step was taken over: the block it goes on with; arg: ns since it was handed on */
        TANDEM_TRACE_TAKEN = 3,
        TANDEM_TRACE_HANDED_ON = 4,  /* a step was handed to the other worker: the block it goes on with */
        TANDEM_TRACE_WAIT_BEGIN = 5, /* nothing to do */
        TANDEM_TRACE_WAIT_END = 6,
        TANDEM_TRACE_STEP_POSTED = 7, /* tandemd's: step, rows; arg: model */
        TANDEM_TRACE_STEP_DONE = 8,
        TANDEM_TRACE_STEP_FAILED = 9,
        TANDEM_TRACE_EPOCH = 10,        /* steps in flight are void; arg: the new epoch */
        TANDEM_TRACE_WORKER_LOST = 11,  /* arg: track of the worker */
        TANDEM_TRACE_WORKER_START = 12, /* arg: the same */
        TANDEM_TRACE_READY = 13         /* steps run (again); arg: epoch */
};

struct tandem_trace_event {
        uint64_t time_ns; /* CLOCK_MONOTONIC of the daemon's machine; rises within a track */
        int track;        /* enum tandem_trace_track; a newer daemon may send others, and other kinds */
        int kind;
        uint64_t step;
        const char *block; /* "embed", "attention", "ffn", "head", "sample"; "" of what is none */
        uint32_t layer;    /* of attention and ffn */
        uint32_t rows;
        uint64_t arg;
        bool from_peer; /* TAKEN: from the other worker, not from tandemd */
};

struct tandem_trace_options {
        size_t struct_size;
        uint32_t duration_ms; /* 5000; the daemon allows 10 minutes */
        bool past;            /* first what is still known from before */
};

TANDEM_API void tandem_trace_options_init_sized(struct tandem_trace_options *options, size_t size);
static inline void tandem_trace_options_init(struct tandem_trace_options *options)
{
        tandem_trace_options_init_sized(options, sizeof(*options));
}

/* Starts a trace; events come through on_event, from dispatching, track by track: those of one track are in order. What
 * the daemon refuses comes as tandem_trace_error(). */
TANDEM_API int tandem_trace_start(struct tandem *tandem, const struct tandem_trace_options *options,
                                  void (*on_event)(const struct tandem_trace_event *event, void *userdata),
                                  void *userdata, struct tandem_trace **ret, struct tandem_error *err);
/* Ends it before its time: the last events follow. Never waits. */
TANDEM_API int tandem_trace_stop(struct tandem_trace *trace);
TANDEM_API bool tandem_trace_done(const struct tandem_trace *trace);
TANDEM_API const struct tandem_error *tandem_trace_error(const struct tandem_trace *trace); /* NULL: none */
/* Events of a track that were overwritten before they could be sent: this program, or the daemon, was too slow. */
TANDEM_API uint64_t tandem_trace_lost(const struct tandem_trace *trace, int track);
/* No event comes any more. NULL is fine; not from on_event. */
TANDEM_API void tandem_trace_free(struct tandem_trace *trace);

#ifdef __cplusplus
}
#endif

#endif
