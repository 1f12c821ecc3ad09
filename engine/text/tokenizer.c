/* Building a tokenizer from a file's vocabulary, and asking it about pieces.
 *
 * Pieces are kept in the form in which they stand in running text: U+2581, which SentencePiece writes for a space, and
 * GPT-2's characters for bytes are turned back once here, so encoding needs no second copy of the text. Three things
 * are built: a hash table of the texts that merges may form, an automaton over the special pieces
 * (tokenizer-specials.c), and a map of which bytes may be neighbours inside a piece. Kinds with merges have a table of
 * them too (bpe-build.c). Each takes time and memory linear in the bytes of the vocabulary.
 *
 * Of pieces with the same text the one with the lowest id counts. The markers of chat turns are control pieces whatever
 * the file says: some converters write them as ordinary ones, and then user text could end a turn. */
#include "engine/text/tokenizer-private.h"

#include <inttypes.h>
#include <math.h>
#include <sys/random.h>
#include "common/utf8.h"

#define CHECK_EVERY 4096u /* pieces between two looks at the flag */

static const char space_mark[3] = { '\xe2', '\x96', '\x81' };

/* Pieces at which a turn ends, by kind of tokenizer. A key names one of several alone, and not always the one that ends
 * turns, so these are ends beside it wherever the vocabulary has them as special pieces. */
static const char *const end_texts[][TDM_MAX_ENDS] = {
        [TDM_TOKENIZER_SPM] = { "<end_of_turn>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
                                "<|endoftext|>", "<EOT>", "<end_of_utterance>" },
        [TDM_TOKENIZER_BYTES] = { "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|return|>", "<|call|>",
                                  "<|endoftext|>", "<end_of_utterance>" },
        [TDM_TOKENIZER_GEMMA4] = { "<turn|>", "<|tool_response>" },
        [TDM_TOKENIZER_WORDPIECE] = { NULL },
        [TDM_TOKENIZER_UNIGRAM] = { NULL },
};

static const char *const control_texts[] = {
        "<start_of_turn>",   "<end_of_turn>", "<|im_start|>", "<|im_end|>",        "<|start_header_id|>",
        "<|end_header_id|>", "<|eot_id|>",    "<|eom_id|>",   "<|begin_of_text|>", "<|end_of_text|>",
        "<|endoftext|>",     "<|start|>",     "<|end|>",      "<|message|>",       "<|channel|>",
        "<|constrain|>",     "<|return|>",    "<|call|>",     "<|python_tag|>",
};

/* Markers that files call user-defined, so that generated text shows them, and whether plain text forms them. What is
 * not listed may be formed: runs of spaces and line ends, HTML tags. The makers' own tokenizers let text form all of
 * them. Qwen's are left so: its golden ids say so, and a turn is not forged with them. With Gemma 4's, text could end a
 * thought or a tool's answer and pass itself off as the model's. */
static const struct {
        const char *text;
        bool plain;
} user_markers[] = {
        { "<tool_call>", true },
        { "</tool_call>", true },
        { "<tool_response>", true },
        { "</tool_response>", true },
        { "<think>", true },
        { "</think>", true },
        { "<|turn>", false },
        { "<turn|>", false },
        { "<|channel>", false },
        { "<channel|>", false },
        { "<|think|>", false },
        { "<|tool>", false },
        { "<tool|>", false },
        { "<|tool_call>", false },
        { "<tool_call|>", false },
        { "<|tool_response>", false },
        { "<tool_response|>", false },
        { "<|\"|>", false },
        { "[INST]", false },
        { "[/INST]", false },
        { "[TOOL_CALLS]", false },
        { "[TOOL_RESULTS]", false },
        { "[/TOOL_RESULTS]", false },
        { "[AVAILABLE_TOOLS]", false },
        { "[/AVAILABLE_TOOLS]", false },
        { "[SYSTEM_PROMPT]", false },
        { "[/SYSTEM_PROMPT]", false },
};

static bool is_guarded(struct tdm_gguf_string s)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(user_markers); i++) {
                if (s.size == strlen(user_markers[i].text) && memcmp(s.data, user_markers[i].text, s.size) == 0)
                        return !user_markers[i].plain;
        }
        return false;
}

static uint64_t fold(uint64_t a, uint64_t b)
{
        unsigned __int128 p = (unsigned __int128)a * b;

        return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Seeded, so that nobody can choose a vocabulary whose pieces all fall into one slot. */
static uint32_t hash_text(uint64_t seed, const uint8_t *text, size_t size)
{
        uint64_t h = seed ^ (size * UINT64_C(0x9e3779b97f4a7c15)), word;

        while (size > 0) {
                size_t n = TDM_MIN(size, sizeof(word));

                word = 0;
                memcpy(&word, text, n);
                h = fold(h ^ word, UINT64_C(0xd6e8feb86659fd93) ^ (seed << 1));
                text += n;
                size -= n;
        }
        h = fold(h ^ (h >> 29), UINT64_C(0xa0761d6478bd642f));
        return (uint32_t)(h >> 32);
}

uint32_t tdm_tokenizer_find(const struct tdm_tokenizer *t, const uint8_t *text, size_t size)
{
        uint32_t hash;

        if (size > t->max_merge_bytes)
                return TDM_NO_PIECE;
        hash = hash_text(t->hash_seed, text, size);
        for (uint32_t i = hash & t->slot_mask;; i = (i + 1) & t->slot_mask) {
                const struct tdm_piece_slot *slot = &t->slots[i];

                if (slot->id == TDM_NO_PIECE)
                        return TDM_NO_PIECE;
                if (slot->hash == hash && t->pieces[slot->id].size == size &&
                    memcmp(tdm_piece_text(t, slot->id), text, size) == 0)
                        return slot->id;
        }
}

static void insert(struct tdm_tokenizer *t, uint32_t id)
{
        const uint8_t *text = tdm_piece_text(t, id);
        uint32_t hash = hash_text(t->hash_seed, text, t->pieces[id].size), i = hash & t->slot_mask;

        while (t->slots[i].id != TDM_NO_PIECE)
                i = (i + 1) & t->slot_mask;
        t->slots[i] = (struct tdm_piece_slot){ hash, id };
}

static int build_table(struct tdm_tokenizer *t, struct tdm_error *err)
{
        uint64_t n_slots = 16, n_mergeable = 0;
        int r;

        for (uint32_t id = 0; id < t->n_pieces; id++)
                n_mergeable += t->pieces[id].mergeable;
        while (n_slots < 2 * n_mergeable)
                n_slots *= 2;
        r = tdm_parse_charge(&t->account, n_slots * sizeof(*t->slots), err);
        if (r)
                return r;
        t->slots = malloc(n_slots * sizeof(*t->slots));
        if (!t->slots)
                return tdm_error_set(err, -ENOMEM, "out of memory for %u pieces", t->n_pieces);
        memset(t->slots, 0xff, n_slots * sizeof(*t->slots));
        t->slot_mask = (uint32_t)(n_slots - 1);
        for (uint32_t id = 0; id < t->n_pieces; id++) {
                struct tdm_piece *p = &t->pieces[id];
                const uint8_t *text = tdm_piece_text(t, id);

                if (id % CHECK_EVERY == 0 && (r = tdm_parse_check(&t->account, err)))
                        return r;
                if (!p->mergeable)
                        continue;
                t->max_merge_bytes = TDM_MAX(t->max_merge_bytes, (size_t)p->size);
                if (tdm_tokenizer_find(t, text, p->size) != TDM_NO_PIECE) {
                        p->mergeable = false;
                        continue;
                }
                insert(t, id);
                for (uint32_t i = 1; i < p->size; i++)
                        t->joins[text[i - 1]][text[i] / 8] |= (uint8_t)(1u << text[i] % 8);
        }
        return 0;
}

/* "<0x4F>" as a number, or -1. */
static int parse_byte(struct tdm_gguf_string s)
{
        int v = 0;

        if (s.size != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>')
                return -1;
        for (int i = 3; i < 5; i++) {
                char c = s.data[i];

                if (c >= '0' && c <= '9')
                        v = v * 16 + c - '0';
                else if (c >= 'A' && c <= 'F')
                        v = v * 16 + c - 'A' + 10;
                else if (c >= 'a' && c <= 'f')
                        v = v * 16 + c - 'a' + 10;
                else
                        return -1;
        }
        return v;
}

bool tdm_tokenizer_is_control_text(const char *text, size_t size)
{
        if (size < 2 || text[0] != '<')
                return false;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(control_texts); i++) {
                if (size == strlen(control_texts[i]) && memcmp(text, control_texts[i], size) == 0)
                        return true;
        }
        return false;
}

/* Writes a piece's text in running form; dst has room for s.size bytes. */
static size_t copy_running(uint8_t *dst, struct tdm_gguf_string s, bool *ret_has_space)
{
        size_t n = 0;

        *ret_has_space = false;
        for (size_t i = 0; i < s.size; i++) {
                if (s.size - i >= 3 && memcmp(s.data + i, space_mark, 3) == 0) {
                        dst[n++] = ' ';
                        i += 2;
                        continue;
                }
                *ret_has_space |= s.data[i] == ' ';
                dst[n++] = (uint8_t)s.data[i];
        }
        return n;
}

/* A piece that ordinary text may form. */
static void piece_read_text(const struct tdm_tokenizer *t, struct tdm_piece *p, uint8_t *dst, struct tdm_gguf_string s)
{
        bool has_space;
        ssize_t n;

        if (t->kind != TDM_TOKENIZER_BYTES) {
                p->size = (uint16_t)copy_running(dst, s, &has_space);
                /* Running text has no space that is not marked, so a piece with a real one cannot be formed. */
                p->mergeable = p->size > 0 && !has_space;
                return;
        }
        memcpy(dst, s.data, s.size);
        n = tdm_bpe_to_bytes(dst, s.size);
        if (n < 0) { /* not written in GPT-2's characters: it is shown as it is and never formed */
                memcpy(dst, s.data, s.size);
                n = (ssize_t)s.size;
        } else
                p->mergeable = n > 0 && p->type == TDM_PIECE_NORMAL;
        p->size = (uint16_t)n;
}

static int read_piece(struct tdm_tokenizer *t, uint32_t id, struct tdm_gguf_string s, uint64_t type, double score,
                      size_t *pool_used, struct tdm_error *err)
{
        struct tdm_piece *p = &t->pieces[id];
        uint8_t *dst = t->pool + *pool_used;
        int byte;

        p->start = (uint32_t)*pool_used;
        p->type = (uint8_t)type;
        p->score = (float)score;
        if (tdm_tokenizer_is_control_text(s.data, s.size) || (int64_t)id == t->bos || (int64_t)id == t->eos)
                p->type = TDM_PIECE_CONTROL;
        switch (p->type) {
        case TDM_PIECE_NORMAL:
        case TDM_PIECE_UNUSED:
                piece_read_text(t, p, dst, s);
                break;
        case TDM_PIECE_BYTE:
                byte = parse_byte(s);
                if (byte < 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "piece %u is a byte, but not written like <0x41>",
                                             id);
                dst[0] = (uint8_t)byte;
                p->size = 1;
                if (t->byte_ids[byte] == TDM_NO_PIECE && t->kind != TDM_TOKENIZER_BYTES)
                        t->byte_ids[byte] = id;
                break;
        default:
                memcpy(dst, s.data, s.size);
                p->size = (uint16_t)s.size;
                p->guarded = p->type == TDM_PIECE_USER_DEFINED && is_guarded(s);
                /* Merges may name them: runs of spaces and line ends. */
                p->mergeable = t->kind == TDM_TOKENIZER_GEMMA4 && p->type == TDM_PIECE_USER_DEFINED && p->size > 0;
        }
        *pool_used += p->size;
        t->max_piece_bytes = TDM_MAX(t->max_piece_bytes, (size_t)p->size);
        return 0;
}

static const char tokens_key[] = "tokenizer.ggml.tokens", scores_key[] = "tokenizer.ggml.scores",
                  types_key[] = "tokenizer.ggml.token_type";

static int vocabulary_make_room(struct tdm_tokenizer *t, struct tdm_gguf_array tokens, struct tdm_error *err)
{
        struct tdm_gguf_string s;
        size_t pool_size = 0;
        int r;

        for (uint32_t id = 0; id < t->n_pieces; id++) {
                if (tdm_gguf_array_next_string(&tokens, &s) < 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not an array of strings", tokens_key);
                if (s.size > TDM_PIECE_BYTES_MAX)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "piece %u has %zu bytes, at most %u are allowed", id,
                                             s.size, TDM_PIECE_BYTES_MAX);
                pool_size += s.size;
        }
        r = tdm_parse_charge(&t->account, t->n_pieces * sizeof(*t->pieces) + pool_size, err);
        if (r)
                return r;
        t->pieces = calloc(t->n_pieces, sizeof(*t->pieces));
        t->pool = malloc(TDM_MAX(pool_size, (size_t)1));
        if (!t->pieces || !t->pool)
                return tdm_error_set(err, -ENOMEM, "out of memory for %u pieces", t->n_pieces);
        return 0;
}

static bool has_scores(const struct tdm_tokenizer *t)
{
        return t->kind == TDM_TOKENIZER_SPM || t->kind == TDM_TOKENIZER_UNIGRAM;
}

static bool has_merges(const struct tdm_tokenizer *t)
{
        return t->kind == TDM_TOKENIZER_BYTES || t->kind == TDM_TOKENIZER_GEMMA4;
}

static int read_pieces(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err)
{
        struct tdm_gguf_array tokens = { 0 }, scores = { 0 }, types = { 0 }; /* empty where the key is missing */
        size_t pool_used = 0;
        int r;

        (void)tdm_gguf_array_begin(&tokens, g, tokens_key);
        (void)tdm_gguf_array_begin(&scores, g, scores_key);
        (void)tdm_gguf_array_begin(&types, g, types_key);
        r = vocabulary_make_room(t, tokens, err);
        if (r)
                return r;
        for (uint32_t id = 0; id < t->n_pieces; id++) {
                struct tdm_gguf_string s = { 0 };
                uint64_t type;
                double score = 0;

                if (id % CHECK_EVERY == 0 && (r = tdm_parse_check(&t->account, err)))
                        return r;
                (void)tdm_gguf_array_next_string(&tokens, &s);
                if (has_scores(t) && (tdm_gguf_array_next_f64(&scores, &score) < 0 || isnan(score)))
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s has no score for piece %u", scores_key,
                                             id);
                if (tdm_gguf_array_next_u64(&types, &type) < 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s has no type for piece %u", types_key,
                                             id);
                if (type < TDM_PIECE_NORMAL || type > TDM_PIECE_BYTE)
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "piece %u has the type %" PRIu64 ", which does not exist", id, type);
                r = read_piece(t, id, s, tdm_form_type(t, s, type, score), score, &pool_used, err);
                if (r)
                        return r;
        }
        return 0;
}

/* A key that names a piece; -1 where it is not there. Released files have -1, and numbers of pieces that were cut off:
 * such a piece is not used, and a note says so. */
static int get_id(struct tdm_tokenizer *t, const struct tdm_gguf *g, const char *key, int32_t *ret,
                  struct tdm_error *err)
{
        int64_t id;
        uint64_t large;
        int r;

        *ret = -1;
        r = tdm_gguf_get_i64(g, key, &id);
        if (r == -ENOENT)
                return 0;
        if (r < 0 && tdm_gguf_get_u64(g, key, &large) == 0) {
                id = INT64_MAX;
                r = 0;
        }
        if (r < 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not the number of a piece", key);
        if (id < 0 || id >= (int64_t)t->n_pieces)
                tdm_note_add(&t->notes, "the key %s is %" PRId64 ", which is none of the %u pieces, and is not used",
                             key, id, t->n_pieces);
        else
                *ret = (int32_t)id;
        return 0;
}

/* Leaves *v alone where the key is missing. */
static int get_flag(const struct tdm_gguf *g, const char *key, bool *v, struct tdm_error *err)
{
        if (tdm_gguf_get_bool(g, key, v) == -EINVAL)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not a boolean, nor 0 or 1", key);
        return 0;
}

static void add_end(struct tdm_tokenizer *t, int32_t id)
{
        if (id >= 0 && !tdm_tokenizer_is_end(t, (uint32_t)id) && t->n_ends < TDM_MAX_ENDS)
                t->ends[t->n_ends++] = (uint32_t)id;
}

/* Converters that name several ends write them as an array beside the key of one. */
static int add_listed_ends(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err)
{
        static const char key[] = "tokenizer.ggml.eos_token_ids";
        uint64_t n = 0;
        int r = tdm_gguf_get_array_size(g, key, &n);

        if (r == -ENOENT)
                return 0;
        for (uint64_t i = 0; r == 0 && i < n; i++) {
                int64_t id = 0;

                r = tdm_gguf_get_array_i64(g, key, i, &id);
                if (r < 0)
                        break;
                if (t->n_ends == TDM_MAX_ENDS)
                        return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                             "the key %s names %" PRIu64 " pieces, at most %u are supported", key, n,
                                             TDM_MAX_ENDS);
                if (id < 0 || id >= (int64_t)t->n_pieces)
                        tdm_note_add(&t->notes,
                                     "the key %s has %" PRId64 ", which is none of the %u pieces, and is not used", key,
                                     id, t->n_pieces);
                else
                        add_end(t, (int32_t)id);
        }
        return r < 0 ? tdm_error_set(err, TDM_E_BAD_MODEL, "the key %s is not an array of whole numbers", key) : 0;
}

static void add_end_of_text(struct tdm_tokenizer *t, const char *text)
{
        uint32_t id;

        if (tdm_tokenizer_find_marker(t, text, &id) == 0)
                add_end(t, (int32_t)id);
}

/* gpt-oss ends a message of several with <|end|>, and its turn with one of the others. */
static bool ends_messages(const struct tdm_tokenizer *t)
{
        uint32_t answer, call;

        return tdm_tokenizer_find_marker(t, "<|return|>", &answer) == 0 &&
               tdm_tokenizer_find_marker(t, "<|call|>", &call) == 0;
}

static int find_ends(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err)
{
        int32_t eot, eom;
        int r;

        if ((r = get_id(t, g, "tokenizer.ggml.eot_token_id", &eot, err)) ||
            (r = get_id(t, g, "tokenizer.ggml.eom_token_id", &eom, err)))
                return r;
        add_end(t, t->eos);
        add_end(t, eot);
        add_end(t, eom);
        for (const char *const *text = end_texts[t->kind]; *text; text++)
                add_end_of_text(t, *text);
        if (t->kind != TDM_TOKENIZER_GEMMA4 && !ends_messages(t))
                add_end_of_text(t, "<|end|>");
        return add_listed_ends(t, g, err);
}

/* Byte-level vocabularies are trained on text, where some bytes never occur. */
static bool may_lack(const struct tdm_tokenizer *t, uint8_t byte)
{
        return t->kind == TDM_TOKENIZER_BYTES && (byte == 0xc0 || byte == 0xc1 || byte > 0xf4);
}

/* Where a vocabulary has merges, a piece of several characters that no merge makes was added to it. Text that spells
 * such a piece forms it whole, as it forms a user-defined one. This marks them, because some converters write them as
 * ordinary pieces. */
static void mark_added(struct tdm_tokenizer *t)
{
        for (uint32_t rank = 0; rank < t->merges.n; rank++)
                if (t->merges.ids[rank] != TDM_NO_PIECE)
                        t->pieces[t->merges.ids[rank]].is_made = true;
        for (uint32_t id = 0; id < t->n_pieces; id++) {
                struct tdm_piece *p = &t->pieces[id];
                const uint8_t *text = tdm_piece_text(t, id);

                if (p->type != TDM_PIECE_NORMAL || p->is_made || p->size == 0 ||
                    tdm_utf8_length(text, p->size) == (int)p->size)
                        continue;
                p->type = TDM_PIECE_USER_DEFINED;
                p->guarded = is_guarded((struct tdm_gguf_string){ (const char *)text, p->size });
        }
}

/* Encoders of words put the unknown piece for what has none. Others need a piece for each byte, or that one. */
static int find_bytes(struct tdm_tokenizer *t, struct tdm_error *err)
{
        bool is_of_words = t->kind == TDM_TOKENIZER_WORDPIECE || t->kind == TDM_TOKENIZER_UNIGRAM;

        if (is_of_words && t->unknown < 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "its vocabulary has no unknown piece (key tokenizer.ggml.unknown_token_id), so "
                                     "some text could not be written");
        for (uint32_t b = 0; b < 256; b++) {
                uint8_t byte = (uint8_t)b;

                if (t->kind == TDM_TOKENIZER_BYTES)
                        t->byte_ids[b] = tdm_tokenizer_find(t, &byte, 1);
                if (t->byte_ids[b] == TDM_NO_PIECE && t->unknown < 0 && !may_lack(t, byte))
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "its vocabulary has neither the piece <0x%02X> nor an "
                                             "unknown piece, so some text could not be written",
                                             b);
        }
        return 0;
}

static int tokenizer_build(struct tdm_tokenizer *t, const struct tdm_gguf *g, struct tdm_error *err)
{
        uint64_t n;
        int r;

        r = tdm_tokenizer_read_kind(t, g, err);
        if (r)
                return r;
        if (tdm_gguf_get_array_size(g, "tokenizer.ggml.tokens", &n) < 0 || n == 0)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "the key tokenizer.ggml.tokens is missing or empty");
        if (n > TDM_PIECES_MAX)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "it has %" PRIu64 " pieces, at most %u are allowed", n,
                                     TDM_PIECES_MAX);
        t->n_pieces = (uint32_t)tdm_form_n_pieces(t, g, n);
        t->lacks_added = tdm_form_lacks_added(t, g, types_key);
        memset(t->byte_ids, 0xff, sizeof(t->byte_ids));
        if (getrandom(&t->hash_seed, sizeof(t->hash_seed), GRND_NONBLOCK) != (ssize_t)sizeof(t->hash_seed))
                t->hash_seed = tdm_now_ns() ^ (uintptr_t)t;
        if ((r = get_id(t, g, "tokenizer.ggml.bos_token_id", &t->bos, err)) ||
            (r = get_id(t, g, "tokenizer.ggml.eos_token_id", &t->eos, err)) ||
            (r = get_id(t, g, "tokenizer.ggml.unknown_token_id", &t->unknown, err)) ||
            (r = get_flag(g, "tokenizer.ggml.add_bos_token", &t->add_bos, err)) ||
            (r = get_flag(g, "tokenizer.ggml.add_eos_token", &t->add_eos, err)) ||
            (r = get_flag(g, "tokenizer.ggml.add_space_prefix", &t->add_space_prefix, err)) ||
            (t->kind == TDM_TOKENIZER_WORDPIECE && (r = tdm_wordpiece_read(t, g, err))) || (r = read_pieces(t, g, err)))
                return r;
        if (t->kind == TDM_TOKENIZER_GEMMA4) /* whatever the file says: its makers' programs ignore the key too */
                t->add_bos = true;
        if (!has_scores(t))
                t->add_space_prefix = false;
        if ((r = tdm_pair_read(t, g, err)) || (r = build_table(t, err)) || (r = find_bytes(t, err)))
                return r;
        if ((has_merges(t) && (r = tdm_bpe_build(t, g, err))) ||
            (t->kind == TDM_TOKENIZER_UNIGRAM && (r = tdm_unigram_build(t, g, err))))
                return r;
        if (t->kind == TDM_TOKENIZER_GEMMA4 && t->has_plain_markers)
                mark_added(t);
        if ((r = tdm_specials_build(t, err)) || (r = tdm_tokenizer_make_prints(t, err)))
                return r;
        return find_ends(t, g, err);
}

int tdm_tokenizer_new_within(struct tdm_tokenizer **ret, const struct tdm_gguf *gguf,
                             const struct tdm_parse_limits *limits, struct tdm_error *err)
{
        _cleanup_(tdm_tokenizer_destroyp) struct tdm_tokenizer *t = NULL;
        struct tdm_error local;
        int r;

        if (!err)
                err = &local;
        t = calloc(1, sizeof(*t));
        if (!t)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        t->account.limits = limits;
        r = tdm_parse_charge(&t->account, sizeof(*t), err);
        if (r == 0)
                r = tokenizer_build(t, gguf, err);
        if (r) {
                tdm_parse_uncharge(&t->account, t->account.held);
                tdm_error_prefix(err, "cannot use the tokenizer of model %s", tdm_gguf_name(gguf));
                return r;
        }
        t->account.limits = NULL;
        *ret = steal_ptr(&t);
        return 0;
}

int tdm_tokenizer_new(struct tdm_tokenizer **ret, const struct tdm_gguf *gguf, struct tdm_error *err)
{
        return tdm_tokenizer_new_within(ret, gguf, NULL, err);
}

const char *tdm_tokenizer_notes(const struct tdm_tokenizer *t)
{
        return t->notes.text;
}

uint64_t tdm_tokenizer_memory(const struct tdm_tokenizer *t)
{
        return t->account.held;
}

void tdm_tokenizer_destroy(struct tdm_tokenizer *t)
{
        if (!t)
                return;
        free(t->pieces);
        free(t->pool);
        free(t->prints);
        free(t->slots);
        free(t->merges.slots);
        free(t->merges.ids);
        free(t->pair.text);
        tdm_specials_deinit(&t->specials);
        tdm_unigram_deinit(&t->unigram);
        free(t);
}

void tdm_tokenizer_destroyp(struct tdm_tokenizer **tokenizer)
{
        tdm_tokenizer_destroy(*tokenizer);
}

uint32_t tdm_tokenizer_n_vocab(const struct tdm_tokenizer *t)
{
        return t->n_pieces;
}

int32_t tdm_tokenizer_bos(const struct tdm_tokenizer *t)
{
        return t->bos;
}

int32_t tdm_tokenizer_eos(const struct tdm_tokenizer *t)
{
        return t->eos;
}

bool tdm_tokenizer_add_bos(const struct tdm_tokenizer *t)
{
        return t->add_bos;
}

bool tdm_tokenizer_is_end(const struct tdm_tokenizer *t, uint32_t id)
{
        for (uint32_t i = 0; i < t->n_ends; i++) {
                if (t->ends[i] == id)
                        return true;
        }
        return false;
}

int tdm_tokenizer_find_marker(const struct tdm_tokenizer *t, const char *text, uint32_t *ret)
{
        size_t size = strlen(text);
        uint32_t id;

        if (size == 0)
                return -ENOENT;
        tdm_tokenizer_match_specials(t, (const uint8_t *)text, size, 1, true, &id);
        if (id == TDM_NO_PIECE || t->pieces[id].size != size)
                return -ENOENT;
        *ret = id;
        return 0;
}

bool tdm_tokenizer_may_form(const struct tdm_tokenizer *t, uint32_t id)
{
        return id < t->n_pieces && t->pieces[id].type == TDM_PIECE_USER_DEFINED && !t->pieces[id].guarded;
}

size_t tdm_tokenizer_max_piece_bytes(const struct tdm_tokenizer *t)
{
        return t->max_piece_bytes;
}

size_t tdm_tokenizer_piece(const struct tdm_tokenizer *t, uint32_t id, bool special, const char **ret_data)
{
        const struct tdm_piece *p;

        *ret_data = "";
        if (id >= t->n_pieces)
                return 0;
        p = &t->pieces[id];
        if (!special && (p->type == TDM_PIECE_CONTROL || p->type == TDM_PIECE_UNKNOWN))
                return 0;
        *ret_data = (const char *)tdm_piece_text(t, id);
        return p->size;
}
