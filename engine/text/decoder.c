/* Ids back to text that can be shown at any time.
 *
 * Pieces are bytes; a character may come in several of them. Bytes that could still become a whole character are held
 * back, at most three; what cannot become one any more is replaced by U+FFFD, one for each byte. */
#include "engine/text/tokenizer-private.h"

#include <assert.h>
#include "common/utf8.h"

static size_t put_replacement(char *text)
{
        memcpy(text, "\xef\xbf\xbd", 3);
        return 3;
}

void tdm_decoder_init(struct tdm_decoder *decoder, const struct tdm_tokenizer *tokenizer, bool special)
{
        *decoder = (struct tdm_decoder){ .tokenizer = tokenizer, .special = special };
}

/* Adds one byte to the held ones and writes out what is decided. */
static size_t push_byte(struct tdm_decoder *d, uint8_t byte, char *text)
{
        size_t n = 0;

        d->held[d->n_held++] = byte;
        while (d->n_held > 0) {
                int length = tdm_utf8_length(d->held, d->n_held);

                if (length < 0)
                        break;
                if (length > 0) {
                        memcpy(text + n, d->held, (size_t)length);
                        n += (size_t)length;
                } else {
                        n += put_replacement(text + n);
                        length = 1;
                }
                d->n_held = (uint8_t)(d->n_held - length);
                memmove(d->held, d->held + length, d->n_held);
        }
        return n;
}

size_t tdm_decoder_push(struct tdm_decoder *d, uint32_t id, char *text, size_t capacity)
{
        const struct tdm_tokenizer *t = d->tokenizer;
        const char *data;
        size_t size, n = 0, i = 0;

        assert(capacity >= TDM_DECODER_ROOM(t));
        size = tdm_tokenizer_piece(t, id, d->special, &data);
        if (size > 0 && !d->started) {
                d->started = true;
                /* The space that encoding put in front. */
                if (t->add_space_prefix && data[0] == ' ' && t->pieces[id].type == TDM_PIECE_NORMAL)
                        i = 1;
        }
        for (; i < size; i++)
                n += push_byte(d, (uint8_t)data[i], text + n);
        return n;
}

size_t tdm_decoder_finish(struct tdm_decoder *d, char *text, size_t capacity)
{
        size_t n = 0;

        assert(capacity >= 3u * sizeof(d->held));
        for (; d->n_held > 0; d->n_held--)
                n += put_replacement(text + n);
        return n;
}
