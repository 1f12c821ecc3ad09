/* Vocabularies as converters other than llama.cpp's write them. The same text has to become the same ids whichever
 * program made the file, so what they write otherwise is brought back here to what a vocabulary's makers have.
 *
 * Ollama's converter reads Gemma 3's SentencePiece model, in which pieces that were added are of a type of their own,
 * and calls them ordinary ones. They are told by their score: 0, which of all pieces that were learned only the first
 * one has, as a negative zero. It takes all pieces of Gemma 3 and 3n, of which the last ones stand for pictures and
 * sound and have no row in the embedding of text. It fills up vocabularies with user-defined pieces [PAD0], [PAD1] …,
 * where llama.cpp's converter writes unused ones, and it calls gpt-oss's way of cutting words "default". Its first
 * files of Llama 3 have no other word for theirs, or none. */
#include "engine/text/tokenizer-private.h"

#include <inttypes.h>
#include <math.h>

static bool string_begins(struct tdm_gguf_string s, const char *text)
{
        return s.size >= strlen(text) && memcmp(s.data, text, strlen(text)) == 0;
}

static bool has_architecture(const struct tdm_gguf *g, const char *beginning)
{
        struct tdm_gguf_string s;

        return tdm_gguf_get_string(g, "general.architecture", &s) == 0 && string_begins(s, beginning);
}

bool tdm_form_is_gemma(const struct tdm_gguf *g)
{
        return has_architecture(g, "gemma");
}

bool tdm_form_is_bert(const struct tdm_gguf *g)
{
        return has_architecture(g, "bert");
}

int32_t tdm_form_find_piece(const struct tdm_gguf *g, const char *text)
{
        struct tdm_gguf_array tokens;
        struct tdm_gguf_string s;

        if (tdm_gguf_array_begin(&tokens, g, "tokenizer.ggml.tokens") < 0)
                return -1;
        for (int32_t id = 0; tdm_gguf_array_next_string(&tokens, &s) == 0; id++)
                if (s.size == strlen(text) && string_begins(s, text))
                        return id;
        return -1;
}

/* Llama 3 has this marker, and no model of the same architecture with other words. */
static bool is_llama3(const struct tdm_gguf *g)
{
        return has_architecture(g, "llama") && tdm_form_find_piece(g, "<|start_header_id|>") >= 0;
}

struct tdm_gguf_string tdm_form_pre(const struct tdm_gguf *g, struct tdm_gguf_string pre)
{
        static const char gpt_oss[] = "gpt-4o", llama3[] = "llama-bpe";

        if (pre.size != 0 && (pre.size != strlen("default") || !string_begins(pre, "default")))
                return pre;
        if (has_architecture(g, "gptoss"))
                return (struct tdm_gguf_string){ gpt_oss, strlen(gpt_oss) };
        return is_llama3(g) ? (struct tdm_gguf_string){ llama3, strlen(llama3) } : pre;
}

bool tdm_form_lacks_added(const struct tdm_tokenizer *t, const struct tdm_gguf *g, const char *types_key)
{
        struct tdm_gguf_array types;
        uint64_t type;

        if (t->kind != TDM_TOKENIZER_SPM || !tdm_form_is_gemma(g) || tdm_gguf_array_begin(&types, g, types_key) < 0)
                return false;
        for (uint32_t id = 0; id < t->n_pieces && tdm_gguf_array_next_u64(&types, &type) == 0; id++)
                if (type == TDM_PIECE_USER_DEFINED)
                        return false;
        return true;
}

/* "[PAD", a number, "]" */
static bool is_padding(struct tdm_gguf_string s)
{
        size_t at = strlen("[PAD");

        if (!string_begins(s, "[PAD"))
                return false;
        while (at < s.size && s.data[at] >= '0' && s.data[at] <= '9')
                at++;
        return at > strlen("[PAD") && at + 1 == s.size && s.data[at] == ']';
}

uint64_t tdm_form_type(const struct tdm_tokenizer *t, struct tdm_gguf_string s, uint64_t type, double score)
{
        if (t->kind == TDM_TOKENIZER_BYTES && type == TDM_PIECE_USER_DEFINED && is_padding(s))
                return TDM_PIECE_UNUSED;
        if (!t->lacks_added || type != TDM_PIECE_NORMAL || score != 0 || signbit(score))
                return type;
        return string_begins(s, "<unused") ? TDM_PIECE_CONTROL : TDM_PIECE_USER_DEFINED;
}

uint64_t tdm_form_n_pieces(struct tdm_tokenizer *t, const struct tdm_gguf *g, uint64_t n)
{
        static const char *const embeddings[] = { "token_embd.weight", "per_layer_token_embd.weight" };
        uint64_t n_used = n;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(embeddings); i++) {
                const struct tdm_gguf_tensor *embedding = tdm_gguf_find_tensor(g, embeddings[i]);

                if (embedding && embedding->dims[1] > 0)
                        n_used = TDM_MIN(n_used, embedding->dims[1]);
        }
        if (n_used < n)
                tdm_note_add(&t->notes,
                             "the last %" PRIu64 " of the tokenizer's %" PRIu64
                             " pieces have no row in the embedding, and are not used",
                             n - n_used, n);
        return n_used;
}
