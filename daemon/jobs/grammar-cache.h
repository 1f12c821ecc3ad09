/* Compiled grammars that users asked for before, so that a schema or a set of tools that comes again is not compiled
 * again.
 *
 * Each user has entries of its own, and finds no other's: the time that a job takes to start tells no user what others
 * ask for. What a user's entries take is bounded, in number and in bytes, and so is what all take. A user that is past
 * its bound loses the entry that it used longest ago. Where all are past theirs, the user with the most bytes does. So
 * no user's entries push out those of a user that has less.
 *
 * Loop thread only. The grammars themselves are immutable, and jobs hold references of their own. */
#ifndef TDM_DAEMON_JOBS_GRAMMAR_CACHE_H
#define TDM_DAEMON_JOBS_GRAMMAR_CACHE_H

#include <sys/types.h>
#include "engine/grammar/grammar.h"

#define TDM_GRAMMAR_CACHE_ENTRIES 128u
#define TDM_GRAMMAR_CACHE_BYTES (UINT64_C(48) << 20)
#define TDM_GRAMMAR_CACHE_USER_ENTRIES 16u
#define TDM_GRAMMAR_CACHE_USER_BYTES (UINT64_C(8) << 20)
/* For the tables that the last job of a grammar leaves to the next one: counted for each entry from the first on. */
#define TDM_GRAMMAR_CACHE_TABLES_BYTES (UINT64_C(256) << 10)

/* All that a grammar depends on besides the limits, which are the same for all. */
struct tdm_grammar_key {
        uint64_t identity;
        uint32_t kind;
        uint32_t model; /* of tools, which are compiled for a model's template and tokenizer; else 0 */
        uint32_t flags;
        const char *name; /* of the tool that has to be called; "" where there is none */
        const char *source;
        size_t source_size;
};

/* Empty when it is all zeros. */
struct tdm_grammar_cache {
        struct tdm_grammar_entry *entries[TDM_GRAMMAR_CACHE_ENTRIES];
        unsigned n;
        uint64_t bytes;
        uint64_t clock;
        uint64_t n_found, n_missed;
};
void tdm_grammar_cache_deinit(struct tdm_grammar_cache *cache);

/* A new reference, or NULL. */
struct tdm_grammar *tdm_grammar_cache_find(struct tdm_grammar_cache *cache, const struct tdm_grammar_key *key);
/* Keeps a reference and a copy of the key, unless the user's bound has no room for it alone. It replaces nothing: a
 * grammar that is there already stays. Without memory it is not kept. */
void tdm_grammar_cache_keep(struct tdm_grammar_cache *cache, const struct tdm_grammar_key *key,
                            struct tdm_grammar *grammar);
/* The memory that a user's entries take, with their keys and the tables that they may have. */
uint64_t tdm_grammar_cache_bytes_of(const struct tdm_grammar_cache *cache, uint64_t identity);

#endif
