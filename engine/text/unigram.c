/* Text of a Unigram tokenizer (Kudo, 2018), as SentencePiece has it: of all ways to cut it into pieces, the one whose
 * scores have the largest sum.
 *
 * First text is normalized: the longest match of the file's map is replaced, spaces are joined where the file says so,
 * and each word gets a space in front. Then it is cut at borders that no piece spans, and each stretch between two is
 * searched from left to right (Viterbi). At every character the pieces that begin there are found in the tree. Where
 * none of them is that character alone, the unknown piece may stand for it, at a penalty. Neighbours that are unknown
 * become one. The scores are f32 and their sum is f64, so that the sum is exact for texts of real length, and cutting
 * it changes nothing. */
#include "engine/text/byte-tree-private.h"
#include "engine/text/encode-private.h"
#include "engine/text/unicode.h"

#include <math.h>

#define WALK_A_STEP 24u /* nodes of the tree, of which one takes some nanoseconds */
/* A replacement has at most so many times the bytes that it stands for; a real one has 11 times. Others are not made:
 * a file cannot make much text of little. */
#define GROWTH_MAX 12u

static const uint8_t replacement_character[] = { 0xef, 0xbf, 0xbd }, mark[] = { 0xe2, 0x96, 0x81 };

/* ---- the map: a double array (Aoe, 1989) in the form of darts-clone ---- */

static bool get_unit(const struct tdm_unigram *u, uint32_t node, uint32_t *ret)
{
        if (node >= u->n_units)
                return false;
        *ret = tdm_map_u32(u->map + sizeof(uint32_t) * (1 + (size_t)node));
        return true;
}

static uint32_t offset_of(uint32_t unit)
{
        return unit >> 10 << ((unit & 1u << 9) >> 6);
}

/* Where the text of a value begins in the map; 0: nowhere. */
static uint32_t text_of(const struct tdm_unigram *u, uint32_t node)
{
        uint32_t unit, value;

        if (!get_unit(u, node, &unit))
                return 0;
        value = unit & ~(UINT32_C(1) << 31);
        return value < u->map_bytes - u->texts ? u->texts + value : 0;
}

/* Bytes of the longest match at the text's start, and its replacement; 0: there is none. */
static size_t find_replacement(const struct tdm_unigram *u, const uint8_t *text, size_t size, const uint8_t **ret,
                               size_t *ret_size)
{
        uint32_t node, unit, found = 0;
        size_t length = 0;

        if (!get_unit(u, 0, &unit))
                return 0;
        node = offset_of(unit);
        for (size_t i = 0; i < size && text[i] != 0; i++) {
                node ^= text[i];
                if (!get_unit(u, node, &unit) || (unit & (UINT32_C(1) << 31 | 0xff)) != text[i])
                        break;
                node ^= offset_of(unit);
                if (unit >> 8 & 1) {
                        found = text_of(u, node);
                        length = i + 1;
                }
        }
        if (found == 0)
                return 0;
        *ret = u->map + found;
        *ret_size = strnlen((const char *)*ret, GROWTH_MAX * length + 1); /* the map ends in a zero */
        return *ret_size <= GROWTH_MAX * length ? length : 0;
}

/* ---- the best way to cut a stretch ---- */

static void offer(struct tdm_unigram_best *best, size_t from, size_t to, uint32_t id, double score)
{
        if (score > best[to].score)
                best[to] = (struct tdm_unigram_best){ .score = score, .from = (uint32_t)from, .id = id };
}

static void emit_stretch(struct tdm_encoder *e, size_t size)
{
        struct tdm_unigram_best *best = e->unigram.best;

        for (size_t at = size; at > 0; at = best[at].from)
                best[best[at].from].to = (uint32_t)at;
        for (size_t at = 0; at < size; at = best[at].to) {
                uint32_t id = best[best[at].to].id;
                bool is_unknown = (int64_t)id == e->t->unknown;

                if (!is_unknown || !e->unigram.was_unknown)
                        tdm_encoder_emit(e, id);
                e->unigram.was_unknown = is_unknown;
        }
}

static int search_stretch(struct tdm_encoder *e)
{
        const struct tdm_unigram *u = &e->t->unigram;
        const uint8_t *text = e->unigram.text;
        size_t size = e->unigram.size;
        struct tdm_unigram_best *best;
        uint64_t walked = 0;
        int r;

        while (e->unigram.best_capacity <= size)
                if (tdm_encoder_grow((void **)&e->unigram.best, &e->unigram.best_capacity, e->unigram.best_capacity,
                                     sizeof(*e->unigram.best)) < 0)
                        return -ENOMEM;
        best = e->unigram.best;
        for (size_t i = 0; i <= size; i++)
                best[i].score = -INFINITY;
        best[0].score = 0;
        for (size_t at = 0, length; at < size; at += length) {
                uint32_t node = 0;
                bool has_alone = false;

                length = (size_t)tdm_character_length(text + at, size - at);
                for (size_t end = at; end < size;) {
                        node = tdm_byte_tree_child(u->first, u->bytes, u->roots, node, text[end]);
                        if (node == 0)
                                break;
                        end++;
                        walked++;
                        if (u->ids[node] == TDM_NO_PIECE)
                                continue;
                        offer(best, at, end, u->ids[node], best[at].score + (double)e->t->pieces[u->ids[node]].score);
                        has_alone = has_alone || end == at + length;
                }
                if (!has_alone)
                        offer(best, at, at + length, (uint32_t)e->t->unknown, best[at].score + u->unknown_score);
                if (walked >= TDM_ENCODE_CHECK_STEPS) {
                        r = tdm_encoder_spend(e, walked / WALK_A_STEP);
                        if (r < 0)
                                return r;
                        walked = 0;
                }
        }
        emit_stretch(e, size);
        e->unigram.size = 0;
        return tdm_encoder_spend(e, size + walked / WALK_A_STEP);
}

/* ---- normalized text ---- */

/* One character. Before it the stretch ends where no piece has its first byte behind the last one. */
static int put(struct tdm_encoder *e, const uint8_t *text, size_t size)
{
        int r;

        if (e->unigram.size > 0) {
                uint8_t last = e->unigram.text[e->unigram.size - 1];

                if (!(e->t->joins[last][text[0] / 8] & 1u << text[0] % 8) && (r = search_stretch(e)) < 0)
                        return r;
        }
        while (e->unigram.size + size > e->unigram.text_capacity)
                if (tdm_encoder_grow((void **)&e->unigram.text, &e->unigram.text_capacity, e->unigram.text_capacity,
                                     1) < 0)
                        return -ENOMEM;
        memcpy(e->unigram.text + e->unigram.size, text, size);
        e->unigram.size += size;
        return 0;
}

struct unigram_words {
        bool wants_prefix, in_word;
};

/* Normalized text, without bytes that are not UTF-8. */
static int put_words(struct tdm_encoder *e, struct unigram_words *w, const uint8_t *text, size_t size)
{
        bool joins = e->t->unigram.joins_spaces;
        int r = 0;

        for (size_t at = 0; r == 0 && at < size;) {
                size_t length = (size_t)tdm_character_length(text + at, size - at);

                if (text[at] == ' ') {
                        w->in_word = false;
                        if (!joins)
                                r = put(e, text + at, 1);
                } else {
                        if (!w->in_word && (w->wants_prefix || joins)) {
                                w->wants_prefix = false;
                                r = put(e, (const uint8_t *)" ", 1);
                        }
                        w->in_word = true;
                        if (r == 0 && length == sizeof(mark) && memcmp(text + at, mark, sizeof(mark)) == 0)
                                r = put(e, (const uint8_t *)" ", 1); /* a space in the form of pieces */
                        else if (r == 0)
                                r = put(e, text + at, length);
                }
                at += length;
        }
        return r;
}

/* A replacement comes from the file: what is not UTF-8 there is left out. */
static int put_replacement(struct tdm_encoder *e, struct unigram_words *w, const uint8_t *text, size_t size)
{
        int r = 0;

        for (size_t at = 0; r == 0 && at < size;) {
                int length = tdm_character_length(text + at, size - at);

                if (length > 0)
                        r = put_words(e, w, text + at, (size_t)length);
                at += length > 0 ? (size_t)length : 1;
        }
        return r;
}

int tdm_unigram_encode_run(struct tdm_encoder *e, const uint8_t *text, size_t size, bool prefix)
{
        struct unigram_words w = { .wants_prefix = prefix };
        int r = 0;

        e->unigram.size = 0;
        e->unigram.was_unknown = false;
        for (size_t at = 0; r == 0 && at < size;) {
                const uint8_t *replacement;
                size_t n_replacement,
                        n = find_replacement(&e->t->unigram, text + at, size - at, &replacement, &n_replacement);
                int length;

                if (n > 0) {
                        at += n;
                        r = put_replacement(e, &w, replacement, n_replacement);
                } else {
                        length = tdm_character_length(text + at, size - at);
                        if (length > 0)
                                r = put_words(e, &w, text + at, (size_t)length);
                        else
                                r = put_words(e, &w, replacement_character, sizeof(replacement_character));
                        at += length > 0 ? (size_t)length : 1;
                }
                if (r == 0)
                        r = tdm_encoder_spend(e, 1);
        }
        return r < 0 || e->unigram.size == 0 ? r : search_stretch(e);
}
