/* Looking things up in an opened GGUF, and the table of tensor types.
 *
 * Everything here reads the private copy of the metadata, so nothing can fail but by not being there or having another
 * type. Keys and tensor names are found by binary search in tables that gguf.c sorted. */
#include "engine/file/gguf-private.h"

const uint8_t tdm_gguf_value_bytes[N_VALUE_TYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

/* Also the types that nothing here can compute with: a refusal can then say their names. */
static const struct tdm_type_info type_infos[] = {
        [TDM_TYPE_F32] = { "F32", 1, 4 },
        [TDM_TYPE_F16] = { "F16", 1, 2 },
        [TDM_TYPE_Q4_0] = { "Q4_0", 32, 18 },
        [TDM_TYPE_Q4_1] = { "Q4_1", 32, 20 },
        [TDM_TYPE_Q5_0] = { "Q5_0", 32, 22 },
        [TDM_TYPE_Q5_1] = { "Q5_1", 32, 24 },
        [TDM_TYPE_Q8_0] = { "Q8_0", 32, 34 },
        [9] = { "Q8_1", 32, 36 },
        [TDM_TYPE_Q2_K] = { "Q2_K", 256, 84 },
        [TDM_TYPE_Q3_K] = { "Q3_K", 256, 110 },
        [TDM_TYPE_Q4_K] = { "Q4_K", 256, 144 },
        [TDM_TYPE_Q5_K] = { "Q5_K", 256, 176 },
        [TDM_TYPE_Q6_K] = { "Q6_K", 256, 210 },
        [15] = { "Q8_K", 256, 292 },
        [16] = { "IQ2_XXS", 256, 66 },
        [17] = { "IQ2_XS", 256, 74 },
        [18] = { "IQ3_XXS", 256, 98 },
        [19] = { "IQ1_S", 256, 50 },
        [TDM_TYPE_IQ4_NL] = { "IQ4_NL", 32, 18 },
        [21] = { "IQ3_S", 256, 110 },
        [22] = { "IQ2_S", 256, 82 },
        [TDM_TYPE_IQ4_XS] = { "IQ4_XS", 256, 136 },
        [24] = { "I8", 1, 1 },
        [25] = { "I16", 1, 2 },
        [26] = { "I32", 1, 4 },
        [27] = { "I64", 1, 8 },
        [28] = { "F64", 1, 8 },
        [29] = { "IQ1_M", 256, 56 },
        [TDM_TYPE_BF16] = { "BF16", 1, 2 },
        [TDM_TYPE_TQ1_0] = { "TQ1_0", 256, 54 },
        [TDM_TYPE_TQ2_0] = { "TQ2_0", 256, 66 },
        [TDM_TYPE_MXFP4] = { "MXFP4", 32, 17 },
        [TDM_TYPE_NVFP4] = { "NVFP4", 64, 36 },
        [TDM_TYPE_MXFP4_PAIRS] = { "MXFP4", 32, 17 },
        /* as IQ1, IQ2 and IQ3 are packed (engine/weights/subblock.h) */
        [TYPE_OF_FILES_MAX + 1] = { "IQ1", 256, 106 },
        [TYPE_OF_FILES_MAX + 2] = { "IQ2", 256, 106 },
        [TYPE_OF_FILES_MAX + 3] = { "IQ3_XXS", 256, 138 },
        [TYPE_OF_FILES_MAX + 4] = { "IQ3_S", 256, 138 },
};

const struct tdm_type_info *tdm_type_info(uint32_t type)
{
        if (type >= TDM_ARRAY_SIZE(type_infos) || !type_infos[type].name)
                return NULL;
        return &type_infos[type];
}

uint64_t tdm_gguf_file_size(const struct tdm_gguf *g)
{
        return g->file_size;
}

uint64_t tdm_gguf_memory(const struct tdm_gguf *g)
{
        uint64_t bytes = g->account.held;

        for (uint32_t i = 0; i < g->n_parts; i++)
                bytes += g->parts[i]->account.held;
        return bytes;
}

const char *tdm_gguf_name(const struct tdm_gguf *g)
{
        return g->name;
}

uint64_t tdm_gguf_n_tensors(const struct tdm_gguf *g)
{
        return g->n_tensors;
}

const struct tdm_gguf_tensor *tdm_gguf_tensor(const struct tdm_gguf *g, uint64_t index)
{
        return index < g->n_tensors ? &g->tensors[index] : NULL;
}

const struct tdm_gguf_tensor *tdm_gguf_find_tensor(const struct tdm_gguf *g, const char *name)
{
        uint64_t low = 0, high = g->n_tensors;
        size_t size = strlen(name);

        while (low < high) {
                uint64_t middle = low + (high - low) / 2;
                const struct tdm_gguf_tensor *t = &g->tensors[g->by_name[middle]];
                int r = tdm_gguf_string_compare(&t->name, name, size);

                if (r == 0)
                        return t;
                if (r < 0)
                        low = middle + 1;
                else
                        high = middle;
        }
        return NULL;
}

const uint8_t *tdm_gguf_tensor_data(const struct tdm_gguf *g, const struct tdm_gguf_tensor *tensor)
{
        const struct tdm_gguf *part = tensor->part ? g->parts[tensor->part - 1] : g;

        return part->map ? part->map + tensor->offset : NULL;
}

static const struct entry *gguf_entry_find(const struct tdm_gguf *g, const char *key)
{
        uint64_t low = 0, high = g->n_entries;
        size_t size = strlen(key);

        while (low < high) {
                uint64_t middle = low + (high - low) / 2;
                int r = tdm_gguf_string_compare(&g->entries[middle].key, key, size);

                if (r == 0)
                        return &g->entries[middle];
                if (r < 0)
                        low = middle + 1;
                else
                        high = middle;
        }
        return NULL;
}

/* A whole number of any type as its 64 bits; *ret_negative says which half of the 65-bit range it is in. */
static int load_integer(uint32_t type, const uint8_t *data, uint64_t *ret, bool *ret_negative)
{
        union {
                uint16_t u16;
                uint32_t u32;
                uint64_t u64;
        } v;
        int64_t i;

        memcpy(&v, data, tdm_gguf_value_bytes[type]);
        *ret_negative = false;
        switch (type) {
        case VALUE_U8:
                *ret = data[0];
                return 0;
        case VALUE_U16:
                *ret = v.u16;
                return 0;
        case VALUE_U32:
                *ret = v.u32;
                return 0;
        case VALUE_U64:
                *ret = v.u64;
                return 0;
        case VALUE_I8:
                i = (int8_t)data[0];
                break;
        case VALUE_I16:
                i = (int16_t)v.u16;
                break;
        case VALUE_I32:
                i = (int32_t)v.u32;
                break;
        case VALUE_I64:
                i = (int64_t)v.u64;
                break;
        default:
                return -EINVAL;
        }
        *ret = (uint64_t)i;
        *ret_negative = i < 0;
        return 0;
}

static int load_u64(uint32_t type, const uint8_t *data, uint64_t *ret)
{
        bool negative;
        uint64_t v;
        int r;

        r = load_integer(type, data, &v, &negative);
        if (r < 0)
                return r;
        if (negative)
                return -EINVAL;
        *ret = v;
        return 0;
}

static int load_i64(uint32_t type, const uint8_t *data, int64_t *ret)
{
        bool negative;
        uint64_t v;
        int r;

        r = load_integer(type, data, &v, &negative);
        if (r < 0)
                return r;
        if (!negative && v > INT64_MAX)
                return -EINVAL;
        *ret = (int64_t)v;
        return 0;
}

static int load_f64(uint32_t type, const uint8_t *data, double *ret)
{
        bool negative;
        uint64_t v;
        float f;
        int r;

        if (type == VALUE_F32) {
                memcpy(&f, data, sizeof(f));
                *ret = (double)f;
                return 0;
        }
        if (type == VALUE_F64) {
                memcpy(ret, data, sizeof(*ret));
                return 0;
        }
        r = load_integer(type, data, &v, &negative);
        if (r < 0)
                return r;
        *ret = negative ? (double)(int64_t)v : (double)v;
        return 0;
}

static int find_scalar(const struct tdm_gguf *g, const char *key, const struct entry **ret)
{
        *ret = gguf_entry_find(g, key);
        if (!*ret)
                return -ENOENT;
        return (*ret)->type == VALUE_ARRAY || (*ret)->type == VALUE_STRING ? -EINVAL : 0;
}

int tdm_gguf_get_u64(const struct tdm_gguf *g, const char *key, uint64_t *ret)
{
        const struct entry *e;
        int r = find_scalar(g, key, &e);

        return r < 0 ? r : load_u64(e->type, e->data, ret);
}

int tdm_gguf_get_i64(const struct tdm_gguf *g, const char *key, int64_t *ret)
{
        const struct entry *e;
        int r = find_scalar(g, key, &e);

        return r < 0 ? r : load_i64(e->type, e->data, ret);
}

int tdm_gguf_get_f64(const struct tdm_gguf *g, const char *key, double *ret)
{
        const struct entry *e;
        int r = find_scalar(g, key, &e);

        return r < 0 ? r : load_f64(e->type, e->data, ret);
}

int tdm_gguf_get_bool(const struct tdm_gguf *g, const char *key, bool *ret)
{
        const struct entry *e;
        uint64_t number;
        int r = find_scalar(g, key, &e);

        if (r < 0)
                return r;
        if (e->type == VALUE_BOOL) {
                *ret = e->data[0];
                return 0;
        }
        r = load_u64(e->type, e->data, &number);
        if (r < 0 || number > 1)
                return -EINVAL;
        *ret = number;
        return 0;
}

int tdm_gguf_get_string(const struct tdm_gguf *g, const char *key, struct tdm_gguf_string *ret)
{
        const struct entry *e = gguf_entry_find(g, key);

        if (!e)
                return -ENOENT;
        if (e->type != VALUE_STRING)
                return -EINVAL;
        *ret = (struct tdm_gguf_string){ (const char *)e->data, e->n };
        return 0;
}

int tdm_gguf_get_array_size(const struct tdm_gguf *g, const char *key, uint64_t *ret)
{
        const struct entry *e = gguf_entry_find(g, key);

        if (!e)
                return -ENOENT;
        if (e->type != VALUE_ARRAY)
                return -EINVAL;
        *ret = e->n;
        return 0;
}

/* -ERANGE past the end. */
static int find_element(const struct tdm_gguf *g, const char *key, uint64_t index, const struct entry **ret)
{
        *ret = gguf_entry_find(g, key);
        if (!*ret)
                return -ENOENT;
        if ((*ret)->type != VALUE_ARRAY)
                return -EINVAL;
        return index < (*ret)->n ? 0 : -ERANGE;
}

int tdm_gguf_get_array_u64(const struct tdm_gguf *g, const char *key, uint64_t index, uint64_t *ret)
{
        const struct entry *e;
        int r = find_element(g, key, index, &e);

        if (r < 0)
                return r;
        if (e->element == VALUE_BOOL) {
                *ret = e->data[index];
                return 0;
        }
        return e->element == VALUE_STRING ?
                       -EINVAL :
                       load_u64(e->element, e->data + index * tdm_gguf_value_bytes[e->element], ret);
}

int tdm_gguf_get_array_i64(const struct tdm_gguf *g, const char *key, uint64_t index, int64_t *ret)
{
        const struct entry *e;
        int r = find_element(g, key, index, &e);

        if (r < 0)
                return r;
        return e->element == VALUE_STRING ?
                       -EINVAL :
                       load_i64(e->element, e->data + index * tdm_gguf_value_bytes[e->element], ret);
}

int tdm_gguf_get_array_f64(const struct tdm_gguf *g, const char *key, uint64_t index, double *ret)
{
        const struct entry *e;
        int r = find_element(g, key, index, &e);

        if (r < 0)
                return r;
        return e->element == VALUE_STRING ?
                       -EINVAL :
                       load_f64(e->element, e->data + index * tdm_gguf_value_bytes[e->element], ret);
}

/* The string whose length stands at *at; *at moves behind it. */
static struct tdm_gguf_string load_string(const uint8_t *data, uint64_t *at)
{
        struct tdm_gguf_string s;
        uint64_t size;

        memcpy(&size, data + *at, sizeof(size));
        s = (struct tdm_gguf_string){ (const char *)data + *at + sizeof(size), size };
        *at += sizeof(size) + size;
        return s;
}

int tdm_gguf_get_array_string(const struct tdm_gguf *g, const char *key, uint64_t index, struct tdm_gguf_string *ret)
{
        const struct entry *e;
        uint64_t at;
        int r = find_element(g, key, index, &e);

        if (r < 0)
                return r;
        if (e->element != VALUE_STRING)
                return -EINVAL;
        at = e->marks[index / TDM_GGUF_MARK_EVERY];
        for (uint64_t i = index % TDM_GGUF_MARK_EVERY; i > 0; i--)
                (void)load_string(e->data, &at);
        *ret = load_string(e->data, &at);
        return 0;
}

/* ---- whole arrays ---- */

int tdm_gguf_array_begin(struct tdm_gguf_array *ret, const struct tdm_gguf *g, const char *key)
{
        const struct entry *e = gguf_entry_find(g, key);

        if (!e)
                return -ENOENT;
        if (e->type != VALUE_ARRAY)
                return -EINVAL;
        *ret = (struct tdm_gguf_array){ .element = e->element, .n = e->n, .data = e->data };
        return 0;
}

int tdm_gguf_array_next_string(struct tdm_gguf_array *array, struct tdm_gguf_string *ret)
{
        if (array->element != VALUE_STRING)
                return -EINVAL;
        if (array->index == array->n)
                return -ERANGE;
        array->index++;
        *ret = load_string(array->data, &array->at);
        return 0;
}

int tdm_gguf_array_next_u64(struct tdm_gguf_array *array, uint64_t *ret)
{
        const uint8_t *data;

        if (array->element == VALUE_STRING)
                return -EINVAL;
        if (array->index == array->n)
                return -ERANGE;
        data = array->data + array->at;
        array->index++;
        array->at += tdm_gguf_value_bytes[array->element];
        if (array->element != VALUE_BOOL)
                return load_u64(array->element, data, ret);
        *ret = data[0];
        return 0;
}

int tdm_gguf_array_next_f64(struct tdm_gguf_array *array, double *ret)
{
        const uint8_t *data;

        if (array->element == VALUE_STRING)
                return -EINVAL;
        if (array->index == array->n)
                return -ERANGE;
        data = array->data + array->at;
        array->index++;
        array->at += tdm_gguf_value_bytes[array->element];
        return load_f64(array->element, data, ret);
}
