/* GGUF v3 files: the container only (keys, values, tensor table). What the keys mean is engine/model/model.h's
 * business.
 *
 * The metadata is read into private memory, the tensor data is mapped read-only. Everything is validated before it is
 * used: counts, sizes, offsets, overlaps, types, alignment, string lengths, duplicate names. Lengths are checked
 * against the limits below before anything is read or allocated for them, so a file that announces more costs nothing.
 * A file that is cut short while it is mapped is noticed (common/sigbus.h) and reported, never a crash. After open()
 * the object is read-only and may be used by any thread. */
#ifndef TDM_ENGINE_FILE_GGUF_H
#define TDM_ENGINE_FILE_GGUF_H

#include <sys/types.h>
#include "engine/file/limits.h"

/* What a file may announce. The metadata of Gemma 3 has about 6 MiB (262,144 pieces), where merges are listed too
 * about 16; some 50 keys with names of up to 40 characters are usual, and the 27B has 808 tensors. A hole in the
 * metadata is as long as what it stands for: copying tools make holes of zeros, so a hole says nothing about whether a
 * file is honest. */
#define TDM_GGUF_METADATA_MAX (UINT64_C(64) << 20)
#define TDM_GGUF_KEYS_MAX 4096u
#define TDM_GGUF_KEY_NAME_MAX 256u
#define TDM_GGUF_TENSORS_MAX 16384u
#define TDM_GGUF_PARTS_MAX 128u

/* ggml tensor type ids, as stored in files. */
enum tdm_type {
        TDM_TYPE_F32 = 0,
        TDM_TYPE_F16 = 1,
        TDM_TYPE_Q4_0 = 2,
        TDM_TYPE_Q4_1 = 3,
        /* Ollama's MXFP4 before ggml had it: neighbours share a byte. The number had been withdrawn. */
        TDM_TYPE_MXFP4_PAIRS = 4,
        TDM_TYPE_Q5_0 = 6,
        TDM_TYPE_Q5_1 = 7,
        TDM_TYPE_Q8_0 = 8,
        TDM_TYPE_Q2_K = 10,
        TDM_TYPE_Q3_K = 11,
        TDM_TYPE_Q4_K = 12,
        TDM_TYPE_Q5_K = 13,
        TDM_TYPE_Q6_K = 14,
        TDM_TYPE_IQ4_NL = 20,
        TDM_TYPE_IQ4_XS = 23,
        TDM_TYPE_BF16 = 30,
        TDM_TYPE_TQ1_0 = 34,
        TDM_TYPE_TQ2_0 = 35,
        TDM_TYPE_MXFP4 = 39,
        TDM_TYPE_NVFP4 = 40,
};

struct tdm_type_info {
        const char *name;      /* "Q4_0" */
        uint32_t block_values; /* values per block */
        uint32_t block_bytes;
};
/* NULL for an id nobody knows. Known is not supported: engine/weights/weights.h decides that. */
const struct tdm_type_info *tdm_type_info(uint32_t type);

struct tdm_gguf;

struct tdm_gguf_string {
        const char *data; /* not NUL-terminated, not necessarily UTF-8; owned by the gguf */
        size_t size;
};

struct tdm_gguf_tensor {
        struct tdm_gguf_string name;
        uint32_t type; /* a known tdm_type */
        uint32_t n_dims;
        uint64_t dims[4];    /* dims[0] is the fastest (columns); unused dims are 1 */
        uint32_t part;       /* in which of the parts it lies; 0 where there is one file */
        uint64_t offset;     /* from that file's start, checked */
        uint64_t size_bytes; /* checked to lie in that file */
};

/* Takes nothing: the fd stays the caller's and may be closed afterwards. name is for messages only. Must be a regular
 * file (or memfd). TDM_E_BAD_MODEL with the reason for damage, TDM_E_UNSUPPORTED for another magic, version, type. */
int tdm_gguf_open(struct tdm_gguf **ret, int fd, const char *name, struct tdm_error *err);
/* The same with limits of the caller's own (NULL: none). */
int tdm_gguf_open_within(struct tdm_gguf **ret, int fd, const char *name, const struct tdm_parse_limits *limits,
                         struct tdm_error *err);
/* Which part of a model that was split into several files this one is, from 0 on, and how many there are: 0 of 1 where
 * the file says nothing of it. TDM_E_BAD_MODEL. */
int tdm_gguf_part(const struct tdm_gguf *gguf, uint32_t *ret_no, uint32_t *ret_n, struct tdm_error *err);
/* Adds the tensors of the other parts, which are in order, to those of the first; its keys are those of all. Takes the
 * others on success. TDM_E_BAD_MODEL: they are not the parts of one model. */
int tdm_gguf_join(struct tdm_gguf *first, struct tdm_gguf **others, uint32_t n, struct tdm_error *err);
uint32_t tdm_gguf_n_parts(const struct tdm_gguf *gguf); /* joined, the first included */
/* Private memory that the object holds: its metadata once, and tables of at most four times that. */
uint64_t tdm_gguf_memory(const struct tdm_gguf *gguf);
void tdm_gguf_close(struct tdm_gguf *gguf);
void tdm_gguf_closep(struct tdm_gguf **gguf);
/* Drops the mapping of the tensor data (metadata stays readable: it is copied to private memory by open()). */
void tdm_gguf_unmap_data(struct tdm_gguf *gguf);

uint64_t tdm_gguf_file_size(const struct tdm_gguf *gguf); /* of the first part */
const char *tdm_gguf_name(const struct tdm_gguf *gguf);
uint64_t tdm_gguf_n_tensors(const struct tdm_gguf *gguf);
const struct tdm_gguf_tensor *tdm_gguf_tensor(const struct tdm_gguf *gguf, uint64_t index);
const struct tdm_gguf_tensor *tdm_gguf_find_tensor(const struct tdm_gguf *gguf,
                                                   const char *name); /* O(log n) or better */
/* Mapped data of a tensor; reading it may hit SIGBUS if the file shrank: hold a guard. NULL after unmap_data(). */
const uint8_t *tdm_gguf_tensor_data(const struct tdm_gguf *gguf, const struct tdm_gguf_tensor *tensor);

/* Typed look-ups. 0 when found with a fitting type (any integer type converts where the value fits; f32/f64 for
 * get_f64, integers too), -ENOENT when there is no such key, -EINVAL when its type is another. Arrays: n and get
 * element, -ERANGE past the end; get_array_u64 takes booleans too. */
int tdm_gguf_get_u64(const struct tdm_gguf *gguf, const char *key, uint64_t *ret);
int tdm_gguf_get_i64(const struct tdm_gguf *gguf, const char *key, int64_t *ret);
int tdm_gguf_get_f64(const struct tdm_gguf *gguf, const char *key, double *ret);
/* Some converters write 0 and 1 for what is true or false. */
int tdm_gguf_get_bool(const struct tdm_gguf *gguf, const char *key, bool *ret);
int tdm_gguf_get_string(const struct tdm_gguf *gguf, const char *key, struct tdm_gguf_string *ret);
int tdm_gguf_get_array_size(const struct tdm_gguf *gguf, const char *key, uint64_t *ret);
int tdm_gguf_get_array_u64(const struct tdm_gguf *gguf, const char *key, uint64_t index, uint64_t *ret);
int tdm_gguf_get_array_i64(const struct tdm_gguf *gguf, const char *key, uint64_t index, int64_t *ret);
int tdm_gguf_get_array_f64(const struct tdm_gguf *gguf, const char *key, uint64_t index, double *ret);
int tdm_gguf_get_array_string(const struct tdm_gguf *gguf, const char *key, uint64_t index,
                              struct tdm_gguf_string *ret);

/* An array from its first element to its last, without a look-up for each. The same conversions and errors; -ERANGE
 * behind the last one. Valid as long as the gguf; embed it. */
struct tdm_gguf_array {
        uint32_t element;
        uint64_t n;         /* elements */
        uint64_t index, at; /* of the next one: its number, its place in data */
        const uint8_t *data;
};
int tdm_gguf_array_begin(struct tdm_gguf_array *ret, const struct tdm_gguf *gguf, const char *key);
int tdm_gguf_array_next_string(struct tdm_gguf_array *array, struct tdm_gguf_string *ret);
int tdm_gguf_array_next_u64(struct tdm_gguf_array *array, uint64_t *ret);
int tdm_gguf_array_next_f64(struct tdm_gguf_array *array, double *ret);

#endif
