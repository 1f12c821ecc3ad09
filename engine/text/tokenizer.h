/* The tokenizer of a GGUF, of one of three kinds (`tokenizer.ggml.model`): SentencePiece ("llama": byte-pair merges by
 * score, byte fallback), byte-level BPE ("gpt2": merges by rank within words, cut as `tokenizer.ggml.pre` says) and
 * Gemma 4's ("gemma4": merges by rank of characters within lines, byte fallback). Another kind, or another way to cut
 * words, is refused by name.
 *
 * Immutable after creation, any thread. Text in is UTF-8; each byte that is not part of a well-formed sequence (RFC
 * 3629: no overlong forms, no surrogates, nothing past U+10FFFF) is taken as itself, so that decoding gives the very
 * same bytes back. Three exceptions, as the originals have them: tokenizers that were trained on normalization form C
 * (qwen2) bring text to it first; where a byte-level vocabulary lacks a byte that UTF-8 never has, that byte becomes
 * U+FFFD; Gemma 4's takes U+2581 for a space. SentencePiece's writes U+2581, its own mark for a space, in byte pieces,
 * so that it comes back as itself. */
#ifndef TDM_ENGINE_TOKENIZER_H
#define TDM_ENGINE_TOKENIZER_H

#include "engine/file/gguf.h"

struct tdm_tokenizer;

/* Copies what it needs; the gguf may be closed afterwards. */
int tdm_tokenizer_new(struct tdm_tokenizer **ret, const struct tdm_gguf *gguf, struct tdm_error *err);
/* The same with limits of the caller's own (NULL: none). */
int tdm_tokenizer_new_within(struct tdm_tokenizer **ret, const struct tdm_gguf *gguf,
                             const struct tdm_parse_limits *limits, struct tdm_error *err);
/* Private memory that the object holds: the texts, at most 45 bytes for each piece, 36 for each merge, and 13 for each
 * byte of special pieces, of which 2^21 are allowed. */
uint64_t tdm_tokenizer_memory(const struct tdm_tokenizer *tokenizer);
void tdm_tokenizer_destroy(struct tdm_tokenizer *tokenizer);
void tdm_tokenizer_destroyp(struct tdm_tokenizer **tokenizer);

/* What of the file was passed over, for the log: sentences with "; " in between; "" where there is nothing to say. */
const char *tdm_tokenizer_notes(const struct tdm_tokenizer *tokenizer);

uint32_t tdm_tokenizer_n_vocab(const struct tdm_tokenizer *tokenizer);
/* -1 where the file names none. */
int32_t tdm_tokenizer_bos(const struct tdm_tokenizer *tokenizer);
int32_t tdm_tokenizer_eos(const struct tdm_tokenizer *tokenizer);
bool tdm_tokenizer_add_bos(const struct tdm_tokenizer *tokenizer);
/* Generation stops there: the pieces that eos_token_id, eos_token_ids, eot_token_id and eom_token_id name, and special
 * pieces with the text of a known end of turn. */
bool tdm_tokenizer_is_end(const struct tdm_tokenizer *tokenizer, uint32_t id);

/* The special piece (control, unknown or user-defined) with just this text: 0, or -ENOENT. */
int tdm_tokenizer_find_marker(const struct tdm_tokenizer *tokenizer, const char *text, uint32_t *ret);
/* Whether plain text becomes this special piece where it spells it. Control pieces: never. User-defined ones: yes, but
 * for those with which a text could forge a turn, a thought or a tool's call (the list in tokenizer.c). */
bool tdm_tokenizer_may_form(const struct tdm_tokenizer *tokenizer, uint32_t id);

enum tdm_tokenize_flags {
        TDM_TOKENIZE_BOS = 1,     /* BOS first, where the file says add_bos_token */
        TDM_TOKENIZE_EOS = 4,     /* EOS last, where the file says add_eos_token: of texts that become vectors */
        TDM_TOKENIZE_SPECIAL = 2, /* control pieces in the text become their tokens */
};

/* Writes at most capacity ids and returns how many there are in all (which may be more: call again), or a negative
 * errno. Whatever the vocabulary is, it takes O(n log n) time in the text's length n, and 64 KiB, at most 6 bytes of
 * memory for each byte of text, and at most 128 for each byte of the longest stretch that is merged (or normalized) as
 * one. */
ssize_t tdm_tokenizer_encode(const struct tdm_tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                             uint32_t *ids, size_t capacity);

/* How long encoding may go on. It is looked at before every 16 KiB of text and every 4,096 merges. */
struct tdm_encode_budget {
        uint64_t steps;               /* left; goes down by what was done */
        const atomic_bool *cancelled; /* NULL: it cannot be cancelled */
};
/* A text of n bytes takes at most this many steps. One takes some nanoseconds, up to 300 for hostile vocabularies. */
#define TDM_ENCODE_STEPS(n) (16 * (uint64_t)(n) + 4096)
#define TDM_ENCODE_SPANS_STEPS(n) (18 * (uint64_t)(n) + 4096) /* tdm_tokenizer_encode_spans() */
/* Also -ECANCELED, and -ETIME when the steps are spent. budget may be NULL. */
ssize_t tdm_tokenizer_encode_within(const struct tdm_tokenizer *tokenizer, const char *text, size_t size,
                                    unsigned flags, struct tdm_encode_budget *budget, uint32_t *ids, size_t capacity);

/* Text up to end, from the end of the span before it. */
struct tdm_text_span {
        size_t end;
        bool is_trusted; /* its special pieces become their tokens */
};
/* A text of which only some is trusted, as a prompt is that a template made around what people wrote. Special pieces
 * that lie within a trusted span become their tokens. What is between two of them is encoded as one text, whoever wrote
 * it, with no special pieces but those that any text may form. The spans cover the text; spans side by side differ.
 * Otherwise as tdm_tokenizer_encode_within(). */
ssize_t tdm_tokenizer_encode_spans(const struct tdm_tokenizer *tokenizer, const char *text, size_t size,
                                   const struct tdm_text_span *spans, size_t n_spans, struct tdm_encode_budget *budget,
                                   uint32_t *ids, size_t capacity);

/* A query and a document as one text, as a reranker reads them: as the file's own form says (`tokenizer.chat_template
 * .rerank`, in which {query} and {document} stand for them), or else each between the pieces around a text. Control
 * pieces are not recognised in either. *ret_second: where the document begins, which BERT's kinds mark by another type;
 * 0: they do not. Otherwise as tdm_tokenizer_encode_within(). */
ssize_t tdm_tokenizer_encode_pair(const struct tdm_tokenizer *tokenizer, const char *query, size_t query_size,
                                  const char *document, size_t document_size, struct tdm_encode_budget *budget,
                                  uint32_t *ids, size_t capacity, uint32_t *ret_second);
/* How many bytes the form adds to a pair at most. */
size_t tdm_tokenizer_pair_bytes(const struct tdm_tokenizer *tokenizer);

/* The bytes of one token as they stand in running text (U+2581 is a space; byte pieces are their byte; control pieces
 * are empty unless special). Returns the size; data is valid as long as the tokenizer. */
size_t tdm_tokenizer_piece(const struct tdm_tokenizer *tokenizer, uint32_t id, bool special, const char **ret_data);
/* The first id below n whose piece differs, by its text or by whether it stands in running text; n: none does. A piece
 * that only one of them has differs. Fast: some thousand pieces are looked at, however many there are. */
uint32_t tdm_tokenizer_first_difference(const struct tdm_tokenizer *a, const struct tdm_tokenizer *b, uint32_t n);

/* Incremental decoding: bytes are held back until they form whole characters, so that what push() returns can always be
 * shown. A held sequence that turns out malformed is given out byte for byte replaced by U+FFFD only in text meant for
 * people; the ids are the truth. One decoder belongs to one stream; embed it. */
struct tdm_decoder {
        const struct tdm_tokenizer *tokenizer;
        uint8_t held[8];
        uint8_t n_held;
        bool special;
        bool started;
};
/* Where the vocabulary puts a space in front of every text, the first piece loses it; a stream that goes on from other
 * text keeps it: set started after init. */
void tdm_decoder_init(struct tdm_decoder *decoder, const struct tdm_tokenizer *tokenizer, bool special);
/* text must have room for TDM_DECODER_ROOM(tokenizer) bytes; returns how many were written (0: nothing whole yet). */
size_t tdm_decoder_push(struct tdm_decoder *decoder, uint32_t id, char *text, size_t capacity);
/* What is still held when the stream ends (U+FFFD for an unfinished character). */
size_t tdm_decoder_finish(struct tdm_decoder *decoder, char *text, size_t capacity);
size_t tdm_tokenizer_max_piece_bytes(const struct tdm_tokenizer *tokenizer);
#define TDM_DECODER_ROOM(tokenizer) (3 * tdm_tokenizer_max_piece_bytes(tokenizer) + 32)

#endif
