#include "daemon/jobs/constraint.h"

#include "common/utf8.h"
#include "daemon/jobs/thought.h"

/* Bounds for one job. Its source may have a megabyte. Grammar and matcher then take at most some 10 MiB together. */
#define MAX_EXPRESSIONS (UINT32_C(1) << 17)
#define MAX_MATCHER_BYTES (SIZE_C(4) << 20)
#define SIZE_C(n) ((size_t)(n))
/* A step of a grammar takes some nanoseconds. */
#define QUICK_STEPS 30000u
/* For the masks that are made ahead, on the thread that compiles. */
#define AHEAD_STEPS 100000u
/* For tokens that are taken one after the other: thousands, where a job came with them. On a thread; on the loop. */
#define CATCH_UP_NS (20 * TDM_NSEC_PER_MSEC)
#define QUICK_CATCH_UP_NS (2 * TDM_NSEC_PER_MSEC)
/* Bytes that a constraint is charged with beside source, grammar and matcher. */
#define CONSTRAINT_BYTES 4096u

enum kind { SCHEMA, GBNF, REGEX, TOOLS, FREE /* a budget alone */ };

struct tdm_constraint {
        enum kind kind;
        char *source;
        size_t source_size;
        char *choice; /* of tools; the name in use points into it */
        struct tdm_chat_tool_use use;
        struct tdm_grammar *grammar;
        struct tdm_matcher *matcher; /* NULL: not compiled */
        size_t n_accepted;           /* tokens that the matcher has */
        size_t n_masked;             /* 1 + how many tokens the last mask follows; 0: there is none */
        const uint64_t *words;       /* that mask: the matcher's, or kept */
        uint64_t *kept;              /* [n_words]; NULL: no guesses yet */
        uint64_t *own;               /* [n_words]: a mask in or around the thought; NULL: there is none */
        uint64_t *thinking;          /* [n_words]: what a thought before a bound answer may have; NULL: there is none */
        uint32_t n_words;
        struct tdm_thought thought;
        const struct tdm_tokenizer *tokenizer; /* NULL: there is no thought */
        uint32_t budget;
        bool is_chat, thinks;
        enum tdm_chat_thinking mode;
        struct tdm_account *account;
        uint64_t charged_bytes;
};

static uint64_t bytes_of(const struct tdm_constraint *c)
{
        return CONSTRAINT_BYTES + c->source_size + (c->grammar ? tdm_grammar_bytes(c->grammar) : 0) +
               (c->matcher ? tdm_matcher_bytes(c->matcher) : 0) +
               (!!c->kept + !!c->own + !!c->thinking) * c->n_words * sizeof(*c->kept);
}

/* The last mask outlives other calls of the matcher. It may have to be published again, when it came too late, and it
 * may have taken all that a thread can do, so it is not made twice. */
static int keep_mask(struct tdm_constraint *c)
{
        if (!c->kept)
                c->kept = calloc(c->n_words, sizeof(*c->kept));
        if (!c->kept)
                return -ENOMEM;
        if (c->n_masked > 0 && c->words != c->kept) {
                memcpy(c->kept, c->words, c->n_words * sizeof(*c->kept));
                c->words = c->kept;
        }
        return 0;
}

int tdm_constraint_charge(struct tdm_constraint *c, struct tdm_error *err)
{
        uint64_t bytes = bytes_of(c);
        int r = 0;

        if (bytes > c->charged_bytes)
                r = tdm_account_charge(c->account, TDM_RESOURCE_GRAMMAR_BYTES, bytes - c->charged_bytes, err);
        if (r != 0 && c->matcher) {
                if (keep_mask(c) < 0)
                        c->n_masked = 0;
                if (tdm_matcher_trim(c->matcher) < 0)
                        return r;
                bytes = bytes_of(c);
                r = bytes <= c->charged_bytes ?
                            0 :
                            tdm_account_charge(c->account, TDM_RESOURCE_GRAMMAR_BYTES, bytes - c->charged_bytes, err);
        }
        if (r != 0)
                return r;
        if (bytes < c->charged_bytes)
                tdm_account_release(c->account, TDM_RESOURCE_GRAMMAR_BYTES, c->charged_bytes - bytes);
        c->charged_bytes = bytes;
        return 0;
}

static int read_choice(struct tdm_constraint *c, const struct tdm_job_options *o, struct tdm_error *err)
{
        static const char *const names[] = { [TDM_FORM_CHOICE_AUTO] = "auto",
                                             [TDM_FORM_CHOICE_NONE] = "none",
                                             [TDM_FORM_CHOICE_REQUIRED] = "required" };
        static const char function[] = "function:";

        c->use.one_call = o->one_call;
        if (!o->tool_choice)
                return 0;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(names); i++) {
                if (strcmp(o->tool_choice, names[i]) != 0)
                        continue;
                c->use.choice = (enum tdm_form_choice)i;
                return 0;
        }
        if (strncmp(o->tool_choice, function, sizeof(function) - 1) != 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "tool-choice: '%.*s' is not auto, none, required or function:NAME",
                                     TDM_UTF8_CUT(o->tool_choice, 60));
        c->choice = strdup(o->tool_choice + sizeof(function) - 1);
        if (!c->choice)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        c->use.choice = TDM_FORM_CHOICE_NAMED;
        c->use.name = (struct tdm_chat_text){ c->choice, strlen(c->choice) };
        return 0;
}

int tdm_constraint_new(struct tdm_constraint **ret, const struct tdm_job_options *o, bool is_chat,
                       struct tdm_account *account, struct tdm_error *err)
{
        const char *const sources[] = {
                [SCHEMA] = o->json_schema, [GBNF] = o->grammar, [REGEX] = o->regex, [TOOLS] = o->tools
        };
        _cleanup_(tdm_constraint_destroyp) struct tdm_constraint *c = NULL;
        int r;

        *ret = NULL;
        for (unsigned i = 0; i < TDM_ARRAY_SIZE(sources); i++) {
                if (!sources[i])
                        continue;
                if (c)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "a job takes one of json-schema, grammar, regex and tools, not several");
                c = calloc(1, sizeof(*c));
                if (!c)
                        return tdm_error_set(err, -ENOMEM, "out of memory");
                c->kind = (enum kind)i;
                c->source = strdup(sources[i]);
                if (!c->source)
                        return tdm_error_set(err, -ENOMEM, "out of memory");
                c->source_size = strlen(c->source);
        }
        if (!c || c->kind != TOOLS) {
                if (o->tool_choice || o->one_call)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s is given, and there are no tools",
                                             o->tool_choice ? "tool-choice" : "one-call");
        } else {
                r = read_choice(c, o, err);
                if (r != 0)
                        return r;
        }
        if (!c && o->thinking_budget > 0) {
                c = calloc(1, sizeof(*c));
                if (!c)
                        return tdm_error_set(err, -ENOMEM, "out of memory");
                c->kind = FREE;
        }
        if (!c)
                return 0;
        c->is_chat = is_chat;
        c->thinks = o->thinking != TDM_THINKING_OFF;
        c->mode = o->thinking == TDM_THINKING_AUTO ? TDM_CHAT_THINK_AS_TRAINED :
                  c->thinks                        ? TDM_CHAT_THINK_ON :
                                                     TDM_CHAT_THINK_OFF;
        c->budget = o->thinking_budget;
        if (o->ignore_end && c->kind != FREE)
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "ignore-end cannot be combined with json-schema, grammar, regex or tools: a text "
                                     "that satisfies them ends");
        c->account = account ? tdm_account_ref(account) : NULL;
        r = tdm_constraint_charge(c, err);
        if (r != 0)
                return r;
        *ret = steal_ptr(&c);
        return 0;
}

void tdm_constraint_destroy(struct tdm_constraint *c)
{
        if (!c)
                return;
        tdm_account_release(c->account, TDM_RESOURCE_GRAMMAR_BYTES, c->charged_bytes);
        tdm_account_unref(c->account);
        tdm_matcher_destroy(c->matcher);
        tdm_grammar_unref(c->grammar);
        if (c->source)
                explicit_bzero(c->source, c->source_size);
        free(c->kept);
        free(c->own);
        free(c->thinking);
        free(c->source);
        free(c->choice);
        free(c);
}

void tdm_constraint_destroyp(struct tdm_constraint **c)
{
        tdm_constraint_destroy(*c);
        *c = NULL;
}

struct tdm_chat_text tdm_constraint_tools(const struct tdm_constraint *c)
{
        return c && c->kind == TOOLS ? (struct tdm_chat_text){ c->source, c->source_size } :
                                       (struct tdm_chat_text){ NULL, 0 };
}

unsigned tdm_constraint_turn_flags(const struct tdm_constraint *c)
{
        if (!c || c->kind == FREE)
                return 0;
        if (c->kind != TOOLS)
                return TDM_CHAT_TURN_IS_BOUND;
        return c->use.choice >= TDM_FORM_CHOICE_REQUIRED ? TDM_CHAT_TURN_MUST_CALL : 0;
}

/* Whether the prompt ends with the start of a thought. */
static bool thought_is_open(const struct tdm_constraint *c, const struct tdm_chat *chat)
{
        return c->is_chat && tdm_chat_opens_thought(chat, c->use.tools.size > 0, c->mode);
}

static int compile_source(struct tdm_constraint *c, const struct tdm_chat *chat, struct tdm_error *err)
{
        struct tdm_grammar_limits limits;

        tdm_grammar_limits_init(&limits);
        limits.max_expressions = MAX_EXPRESSIONS;
        limits.max_matcher_bytes = MAX_MATCHER_BYTES;
        switch (c->kind) {
        case SCHEMA:
                return tdm_grammar_new_schema(&c->grammar, c->source, c->source_size, 0, &limits, err);
        case GBNF:
                return tdm_grammar_new_gbnf(&c->grammar, c->source, c->source_size, &limits, err);
        case REGEX:
                return tdm_grammar_new_regex(&c->grammar, c->source, c->source_size, &limits, err);
        case TOOLS:
                c->use.tools = tdm_constraint_tools(c);
                c->use.thought_is_open = thought_is_open(c, chat);
                return tdm_chat_tools_grammar(&c->grammar, chat, &c->use, &limits, err);
        case FREE:
                break;
        }
        return -EINVAL;
}

bool tdm_constraint_has_grammar(const struct tdm_constraint *c)
{
        return c->kind != FREE;
}

/* A call has to come at once: the grammar leaves no thought that a budget could end, and its end may come in letters,
 * in the midst of which no budget may be over. */
static bool call_is_due(const struct tdm_constraint *c)
{
        return c->kind == TOOLS && c->use.choice >= TDM_FORM_CHOICE_REQUIRED;
}

/* The thought in front of the answer, if the model has such. The grammar of tools has it in itself. */
static int begin_thought(struct tdm_constraint *c, const struct tdm_chat *chat, const struct tdm_tokenizer *tokenizer,
                         struct tdm_error *err)
{
        bool is_followed = c->kind != FREE && c->kind != TOOLS;
        struct tdm_chat_thought form;
        int r = c->is_chat && c->thinks ? tdm_chat_thought_of(chat, thought_is_open(c, chat), &form) : -EOPNOTSUPP;

        if (r < 0 && c->budget > 0)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "thinking-budget: nothing is known of how this model ends a thought");
        if (r < 0 || (c->budget == 0 && !is_followed) || call_is_due(c))
                return 0;
        c->own = calloc(c->n_words, sizeof(*c->own));
        c->thinking = is_followed ? calloc(c->n_words, sizeof(*c->thinking)) : NULL;
        if (!c->own || (is_followed && !c->thinking))
                return tdm_error_set(err, -ENOMEM, "out of memory");
        for (uint32_t id = 0; is_followed && id < tdm_tokenizer_n_vocab(tokenizer) && id / 64 < c->n_words; id++)
                if (!tdm_tokenizer_is_end(tokenizer, id))
                        c->thinking[id / 64] |= UINT64_C(1) << id % 64;
        tdm_thought_begin(&c->thought, &form, c->budget, is_followed);
        c->tokenizer = tokenizer;
        return 0;
}

int tdm_constraint_prepare(struct tdm_constraint *c, const struct tdm_chat *chat, const struct tdm_tokenizer *tokenizer,
                           uint32_t n_vocab, struct tdm_error *err)
{
        c->n_words = (n_vocab + 63) / 64;
        return begin_thought(c, chat, tokenizer, err);
}

bool tdm_constraint_take(struct tdm_constraint *c, uint32_t index, enum tdm_chat_place place, bool splits)
{
        /* The grammar of tools binds a thought's characters, of which none may be cut. */
        tdm_thought_take(&c->thought, index, place, splits && c->kind == TOOLS);
        return c->thought.is_followed && c->thought.phase == TDM_THOUGHT_OVER && c->thought.answer_from == index + 1;
}

bool tdm_constraint_binds(const struct tdm_constraint *c)
{
        return c->kind != FREE || c->thought.phase == TDM_THOUGHT_ENDING;
}

bool tdm_constraint_is_due(const struct tdm_constraint *c, uint32_t id)
{
        return c->thought.phase == TDM_THOUGHT_ENDING && tdm_thought_due(&c->thought) == id;
}

bool tdm_constraint_is_overdue(const struct tdm_constraint *c, uint32_t id)
{
        return c->thought.phase == TDM_THOUGHT_ENDING && tdm_thought_due(&c->thought) != id;
}

/* The last of the tokens before an end is due is drawn by the row in front, not by a guess's. */
uint32_t tdm_constraint_n_free(const struct tdm_constraint *c)
{
        uint32_t left = c->kind == FREE ? tdm_thought_left(&c->thought) : 0;

        if (c->kind == FREE && c->thought.phase == TDM_THOUGHT_OVER && c->thought.form.last && c->tokenizer)
                return UINT32_MAX;
        return left == UINT32_MAX ? left : left - (left > 0);
}

/* A mark is complete with its last byte, or is a control piece, which has no text. */
static bool may_open_thought(const struct tdm_constraint *c, uint32_t id)
{
        const char *piece;
        size_t size = tdm_tokenizer_piece(c->tokenizer, id, false, &piece);

        return size == 0 || memchr(piece, c->thought.form.last, size);
}

uint32_t tdm_constraint_n_unbound(const struct tdm_constraint *c, const uint32_t *ids, uint32_t n)
{
        uint32_t free = tdm_constraint_n_free(c), left, i = 0;

        if (free != UINT32_MAX || c->thought.phase != TDM_THOUGHT_OVER)
                return TDM_MIN(n, free);
        while (i < n && !may_open_thought(c, ids[i]))
                i++;
        left = tdm_thought_left(&c->thought);
        return TDM_MIN(n, TDM_MAX(i, left - (left > 0)));
}

static struct tdm_grammar_key key_of(const struct tdm_constraint *c, uint64_t identity, uint32_t model)
{
        bool tools = c->kind == TOOLS;
        uint32_t flags = (uint32_t)c->mode << 4 | (uint32_t)c->is_chat << 3 | (uint32_t)c->use.choice << 1 |
                         (uint32_t)c->use.one_call;

        return (struct tdm_grammar_key){ .identity = identity,
                                         .kind = c->kind,
                                         .model = tools ? model : 0,
                                         .flags = tools ? flags : 0,
                                         .name = c->choice ? c->choice : "",
                                         .source = c->source,
                                         .source_size = c->source_size };
}

void tdm_constraint_find(struct tdm_constraint *c, struct tdm_grammar_cache *cache, uint64_t identity, uint32_t model)
{
        struct tdm_grammar_key key = key_of(c, identity, model);

        if (!c->grammar && c->kind != FREE)
                c->grammar = tdm_grammar_cache_find(cache, &key);
}

void tdm_constraint_keep(struct tdm_constraint *c, struct tdm_grammar_cache *cache, uint64_t identity, uint32_t model)
{
        struct tdm_grammar_key key = key_of(c, identity, model);

        if (c->grammar)
                tdm_grammar_cache_keep(cache, &key, c->grammar);
}

/* The message names the option before what is wrong in it. */
static int name_option(const struct tdm_constraint *c, int code, struct tdm_error *err)
{
        static const char *const names[] = { [SCHEMA] = "json-schema",
                                             [GBNF] = "grammar",
                                             [REGEX] = "regex",
                                             [TOOLS] = "tools",
                                             [FREE] = "thinking-budget" };
        struct tdm_error why = *err;
        const char *said = why.message;

        if (code < 0)
                return tdm_error_set(err, code, "%s: %s", names[c->kind], strerror(-code));
        if (c->kind == TOOLS) /* it does already */
                return code;
        /* The compilers say of what they speak, too. */
        if (c->kind == SCHEMA && strncmp(said, "schema: ", 8) == 0)
                said += 8;
        else if (c->kind == GBNF && (strncmp(said, "grammar, ", 9) == 0 || strncmp(said, "grammar: ", 9) == 0))
                said += 9;
        return tdm_error_set(err, code, "%s: %s", names[c->kind], said);
}

static int too_much(struct tdm_error *err)
{
        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                             "the grammar takes too much work or memory for one token; make it simpler (fewer nested "
                             "counts and alternatives)");
}

int tdm_constraint_compile(struct tdm_constraint *c, const struct tdm_chat *chat, const struct tdm_tokenizer *tokenizer,
                           struct tdm_vocabulary *vocabulary, struct tdm_error *err)
{
        const uint64_t *words;
        int r = c->grammar ? 0 : compile_source(c, chat, err);

        if (r != 0)
                return name_option(c, r, err);
        r = tdm_matcher_new(&c->matcher, c->grammar, vocabulary);
        if (r < 0)
                return tdm_error_set(err, r, "cannot hold the grammar: %s", strerror(-r));
        if (r != 0)
                return name_option(c, too_much(err), err);
        c->n_words = tdm_vocabulary_n_words(vocabulary);
        r = begin_thought(c, chat, tokenizer, err);
        if (r != 0)
                return r;
        r = tdm_matcher_look_ahead(c->matcher, AHEAD_STEPS);
        if (r < 0)
                return tdm_error_set(err, r, "cannot hold the grammar: %s", strerror(-r));
        r = tdm_constraint_mask(c, NULL, 0, TDM_CONSTRAINT_FULL, &words, err);
        return r == -ENODATA ? 0 : r; /* told when a token is due */
}

uint32_t tdm_constraint_n_words(const struct tdm_constraint *c)
{
        return c->n_words;
}

static bool is_empty(const uint64_t *words, uint32_t n)
{
        uint64_t any = 0;

        for (uint32_t i = 0; i < n; i++)
                any |= words[i];
        return any == 0;
}

/* The ids that the grammar binds: *ids [*n_ids] become those of the answer. */
static void skip_thought(const struct tdm_constraint *c, const uint32_t **ids, size_t *n_ids)
{
        size_t skipped = c->thought.is_followed ? TDM_MIN((size_t)c->thought.answer_from, *n_ids) : 0;

        *ids = skipped > 0 ? *ids + skipped : *ids;
        *n_ids -= skipped;
}

/* The mask where the grammar alone does not say it: 1, or 0 where it does. */
static int mask_thought(struct tdm_constraint *c)
{
        if (c->thought.phase == TDM_THOUGHT_ENDING) {
                uint32_t id = tdm_thought_due(&c->thought);

                memset(c->own, 0, c->n_words * sizeof(*c->own));
                if (id / 64 < c->n_words)
                        c->own[id / 64] = UINT64_C(1) << id % 64;
                c->words = c->own;
                return 1;
        }
        if (c->thought.phase != TDM_THOUGHT_OPEN || !c->thought.is_followed)
                return 0;
        c->words = c->thinking;
        return 1;
}

/* A thought may still be opened in place of the answer. */
static void allow_thought(struct tdm_constraint *c)
{
        int64_t open = c->thought.form.open;

        if (c->thought.phase != TDM_THOUGHT_MAYBE || !c->thought.is_followed || open < 0 || open / 64 >= c->n_words)
                return;
        memcpy(c->own, c->words, c->n_words * sizeof(*c->own));
        c->own[open / 64] |= UINT64_C(1) << open % 64;
        c->words = c->own;
}

/* The matcher takes the tokens that it has not seen, until then. -EAGAIN: it has not taken them all yet. */
static int catch_up(struct tdm_constraint *c, const uint32_t *ids, size_t n_ids, uint64_t until_ns,
                    struct tdm_error *err)
{
        while (c->n_accepted < n_ids) {
                int r = tdm_matcher_accept(c->matcher, ids[c->n_accepted]);

                if (r == -EAGAIN)
                        return r;
                if (r == 0)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "token %u is not what the grammar allows",
                                             ids[c->n_accepted]);
                if (r != 1)
                        return r == TDM_E_UNSUPPORTED ? too_much(err) : r;
                c->n_accepted++;
                if (c->n_accepted < n_ids && tdm_now_ns() >= until_ns)
                        return -EAGAIN;
        }
        return 0;
}

int tdm_constraint_mask(struct tdm_constraint *c, const uint32_t *ids, size_t n_ids, enum tdm_constraint_effort effort,
                        const uint64_t **ret_words, struct tdm_error *err)
{
        const uint32_t *answer = ids;
        size_t n_answer = n_ids;
        int r;

        if (c->n_masked != n_ids + 1) {
                if (effort == TDM_CONSTRAINT_LOOKUP)
                        return -EAGAIN;
                if (c->matcher)
                        tdm_matcher_set_max_steps(c->matcher,
                                                  effort == TDM_CONSTRAINT_QUICK ? QUICK_STEPS : UINT64_MAX);
                c->n_masked = 0;
                if (mask_thought(c) == 0) {
                        skip_thought(c, &answer, &n_answer);
                        r = catch_up(c, answer, n_answer,
                                     tdm_now_ns() + (effort == TDM_CONSTRAINT_QUICK ? QUICK_CATCH_UP_NS : CATCH_UP_NS),
                                     err);
                        if (r != 0)
                                return r;
                        r = tdm_matcher_mask(c->matcher, &c->words);
                        if (r != 0)
                                return r == TDM_E_UNSUPPORTED ? too_much(err) : r;
                        allow_thought(c);
                }
                c->n_masked = n_ids + 1;
        }
        if (is_empty(c->words, c->n_words))
                return -ENODATA;
        *ret_words = c->words;
        return 0;
}

/* Accepts as many as it takes; the matcher then has n_ids + *ret_n tokens, the last of which are to be taken back. */
static int accept_ahead(struct tdm_constraint *c, const uint32_t *ids, size_t n_ids, const uint32_t *ahead,
                        size_t n_ahead, uint32_t *ret_n, struct tdm_error *err)
{
        int r = 1;

        *ret_n = 0;
        if (keep_mask(c) < 0)
                return -ENOMEM;
        if (c->n_accepted < n_ids)
                c->n_masked = 0;
        if (catch_up(c, ids, n_ids, UINT64_MAX, err) != 0)
                return -EAGAIN;
        while (*ret_n < n_ahead && r == 1) {
                r = tdm_matcher_accept(c->matcher, ahead[*ret_n]);
                *ret_n += r == 1;
        }
        return r;
}

int tdm_constraint_mask_ahead(struct tdm_constraint *c, const uint32_t *ids, size_t n_ids, const uint32_t *ahead,
                              size_t n_ahead, enum tdm_constraint_effort effort, uint64_t *ret_words,
                              struct tdm_error *err)
{
        const uint64_t *words;
        uint32_t n;
        int r;

        tdm_matcher_set_max_steps(c->matcher, effort == TDM_CONSTRAINT_FULL ? UINT64_MAX : QUICK_STEPS);
        r = accept_ahead(c, ids, n_ids, ahead, n_ahead, &n, err);
        if (r == 1)
                r = tdm_matcher_mask(c->matcher, &words);
        else if (r == 0)
                r = -ENODATA;
        if (r == 0 && is_empty(words, c->n_words))
                r = -ENODATA;
        if (r == 0)
                memcpy(ret_words, words, c->n_words * sizeof(*words));
        return tdm_matcher_rollback(c->matcher, n) < 0 ? -EIO : r;
}

size_t tdm_constraint_n_allowed(struct tdm_constraint *c, const uint32_t *ids, size_t n_ids, const uint32_t *ahead,
                                size_t n_ahead)
{
        struct tdm_error err;
        uint32_t n = 0;

        if (!c->matcher || n_ahead == 0)
                return 0;
        tdm_matcher_set_max_steps(c->matcher, QUICK_STEPS);
        accept_ahead(c, ids, n_ids, ahead, n_ahead, &n, &err);
        return tdm_matcher_rollback(c->matcher, n) < 0 ? 0 : n;
}

bool tdm_constraint_is_whole(struct tdm_constraint *c, const uint32_t *ids, size_t n_ids)
{
        struct tdm_error err;

        if (c->kind == FREE)
                return true;
        if (!c->matcher || (c->thought.is_followed && c->thought.phase != TDM_THOUGHT_OVER))
                return false;
        skip_thought(c, &ids, &n_ids);
        if (c->n_accepted < n_ids)
                c->n_masked = 0;
        tdm_matcher_set_max_steps(c->matcher, QUICK_STEPS);
        return catch_up(c, ids, n_ids, UINT64_MAX, &err) == 0 && tdm_matcher_is_whole(c->matcher);
}
