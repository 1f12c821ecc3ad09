/* See grammar-cache.h. There are few entries, so they are looked through one by one. */
#include "daemon/jobs/grammar-cache.h"

#include <limits.h>

struct tdm_grammar_entry {
        struct tdm_grammar_key key; /* name and source point into text */
        struct tdm_grammar *grammar;
        uint64_t bytes, used; /* used: the cache's clock */
        size_t text_size;
        char text[];
};

static bool grammar_key_equal(const struct tdm_grammar_key *a, const struct tdm_grammar_key *b)
{
        return a->identity == b->identity && a->kind == b->kind && a->model == b->model && a->flags == b->flags &&
               a->source_size == b->source_size && strcmp(a->name, b->name) == 0 &&
               memcmp(a->source, b->source, a->source_size) == 0;
}

static void drop(struct tdm_grammar_cache *c, unsigned i)
{
        struct tdm_grammar_entry *e = c->entries[i];

        c->bytes -= e->bytes;
        c->entries[i] = c->entries[--c->n];
        c->entries[c->n] = NULL;
        tdm_grammar_keep_tables(e->grammar, 0); /* a job may hold it still */
        tdm_grammar_unref(e->grammar);
        explicit_bzero(e->text, e->text_size); /* users' texts */
        free(e);
}

void tdm_grammar_cache_deinit(struct tdm_grammar_cache *c)
{
        while (c->n > 0)
                drop(c, c->n - 1);
}

uint64_t tdm_grammar_cache_bytes_of(const struct tdm_grammar_cache *c, uint64_t identity)
{
        uint64_t bytes = 0;

        for (unsigned i = 0; i < c->n; i++)
                if (c->entries[i]->key.identity == identity)
                        bytes += c->entries[i]->bytes;
        return bytes;
}

static struct tdm_grammar_entry *grammar_entry_find(const struct tdm_grammar_cache *c,
                                                    const struct tdm_grammar_key *key)
{
        for (unsigned i = 0; i < c->n; i++)
                if (grammar_key_equal(&c->entries[i]->key, key))
                        return c->entries[i];
        return NULL;
}

struct tdm_grammar *tdm_grammar_cache_find(struct tdm_grammar_cache *c, const struct tdm_grammar_key *key)
{
        struct tdm_grammar_entry *e = grammar_entry_find(c, key);

        if (!e) {
                c->n_missed++;
                return NULL;
        }
        c->n_found++;
        e->used = ++c->clock;
        return tdm_grammar_ref(e->grammar);
}

/* Drops the entry that the user used longest ago. */
static void drop_oldest(struct tdm_grammar_cache *c, uint64_t identity)
{
        unsigned oldest = UINT_MAX;

        for (unsigned i = 0; i < c->n; i++)
                if (c->entries[i]->key.identity == identity &&
                    (oldest == UINT_MAX || c->entries[i]->used < c->entries[oldest]->used))
                        oldest = i;
        if (oldest != UINT_MAX)
                drop(c, oldest);
}

static unsigned n_of(const struct tdm_grammar_cache *c, uint64_t identity)
{
        unsigned n = 0;

        for (unsigned i = 0; i < c->n; i++)
                n += c->entries[i]->key.identity == identity;
        return n;
}

/* The user with the most: of entries where those are short, else of bytes. */
static uint64_t largest(const struct tdm_grammar_cache *c, bool of_entries)
{
        uint64_t most = 0;
        uint64_t identity = c->entries[0]->key.identity;

        for (unsigned i = 0; i < c->n; i++) {
                uint64_t one = c->entries[i]->key.identity;
                uint64_t has = of_entries ? n_of(c, one) : tdm_grammar_cache_bytes_of(c, one);

                if (has > most) {
                        most = has;
                        identity = one;
                }
        }
        return identity;
}

void tdm_grammar_cache_keep(struct tdm_grammar_cache *c, const struct tdm_grammar_key *key, struct tdm_grammar *grammar)
{
        size_t name_size = strlen(key->name) + 1, text_size = name_size + key->source_size;
        uint64_t bytes = sizeof(struct tdm_grammar_entry) + text_size + tdm_grammar_bytes(grammar) +
                         TDM_GRAMMAR_CACHE_TABLES_BYTES;
        struct tdm_grammar_entry *e;

        if (bytes > TDM_GRAMMAR_CACHE_USER_BYTES || grammar_entry_find(c, key))
                return;
        e = malloc(sizeof(*e) + text_size);
        if (!e)
                return;
        while (n_of(c, key->identity) >= TDM_GRAMMAR_CACHE_USER_ENTRIES ||
               tdm_grammar_cache_bytes_of(c, key->identity) + bytes > TDM_GRAMMAR_CACHE_USER_BYTES)
                drop_oldest(c, key->identity);
        while (c->n == TDM_GRAMMAR_CACHE_ENTRIES || c->bytes + bytes > TDM_GRAMMAR_CACHE_BYTES)
                drop_oldest(c, largest(c, c->n == TDM_GRAMMAR_CACHE_ENTRIES));
        e->key = *key;
        e->text_size = text_size;
        memcpy(e->text, key->name, name_size);
        memcpy(e->text + name_size, key->source, key->source_size);
        e->key.name = e->text;
        e->key.source = e->text + name_size;
        e->grammar = tdm_grammar_ref(grammar);
        tdm_grammar_keep_tables(grammar, TDM_GRAMMAR_CACHE_TABLES_BYTES);
        e->bytes = bytes;
        e->used = ++c->clock;
        c->entries[c->n++] = e;
        c->bytes += bytes;
}
