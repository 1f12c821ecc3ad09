/* Writes small GGUF files in memory, right or deliberately wrong, for tests and fuzz seeds. Never part of the product.
 */
#ifndef TDM_ENGINE_TEST_GGUF_BUILDER_H
#define TDM_ENGINE_TEST_GGUF_BUILDER_H

#include <sys/mman.h>
#include "engine/file/gguf-private.h"

struct gguf_builder {
        uint8_t *data;
        size_t size, capacity;
        size_t data_start; /* 0 until build_data() */
};

static inline void build_bytes(struct gguf_builder *b, const void *data, size_t size)
{
        if (b->size + size >= b->capacity) {
                b->capacity = 2 * (b->size + size) + 256;
                b->data = realloc(b->data, b->capacity);
                if (!b->data)
                        abort();
        }
        if (size > 0)
                memcpy(b->data + b->size, data, size);
        b->size += size;
}

static inline void build_u32(struct gguf_builder *b, uint32_t v)
{
        build_bytes(b, &v, sizeof(v));
}

static inline void build_u64(struct gguf_builder *b, uint64_t v)
{
        build_bytes(b, &v, sizeof(v));
}

static inline void build_f32(struct gguf_builder *b, float v)
{
        build_bytes(b, &v, sizeof(v));
}

static inline void build_string(struct gguf_builder *b, const char *s)
{
        build_u64(b, strlen(s));
        build_bytes(b, s, strlen(s));
}

static inline void build_header(struct gguf_builder *b, uint64_t n_tensors, uint64_t n_keys)
{
        build_bytes(b, "GGUF", 4);
        build_u32(b, 3);
        build_u64(b, n_tensors);
        build_u64(b, n_keys);
}

static inline void build_key(struct gguf_builder *b, const char *key, uint32_t type)
{
        build_string(b, key);
        build_u32(b, type);
}

static inline void build_key_u32(struct gguf_builder *b, const char *key, uint32_t v)
{
        build_key(b, key, VALUE_U32);
        build_u32(b, v);
}

static inline void build_key_f32(struct gguf_builder *b, const char *key, float v)
{
        build_key(b, key, VALUE_F32);
        build_f32(b, v);
}

static inline void build_key_bool(struct gguf_builder *b, const char *key, bool v)
{
        uint8_t byte = v;

        build_key(b, key, VALUE_BOOL);
        build_bytes(b, &byte, 1);
}

static inline void build_key_string(struct gguf_builder *b, const char *key, const char *v)
{
        build_key(b, key, VALUE_STRING);
        build_string(b, v);
}

static inline void build_array(struct gguf_builder *b, const char *key, uint32_t element, uint64_t n)
{
        build_key(b, key, VALUE_ARRAY);
        build_u32(b, element);
        build_u64(b, n);
}

/* Matrices have rows > 0; vectors rows = 0. Data follows in build_data(). Returns the offset behind the tensor. */
static inline uint64_t build_tensor(struct gguf_builder *b, const char *name, uint32_t type, uint64_t cols,
                                    uint64_t rows, uint64_t offset)
{
        const struct tdm_type_info *info = tdm_type_info(type);
        uint64_t size = cols * (rows ? rows : 1);

        build_string(b, name);
        build_u32(b, rows ? 2 : 1);
        build_u64(b, cols);
        if (rows)
                build_u64(b, rows);
        build_u32(b, type);
        build_u64(b, offset);
        size = info ? size / info->block_values * info->block_bytes : size;
        return TDM_ALIGN_UP(offset + size, UINT64_C(32));
}

static inline void build_data(struct gguf_builder *b, uint64_t size)
{
        size_t total = TDM_ALIGN_UP(b->size, (size_t)32) + size;

        b->data_start = total - size;
        b->capacity = total + 1;
        b->data = realloc(b->data, b->capacity);
        if (!b->data)
                abort();
        memset(b->data + b->size, 0, total - b->size);
        b->size = total;
}

static inline void build_reset(struct gguf_builder *b)
{
        free(b->data);
        *b = (struct gguf_builder){ 0 };
}

/* A memfd with these bytes. */
static inline int build_fd(const void *data, size_t size)
{
        int fd = memfd_create("gguf", MFD_CLOEXEC);

        if (fd < 0 || write(fd, data, size) != (ssize_t)size)
                abort();
        return fd;
}

static const char *const build_pieces[] = { "<pad>",
                                            "<eos>",
                                            "<bos>",
                                            "<unk>",
                                            "<start_of_turn>",
                                            "<end_of_turn>",
                                            "\n",
                                            "  ",
                                            "\xe2\x96\x81",
                                            "a",
                                            "b",
                                            "c",
                                            "\xe2\x96\x81"
                                            "a",
                                            "ab",
                                            "bc",
                                            "abc",
                                            "\xe2\x96\x81"
                                            "abc",
                                            "\xc3\xa9",
                                            "caa",
                                            "ca" };
static const int32_t build_types[] = { 3, 3, 3, 2, 3, 3, 4, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 5 };
#define BUILD_N_PIECES (256u + (uint32_t)TDM_ARRAY_SIZE(build_pieces))

/* A vocabulary: 256 byte pieces behind the named ones. 11 keys. */
#define BUILD_N_VOCAB_KEYS 11u
static inline void build_vocabulary(struct gguf_builder *b)
{
        char byte[8];

        build_key_string(b, "tokenizer.ggml.model", "llama");
        build_array(b, "tokenizer.ggml.tokens", VALUE_STRING, BUILD_N_PIECES);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(build_pieces); i++)
                build_string(b, build_pieces[i]);
        for (unsigned i = 0; i < 256; i++) {
                snprintf(byte, sizeof(byte), "<0x%02X>", i & 255u);
                build_string(b, byte);
        }
        build_array(b, "tokenizer.ggml.scores", VALUE_F32, BUILD_N_PIECES);
        for (uint32_t i = 0; i < BUILD_N_PIECES; i++)
                build_f32(b, -(float)i);
        build_array(b, "tokenizer.ggml.token_type", VALUE_I32, BUILD_N_PIECES);
        for (uint32_t i = 0; i < BUILD_N_PIECES; i++)
                build_u32(b, i < TDM_ARRAY_SIZE(build_pieces) ? (uint32_t)build_types[i] : 6u);
        build_key_u32(b, "tokenizer.ggml.bos_token_id", 2);
        build_key_u32(b, "tokenizer.ggml.eos_token_id", 1);
        build_key_u32(b, "tokenizer.ggml.unknown_token_id", 3);
        build_key_bool(b, "tokenizer.ggml.add_bos_token", true);
        build_key_bool(b, "tokenizer.ggml.add_space_prefix", false);
        build_key_u32(b, "tokenizer.ggml.padding_token_id", 0);
        build_key_string(b, "tokenizer.chat_template", "{{ '<start_of_turn>' }}");
}

struct build_shape {
        uint32_t n_layers, d, n_heads, n_kv_heads, head_dim, d_ff, n_vocab;
};

#define BUILD_N_MODEL_KEYS 11u
static inline void build_model_keys(struct gguf_builder *b, const struct build_shape *s)
{
        build_key_string(b, "general.architecture", "gemma3");
        build_key_u32(b, "gemma3.block_count", s->n_layers);
        build_key_u32(b, "gemma3.embedding_length", s->d);
        build_key_u32(b, "gemma3.attention.head_count", s->n_heads);
        build_key_u32(b, "gemma3.attention.head_count_kv", s->n_kv_heads);
        build_key_u32(b, "gemma3.attention.key_length", s->head_dim);
        build_key_u32(b, "gemma3.attention.value_length", s->head_dim);
        build_key_u32(b, "gemma3.feed_forward_length", s->d_ff);
        build_key_u32(b, "gemma3.context_length", 256);
        build_key_u32(b, "gemma3.attention.sliding_window", 16);
        build_key_f32(b, "gemma3.attention.layer_norm_rms_epsilon", 1e-6f);
}

/* The tensor table of a model; all matrices of one type. Returns the size of the data. */
static inline uint64_t build_model_tensors(struct gguf_builder *b, const struct build_shape *s, uint32_t type)
{
        uint64_t q = (uint64_t)s->n_heads * s->head_dim, kv = (uint64_t)s->n_kv_heads * s->head_dim, at = 0;
        char name[64];

        at = build_tensor(b, "token_embd.weight", type, s->d, s->n_vocab, at);
        at = build_tensor(b, "output_norm.weight", TDM_TYPE_F32, s->d, 0, at);
        for (uint32_t l = 0; l < s->n_layers; l++) {
                const struct {
                        const char *name;
                        uint64_t cols, rows;
                } tensors[] = {
                        { "attn_norm", s->d, 0 },
                        { "attn_q", s->d, q },
                        { "attn_k", s->d, kv },
                        { "attn_v", s->d, kv },
                        { "attn_output", q, s->d },
                        { "attn_q_norm", s->head_dim, 0 },
                        { "attn_k_norm", s->head_dim, 0 },
                        { "post_attention_norm", s->d, 0 },
                        { "ffn_norm", s->d, 0 },
                        { "ffn_gate", s->d, s->d_ff },
                        { "ffn_up", s->d, s->d_ff },
                        { "ffn_down", s->d_ff, s->d },
                        { "post_ffw_norm", s->d, 0 },
                };

                for (size_t i = 0; i < TDM_ARRAY_SIZE(tensors); i++) {
                        snprintf(name, sizeof(name), "blk.%u.%s.weight", l, tensors[i].name);
                        at = build_tensor(b, name, tensors[i].rows ? type : TDM_TYPE_F32, tensors[i].cols,
                                          tensors[i].rows, at);
                }
        }
        return at;
}

#define BUILD_N_MODEL_TENSORS(n_layers) (2u + 13u * (n_layers))

static const struct build_shape build_smallest = { 1, 32, 2, 1, 16, 32, BUILD_N_PIECES };

/* A whole model that is valid in every way. */
static inline void build_model(struct gguf_builder *b, const struct build_shape *s, uint32_t type)
{
        uint64_t size;

        build_header(b, BUILD_N_MODEL_TENSORS(s->n_layers), BUILD_N_MODEL_KEYS + BUILD_N_VOCAB_KEYS);
        build_model_keys(b, s);
        build_vocabulary(b);
        size = build_model_tensors(b, s, type);
        build_data(b, size);
}

#endif
