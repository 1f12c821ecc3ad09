/* From the words of a module to a program: decorations, types, constants and variables; see decode.c for the function
 * itself. Constants that are computed are computed here, with the values that specialise them. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/spirv-executor/program.h"

bool refuse(struct making *m, const char *format, ...)
{
        va_list args;

        if (!m->failed) {
                fputs("spirv-executor: cannot run a shader: ", stderr);
                va_start(args, format);
                vfprintf(stderr, format, args);
                va_end(args);
                fputc('\n', stderr);
        }
        m->failed = true;
        return false;
}

static void *grown(void *old, size_t bytes)
{
        void *p = realloc(old, bytes);

        if (!p)
                abort();
        return p;
}

void *keep(struct program *program, size_t bytes)
{
        void *p = calloc(1, bytes ? bytes : 1);

        if (!p)
                abort();
        if (program->n_owned == program->owned_room) {
                program->owned_room = program->owned_room * 2 + 64;
                program->owned = grown(program->owned, program->owned_room * sizeof(*program->owned));
        }
        program->owned[program->n_owned++] = p;
        return p;
}

struct type *type_of(struct making *m, uint32_t id)
{
        static struct type none;

        if (id < m->bound && m->program->types[id].kind != KIND_NONE)
                return &m->program->types[id];
        refuse(m, "%u is no type", id);
        none = (struct type){ .kind = KIND_VOID };
        return &none;
}

struct id *id_of(struct making *m, uint32_t id)
{
        static struct id none;

        if (id < m->bound)
                return &m->ids[id];
        refuse(m, "an id beyond the bound");
        none = (struct id){ .at = ~0 };
        return &none;
}

ref new_consts(struct making *m, uint32_t n)
{
        struct program *p = m->program;
        struct slot *more;

        if (p->n_consts + n > p->consts_room) {
                p->consts_room = (p->consts_room + n) * 2;
                more = aligned_alloc(64, p->consts_room * sizeof(struct slot));
                if (!more)
                        abort();
                memset(more, 0, p->consts_room * sizeof(struct slot));
                if (p->n_consts)
                        memcpy(more, p->consts, p->n_consts * sizeof(struct slot));
                free(p->consts);
                p->consts = more;
        }
        p->n_consts += n;
        return ~(ref)(p->n_consts - n);
}

/* The result `id` is a constant of n slots. */
static ref constant(struct making *m, uint32_t type, uint32_t id)
{
        const struct type *t = type_of(m, type);
        struct id *result = id_of(m, id);

        if (t->n_slots == UINT32_MAX) {
                refuse(m, "a constant of a type without values");
                return new_consts(m, 1);
        }
        *result = (struct id){ .is = ID_VALUE,
                               .type = type,
                               .at = new_consts(m, t->n_slots),
                               .has_special = result->has_special,
                               .special = result->special,
                               .built_in = result->built_in };
        return result->at;
}

static void put(struct making *m, ref at, uint32_t width, uint64_t value)
{
        struct slot *s = slot_at(at, NULL, m->program->consts);

        for (uint32_t l = 0; l < LANES; l++) {
                s->v[l] = (uint32_t)value;
                if (width == 64)
                        s[1].v[l] = (uint32_t)(value >> 32);
        }
}

static uint64_t get(struct making *m, ref at, uint32_t width)
{
        const struct slot *s = slot_at(at, NULL, m->program->consts);

        return width == 64 ? s->v[0] | (uint64_t)s[1].v[0] << 32 : s->v[0];
}

static void note_value(struct making *m, uint32_t id)
{
        struct id *result = id_of(m, id);
        const struct type *t = type_of(m, result->type);

        if (t->kind != KIND_INT && t->kind != KIND_BOOL && t->kind != KIND_FLOAT)
                return;
        result->known = true;
        result->value = get(m, result->at, t->width);
}

static bool special_value(struct making *m, uint32_t id, uint64_t *value)
{
        const struct id *result = id_of(m, id);

        for (uint32_t i = 0; i < m->n_special && result->has_special; i++)
                if (m->special[i].id == result->special) {
                        *value = m->special[i].value;
                        return true;
                }
        return false;
}

static bool make_scalar(struct making *m, uint32_t op, const uint32_t *w, uint32_t n)
{
        const struct type *t = type_of(m, w[1]);
        ref at = constant(m, w[1], w[2]);
        bool is_bool = op == OP_CONSTANT_TRUE || op == OP_SPEC_CONSTANT_TRUE || op == OP_CONSTANT_FALSE ||
                       op == OP_SPEC_CONSTANT_FALSE;
        uint64_t value = is_bool ? op == OP_CONSTANT_TRUE || op == OP_SPEC_CONSTANT_TRUE : 0;

        if (!is_bool && op != OP_CONSTANT_NULL) {
                if (n < (t->width == 64 ? 5u : 4u))
                        return refuse(m, "a constant is cut short");
                value = w[3] | (t->width == 64 ? (uint64_t)w[4] << 32 : 0);
                if (t->width < 32)
                        value &= (1u << t->width) - 1;
        }
        if (op >= OP_SPEC_CONSTANT_TRUE)
                special_value(m, w[2], &value);
        if (op != OP_CONSTANT_NULL)
                put(m, at, t->width, value);
        note_value(m, w[2]);
        return true;
}

static bool make_composite(struct making *m, const uint32_t *w, uint32_t n)
{
        const struct type *t = type_of(m, w[1]);
        ref at = constant(m, w[1], w[2]);
        uint32_t done = 0;

        for (uint32_t i = 3; i < n; i++) {
                const struct id *part = id_of(m, w[i]);
                uint32_t n_slots = type_of(m, part->type)->n_slots;

                if (part->is != ID_VALUE || part->at >= 0 || n_slots > 4096 ||
                    (t->kind != KIND_MATRIX && done + n_slots > t->n_slots))
                        return refuse(m, "a composite constant's parts");
                if (t->kind == KIND_MATRIX) { /* one for all */
                        for (uint32_t k = 0; k < t->n; k++)
                                memcpy(m->program->consts + ~at + k, m->program->consts + ~part->at,
                                       sizeof(struct slot));
                        done = t->n_slots;
                        break;
                }
                memcpy(m->program->consts + ~at + done, m->program->consts + ~part->at, n_slots * sizeof(struct slot));
                done += n_slots;
        }
        return done == t->n_slots || refuse(m, "a composite constant is cut short");
}

static bool make_computed(struct making *m, const uint32_t *w, uint32_t n)
{
        ref at = constant(m, w[1], w[2]);
        struct insn i;

        if (n < 5)
                return refuse(m, "a computed constant is cut short");
        if (!decode_value(m, w[3], w[1], w[2], w + 4, n - 4, at, &i))
                return false;
        for (uint32_t k = 0; i.op == OWN_COPY && k < i.n; k++)
                *(slot_at(i.dst, NULL, m->program->consts) + k) = *(slot_at(i.a, NULL, m->program->consts) + k);
        if (i.op != OWN_COPY && !compute(&i, NULL, m->program->consts, ALL_LANES))
                return refuse(m, "a constant computed by operation %u", w[3]);
        note_value(m, w[2]);
        return true;
}

static bool make_variable(struct making *m, const uint32_t *w, uint32_t n)
{
        const struct type *pointer = type_of(m, w[1]), *t = type_of(m, pointer->element);
        struct program *p = m->program;
        struct id *result = id_of(m, w[2]);
        uint32_t built_in = result->built_in;

        *result = (struct id){ .is = ID_POINTER, .type = w[1], .pointer = { .dynamic = NO_REF } };
        if (n > 4)
                return refuse(m, "a variable of the module with a value to begin with");
        switch (w[3]) {
        case STORAGE_PUSH_CONSTANT:
                result->pointer.space = SPACE_PUSH;
                result->pointer.end = t->bytes;
                return t->bytes <= PUSH_BYTES || refuse(m, "push constants of %u bytes", t->bytes);
        case STORAGE_WORKGROUP:
                p->shared_bytes = (p->shared_bytes + 15) / 16 * 16;
                result->pointer.space = SPACE_SHARED;
                result->pointer.at = result->pointer.begin = p->shared_bytes;
                p->shared_bytes += t->bytes;
                result->pointer.end = p->shared_bytes;
                return p->shared_bytes <= SHARED_BYTES_MAX ||
                       refuse(m, "%u bytes of shared memory, of %u", p->shared_bytes, SHARED_BYTES_MAX);
        case STORAGE_INPUT:
        case STORAGE_PRIVATE:
                if (t->n_slots > 4096)
                        return refuse(m, "a variable without values");
                result->pointer =
                        (struct pointer){ SPACE_SLOTS, p->n_slots, NO_REF, p->n_slots, p->n_slots + t->n_slots };
                if (w[3] == STORAGE_INPUT) {
                        if (p->n_inputs == sizeof(p->inputs) / sizeof(p->inputs[0]))
                                return refuse(m, "too many inputs");
                        p->inputs[p->n_inputs].built_in = built_in;
                        p->inputs[p->n_inputs++].at = (ref)p->n_slots;
                }
                p->n_slots += t->n_slots;
                return true;
        default:
                return refuse(m, "a variable of storage class %u", w[3]);
        }
}

static bool decorate(struct making *m, const uint32_t *w, uint32_t n)
{
        struct id *id = id_of(m, w[1]);

        if (n < 4)
                return true;
        if (w[2] == DECORATION_SPEC_ID) {
                id->has_special = true;
                id->special = w[3];
        } else if (w[2] == DECORATION_ARRAY_STRIDE) {
                id->stride = w[3];
        } else if (w[2] == DECORATION_BUILT_IN) {
                id->built_in = w[3];
        }
        return true;
}

static bool module_instruction(struct making *m, uint32_t op, const uint32_t *w, uint32_t n)
{
        static const uint32_t needed[] = { [OP_EXECUTION_MODE] = 3,
                                           [OP_DECORATE] = 3,
                                           [OP_MEMBER_DECORATE] = 4,
                                           [OP_EXT_INST_IMPORT] = 2,
                                           [OP_VARIABLE] = 4 };

        if ((op < sizeof(needed) / sizeof(needed[0]) && n < needed[op]) ||
            (op >= OP_CONSTANT_TRUE && op <= OP_SPEC_CONSTANT_OP && (n < 3 || w[2] >= m->bound)))
                return refuse(m, "instruction %u is cut short", op);
        switch (op) {
        case OP_EXT_INST_IMPORT:
                m->glsl = w[1];
                return true;
        case OP_EXECUTION_MODE:
        case OP_EXECUTION_MODE_ID:
                if (w[2] != MODE_LOCAL_SIZE && w[2] != MODE_LOCAL_SIZE_ID)
                        return true;
                if (n < 6)
                        return refuse(m, "a workgroup's size is cut short");
                m->has_size_ids = w[2] == MODE_LOCAL_SIZE_ID;
                memcpy(m->has_size_ids ? m->size_ids : m->program->size, w + 3, 3 * sizeof(*w));
                return true;
        case OP_DECORATE:
                return decorate(m, w, n);
        case OP_MEMBER_DECORATE:
                if (w[3] == DECORATION_OFFSET && n > 4) {
                        m->offsets = grown(m->offsets, (m->n_offsets + 1) * sizeof(*m->offsets));
                        m->offsets[m->n_offsets].type = w[1];
                        m->offsets[m->n_offsets].member = w[2];
                        m->offsets[m->n_offsets++].offset = w[4];
                }
                return true;
        case OP_CONSTANT_TRUE:
        case OP_CONSTANT_FALSE:
        case OP_CONSTANT:
        case OP_CONSTANT_NULL:
        case OP_SPEC_CONSTANT_TRUE:
        case OP_SPEC_CONSTANT_FALSE:
        case OP_SPEC_CONSTANT:
                return make_scalar(m, op, w, n);
        case OP_CONSTANT_COMPOSITE:
        case OP_SPEC_CONSTANT_COMPOSITE:
                return make_composite(m, w, n);
        case OP_SPEC_CONSTANT_OP:
                return make_computed(m, w, n);
        case OP_UNDEF:
                constant(m, w[1], w[2]);
                return true;
        case OP_VARIABLE:
                return make_variable(m, w, n);
        default:
                if ((op >= OP_TYPE_VOID && op <= OP_TYPE_FORWARD_POINTER) || op == OP_TYPE_MATRIX)
                        return make_type(m, op, w, n);
                return true; /* names, capabilities, the memory's model */
        }
}

static bool workgroup_size(struct making *m)
{
        uint32_t *size = m->program->size;

        for (uint32_t id = 0; id < m->bound; id++)
                if (m->ids[id].built_in == BUILT_IN_WORKGROUP_SIZE && m->ids[id].is == ID_VALUE)
                        for (uint32_t i = 0; i < 3; i++)
                                size[i] = m->program->consts[~m->ids[id].at + i].v[0];
        for (uint32_t i = 0; i < 3 && m->has_size_ids; i++)
                size[i] = (uint32_t)id_of(m, m->size_ids[i])->value;
        if (size[0] == 0 || size[1] == 0 || size[2] == 0 || (uint64_t)size[0] * size[1] * size[2] > 1024)
                return refuse(m, "a workgroup of %u by %u by %u", size[0], size[1], size[2]);
        return true;
}

static bool make(struct making *m)
{
        size_t at = 5;

        /* types need what is decorated, which comes before them */
        while (at < m->n_words) {
                uint32_t n = m->words[at] >> 16, op = m->words[at] & 0xffff;

                if (n == 0 || n > m->n_words - at)
                        return refuse(m, "an instruction is cut short");
                if (op == OP_FUNCTION)
                        break;
                if (!module_instruction(m, op, m->words + at, n) || m->failed)
                        return false;
                at += n;
        }
        return workgroup_size(m) && decode_function(m, at) && !m->failed;
}

struct program *program_new(const uint32_t *words, size_t n_words, const struct specialization *special,
                            uint32_t n_special)
{
        struct program *p = calloc(1, sizeof(*p));
        struct making m = {
                .program = p, .words = words, .n_words = n_words, .special = special, .n_special = n_special
        };
        bool made;

        if (!p)
                abort();
        if (n_words < 5 || words[0] != SPIRV_MAGIC || words[3] > 1u << 20) {
                refuse(&m, "no SPIR-V");
                free(p);
                return NULL;
        }
        m.bound = words[3];
        m.ids = calloc(m.bound, sizeof(*m.ids));
        p->types = calloc(m.bound, sizeof(*p->types));
        if (!m.ids || !p->types)
                abort();
        made = make(&m);
        free(m.ids);
        free(m.offsets);
        if (made)
                return p;
        program_destroy(p);
        return NULL;
}

void program_destroy(struct program *p)
{
        if (!p)
                return;
        for (uint32_t i = 0; i < p->n_owned; i++)
                free(p->owned[i]);
        free(p->owned);
        free(p->consts);
        free(p->types);
        free(p->insns);
        free(p->edges);
        free(p);
}
