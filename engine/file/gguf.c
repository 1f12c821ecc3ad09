/* Reading the container: header, keys and values, tensor table.
 *
 * The metadata is walked twice. The first walk reads the file piece by piece, as far as what it has seen asks for, and
 * finds out where the metadata ends. A length is checked against the file and the limits before the file is read so
 * far: metadata that claims a terabyte is refused at its first length, and holes of a sparse file are never walked.
 * The second walk parses the finished private copy and builds the tables. A file that another process rewrites
 * meanwhile cannot change a value between its check and its use, and no look-up can touch a page that is gone. Reading
 * and not mapping also keeps holes of a file in memory (memfd, tmpfs) what they are: a fault on them would allocate
 * pages.
 *
 * Versions 2 and 3 (the same layout) are read, little-endian only. Arrays of arrays, big-endian files and version 1
 * are refused. What keys mean is not decided here. */
#include "engine/file/gguf-private.h"

#include <assert.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define HEADER_BYTES 24u
#define KEY_MIN_BYTES 14u    /* length, one character, type, one byte of value */
#define TENSOR_MIN_BYTES 33u /* length, one character, n_dims, one dimension, type, offset */
#define TENSOR_NAME_MAX 128u
#define ALIGNMENT_MIN 8u
#define ALIGNMENT_MAX 65536u
#define ALIGNMENT_DEFAULT 32u
#define READ_BYTES 65536u /* at once, from multiples of it: a fd opened with O_DIRECT takes nothing else */
#define CHECK_EVERY 4096u /* strings of an array between two looks at the flag */
static_assert(TDM_GGUF_METADATA_MAX <= UINT32_MAX, "marks have 32 bits");

struct cursor {
        const uint8_t *data;
        uint64_t size; /* of the file; in the second walk, of the metadata */
        uint64_t at;
        struct tdm_error *err;
        /* The first walk alone uses these: */
        struct tdm_parse_account *account;
        int fd;         /* -1 in the second walk: all is in memory */
        uint8_t *pages; /* data: pages for all that may be read, of which those behind filled are untouched */
        uint64_t filled;
};

/* The bytes that are left of the file, or of what metadata may take. */
static uint64_t remaining(const struct cursor *c)
{
        return TDM_MIN(c->size, TDM_GGUF_METADATA_MAX) - c->at;
}

static int too_much(struct cursor *c)
{
        return tdm_error_set(c->err, TDM_E_BAD_MODEL,
                             "its metadata goes on behind byte %" PRIu64 ", at most %" PRIu64 " bytes are allowed",
                             c->at, TDM_GGUF_METADATA_MAX);
}

/* n elements of at least this many bytes each follow; they are neither walked nor allocated for before this. */
static int check_room(struct cursor *c, const struct entry *e, unsigned bytes, const char *what)
{
        uint64_t in_file = (c->size - c->at) / bytes;

        if (e->n > in_file)
                return tdm_error_set(c->err, TDM_E_BAD_MODEL,
                                     "key %.*s announces %" PRIu64 " %s, the file has room for %" PRIu64
                                     " at most (damaged, or a truncated download?)",
                                     (int)e->key.size, e->key.data, e->n, what, in_file);
        if (e->n > remaining(c) / bytes)
                return tdm_error_set(c->err, TDM_E_BAD_MODEL,
                                     "key %.*s announces %" PRIu64 " %s; metadata may have %" PRIu64 " bytes in all",
                                     (int)e->key.size, e->key.data, e->n, what, TDM_GGUF_METADATA_MAX);
        return 0;
}

/* Reads on until the first end bytes are in memory; end lies in the file and in the limits. */
static int cursor_fill(struct cursor *c, uint64_t end)
{
        while (c->filled < end) {
                uint64_t wanted = TDM_MIN(c->size - c->filled, (uint64_t)READ_BYTES);
                ssize_t n;
                int r;

                r = tdm_parse_check(c->account, c->err);
                if (r)
                        return r;
                r = tdm_parse_charge(c->account, wanted, c->err);
                if (r)
                        return r;
                do
                        n = pread(c->fd, c->pages + c->filled, READ_BYTES, (off_t)c->filled);
                while (n < 0 && errno == EINTR);
                if (n < 0 || (uint64_t)n < wanted)
                        tdm_parse_uncharge(c->account, wanted);
                if (n < 0)
                        return tdm_error_set(c->err, -errno, "cannot read it at byte %" PRIu64 ": %s", c->filled,
                                             strerror(errno));
                if ((uint64_t)n < wanted)
                        return tdm_error_set(c->err, TDM_E_MODEL_CHANGED,
                                             "it was cut short while it was read; try again");
                c->filled += wanted;
        }
        return 0;
}

/* The next size bytes are in the file, within the limits, and in memory. The caller says it when they are not in the
 * file. */
static int cursor_need(struct cursor *c, uint64_t size)
{
        if (size > remaining(c))
                return too_much(c);
        return c->fd < 0 ? 0 : cursor_fill(c, c->at + size);
}

static int cursor_take(struct cursor *c, void *ret, size_t size, const char *what)
{
        int r;

        if (size > c->size - c->at)
                return tdm_error_set(c->err, TDM_E_BAD_MODEL,
                                     "it ends inside %s, at byte %" PRIu64 " (truncated download?)", what, c->at);
        r = cursor_need(c, size);
        if (r)
                return r;
        memcpy(ret, c->data + c->at, size);
        c->at += size;
        return 0;
}

static int skip(struct cursor *c, uint64_t size, const char *what)
{
        int r;

        if (size > c->size - c->at)
                return tdm_error_set(c->err, TDM_E_BAD_MODEL,
                                     "%s at byte %" PRIu64 " needs %" PRIu64 " more bytes than the file has "
                                     "(truncated download, or damaged)",
                                     what, c->at, size - (c->size - c->at));
        r = cursor_need(c, size);
        if (r)
                return r;
        c->at += size;
        return 0;
}

/* A name that everybody may print: 1 to max bytes of printable ASCII. */
static int cursor_take_name(struct cursor *c, uint64_t max, const char *what, struct tdm_gguf_string *ret)
{
        struct tdm_gguf_string name;
        uint64_t size = 0, start = c->at;
        int r;

        r = cursor_take(c, &size, sizeof(size), what);
        if (r)
                return r;
        if (size == 0 || size > max)
                return tdm_error_set(c->err, TDM_E_BAD_MODEL,
                                     "%s at byte %" PRIu64 " has %" PRIu64 " characters, 1 to %" PRIu64 " are allowed",
                                     what, start, size, max);
        r = skip(c, size, what);
        if (r)
                return r;
        name = (struct tdm_gguf_string){ (const char *)c->data + c->at - size, size };
        for (uint64_t i = 0; i < size; i++) {
                if (name.data[i] < 0x20 || name.data[i] > 0x7e)
                        return tdm_error_set(c->err, TDM_E_BAD_MODEL,
                                             "%s at byte %" PRIu64
                                             " holds the byte 0x%02x, only printable ASCII is allowed",
                                             what, start, (unsigned)(uint8_t)name.data[i]);
        }
        *ret = name;
        return 0;
}

static int check_bools(const struct cursor *c, const struct entry *e, uint64_t n)
{
        for (uint64_t i = 0; i < n; i++) {
                if (e->data[i] > 1)
                        return tdm_error_set(c->err, TDM_E_BAD_MODEL, "key %.*s: a boolean is %u, not 0 or 1",
                                             (int)e->key.size, e->key.data, e->data[i]);
        }
        return 0;
}

static int walk_strings(struct cursor *c, struct entry *e, bool keep)
{
        uint64_t start = c->at, size = 0;
        int r;

        r = check_room(c, e, sizeof(size), "strings");
        if (r)
                return r;
        if (keep && e->n) {
                uint64_t bytes = TDM_DIV_UP(e->n, TDM_GGUF_MARK_EVERY) * sizeof(*e->marks);

                r = tdm_parse_charge(c->account, bytes, c->err);
                if (r)
                        return r;
                e->marks = malloc(bytes);
                if (!e->marks)
                        return tdm_error_set(c->err, -ENOMEM, "out of memory for %" PRIu64 " strings", e->n);
        }
        for (uint64_t i = 0; i < e->n; i++) {
                if (i % CHECK_EVERY == 0 && (r = tdm_parse_check(c->account, c->err)))
                        return r;
                if (keep && i % TDM_GGUF_MARK_EVERY == 0)
                        e->marks[i / TDM_GGUF_MARK_EVERY] = (uint32_t)(c->at - start);
                r = cursor_take(c, &size, sizeof(size), "an array of strings");
                if (r)
                        return r;
                r = skip(c, size, "a string in an array");
                if (r)
                        return r;
        }
        return 0;
}

/* keep: c is the private copy, so pointers into it and tables of it may be kept in *e (also on failure: the caller
 * frees). */
static int walk_entry(struct cursor *c, struct entry *e, bool keep)
{
        int r;

        r = cursor_take_name(c, TDM_GGUF_KEY_NAME_MAX, "a key", &e->key);
        if (r)
                return r;
        r = cursor_take(c, &e->type, sizeof(e->type), "a key's type");
        if (r)
                return r;
        if (e->type >= N_VALUE_TYPES)
                return tdm_error_set(c->err, TDM_E_BAD_MODEL, "key %.*s has a value of type %u, which does not exist",
                                     (int)e->key.size, e->key.data, e->type);
        if (e->type == VALUE_STRING) {
                r = cursor_take(c, &e->n, sizeof(e->n), "a string's length");
                if (r)
                        return r;
                e->data = c->data + c->at;
                return skip(c, e->n, "a string value");
        }
        if (e->type != VALUE_ARRAY) {
                e->data = c->data + c->at;
                r = skip(c, tdm_gguf_value_bytes[e->type], "a value");
                return r || e->type != VALUE_BOOL ? r : check_bools(c, e, 1);
        }
        r = cursor_take(c, &e->element, sizeof(e->element), "an array's type");
        if (r)
                return r;
        r = cursor_take(c, &e->n, sizeof(e->n), "an array's length");
        if (r)
                return r;
        e->data = c->data + c->at;
        if (e->element == VALUE_ARRAY)
                return tdm_error_set(c->err, TDM_E_UNSUPPORTED,
                                     "key %.*s is an array of arrays, which is not supported", (int)e->key.size,
                                     e->key.data);
        if (e->element >= N_VALUE_TYPES)
                return tdm_error_set(c->err, TDM_E_BAD_MODEL, "key %.*s is an array of type %u, which does not exist",
                                     (int)e->key.size, e->key.data, e->element);
        if (e->element == VALUE_STRING)
                return walk_strings(c, e, keep);
        r = check_room(c, e, tdm_gguf_value_bytes[e->element], "elements");
        if (r)
                return r;
        r = skip(c, e->n * tdm_gguf_value_bytes[e->element], "an array");
        return r || e->element != VALUE_BOOL ? r : check_bools(c, e, e->n);
}

/* Everything about a tensor but where it lies. */
static int walk_tensor(struct cursor *c, struct tdm_gguf_tensor *t)
{
        const struct tdm_type_info *info;
        uint64_t values = 1;
        int r;

        r = cursor_take_name(c, TENSOR_NAME_MAX, "a tensor's name", &t->name);
        if (r)
                return r;
        r = cursor_take(c, &t->n_dims, sizeof(t->n_dims), "the tensor table");
        if (r)
                return r;
        if (t->n_dims < 1 || t->n_dims > 4)
                return tdm_error_set(c->err, TDM_E_BAD_MODEL, "tensor %.*s has %u dimensions, 1 to 4 are allowed",
                                     (int)t->name.size, t->name.data, t->n_dims);
        for (uint32_t i = 0; i < 4; i++) {
                t->dims[i] = 1;
                if (i >= t->n_dims)
                        continue;
                r = cursor_take(c, &t->dims[i], sizeof(t->dims[i]), "the tensor table");
                if (r)
                        return r;
                if (t->dims[i] == 0 || t->dims[i] > INT64_MAX || __builtin_mul_overflow(values, t->dims[i], &values))
                        return tdm_error_set(c->err, TDM_E_BAD_MODEL,
                                             "tensor %.*s has impossible dimensions "
                                             "(dimension %u is %" PRIu64 ")",
                                             (int)t->name.size, t->name.data, i, t->dims[i]);
        }
        r = cursor_take(c, &t->type, sizeof(t->type), "the tensor table");
        if (r)
                return r;
        r = cursor_take(c, &t->offset, sizeof(t->offset), "the tensor table");
        if (r)
                return r;
        info = t->type <= TYPE_OF_FILES_MAX ? tdm_type_info(t->type) : NULL;
        if (!info)
                return tdm_error_set(c->err, TDM_E_UNSUPPORTED,
                                     "tensor %.*s has the type with number %u, which is not known "
                                     "here; convert the model to another type",
                                     (int)t->name.size, t->name.data, t->type);
        if (t->dims[0] % info->block_values)
                return tdm_error_set(c->err, TDM_E_BAD_MODEL,
                                     "tensor %.*s has rows of %" PRIu64 " values, type %s needs a multiple of %u",
                                     (int)t->name.size, t->name.data, t->dims[0], info->name, info->block_values);
        if (__builtin_mul_overflow(values / info->block_values, (uint64_t)info->block_bytes, &t->size_bytes))
                return tdm_error_set(c->err, TDM_E_BAD_MODEL, "tensor %.*s has impossible dimensions (size overflows)",
                                     (int)t->name.size, t->name.data);
        return 0;
}

static int walk_header(struct cursor *c, uint64_t *ret_n_tensors, uint64_t *ret_n_entries)
{
        uint64_t n_tensors = 0, n_entries = 0;
        uint32_t version = 0;
        char magic[4] = { 0 };
        int r;

        r = cursor_take(c, magic, sizeof(magic), "the header");
        if (r)
                return r;
        if (memcmp(magic, "FUGG", 4) == 0)
                return tdm_error_set(c->err, TDM_E_UNSUPPORTED,
                                     "it is a big-endian GGUF file; get the little-endian one");
        if (memcmp(magic, "lmgg", 4) == 0 || memcmp(magic, "tjgg", 4) == 0 || memcmp(magic, "fmgg", 4) == 0)
                return tdm_error_set(c->err, TDM_E_UNSUPPORTED,
                                     "it is in a format older than GGUF; convert it to GGUF");
        if (memcmp(magic, "GGUF", 4) != 0)
                return tdm_error_set(c->err, TDM_E_UNSUPPORTED,
                                     "it is not a GGUF file (it starts with %02x %02x %02x %02x, "
                                     "not with \"GGUF\")",
                                     (uint8_t)magic[0], (uint8_t)magic[1], (uint8_t)magic[2], (uint8_t)magic[3]);
        r = cursor_take(c, &version, sizeof(version), "the header");
        if (r)
                return r;
        if (version != 0 && (version & 0xffffu) == 0)
                return tdm_error_set(c->err, TDM_E_UNSUPPORTED,
                                     "it is a big-endian GGUF file (version %u); get the "
                                     "little-endian one",
                                     __builtin_bswap32(version));
        if (version != 2 && version != 3)
                return tdm_error_set(c->err, TDM_E_UNSUPPORTED,
                                     "it is a GGUF file of version %u, only 2 and 3 are supported; "
                                     "convert it again from its source",
                                     version);
        r = cursor_take(c, &n_tensors, sizeof(n_tensors), "the header");
        if (r)
                return r;
        r = cursor_take(c, &n_entries, sizeof(n_entries), "the header");
        if (r)
                return r;
        if (n_entries > TDM_GGUF_KEYS_MAX || n_entries > remaining(c) / KEY_MIN_BYTES)
                return tdm_error_set(c->err, TDM_E_BAD_MODEL,
                                     "it announces %" PRIu64 " keys, at most %u and no more than "
                                     "fit into the file are allowed (damaged, or a truncated download?)",
                                     n_entries, TDM_GGUF_KEYS_MAX);
        if (n_tensors > TDM_GGUF_TENSORS_MAX || n_tensors > remaining(c) / TENSOR_MIN_BYTES)
                return tdm_error_set(c->err, TDM_E_BAD_MODEL,
                                     "it announces %" PRIu64 " tensors, at most %u and no more than "
                                     "fit into the file are allowed (damaged, or a truncated download?)",
                                     n_tensors, TDM_GGUF_TENSORS_MAX);
        *ret_n_tensors = n_tensors;
        *ret_n_entries = n_entries;
        return 0;
}

/* First walk: all lengths and names are checked, and where the metadata ends is found out. */
static int cursor_measure(struct cursor *c, uint64_t *ret_size)
{
        uint64_t n_tensors = 0, n_entries = 0;
        int r;

        r = walk_header(c, &n_tensors, &n_entries);
        if (r)
                return r;
        for (uint64_t i = 0; i < n_entries; i++) {
                struct entry e = { 0 };

                r = walk_entry(c, &e, false);
                if (r)
                        return r;
        }
        for (uint64_t i = 0; i < n_tensors; i++) {
                struct tdm_gguf_tensor t = { 0 };

                r = walk_tensor(c, &t);
                if (r)
                        return r;
        }
        *ret_size = c->at;
        return 0;
}

static int compare_entries(const void *a, const void *b)
{
        const struct entry *x = a, *y = b;

        return tdm_gguf_string_compare(&x->key, y->key.data, y->key.size);
}

static int compare_names(const void *a, const void *b, void *tensors)
{
        const struct tdm_gguf_tensor *t = tensors;
        const struct tdm_gguf_string *y = &t[*(const uint32_t *)b].name;

        return tdm_gguf_string_compare(&t[*(const uint32_t *)a].name, y->data, y->size);
}

static int compare_offsets(const void *a, const void *b, void *tensors)
{
        const struct tdm_gguf_tensor *t = tensors;
        uint64_t x = t[*(const uint32_t *)a].offset, y = t[*(const uint32_t *)b].offset;

        return (x > y) - (x < y);
}

static int get_alignment(const struct tdm_gguf *g, uint64_t *ret, struct tdm_error *err)
{
        uint64_t alignment = ALIGNMENT_DEFAULT;
        int r;

        r = tdm_gguf_get_u64(g, "general.alignment", &alignment);
        if (r == -EINVAL)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "general.alignment is not a whole number");
        if (alignment < ALIGNMENT_MIN || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)))
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "general.alignment is %" PRIu64 ", it must be a power of two from %u to %u",
                                     alignment, ALIGNMENT_MIN, ALIGNMENT_MAX);
        *ret = alignment;
        return 0;
}

/* Offsets become absolute; every tensor lies in the file and on no other. */
static int place_tensors(struct tdm_gguf *g, struct tdm_error *err)
{
        uint64_t alignment = 0, data_start;
        int r;

        r = get_alignment(g, &alignment, err);
        if (r)
                return r;
        data_start = TDM_ALIGN_UP((uint64_t)g->meta_size, alignment);
        for (uint64_t i = 0; i < g->n_tensors; i++) {
                struct tdm_gguf_tensor *t = &g->tensors[i];
                uint64_t end;

                if (t->offset % alignment)
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "tensor %.*s starts at offset %" PRIu64
                                             ", which is not a multiple of the alignment %" PRIu64,
                                             (int)t->name.size, t->name.data, t->offset, alignment);
                if (__builtin_add_overflow(data_start, t->offset, &t->offset) ||
                    __builtin_add_overflow(t->offset, t->size_bytes, &end))
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "tensor %.*s has an impossible offset or size",
                                             (int)t->name.size, t->name.data);
                if (end > g->file_size)
                        return tdm_error_set(err, TDM_E_BAD_MODEL,
                                             "tensor %.*s needs %" PRIu64
                                             " more bytes than the file has (truncated download?)",
                                             (int)t->name.size, t->name.data, end - g->file_size);
                g->by_name[i] = (uint32_t)i;
        }
        qsort_r(g->by_name, g->n_tensors, sizeof(*g->by_name), compare_offsets, g->tensors);
        for (uint64_t i = 1; i < g->n_tensors; i++) {
                const struct tdm_gguf_tensor *a = &g->tensors[g->by_name[i - 1]], *b = &g->tensors[g->by_name[i]];

                if (b->offset < a->offset + a->size_bytes)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "tensors %.*s and %.*s overlap in the file",
                                             (int)a->name.size, a->name.data, (int)b->name.size, b->name.data);
        }
        qsort_r(g->by_name, g->n_tensors, sizeof(*g->by_name), compare_names, g->tensors);
        for (uint64_t i = 1; i < g->n_tensors; i++) {
                if (compare_names(&g->by_name[i - 1], &g->by_name[i], g->tensors) == 0) {
                        const struct tdm_gguf_string *name = &g->tensors[g->by_name[i]].name;

                        return tdm_error_set(err, TDM_E_BAD_MODEL, "two tensors are called %.*s", (int)name->size,
                                             name->data);
                }
        }
        return 0;
}

/* Second walk, over the private copy. */
static int parse(struct tdm_gguf *g, struct tdm_error *err)
{
        struct cursor c = { .data = g->meta, .size = g->meta_size, .err = err, .account = &g->account, .fd = -1 };
        uint64_t n_tensors = 0, n_entries = 0;
        int r;

        r = walk_header(&c, &n_tensors, &n_entries);
        if (r)
                return r;
        r = tdm_parse_charge(&g->account,
                             n_entries * sizeof(*g->entries) + n_tensors * (sizeof(*g->tensors) + sizeof(*g->by_name)),
                             err);
        if (r)
                return r;
        g->entries = calloc(TDM_MAX(n_entries, 1u), sizeof(*g->entries));
        g->tensors = calloc(TDM_MAX(n_tensors, 1u), sizeof(*g->tensors));
        g->by_name = calloc(TDM_MAX(n_tensors, 1u), sizeof(*g->by_name));
        if (!g->entries || !g->tensors || !g->by_name)
                return tdm_error_set(err, -ENOMEM, "out of memory for its tables");
        for (uint64_t i = 0; i < n_entries; i++) {
                g->n_entries++; /* also when it fails half way: close() frees what it has */
                r = walk_entry(&c, &g->entries[i], true);
                if (r)
                        return r;
        }
        for (uint64_t i = 0; i < n_tensors; i++) {
                r = walk_tensor(&c, &g->tensors[i]);
                if (r)
                        return r;
        }
        assert(c.at == c.size); /* the first walk read these very bytes */
        g->n_tensors = n_tensors;
        qsort(g->entries, g->n_entries, sizeof(*g->entries), compare_entries);
        for (uint64_t i = 1; i < g->n_entries; i++) {
                if (compare_entries(&g->entries[i - 1], &g->entries[i]) == 0)
                        return tdm_error_set(err, TDM_E_BAD_MODEL, "the key %.*s is there twice",
                                             (int)g->entries[i].key.size, g->entries[i].key.data);
        }
        return place_tensors(g, err);
}

/* c holds the pages of the first walk; the copy has no byte more than the metadata, so that a sanitizer sees each step
 * behind it. */
static int read_metadata(struct tdm_gguf *g, struct cursor *c)
{
        uint64_t size = 0;
        int r;

        r = cursor_measure(c, &size);
        if (r)
                return r;
        r = tdm_parse_charge(&g->account, size, c->err);
        if (r)
                return r;
        g->meta = malloc(size);
        if (!g->meta)
                return tdm_error_set(c->err, -ENOMEM, "out of memory for %" PRIu64 " bytes of metadata", size);
        memcpy(g->meta, c->data, size);
        g->meta_size = size;
        return 0;
}

static int open_metadata(struct tdm_gguf *g, int fd, struct tdm_error *err)
{
        struct cursor c = { .size = g->file_size, .err = err, .account = &g->account, .fd = fd };
        size_t size = TDM_ALIGN_UP(TDM_MIN(g->file_size, TDM_GGUF_METADATA_MAX), (uint64_t)READ_BYTES);
        void *pages;
        int r;

        pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (pages == MAP_FAILED)
                return tdm_error_set(err, -errno, "no memory to read its metadata into: %s", strerror(errno));
        c.pages = pages;
        c.data = pages;
        r = read_metadata(g, &c);
        munmap(pages, size);
        tdm_parse_uncharge(&g->account, c.filled);
        return r;
}

static int gguf_map_file(struct tdm_gguf *g, int fd, struct tdm_error *err)
{
        struct stat st;
        void *map;
        int r;

        if (fstat(fd, &st) < 0)
                return tdm_error_set(err, -errno, "cannot stat it: %s", strerror(errno));
        if (!S_ISREG(st.st_mode))
                return tdm_error_set(err, TDM_E_BAD_MODEL, "it is not a regular file");
        if ((uint64_t)st.st_size < HEADER_BYTES)
                return tdm_error_set(err, TDM_E_BAD_MODEL, "it has only %" PRIu64 " bytes (truncated download?)",
                                     (uint64_t)st.st_size);
        g->file_size = (uint64_t)st.st_size;
        r = open_metadata(g, fd, err);
        if (r)
                return r;
        r = parse(g, err);
        if (r)
                return r;
        map = mmap(NULL, g->file_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return tdm_error_set(err, -errno, "cannot map its %" PRIu64 " bytes: %s", g->file_size,
                                     strerror(errno));
        g->map = map;
        return 0;
}

int tdm_gguf_open_within(struct tdm_gguf **ret, int fd, const char *name, const struct tdm_parse_limits *limits,
                         struct tdm_error *err)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        struct tdm_error local;
        int r;

        if (!err)
                err = &local;
        g = calloc(1, sizeof(*g));
        if (!g)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        g->account.limits = limits;
        g->name = strdup(name);
        if (!g->name)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        r = tdm_parse_charge(&g->account, sizeof(*g) + strlen(name) + 1, err);
        if (r == 0)
                r = gguf_map_file(g, fd, err);
        if (r) {
                tdm_parse_uncharge(&g->account, g->account.held);
                tdm_error_prefix(err, "cannot open model %s", name);
                return r;
        }
        g->account.limits = NULL;
        *ret = steal_ptr(&g);
        return 0;
}

int tdm_gguf_open(struct tdm_gguf **ret, int fd, const char *name, struct tdm_error *err)
{
        return tdm_gguf_open_within(ret, fd, name, NULL, err);
}

void tdm_gguf_close(struct tdm_gguf *g)
{
        if (!g)
                return;
        tdm_gguf_unmap_data(g);
        for (uint32_t i = 0; i < g->n_parts; i++)
                tdm_gguf_close(g->parts[i]);
        free(g->parts);
        for (uint64_t i = 0; i < g->n_entries; i++)
                free(g->entries[i].marks);
        free(g->entries);
        free(g->tensors);
        free(g->by_name);
        free(g->meta);
        free(g->name);
        free(g);
}

void tdm_gguf_closep(struct tdm_gguf **gguf)
{
        tdm_gguf_close(*gguf);
}

void tdm_gguf_unmap_data(struct tdm_gguf *g)
{
        if (g->map)
                munmap((void *)g->map, g->file_size);
        g->map = NULL;
        for (uint32_t i = 0; i < g->n_parts; i++)
                tdm_gguf_unmap_data(g->parts[i]);
}
