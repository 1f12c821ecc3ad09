/* Reading a manifest: a line at a time, each key checked where it stands, each program as a whole when its section
 * ends. A reader of its own instead of inih's, for the lines in the messages and because a section's end matters here.
 * What it will not do: guess. An unknown key, a section twice, a value too much are errors, since a program that does
 * something else than it says makes wrong text without any sign of it. */
#include "npu-worker/manifest/manifest.h"

#include <ctype.h>

#include "common/fnv.h"
#include "npu-worker/manifest/files.h"

#define MAX_BYTES (UINT64_C(1) << 20)
#define MAX_LINE 256u

enum key {
        KEY_OP,
        KEY_SHAPE,
        KEY_TYPE,
        KEY_A,
        KEY_B,
        KEY_C,
        KEY_ORDER,
        KEY_COLUMNS,
        KEY_INSTRUCTIONS,
        KEY_ARGUMENTS,
        KEY_HEADS,
        KEY_PAGES,
        N_KEYS,
        N_COMMON_KEYS = KEY_HEADS
};
static const char *const keys[N_KEYS] = { "op",    "shape",   "type",         "a",         "b",     "c",
                                          "order", "columns", "instructions", "arguments", "heads", "pages" };
enum set_key { SET_FORMAT, SET_GENERATION, SET_XCLBIN, SET_KERNEL, N_SET_KEYS };
static const char *const set_keys[N_SET_KEYS] = { "format", "generation", "xclbin", "kernel" };

static const char *const ops[] = {
        [TDM_NPU_GEMM] = "gemm", [TDM_NPU_GEMV] = "gemv",       [TDM_NPU_RMSNORM] = "rmsnorm",
        [TDM_NPU_ROPE] = "rope", [TDM_NPU_SOFTMAX] = "softmax", [TDM_NPU_ATTENTION] = "attention",
};
static const char *const types[] = {
        [TDM_NPU_BF16] = "bf16", [TDM_NPU_INT8] = "int8", [TDM_NPU_INT4] = "int4", [TDM_NPU_INT4A16] = "int4a16"
};

struct reader {
        const char *path;
        uint32_t line;
        struct tdm_npu_manifest *manifest;
        bool in_set, had_set;
        uint32_t section_line;
        uint32_t seen;                   /* keys of the section, a bit each */
        struct tdm_npu_program *program; /* of the section; NULL in [set] */
        struct tdm_error *err;
};

const char *tdm_npu_type_name(enum tdm_npu_type type)
{
        return types[type];
}

int tdm_npu_type_from_name(const char *name)
{
        for (size_t i = TDM_NPU_BF16; i < TDM_ARRAY_SIZE(types); i++)
                if (strcmp(types[i], name) == 0)
                        return (int)i;
        return -EINVAL;
}

#define wrong(reader, ...) wrong_at(reader, (reader)->line, __VA_ARGS__)
static int wrong_at(const struct reader *r, uint32_t line, const char *fmt, ...) _printf_(3, 4);
static int wrong_at(const struct reader *r, uint32_t line, const char *fmt, ...)
{
        char why[512];
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(why, sizeof(why), fmt, ap);
        va_end(ap);
        return tdm_error_set(r->err, TDM_E_BAD_MODEL, "%s:%u: %s", r->path, line, why);
}

/* ---- values ---- */

/* A number in decimal, up to max, followed by `end`. Returns what comes after, NULL where it is none. */
static const char *parse_number(const char *s, uint32_t max, char end, uint32_t *ret)
{
        uint64_t n = 0;

        if (!isdigit((unsigned char)*s))
                return NULL;
        for (; isdigit((unsigned char)*s); s++) {
                n = 10 * n + (uint64_t)(*s - '0');
                if (n > max)
                        return NULL;
        }
        if (n == 0 || *s != end)
                return NULL;
        *ret = (uint32_t)n;
        return end ? s + 1 : s;
}

static int copy_word(const struct reader *r, const char *key, const char *value, char *to, size_t size)
{
        if (strlen(value) >= size)
                return wrong(r, "%s: \"%.40s…\" is longer than %zu characters", key, value, size - 1);
        for (const char *c = value; *c; c++)
                if (!isalnum((unsigned char)*c) && !strchr("-_.+:", *c))
                        return wrong(r, "%s: \"%s\" has a character that is no letter, digit or one of - _ . + :", key,
                                     value);
        memcpy(to, value, strlen(value) + 1);
        return 0;
}

/* Files lie beside the manifest: nothing that leads elsewhere. */
static int copy_file(const struct reader *r, const char *key, const char *value, char *to, size_t size)
{
        if (strchr(value, '/') || value[0] == '.')
                return wrong(r, "%s: \"%s\" is not a plain file name; files lie in the manifest's directory", key,
                             value);
        return copy_word(r, key, value, to, size);
}

static int parse_layout(const struct reader *r, const char *key, const char *value, struct tdm_npu_layout *ret)
{
        struct tdm_npu_layout l = { .kind = TDM_NPU_ROWS };
        const char *rest;

        if (strcmp(value, "columns") == 0) {
                l.kind = TDM_NPU_COLUMNS;
        } else if (strncmp(value, "tiles ", 6) == 0) {
                l.kind = TDM_NPU_TILES;
                rest = parse_number(value + 6, 256, 'x', &l.tile_rows);
                if (!rest || !parse_number(rest, 256, 0, &l.tile_cols))
                        return wrong(r, "%s: \"%s\": a tile is written as 8x8, each side 1 to 256", key, value);
        } else if (strncmp(value, "blocks ", 7) == 0) {
                l.kind = TDM_NPU_BLOCKS;
                rest = parse_number(value + 7, TDM_NPU_INT4_BLOCK, 'x', &l.tile_rows);
                if (!rest || !parse_number(rest, TDM_NPU_INT4_BLOCK, 0, &l.tile_cols) ||
                    TDM_NPU_INT4_BLOCK % l.tile_rows != 0 || TDM_NPU_INT4_BLOCK % l.tile_cols != 0)
                        return wrong(r, "%s: \"%s\": what a block is cut into is written as 16x8, each side divides %u",
                                     key, value, TDM_NPU_INT4_BLOCK);
        } else if (strcmp(value, "rows") != 0) {
                return wrong(r, "%s: there is no layout \"%s\"; known are rows, columns, tiles RxC and blocks RxC", key,
                             value);
        }
        *ret = l;
        return 0;
}

static int parse_rows(const struct reader *r, const char *key, const char *value)
{
        struct tdm_npu_layout l;
        int ret = parse_layout(r, key, value, &l);

        if (ret == 0 && l.kind != TDM_NPU_ROWS)
                return wrong(r, "%s: only rows are supported for it, not \"%s\"", key, value);
        return ret;
}

static int parse_arguments(const struct reader *r, const char *value, struct tdm_npu_program *p)
{
        static const char wanted[] = "arguments: \"%s\" is not a, b and c in some order (for attention also d and e)";
        bool have[TDM_NPU_MAX_ARGUMENTS] = { false };
        size_t n = (strlen(value) + 1) / 2;

        if (strlen(value) % 2 == 0 || (n != 3 && n != TDM_NPU_MAX_ARGUMENTS))
                return wrong(r, wanted, value);
        for (uint8_t i = 0; i < n; i++) {
                int which = value[2 * i] - 'a';

                if (which < 0 || which >= (int)n || have[which] || (i > 0 && value[2 * i - 1] != ' '))
                        return wrong(r, wanted, value);
                have[which] = true;
                p->argument[which] = i;
        }
        p->n_arguments = (uint8_t)n;
        return 0;
}

static int parse_program_key(struct reader *r, enum key key, const char *value)
{
        struct tdm_npu_program *p = r->program;
        const char *rest;

        switch (key) {
        case KEY_OP:
                for (size_t i = TDM_NPU_GEMM; i < TDM_ARRAY_SIZE(ops); i++)
                        if (strcmp(ops[i], value) == 0) {
                                p->op = (enum tdm_npu_op)i;
                                return 0;
                        }
                return wrong(r, "op: there is no \"%s\"; known are gemm, gemv, rmsnorm, rope, softmax and attention",
                             value);
        case KEY_SHAPE:
                rest = parse_number(value, TDM_NPU_MAX_ROWS, 'x', &p->m);
                rest = rest ? parse_number(rest, TDM_NPU_MAX_SIZE, 'x', &p->k) : NULL;
                if (!rest || !parse_number(rest, TDM_NPU_MAX_SIZE, 0, &p->n))
                        return wrong(r, "shape: \"%s\" is not MxKxN with M up to %u, K and N up to %u", value,
                                     TDM_NPU_MAX_ROWS, TDM_NPU_MAX_SIZE);
                return 0;
        case KEY_TYPE:
                if (tdm_npu_type_from_name(value) < 0)
                        return wrong(r, "type: there is no \"%s\"; known are bf16, int8, int4 and int4a16", value);
                p->type = (enum tdm_npu_type)tdm_npu_type_from_name(value);
                return 0;
        case KEY_A:
        case KEY_C:
                return parse_rows(r, keys[key], value);
        case KEY_B:
                return parse_layout(r, keys[key], value, &p->b);
        case KEY_ORDER:
                return copy_word(r, keys[key], value, p->order, sizeof(p->order));
        case KEY_COLUMNS:
                if (!parse_number(value, 64, 0, &p->columns))
                        return wrong(r, "columns: \"%s\" is not a number from 1 to 64", value);
                return 0;
        case KEY_INSTRUCTIONS:
                return copy_file(r, keys[key], value, p->instructions, sizeof(p->instructions));
        case KEY_HEADS:
                rest = parse_number(value, 256, 'x', &p->n_heads);
                rest = rest ? parse_number(rest, 256, 'x', &p->n_kv_heads) : NULL;
                if (!rest || !parse_number(rest, 1024, 0, &p->head_dim))
                        return wrong(r, "heads: \"%s\" is not query heads x key heads x values of a head, like 4x1x256",
                                     value);
                return 0;
        case KEY_PAGES:
                if (!parse_number(value, 4096, 0, &p->pages))
                        return wrong(r, "pages: \"%s\" is not a number from 1 to 4096", value);
                return 0;
        default:
                return parse_arguments(r, value, p);
        }
}

static int parse_set_key(struct reader *r, enum set_key key, const char *value)
{
        struct tdm_npu_manifest *m = r->manifest;

        switch (key) {
        case SET_FORMAT:
                if (strcmp(value, "1") != 0)
                        return wrong(r,
                                     "format: this program reads format 1, the set has \"%s\": it is for another "
                                     "version of Tandem",
                                     value);
                return 0;
        case SET_GENERATION:
                return copy_word(r, set_keys[key], value, m->generation, sizeof(m->generation));
        case SET_XCLBIN:
                return copy_file(r, set_keys[key], value, m->xclbin, sizeof(m->xclbin));
        default:
                return copy_word(r, set_keys[key], value, m->kernel, sizeof(m->kernel));
        }
}

/* ---- sections ---- */

static int check_attention(const struct reader *r)
{
        const struct tdm_npu_program *p = r->program;

        if (p->n_heads == 0 || p->pages == 0)
                return wrong_at(r, r->section_line, "[%s]: attention needs %s", p->name,
                                p->n_heads == 0 ? "heads" : "pages");
        if (p->n_heads % p->n_kv_heads != 0 || p->head_dim % 16 != 0)
                return wrong_at(r, r->section_line,
                                "[%s]: heads %ux%ux%u: the first must be a multiple of the second, the third of 16",
                                p->name, p->n_heads, p->n_kv_heads, p->head_dim);
        if (p->n != (p->n_heads + 2 * p->n_kv_heads) * p->head_dim)
                return wrong_at(r, r->section_line, "[%s]: N is %u, q, k and v of heads %ux%ux%u are %u wide", p->name,
                                p->n, p->n_heads, p->n_kv_heads, p->head_dim,
                                (p->n_heads + 2 * p->n_kv_heads) * p->head_dim);
        if (p->k % 8 != 0 || p->type != TDM_NPU_BF16 || p->b.kind != TDM_NPU_COLUMNS)
                return wrong_at(r, r->section_line, "[%s]: attention is of type bf16, b = columns, K a multiple of 8",
                                p->name);
        return 0;
}

static int check_program(const struct reader *r)
{
        const struct tdm_npu_program *p = r->program;

        if (p->n_arguments != (p->op == TDM_NPU_ATTENTION ? TDM_NPU_MAX_ARGUMENTS : 3))
                return wrong_at(r, r->section_line, "[%s]: %u arguments, this operation has %u", p->name,
                                p->n_arguments, p->op == TDM_NPU_ATTENTION ? TDM_NPU_MAX_ARGUMENTS : 3);
        if (p->op == TDM_NPU_ATTENTION)
                return check_attention(r);
        if (p->op != TDM_NPU_GEMM && p->op != TDM_NPU_GEMV)
                return 0; /* not used yet */
        if (p->op == TDM_NPU_GEMV && p->m != 1)
                return wrong_at(r, r->section_line, "[%s]: a gemv has one row, shape says %u", p->name, p->m);
        if (p->b.kind == TDM_NPU_TILES && (p->k % p->b.tile_rows != 0 || p->n % p->b.tile_cols != 0))
                return wrong_at(r, r->section_line, "[%s]: K and N of %ux%ux%u are not multiples of its tiles of %ux%u",
                                p->name, p->m, p->k, p->n, p->b.tile_rows, p->b.tile_cols);
        if (tdm_npu_type_is_int4(p->type) != (p->b.kind == TDM_NPU_BLOCKS))
                return wrong_at(r, r->section_line, "[%s]: blocks are the layout of int4, which has no other", p->name);
        if (tdm_npu_type_is_int4(p->type) && (p->k % TDM_NPU_INT4_PIECE != 0 || p->n % TDM_NPU_INT4_BLOCK != 0))
                return wrong_at(r, r->section_line, "[%s]: of %ux%ux%u in int4 K is no multiple of %u or N of %u",
                                p->name, p->m, p->k, p->n, TDM_NPU_INT4_PIECE, TDM_NPU_INT4_BLOCK);
        if (p->k % 8 != 0 || p->n % 8 != 0)
                return wrong_at(r, r->section_line, "[%s]: K and N of %ux%ux%u are not multiples of 8", p->name, p->m,
                                p->k, p->n);
        if ((p->type == TDM_NPU_INT8) != (strcmp(p->order, "exact") == 0))
                return wrong_at(r, r->section_line,
                                "[%s]: order \"exact\" is for int8, and int8 has no other (it says \"%s\")", p->name,
                                p->order);
        /* 127 · 127 · K must fit int32, or the sum would not be exact. */
        if (p->type == TDM_NPU_INT8 && p->k > INT32_MAX / (127 * 127))
                return wrong_at(r, r->section_line, "[%s]: %u products of int8 overflow the int32 sum", p->name, p->k);
        return 0;
}

static int end_section(struct reader *r)
{
        const struct tdm_npu_manifest *m = r->manifest;
        const char *const *names = r->program ? keys : set_keys;
        uint32_t n = r->program ? N_COMMON_KEYS : N_SET_KEYS;

        if (!r->had_set)
                return 0;
        for (uint32_t i = 0; i < n; i++)
                if (!(r->seen & 1u << i))
                        return wrong_at(r, r->section_line, "[%s] has no %s", r->program ? r->program->name : "set",
                                        names[i]);
        if (!r->program)
                return 0;
        for (const struct tdm_npu_program *p = m->programs; p < r->program; p++) {
                if (strcmp(p->name, r->program->name) == 0)
                        return wrong_at(r, r->section_line, "section [%s] is there twice", p->name);
        }
        return check_program(r);
}

static int begin_section(struct reader *r, const char *name)
{
        struct tdm_npu_manifest *m = r->manifest;
        int ret = end_section(r);

        if (ret != 0)
                return ret;
        r->section_line = r->line;
        r->seen = 0;
        r->program = NULL;
        if (strcmp(name, "set") == 0) {
                if (r->had_set)
                        return wrong(r, "section [set] is there twice");
                r->had_set = true;
                return 0;
        }
        if (!r->had_set)
                return wrong(r, "section [%s] before [set]", name);
        if (m->n_programs == TDM_NPU_MAX_PROGRAMS)
                return wrong(r, "more than %u programs", TDM_NPU_MAX_PROGRAMS);
        r->program = &m->programs[m->n_programs++];
        return copy_word(r, "name of a section", name, r->program->name, sizeof(r->program->name));
}

static int parse_key(struct reader *r, const char *name, const char *value)
{
        const char *const *names = r->program ? keys : set_keys;
        uint32_t n = r->program ? N_KEYS : N_SET_KEYS, key;

        if (!r->had_set)
                return wrong(r, "key %s before [set]", name);
        for (key = 0; key < n && strcmp(names[key], name) != 0; key++)
                ;
        if (key == n)
                return wrong(r, "there is no key \"%s\" in section [%s]", name, r->program ? r->program->name : "set");
        if (r->seen & 1u << key)
                return wrong(r, "%s is there twice in section [%s]", name, r->program ? r->program->name : "set");
        if (!*value)
                return wrong(r, "%s has no value", name);
        r->seen |= 1u << key;
        return r->program ? parse_program_key(r, (enum key)key, value) : parse_set_key(r, (enum set_key)key, value);
}

/* ---- lines ---- */

static char *trim(char *s)
{
        char *end;

        while (*s == ' ' || *s == '\t')
                s++;
        for (end = s + strlen(s); end > s && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r'); end--)
                ;
        *end = 0;
        return s;
}

static int parse_line(struct reader *r, char *line)
{
        char *s = trim(line), *equals;
        size_t n = strlen(s);

        if (n == 0 || s[0] == '#' || s[0] == ';')
                return 0;
        if (s[0] == '[') {
                if (n < 3 || s[n - 1] != ']')
                        return wrong(r, "\"%.60s\" is not a section's name in brackets", s);
                s[n - 1] = 0;
                return begin_section(r, s + 1);
        }
        equals = strchr(s, '=');
        if (!equals)
                return wrong(r, "\"%.60s\" is neither a [section] nor key = value", s);
        *equals = 0;
        return parse_key(r, trim(s), trim(equals + 1));
}

int tdm_npu_manifest_parse(const char *text, size_t size_bytes, const char *path, const char *generation,
                           struct tdm_npu_manifest **ret, struct tdm_error *err)
{
        _cleanup_(freep) struct tdm_npu_manifest *manifest = calloc(1, sizeof(*manifest));
        struct reader r = { .path = path, .manifest = manifest, .err = err };
        int result = 0;

        if (!manifest)
                return tdm_error_set(err, -ENOMEM, "no memory for the manifest %s", path);
        for (size_t at = 0; at < size_bytes && result == 0;) {
                const char *newline = memchr(text + at, '\n', size_bytes - at);
                size_t n = newline ? (size_t)(newline - text) - at : size_bytes - at;
                char line[MAX_LINE];

                r.line++;
                if (n >= sizeof(line))
                        return wrong(&r, "the line has %zu characters, %u are allowed", n, MAX_LINE - 1);
                if (memchr(text + at, 0, n))
                        return wrong(&r, "the line has a zero byte: not a text file");
                memcpy(line, text + at, n);
                line[n] = 0;
                result = parse_line(&r, line);
                at += n + 1;
        }
        if (result == 0)
                result = end_section(&r);
        if (result != 0)
                return result;
        if (!r.had_set)
                return wrong(&r, "there is no section [set]");
        if (manifest->n_programs == 0)
                return wrong(&r, "the set has no programs");
        if (generation && strcmp(manifest->generation, generation) != 0)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "%s is for generation %s, the device is of generation %s: install the "
                                     "programs for it or point npu-programs (tandem.conf) at them",
                                     path, manifest->generation, generation);
        manifest->hash = tdm_fnv64(TDM_FNV64_BEGIN, text, size_bytes);
        *ret = steal_ptr(&manifest);
        return 0;
}

int tdm_npu_manifest_load(const char *directory, const char *generation, struct tdm_npu_manifest **ret,
                          struct tdm_error *err)
{
        struct tdm_npu_manifest *manifest;
        char path[sizeof(manifest->directory) + 16];
        _cleanup_(freep) void *text = NULL;
        size_t size;
        int r;

        if (strlen(directory) >= sizeof(manifest->directory))
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "the path of the NPU programs has more than %zu characters",
                                     sizeof(manifest->directory) - 1);
        snprintf(path, sizeof(path), "%s/" TDM_NPU_MANIFEST_NAME, directory);
        r = tdm_npu_read_file(path, MAX_BYTES, &text, &size, err);
        if (r != 0)
                return tdm_error_prefix(err, "no NPU programs");
        r = tdm_npu_manifest_parse(text, size, path, generation, &manifest, err);
        if (r != 0)
                return r;
        memcpy(manifest->directory, directory, strlen(directory) + 1);
        *ret = manifest;
        return 0;
}
