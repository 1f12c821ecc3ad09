/* The pre-tokenizers, each a row with the regular expressions of the original tokenizer.json.
 *
 * \s is the property White_Space. Patterns read as the expressions do: OPTIONAL is ?, SOME is +, ANY is *. */
#include "engine/text/pretokenize.h"

#include <string.h>
#include "common/util.h"
#include "engine/text/unicode.h"

#define BIT(kind) (1u << TDM_##kind)
#define ALL ((1u << TDM_UNICODE_N_KINDS) - 1)
#define NOT(kinds) (ALL & ~(kinds))
#define UPPER (BIT(UNICODE_UPPER) | BIT(ASCII_UPPER))
#define LOWER (BIT(UNICODE_LOWER) | BIT(ASCII_LOWER))
#define L (UPPER | LOWER | BIT(UNICODE_LETTER))
#define M BIT(UNICODE_MARK)
#define N (BIT(UNICODE_NUMBER) | BIT(ASCII_DIGIT))
#define P (BIT(UNICODE_PUNCT) | BIT(ASCII_PUNCT) | BIT(ASCII_SLASH))
#define S (BIT(UNICODE_SYMBOL) | BIT(ASCII_SYMBOL))
#define SPACE BIT(ASCII_SPACE)
#define LINE_END (BIT(ASCII_CR) | BIT(ASCII_LF))
#define WHITE (BIT(UNICODE_WHITE) | SPACE | LINE_END)
#define SLASH BIT(ASCII_SLASH)
/* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
#define CAPITALS (UPPER | BIT(UNICODE_LETTER) | M)
#define SMALL (LOWER | BIT(UNICODE_LETTER) | M)

#define TIMES(k, low, high)                                                                                            \
        {                                                                                                              \
                .kinds = (k), .min = (low), .max = (high)                                                              \
        }
#define ONE(k) TIMES(k, 1, 1)
#define OPTIONAL(k) TIMES(k, 0, 1)
#define SOME(k) TIMES(k, 1, TDM_PATTERN_MANY)
#define ANY(k) TIMES(k, 0, TDM_PATTERN_MANY)
#define CONTRACTION(low)                                                                                               \
        {                                                                                                              \
                .contraction = TDM_CONTRACTION, .min = (low), .max = 1                                                 \
        }
#define CONTRACTION_ANY_CASE(low)                                                                                      \
        {                                                                                                              \
                .contraction = TDM_CONTRACTION_ANY_CASE, .min = (low), .max = 1                                        \
        }
#define ALTERNATIVE(...)                                                                                               \
        {                                                                                                              \
                .steps = { __VA_ARGS__ }                                                                               \
        }
/* \s+(?!\S) */
#define WHITE_BEFORE_WHITE                                                                                             \
        {                                                                                                              \
                .steps = { SOME(WHITE) }, .look = TDM_LOOK_NO_TEXT                                                     \
        }
/* |\s*[\r\n]+|\s+(?!\S)|\s+ */
#define TAIL ALTERNATIVE(ANY(WHITE), SOME(LINE_END)), WHITE_BEFORE_WHITE, ALTERNATIVE(SOME(WHITE))
#define NAMES(...)                                                                                                     \
        (const char *const[])                                                                                          \
        {                                                                                                              \
                __VA_ARGS__, NULL                                                                                      \
        }

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
 * |\s*[\r\n]+|\s+(?!\S)|\s+ */
static const struct tdm_pattern_stage llama3 = { {
        ALTERNATIVE(CONTRACTION_ANY_CASE(1)),
        ALTERNATIVE(OPTIONAL(NOT(LINE_END | L | N)), SOME(L)),
        ALTERNATIVE(TIMES(N, 1, 3)),
        ALTERNATIVE(OPTIONAL(SPACE), SOME(NOT(WHITE | L | N)), ANY(LINE_END)),
        TAIL,
} };

/* The same with \p{N}. */
static const struct tdm_pattern_stage qwen2 = { {
        ALTERNATIVE(CONTRACTION_ANY_CASE(1)),
        ALTERNATIVE(OPTIONAL(NOT(LINE_END | L | N)), SOME(L)),
        ALTERNATIVE(ONE(N)),
        ALTERNATIVE(OPTIONAL(SPACE), SOME(NOT(WHITE | L | N)), ANY(LINE_END)),
        TAIL,
} };

/* With CAPITALS and SMALL:
 * [^\r\n\p{L}\p{N}]?CAPITALS*SMALL+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
 * |[^\r\n\p{L}\p{N}]?CAPITALS+SMALL*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
 * |\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static const struct tdm_pattern_stage gpt4o = { {
        ALTERNATIVE(OPTIONAL(NOT(LINE_END | L | N)), ANY(CAPITALS), SOME(SMALL), CONTRACTION_ANY_CASE(0)),
        ALTERNATIVE(OPTIONAL(NOT(LINE_END | L | N)), SOME(CAPITALS), ANY(SMALL), CONTRACTION_ANY_CASE(0)),
        ALTERNATIVE(TIMES(N, 1, 3)),
        ALTERNATIVE(OPTIONAL(SPACE), SOME(NOT(WHITE | L | N)), ANY(LINE_END | SLASH)),
        TAIL,
} };

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static const struct tdm_pattern_stage gpt2 = { {
        ALTERNATIVE(CONTRACTION(1)),
        ALTERNATIVE(OPTIONAL(SPACE), SOME(L)),
        ALTERNATIVE(OPTIONAL(SPACE), SOME(N)),
        ALTERNATIVE(OPTIONAL(SPACE), SOME(NOT(WHITE | L | N))),
        WHITE_BEFORE_WHITE,
        ALTERNATIVE(SOME(WHITE)),
} };

static const struct tdm_pretokenizer pretokenizers[] = {
        { NAMES("gpt-2"), .stages = { &gpt2 } },
        { NAMES("llama-bpe", "llama3", "llama-v3"), .whole_words = true, .add_bos = true, .stages = { &llama3 } },
        { NAMES("qwen2"), .nfc = true, .stages = { &qwen2 } },
        { NAMES("gpt-4o"), .stages = { &gpt4o } },
};

const struct tdm_pretokenizer *tdm_pretokenizer_at(size_t i)
{
        return i < TDM_ARRAY_SIZE(pretokenizers) ? &pretokenizers[i] : NULL;
}

const struct tdm_pretokenizer *tdm_pretokenizer_find(const char *name, size_t size)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(pretokenizers); i++) {
                for (const char *const *n = pretokenizers[i].names; *n; n++) {
                        if (strlen(*n) == size && memcmp(*n, name, size) == 0)
                                return &pretokenizers[i];
                }
        }
        return NULL;
}
