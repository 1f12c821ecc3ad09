/* Shared by the files of engine/model: keys.c has the table of hyperparameters, model.c describes a file, and each
 * architecture is a file of its own. */
#ifndef TDM_ENGINE_MODEL_PRIVATE_H
#define TDM_ENGINE_MODEL_PRIVATE_H

#include "engine/model/model.h"

#define TDM_WIDTH_MAX 65536u
/* Gemma 4 has 512. Tables of angles are made of it and of the context, by each worker while it loads. */
#define TDM_HEAD_DIM_MAX 1024u
#define TDM_VOCAB_MAX (1u << 21)

/* ---- keys.c ---- */

/* The rows of the table, in the order in which they are read. */
enum tdm_key_id {
        TDM_KEY_N_LAYERS,
        TDM_KEY_D_MODEL,
        TDM_KEY_N_CTX,
        TDM_KEY_N_VOCAB,
        TDM_KEY_N_HEADS,
        TDM_KEY_N_KV_HEADS,
        TDM_KEY_HEAD_DIM,
        TDM_KEY_D_FF,
        TDM_KEY_WINDOW,
        TDM_KEY_NORM_EPS,
        TDM_KEY_EMBED_SCALE,
        TDM_KEY_LOGIT_SOFTCAP,
        TDM_KEY_ROPE_BASE,
        TDM_KEY_ROPE_BASE_WINDOW,
        TDM_KEY_ROPE_FACTOR_OLD,
        TDM_KEY_ROPE_FACTOR,
        TDM_KEY_ROPE_DIMS,
        TDM_KEY_QUERY_SCALE,
        TDM_KEY_ATTENTION_SOFTCAP,
        TDM_KEY_N_EXPERTS,
        TDM_KEY_N_EXPERTS_USED,
        TDM_KEY_D_EXPERT,
        TDM_KEY_CAUSAL,
        TDM_N_KEYS
};

/* An architecture: data, and what data cannot say. It is listed at the end of this file. */
struct tdm_architecture {
        const char *name;          /* as general.architecture has it; keys begin with it */
        uint32_t follows;          /* bits of enum tdm_key_id: keys that it has beyond those of every architecture */
        uint32_t fused;            /* bits of enum tdm_fused: tensors that its files may have as one */
        const char *const *reads;  /* keys of unfollowed.c that it reads itself, then NULL; NULL: none */
        bool follows_second_sizes; /* those of sliding layers, shared keys and layers' inputs (unfollowed.c) */
        bool has_only_experts;     /* no layer has a dense FFN: its files may lack feed_forward_length */
        bool layers_may_differ;    /* its files may have arrays where others have one number for all layers */
        /* The sizes have been read. Makes the recipe, with the defaults of the keys that it follows. */
        int (*begin)(const struct tdm_gguf *gguf, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                     struct tdm_error *err);
        /* All keys have been read. NULL: nothing is left to do. */
        int (*end)(const struct tdm_gguf *gguf, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                   struct tdm_error *err);
};

/* Reads the keys that every architecture has into hp: sizes, with every layer's keys and values its own. */
int tdm_keys_read_sizes(const struct tdm_gguf *gguf, const struct tdm_architecture *architecture,
                        struct tdm_hparams *hp, struct tdm_error *err);
/* Reads the keys that the architecture follows where the file has them, and refuses those that it does not follow
 * unless their value changes nothing. */
int tdm_keys_read_recipe(const struct tdm_gguf *gguf, const struct tdm_architecture *architecture,
                         struct tdm_hparams *hp, struct tdm_recipe *recipe, struct tdm_error *err);
/* The ranges of all numbers for which the table has a row. TDM_E_BAD_MODEL. */
int tdm_keys_check_sizes(const struct tdm_hparams *hp, struct tdm_error *err);
int tdm_keys_check_recipe(const struct tdm_recipe *recipe, const struct tdm_hparams *hp, struct tdm_error *err);

/* Keys for which there is no row, because one architecture alone has them. key: without the architecture's name. *ret
 * is left alone where the file has no such key. */
int tdm_key_get_u32(const struct tdm_gguf *gguf, const char *architecture, const char *key, uint32_t *ret,
                    struct tdm_error *err);
int tdm_key_get_bool(const struct tdm_gguf *gguf, const char *architecture, const char *key, bool *ret,
                     struct tdm_error *err);
int tdm_key_get_float(const struct tdm_gguf *gguf, const char *architecture, const char *key, float *ret,
                      struct tdm_error *err);

/* ---- checks, and words of messages ---- */

int tdm_check_u32(struct tdm_error *err, const char *what, uint32_t v, uint32_t min, uint32_t max);
int tdm_check_float(struct tdm_error *err, const char *what, float v, double min, double max);
/* A file's string for a message: printable, of bounded length. */
const char *tdm_quote(struct tdm_gguf_string s, char buffer[static 64]);
bool tdm_string_is(struct tdm_gguf_string s, const char *text);

/* ---- what several architectures share (plain.c) ---- */

/* A model without norms after its blocks: SiLU, scores divided by the root of the head's size, one RoPE of whole heads,
 * a plain residual. norms: those of TDM_NORM_Q and TDM_NORM_K that it has. Biases and divisors of RoPE are those that
 * the file has. */
void tdm_plain_recipe(const struct tdm_gguf *gguf, const char *architecture, const struct tdm_hparams *hp,
                      enum tdm_rope_style style, uint32_t norms, struct tdm_recipe *ret);
/* The same for models without windows: refuses one. biases: those that every model of the architecture has (enum
 * tdm_bias), so that a file without them is one that was cut. */
int tdm_plain_begin(const struct tdm_gguf *gguf, const char *architecture, struct tdm_hparams *hp,
                    enum tdm_rope_style style, uint32_t norms, uint32_t biases, struct tdm_recipe *recipe,
                    struct tdm_error *err);
/* For architectures whose only RoPE is scaled as the file says: nothing else is left to do in the end. */
int tdm_plain_end(const struct tdm_gguf *gguf, struct tdm_hparams *hp, struct tdm_recipe *recipe,
                  struct tdm_error *err);
/* The keys that tdm_plain_recipe() gives defaults for. */
#define TDM_PLAIN_KEYS                                                                                                 \
        (1u << TDM_KEY_ROPE_BASE | 1u << TDM_KEY_ROPE_FACTOR_OLD | 1u << TDM_KEY_ROPE_FACTOR |                         \
         1u << TDM_KEY_ROPE_DIMS | 1u << TDM_KEY_QUERY_SCALE)
/* After all keys have been read: how the file scales its first RoPE, none, linear or YaRN. Where it says nothing the
 * scaling that the recipe has holds. */
int tdm_rope_read_scaling(const struct tdm_gguf *gguf, const char *architecture, const struct tdm_hparams *hp,
                          struct tdm_rope_recipe *rope, struct tdm_error *err);
/* Which of the biases in mask (enum tdm_bias) the file has in this layer. */
uint32_t tdm_biases_of_file(const struct tdm_gguf *gguf, uint32_t layer, uint32_t mask);
/* Refuses a number that changes the result unless it is `neutral`; key: without the architecture's name. */
int tdm_refuse_other(const struct tdm_gguf *gguf, const char *architecture, const char *key, float neutral,
                     struct tdm_error *err);
/* Refuses keys that would change the result and that no architecture follows, unless their values change nothing. */
int tdm_refuse_unfollowed(const struct tdm_gguf *gguf, const struct tdm_architecture *architecture,
                          const struct tdm_hparams *hp, const struct tdm_recipe *recipe, struct tdm_error *err);
/* Checks the experts whose numbers were read from keys, and gives every layer the width that it then has. Its router is
 * the recipe's unless keys ask for another. */
int tdm_experts_of_file(const struct tdm_gguf *gguf, const char *architecture, struct tdm_hparams *hp,
                        struct tdm_recipe *recipe, struct tdm_error *err);
/* The same where the first n_dense layers have a dense FFN in place of experts. */
int tdm_experts_behind_dense(const struct tdm_gguf *gguf, const char *architecture, uint32_t n_dense,
                             struct tdm_hparams *hp, struct tdm_recipe *recipe, struct tdm_error *err);
/* The same where layers may have a shared expert. Where the file says nothing of its width, the recipe's first layer
 * holds; 0: there is none. is_gated: it is scaled by a gate. */
int tdm_experts_with_shared(const struct tdm_gguf *gguf, const char *architecture, bool is_gated,
                            struct tdm_hparams *hp, struct tdm_recipe *recipe, struct tdm_error *err);
/* Refuses keys that ask for experts of another kind. */
int tdm_experts_refuse_others(const struct tdm_gguf *gguf, const char *architecture, struct tdm_error *err);
/* What keys say of the router (enum tdm_router). Where they say nothing, what *ret is holds, and else the softmax of
 * the chosen ones. A sigmoid is the architecture's own: keys that say otherwise are refused. */
int tdm_experts_read_router(const struct tdm_gguf *gguf, const char *architecture, uint32_t *ret,
                            struct tdm_error *err);
/* The keys of experts. */
#define TDM_EXPERT_KEYS (1u << TDM_KEY_N_EXPERTS | 1u << TDM_KEY_N_EXPERTS_USED | 1u << TDM_KEY_D_EXPERT)
/* Refuses a window that hides a key of any position: for architectures whose makers mean none. */
int tdm_refuse_window(const char *architecture, struct tdm_hparams *hp, struct tdm_error *err);

/* ---- what Gemma 3, 3n and 4 share (gemma.c) ---- */

enum { TDM_GEMMA_ROPE_FULL, TDM_GEMMA_ROPE_WINDOW, TDM_GEMMA_N_ROPES }; /* of the recipe */

/* Also gpt-oss: takes the window from the layers that see everything. every: n where the file does not say that each
 * n-th does. */
int tdm_gemma_read_windows(const struct tdm_gguf *gguf, const char *architecture, uint32_t every,
                           struct tdm_hparams *hp, struct tdm_error *err);
int tdm_gemma_share_kv(const char *architecture, uint32_t n_shared, struct tdm_hparams *hp, struct tdm_error *err);
/* Norms everywhere but of values, GELU, whole heads turned, scores not scaled, a plain residual. */
void tdm_gemma_recipe(const char *architecture, const struct tdm_hparams *hp, struct tdm_recipe *ret);
/* Reads the keys that Ollama's converter names otherwise. The usual keys are read later and win. */
int tdm_gemma_read_other_names(const struct tdm_gguf *gguf, const char *architecture, struct tdm_recipe *recipe,
                               struct tdm_error *err);
/* Refuses RoPE of a part of each head. */
int tdm_gemma_check_rope(const struct tdm_hparams *hp, const struct tdm_recipe *recipe, struct tdm_error *err);

/* ---- architectures ---- */

/* A file of this folder defines each as tdm_architecture_<name>. */
#define TDM_ARCHITECTURES(X)                                                                                           \
        X(gemma2)                                                                                                      \
        X(gemma3)                                                                                                      \
        X(gemma3n)                                                                                                     \
        X(gemma4)                                                                                                      \
        X(gemma_embedding)                                                                                             \
        X(llama)                                                                                                       \
        X(qwen2)                                                                                                       \
        X(qwen3)                                                                                                       \
        X(qwen2moe)                                                                                                    \
        X(qwen3moe)                                                                                                    \
        X(gpt_oss)                                                                                                     \
        X(gptoss)                                                                                                      \
        X(smollm3)                                                                                                     \
        X(seed_oss)                                                                                                    \
        X(granite)                                                                                                     \
        X(granitemoe)                                                                                                  \
        X(phi3)                                                                                                        \
        X(glm4)                                                                                                        \
        X(hunyuan_dense)                                                                                               \
        X(exaone4)                                                                                                     \
        X(olmo2)                                                                                                       \
        X(olmoe)                                                                                                       \
        X(lfm2)                                                                                                        \
        X(lfm2moe)                                                                                                     \
        X(mistral3)                                                                                                    \
        X(qwen35)                                                                                                      \
        X(qwen35moe)                                                                                                   \
        X(qwen3next)                                                                                                   \
        X(bert)                                                                                                        \
        X(command_r)                                                                                                   \
        X(cohere2)

#define TDM_DECLARE_ARCHITECTURE(name) extern const struct tdm_architecture tdm_architecture_##name;
TDM_ARCHITECTURES(TDM_DECLARE_ARCHITECTURE)

#endif
