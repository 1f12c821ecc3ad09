/* What goes out of a turn that is taken apart: pieces of texts, thoughts and calls, in order. See turn-private.h. */
#include "engine/chat/forms/turn-private.h"

struct tdm_form_kept {
        enum tdm_form_part_kind kind;
        uint32_t call;
        size_t at, size; /* in the texts */
        char id[TDM_FORM_ID_BYTES + 1];
};

static struct tdm_form_kept *part_add(struct tdm_form_parts *p, enum tdm_form_part_kind kind)
{
        if (p->n == p->capacity) {
                size_t capacity = TDM_MAX(p->capacity * 2, (size_t)8);
                struct tdm_form_kept *kept = reallocarray(p->kept, capacity, sizeof(*kept));
                struct tdm_form_part *given;

                if (kept)
                        p->kept = kept;
                given = kept ? reallocarray(p->given, capacity, sizeof(*given)) : NULL;
                if (!given) {
                        p->failed = true;
                        return NULL;
                }
                p->given = given;
                p->capacity = capacity;
        }
        p->kept[p->n] =
                (struct tdm_form_kept){ .kind = kind, .call = p->n_calls ? p->n_calls - 1 : 0, .at = p->texts.size };
        return &p->kept[p->n++];
}

void tdm_form_parts_begin(struct tdm_form_parts *p)
{
        p->n = p->texts.size = 0;
}

void tdm_form_parts_give(struct tdm_form_parts *p, enum tdm_form_part_kind kind, const char *data, size_t size)
{
        struct tdm_form_kept *part = p->n > 0 ? &p->kept[p->n - 1] : NULL;

        if (size == 0)
                return;
        if (!part || part->kind != kind || kind == TDM_FORM_PART_CALL)
                part = part_add(p, kind);
        if (!part)
                return;
        tdm_json_write(&p->texts, data, size);
        part->size += size;
}

void tdm_form_parts_give_call(struct tdm_form_parts *p, const char *name, size_t size)
{
        struct tdm_form_kept *part;

        p->n_calls++;
        part = part_add(p, TDM_FORM_PART_CALL);
        if (!part)
                return;
        tdm_form_id_make(part->id);
        tdm_json_write(&p->texts, name, size);
        part->size = size;
}

void tdm_form_parts_give_escaped(struct tdm_form_parts *p, char c)
{
        char text[8] = { c, '\0' };

        if (c == '"' || c == '\\')
                snprintf(text, sizeof(text), "\\%c", c);
        else if (c == '\n')
                snprintf(text, sizeof(text), "\\n");
        else if (c == '\t')
                snprintf(text, sizeof(text), "\\t");
        else if ((uint8_t)c < 0x20)
                snprintf(text, sizeof(text), "\\u%04x", (unsigned)c);
        tdm_form_parts_give(p, TDM_FORM_PART_ARGUMENTS, text, strlen(text));
}

void tdm_form_parts_drop_text(struct tdm_form_parts *p)
{
        while (p->n > 0 && p->kept[p->n - 1].kind == TDM_FORM_PART_TEXT)
                p->n--;
}

int tdm_form_parts_hand_out(struct tdm_form_parts *p, const struct tdm_form_part **ret_parts, size_t *ret_n)
{
        if (p->failed || p->texts.failed)
                return -ENOMEM;
        for (size_t i = 0; i < p->n; i++) {
                const struct tdm_form_kept *part = &p->kept[i];

                p->given[i] =
                        (struct tdm_form_part){ part->kind, part->call, p->texts.data + part->at, part->size, "" };
                memcpy(p->given[i].id, part->id, sizeof(part->id));
        }
        *ret_parts = p->given;
        *ret_n = p->n;
        return 0;
}

void tdm_form_parts_deinit(struct tdm_form_parts *p)
{
        free(p->texts.data);
        free(p->kept);
        free(p->given);
}
