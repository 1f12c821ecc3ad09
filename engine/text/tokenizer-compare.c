/* Where two vocabularies differ first, without looking at all of their pieces.
 *
 * With a tokenizer come prints: a hash of its first 1,024 pieces, of its first 2,048, and so on. The first print that
 * differs names the 1,024 pieces with the first difference, and those are compared one by one. The hash has a seed of
 * this process, so that nobody can make files whose prints agree by calculation. */
#include "engine/text/tokenizer-private.h"

#include <pthread.h>
#include <sys/random.h>

#define PRINT_PIECES 1024u

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t seeds[2];

static void make_seeds(void)
{
        if (getrandom(seeds, sizeof(seeds), GRND_NONBLOCK) != (ssize_t)sizeof(seeds)) {
                seeds[0] = tdm_now_ns() * UINT64_C(0x9e3779b97f4a7c15);
                seeds[1] = (uintptr_t)&once * UINT64_C(0xd6e8feb86659fd93) ^ seeds[0];
        }
        seeds[1] |= 1;
}

/* Both halves of a product of 128 bits, folded: each bit of the result depends on all of the operands. */
static uint64_t mix(uint64_t a, uint64_t b)
{
        unsigned __int128 product = (unsigned __int128)(a ^ seeds[0]) * (b ^ seeds[1]);

        return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* A piece's text, its length, and whether it is empty in running text. */
static uint64_t hash_piece(const struct tdm_tokenizer *t, uint32_t id, uint64_t hash)
{
        const char *text, *plain;
        size_t size = tdm_tokenizer_piece(t, id, true, &text);
        bool is_plain = tdm_tokenizer_piece(t, id, false, &plain) == size;

        hash = mix(hash, (uint64_t)size << 1 | is_plain);
        for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
                uint64_t word = 0;

                memcpy(&word, text + i, TDM_MIN(size - i, sizeof(word)));
                hash = mix(hash, word);
        }
        return hash;
}

int tdm_tokenizer_make_prints(struct tdm_tokenizer *t, struct tdm_error *err)
{
        uint32_t n = t->n_pieces / PRINT_PIECES;
        uint64_t hash = 0;
        int r;

        pthread_once(&once, make_seeds);
        r = tdm_parse_charge(&t->account, n * sizeof(*t->prints), err);
        if (r != 0 || n == 0)
                return r;
        t->prints = malloc(n * sizeof(*t->prints));
        if (!t->prints)
                return tdm_error_set(err, -ENOMEM, "out of memory for the prints of %u pieces", t->n_pieces);
        for (uint32_t id = 0; id < n * PRINT_PIECES; id++) {
                hash = hash_piece(t, id, hash);
                if ((id + 1) % PRINT_PIECES == 0)
                        t->prints[id / PRINT_PIECES] = hash;
        }
        return 0;
}

static bool same_piece(const struct tdm_tokenizer *a, const struct tdm_tokenizer *b, uint32_t id)
{
        /* With special, a control piece is its text; without, it is empty. So its kind is compared too. */
        for (int special = 0; special < 2; special++) {
                const char *of_a, *of_b;
                size_t size = tdm_tokenizer_piece(a, id, special, &of_a);

                if (size != tdm_tokenizer_piece(b, id, special, &of_b) || (size && memcmp(of_a, of_b, size) != 0))
                        return false;
        }
        return true;
}

uint32_t tdm_tokenizer_first_difference(const struct tdm_tokenizer *a, const struct tdm_tokenizer *b, uint32_t n)
{
        uint32_t both = TDM_MIN(a->n_pieces, b->n_pieces), end = TDM_MIN(both, n);
        uint32_t low = 0, high = end / PRINT_PIECES; /* the print that differs first is among [low, high) */

        if (a == b)
                return n;
        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (a->prints[middle] == b->prints[middle])
                        low = middle + 1;
                else
                        high = middle;
        }
        end = TDM_MIN(end, (low + 1) * PRINT_PIECES);
        for (uint32_t id = low * PRINT_PIECES; id < end; id++)
                if (!same_piece(a, b, id))
                        return id;
        return both < n && a->n_pieces != b->n_pieces ? both : n;
}
