/* A compute shader as the executor runs it: SPIR-V with its constants specialised, every instruction decoded.
 *
 * A value is a run of slots; a slot has 32 bits of each lane of a subgroup. A scalar of 32 bits or fewer is one slot
 * (upper bits 0), one of 64 and a physical address two: of the lower and the upper words. Vectors, arrays and structs
 * are their scalars one behind the other, and a cooperative matrix is what one lane has of it. A variable of a
 * function is laid out so, too. Slots of values that are the same in each run of a pipeline are constants.
 *
 * What is not known, and what breaks a rule of SPIR-V that is easily seen, is refused when a pipeline is made. */
#ifndef TDM_TESTS_SPIRV_EXECUTOR_PROGRAM_H
#define TDM_TESTS_SPIRV_EXECUTOR_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/spirv-executor/spirv.h"

#define LANES 32u
#define ALL_LANES 0xffffffffu
#define PUSH_BYTES 256u
#define SLOTS_MAX 4096u              /* of a value */
#define SHARED_BYTES_MAX (48u << 10) /* what the device says it has */

struct slot {
        uint32_t v[LANES];
} __attribute__((aligned(64)));

enum kind {
        KIND_NONE,
        KIND_VOID,
        KIND_BOOL,
        KIND_INT,
        KIND_FLOAT,
        KIND_VECTOR,
        KIND_ARRAY, /* n 0: of any length */
        KIND_STRUCT,
        KIND_POINTER,
        KIND_MATRIX,
        KIND_FUNCTION
};

/* A scalar in memory. */
struct leaf {
        uint32_t at;   /* bytes from where the value begins */
        uint16_t slot; /* from where its slots begin */
        uint8_t width; /* in bits; a bool has 32 */
};

struct type {
        enum kind kind;
        uint32_t width; /* of a scalar, or of a vector's or matrix's */
        uint32_t element;
        uint32_t n; /* components, elements, members; of a matrix: what a lane has */
        uint32_t storage, rows, cols, use;
        uint32_t stride; /* bytes, of an array's elements; 0: it has no place in memory yet */
        uint32_t *members, *offsets;
        uint32_t n_slots, bytes, align;
        struct leaf *leaves;
        uint32_t n_leaves;
        const uint16_t *places; /* of a matrix: [i][lane] row * cols + col */
};

/* Where a value lies: a slot of a subgroup's own, or ~ a slot of the constants. */
typedef int32_t ref;
#define NO_REF INT32_MIN

enum space { SPACE_SLOTS, SPACE_SHARED, SPACE_PUSH, SPACE_PHYSICAL };

/* What a pointer points to: `at` bytes (slots) from where its space begins, and of each lane what lies in two slots at
 * `dynamic` further. begin, end: of its variable. */
struct pointer {
        enum space space;
        int64_t at;
        ref dynamic;
        uint32_t begin, end;
};

/* The executor's own operations, beside those of SPIR-V. */
enum own_op {
        OWN_COPY = 0x8000, /* n slots */
        OWN_COPIES,        /* words: pairs of a ref and its slots, to one behind the other */
        OWN_ADDRESS,       /* words: (ref, bytes, width) of each index; a: NO_REF or two slots */
        OWN_GATHER,        /* of the function's own, dynamic */
        OWN_SCATTER,
        OWN_READ, /* of memory in bytes */
        OWN_WRITE,
        OWN_SPLAT,  /* a scalar into n */
        OWN_BRANCH, /* the last one of a block, here and below; words: edges */
        OWN_CHOOSE, /* a: of which edge */
        OWN_SWITCH, /* a: the selector; words: the default's edge, then pairs of value and edge */
        OWN_RETURN,
        OWN_NEVER
};

struct insn {
        uint16_t op;
        uint16_t sub;        /* OP_EXT_INST: of GLSL.std.450; groups' operations; a matrix's layout */
        uint8_t width, from; /* bits of the result's scalars; of the operands' */
        bool broken;         /* may not run: its indices lead out of what they are indices of */
        uint32_t n;          /* scalars, or slots */
        ref dst, a, b, c;
        struct pointer pointer;
        uint32_t align; /* of an access; 1: any */
        const struct type *type, *type_a, *type_b;
        const uint32_t *words;
        uint32_t n_words;
};

struct copy {
        ref dst, src;
        uint32_t n;
};

/* Values at the end of a block become those of the next one's phis, all at once. */
struct edge {
        uint32_t block;
        uint32_t n_copies;
        struct copy *copies;
};

struct block {
        uint32_t first; /* its instructions end with a branch */
};

struct program {
        struct slot *consts;
        uint32_t n_consts, consts_room;
        struct type *types; /* by id */
        struct insn *insns;
        uint32_t n_insns, insns_room;
        struct block *blocks; /* in an order in which each comes behind those that lead to it, but for loops */
        uint32_t n_blocks;
        struct edge *edges;
        uint32_t n_edges, edges_room;
        uint32_t n_slots; /* that a subgroup has */
        uint32_t shared_bytes;
        uint32_t size[3]; /* of a workgroup */
        struct {
                uint32_t built_in;
                ref at;
        } inputs[16];
        uint32_t n_inputs;
        void **owned; /* to be freed */
        uint32_t n_owned, owned_room;
};

struct specialization {
        uint32_t id, value;
};

/* NULL: it cannot be run; why is printed. */
struct program *program_new(const uint32_t *words, size_t n_words, const struct specialization *special,
                            uint32_t n_special);
void program_destroy(struct program *program);

/* ---- while it is made: types.c, program.c, decode.c, blocks.c ---- */

struct id {
        enum { ID_NONE, ID_VALUE, ID_POINTER, ID_LABEL } is;
        uint32_t type;
        ref at;
        bool known; /* a scalar whose value is the same in every run */
        uint64_t value;
        struct pointer pointer;
        uint32_t block;
        /* decorations */
        bool has_special;
        uint32_t special, stride, built_in;
};

struct making {
        struct program *program;
        const uint32_t *words;
        size_t n_words;
        uint32_t bound, glsl;
        struct id *ids;
        struct {
                uint32_t type, member, offset;
        } * offsets;
        uint32_t n_offsets;
        const struct specialization *special;
        uint32_t n_special;
        uint32_t size_ids[3];
        bool has_size_ids;
        bool failed;
};

/* Says why, once. Returns false. */
bool refuse(struct making *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *keep(struct program *program, size_t bytes);
struct type *type_of(struct making *m, uint32_t id);
struct id *id_of(struct making *m, uint32_t id);
/* Slots of constants. */
ref new_consts(struct making *m, uint32_t n);
/* types.c: an instruction that makes a type. */
bool make_type(struct making *m, uint32_t op, const uint32_t *w, uint32_t n);
/* What two types' operands have: of a scalar or of what a vector is made of. */
const struct type *scalar_of(struct making *m, const struct type *type);
/* decode.c: of an instruction whose words are op, result type, result, operands… */
bool decode_value(struct making *m, uint32_t op, uint32_t type, uint32_t result, const uint32_t *w, uint32_t n, ref dst,
                  struct insn *ret);
/* A value's slots and type, where it is one. */
bool value_of(struct making *m, uint32_t id, ref *ret, const struct type **ret_type);
/* Operations whose result is what they are given: the same slots. Returns false where that does not hold. */
bool same_slots(struct making *m, uint32_t op, const uint32_t *w, uint32_t n, ref *ret);
bool decode_instruction(struct making *m, const uint32_t *w);
/* A new instruction of the program. */
struct insn *add_insn(struct making *m);
/* blocks.c */
bool decode_function(struct making *m, size_t begin);

/* ---- alu.c ---- */

/* An instruction that only computes, for the lanes of the mask; false: it is none. */
bool compute(const struct insn *i, struct slot *own, struct slot *consts, uint32_t mask);
static inline struct slot *slot_at(ref at, struct slot *own, struct slot *consts)
{
        return at >= 0 ? own + at : consts + ~at;
}

/* The k-th slot behind. */
static inline ref ref_plus(ref at, uint32_t k)
{
        return at >= 0 ? at + (ref)k : ~(~at + (ref)k);
}

/* ---- units.c ---- */

/* Which device's matrix units: the shapes that it has, and how elements lie in registers. */
enum units { UNITS_NVIDIA, UNITS_RDNA3, UNITS_RDNA4 };
extern enum units units;
/* What a lane has of a matrix; 0: there is no such matrix. */
uint32_t matrix_length(uint32_t rows, uint32_t cols, uint32_t use, uint32_t width);
/* Where the i-th that a lane has lies. */
void matrix_place(const struct type *type, uint32_t lane, uint32_t i, uint32_t *ret_row, uint32_t *ret_col);
/* Returns NULL, or what is wrong. */
const char *matrix_multiply(const struct insn *i, struct slot *own, struct slot *consts);

/* ---- run.c ---- */

struct memory {
        uint64_t begin, end;
};

/* Runs workgroups one after the other. memory: sorted, what may be accessed. Returns false, and says why, where the
 * shader does what it may not. */
bool run_program(const struct program *program, const uint8_t push[PUSH_BYTES], const uint32_t groups[3],
                 const struct memory *memory, uint32_t n_memory);

#endif
