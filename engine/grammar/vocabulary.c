/* A vocabulary from a tokenizer. A file of its own, so that programs which check schemas link no tokenizer. */
#include "engine/grammar/compose.h"
#include "engine/text/tokenizer.h"

struct pieces {
        const struct tdm_tokenizer *tokenizer;
        char marker[1 + TDM_MARKER_MAX];
};

size_t tdm_vocabulary_marker(const struct tdm_tokenizer *tokenizer, uint32_t id, char *to, size_t capacity)
{
        const char *text;
        size_t size = tdm_tokenizer_piece(tokenizer, id, true, &text);

        if (size == 0 || size + 1 > capacity)
                return 0;
        to[0] = (char)TDM_MARKER_BYTE;
        memcpy(to + 1, text, size);
        return size + 1;
}

/* Pieces with bytes that UTF-8 does not have stand in no text under a grammar; they must not pass for a part of a
 * marker. */
static bool is_of_text(const char *data, size_t size)
{
        for (size_t i = 0; i < size; i++) {
                if ((uint8_t)data[i] >= 0xf8)
                        return false;
        }
        return true;
}

static size_t tokenizer_piece(void *userdata, uint32_t id, const char **ret_data)
{
        struct pieces *p = userdata;
        size_t size = tdm_tokenizer_piece(p->tokenizer, id, false, ret_data);

        if (size > 0)
                return is_of_text(*ret_data, size) ? size : 0;
        *ret_data = p->marker;
        return tdm_vocabulary_marker(p->tokenizer, id, p->marker, sizeof(p->marker));
}

static bool tokenizer_is_end(void *userdata, uint32_t id)
{
        const struct pieces *p = userdata;

        return tdm_tokenizer_is_end(p->tokenizer, id);
}

int tdm_vocabulary_new_tokenizer(struct tdm_vocabulary **ret, const struct tdm_tokenizer *tokenizer, uint32_t n_vocab)
{
        struct pieces pieces = { .tokenizer = tokenizer };

        return tdm_vocabulary_new(ret, n_vocab, tokenizer_piece, tokenizer_is_end, &pieces);
}
