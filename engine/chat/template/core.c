/* Memory, steps and errors of a parse or a render. Leaving by an error frees nothing: the owner of the core does. */
#include "engine/chat/template/private.h"
#include "common/utf8.h"

/* Small values share blocks of this size. */
#define BLOCK_BYTES 32768u

struct jinja_block {
        struct jinja_block *next;
        size_t size, used;
        _Alignas(16) char data[];
};

static struct jinja_block *block_add(struct jinja_core *core, size_t size)
{
        struct jinja_block *block;

        if (size > core->bytes_left)
                tdm_jinja_fail_code(core, TDM_E_TOO_LONG, "it takes more memory than a template may");
        block = malloc(sizeof(*block) + size);
        if (!block) {
                core->code = -ENOMEM;
                longjmp(core->out, 1);
        }
        core->bytes_left -= size;
        core->bytes_used += size;
        *block = (struct jinja_block){ .next = core->blocks, .size = size };
        core->blocks = block;
        return block;
}

void *tdm_jinja_alloc(struct jinja_core *core, size_t size)
{
        struct jinja_block *block = core->blocks;
        void *at;

        size = TDM_ALIGN_UP(TDM_MAX(size, (size_t)1), (size_t)16);
        if (!block || block->size - block->used < size) {
                if (size > BLOCK_BYTES / 4) {
                        struct jinja_block *rest = block;

                        /* The block that is being filled stays in front. */
                        block = block_add(core, size);
                        block->used = size;
                        if (rest) {
                                core->blocks = rest;
                                block->next = rest->next;
                                rest->next = block;
                        }
                        return block->data;
                }
                block = block_add(core, TDM_MIN((size_t)BLOCK_BYTES, TDM_MAX(core->bytes_left, size)));
        }
        at = block->data + block->used;
        block->used += size;
        return at;
}

void *tdm_jinja_calloc(struct jinja_core *core, size_t size)
{
        return memset(tdm_jinja_alloc(core, size), 0, size);
}

void *tdm_jinja_grow(struct jinja_core *core, const void *items, size_t n, size_t capacity, size_t item_size)
{
        void *larger;

        if (capacity > SIZE_MAX / 2 / item_size)
                tdm_jinja_fail_code(core, TDM_E_TOO_LONG, "it takes more memory than a template may");
        larger = tdm_jinja_alloc(core, capacity * item_size);
        if (n > 0)
                memcpy(larger, items, n * item_size);
        return larger;
}

void tdm_jinja_free_all(struct jinja_core *core)
{
        tdm_json_deinit(&core->json);
        while (core->blocks) {
                struct jinja_block *block = core->blocks;

                core->blocks = block->next;
                free(block);
        }
}

void tdm_jinja_spend(struct jinja_core *core, uint64_t steps)
{
        if (steps > core->steps_left)
                tdm_jinja_fail_code(core, TDM_E_TOO_LONG, "it takes more steps than a template may");
        core->steps_left -= steps;
}

void tdm_jinja_spend_bytes(struct jinja_core *core, size_t n, unsigned n_a_step)
{
        uint64_t parts = core->debt + (uint64_t)n * (JINJA_STEP_PARTS / n_a_step);

        core->debt = parts % JINJA_STEP_PARTS;
        tdm_jinja_spend(core, parts / JINJA_STEP_PARTS);
}

/* In characters, from 1. */
static unsigned core_column(const struct jinja_core *core)
{
        unsigned column = 1;

        for (size_t at = core->at; at > 0 && core->source[at - 1] != '\n'; at--)
                column += ((uint8_t)core->source[at - 1] & 0xc0) != 0x80;
        return column;
}

static _Noreturn _printf_(3, 0) void core_leave(struct jinja_core *core, int code, const char *fmt, va_list args)
{
        char message[TDM_ERROR_MESSAGE_MAX];

        vsnprintf(message, sizeof(message), fmt, args);
        message[tdm_utf8_cut(message, strlen(message))] = '\0';
        if (core->line > 0 && core->source)
                core->code = tdm_error_set(core->err, code, "line %u, column %u of the chat template: %s", core->line,
                                           core_column(core), message);
        else if (core->line > 0)
                core->code = tdm_error_set(core->err, code, "line %u of the chat template: %s", core->line, message);
        else
                core->code = tdm_error_set(core->err, code, "the chat template: %s", message);
        longjmp(core->out, 1);
}

void tdm_jinja_fail(struct jinja_core *core, const char *fmt, ...)
{
        va_list args;

        va_start(args, fmt);
        core_leave(core, TDM_E_BAD_REQUEST, fmt, args);
}

void tdm_jinja_fail_code(struct jinja_core *core, int code, const char *fmt, ...)
{
        va_list args;

        va_start(args, fmt);
        core_leave(core, code, fmt, args);
}
