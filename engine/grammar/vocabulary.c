/* A vocabulary from a tokenizer. A file of its own, so that programs which check schemas link no tokenizer. */
#include "engine/grammar/grammar.h"
#include "engine/text/tokenizer.h"

static size_t tokenizer_piece(void *userdata, uint32_t id, const char **ret_data)
{
        return tdm_tokenizer_piece(userdata, id, false, ret_data);
}

static bool tokenizer_is_end(void *userdata, uint32_t id)
{
        return tdm_tokenizer_is_end(userdata, id);
}

int tdm_vocabulary_new_tokenizer(struct tdm_vocabulary **ret, const struct tdm_tokenizer *tokenizer)
{
        return tdm_vocabulary_new(ret, tdm_tokenizer_n_vocab(tokenizer), tokenizer_piece, tokenizer_is_end,
                                  (void *)tokenizer);
}
