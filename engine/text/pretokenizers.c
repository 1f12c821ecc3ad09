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

/* qwen2's, but that line ends do not belong to the signs before them. */
static const struct tdm_pattern_stage seed_coder = { {
        ALTERNATIVE(CONTRACTION_ANY_CASE(1)),
        ALTERNATIVE(OPTIONAL(NOT(LINE_END | L | N)), SOME(L)),
        ALTERNATIVE(ONE(N)),
        ALTERNATIVE(OPTIONAL(SPACE), SOME(NOT(WHITE | L | N))),
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

/* \p{N} */
static const struct tdm_pattern_stage digit = { { ALTERNATIVE(ONE(N)) } };

/* [^\r\n\p{L}\p{N}]?CAPITALS*SMALL+|[^\r\n\p{L}\p{N}]?CAPITALS+SMALL*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*
 * |\s*[\r\n]+|\s+(?!\S)|\s+ */
static const struct tdm_pattern_stage tekken = { {
        ALTERNATIVE(OPTIONAL(NOT(LINE_END | L | N)), ANY(CAPITALS), SOME(SMALL)),
        ALTERNATIVE(OPTIONAL(NOT(LINE_END | L | N)), SOME(CAPITALS), ANY(SMALL)),
        ALTERNATIVE(ONE(N)),
        ALTERNATIVE(OPTIONAL(SPACE), SOME(NOT(WHITE | L | N)), ANY(LINE_END | SLASH)),
        TAIL,
} };

/* qwen2's with marks as letters. */
static const struct tdm_pattern_stage qwen35 = { {
        ALTERNATIVE(CONTRACTION_ANY_CASE(1)),
        ALTERNATIVE(OPTIONAL(NOT(LINE_END | L | N)), SOME(L | M)),
        ALTERNATIVE(ONE(N)),
        ALTERNATIVE(OPTIONAL(SPACE), SOME(NOT(WHITE | L | M | N)), ANY(LINE_END)),
        TAIL,
} };

/* What no tokenizer.json has: the stages that llama.cpp gives files without a name.
 * [\p{P}\$\+<=>\^~\|]+, gpt-2's, \p{N}+, [0-9][0-9][0-9] */
#define NOT_BACKTICK 1u
static uint8_t default_properties(uint32_t c)
{
        return c < 0x80 && c != '`' && tdm_unicode_kind(c) == TDM_ASCII_SYMBOL ? NOT_BACKTICK : 0;
}
static const struct tdm_pattern_stage default_symbols = { { ALTERNATIVE(
        { .kinds = P, .properties = NOT_BACKTICK, .min = 1, .max = TDM_PATTERN_MANY }) } };
static const struct tdm_pattern_stage default_numbers = { { ALTERNATIVE(SOME(N)) } };
static const struct tdm_pattern_stage default_digits = { { ALTERNATIVE(TIMES(BIT(ASCII_DIGIT), 3, 3)) } };

/* DeepSeek's expressions spell out ranges of characters, whatever their categories are. */
#define EAST 1u    /* [\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff] */
#define KANJI 2u   /* [\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff] */
#define LETTERS 4u /* letter_ranges */
#define SIGNS 8u   /* [!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002] */
#define WITH(property)                                                                                                 \
        {                                                                                                              \
                .properties = (property), .min = 1, .max = TDM_PATTERN_MANY                                            \
        }

/* The cased letters of a Unicode version, as the expression lists them. */
static const uint32_t letter_ranges[][2] = {
        { 0x41, 0x5a },       { 0x61, 0x7a },       { 0xb5, 0xb5 },       { 0xc0, 0xd6 },       { 0xd8, 0xf6 },
        { 0xf8, 0x1ba },      { 0x1bc, 0x1bf },     { 0x1c4, 0x293 },     { 0x295, 0x2af },     { 0x370, 0x373 },
        { 0x376, 0x377 },     { 0x37b, 0x37d },     { 0x37f, 0x37f },     { 0x386, 0x386 },     { 0x388, 0x38a },
        { 0x38c, 0x38c },     { 0x38e, 0x3a1 },     { 0x3a3, 0x3f5 },     { 0x3f7, 0x481 },     { 0x48a, 0x52f },
        { 0x531, 0x556 },     { 0x10a0, 0x10c5 },   { 0x13a0, 0x13f5 },   { 0x13f8, 0x13fd },   { 0x1c90, 0x1cba },
        { 0x1cbd, 0x1cbf },   { 0x1d00, 0x1d2b },   { 0x1d6b, 0x1d77 },   { 0x1d79, 0x1d9a },   { 0x1e00, 0x1f15 },
        { 0x1f18, 0x1f1d },   { 0x1f20, 0x1f45 },   { 0x1f48, 0x1f4d },   { 0x1f50, 0x1f57 },   { 0x1f59, 0x1f59 },
        { 0x1f5b, 0x1f5b },   { 0x1f5d, 0x1f5d },   { 0x1f5f, 0x1f7d },   { 0x1f80, 0x1fb4 },   { 0x1fb6, 0x1fbc },
        { 0x1fbe, 0x1fbe },   { 0x1fc2, 0x1fc4 },   { 0x1fc6, 0x1fcc },   { 0x1fd0, 0x1fd3 },   { 0x1fd6, 0x1fdb },
        { 0x1fe0, 0x1fec },   { 0x1ff2, 0x1ff4 },   { 0x1ff6, 0x1ffc },   { 0x2102, 0x2102 },   { 0x2107, 0x2107 },
        { 0x210a, 0x2113 },   { 0x2115, 0x2115 },   { 0x2119, 0x211d },   { 0x2124, 0x2124 },   { 0x2126, 0x2126 },
        { 0x2128, 0x2128 },   { 0x212a, 0x212d },   { 0x212f, 0x2134 },   { 0x2139, 0x2139 },   { 0x213c, 0x213f },
        { 0x2145, 0x2149 },   { 0x214e, 0x214e },   { 0x2183, 0x2184 },   { 0x2c00, 0x2c7b },   { 0x2c7e, 0x2ce4 },
        { 0x2ceb, 0x2cee },   { 0x2cf2, 0x2cf3 },   { 0xa640, 0xa66d },   { 0xa680, 0xa69b },   { 0xa722, 0xa76f },
        { 0xa771, 0xa787 },   { 0xa78b, 0xa78e },   { 0xab70, 0xabbf },   { 0xfb00, 0xfb06 },   { 0xfb13, 0xfb17 },
        { 0xff21, 0xff3a },   { 0xff41, 0xff5a },   { 0x10400, 0x1044f }, { 0x104b0, 0x104d3 }, { 0x104d8, 0x104fb },
        { 0x10c80, 0x10cb2 }, { 0x10cc0, 0x10cf2 }, { 0x118a0, 0x118df }, { 0x1e900, 0x1e943 },
};

static bool is_between(uint32_t c, uint32_t first, uint32_t last)
{
        return c >= first && c <= last;
}

static bool is_listed_letter(uint32_t c)
{
        size_t low = 0, high = TDM_ARRAY_SIZE(letter_ranges);

        while (low < high) {
                size_t middle = low + (high - low) / 2;

                if (is_between(c, letter_ranges[middle][0], letter_ranges[middle][1]))
                        return true;
                if (letter_ranges[middle][1] < c)
                        low = middle + 1;
                else
                        high = middle;
        }
        return false;
}

static uint8_t deepseek_properties(uint32_t c)
{
        bool han = is_between(c, 0x4e00, 0x9fa5);

        return (uint8_t)((han || is_between(c, 0x800, 0x4e00) || is_between(c, 0xac00, 0xd7ff) ? EAST : 0) |
                         (han || is_between(c, 0x3040, 0x30ff) ? KANJI : 0) | (is_listed_letter(c) ? LETTERS : 0) |
                         (is_between(c, '!', '/') || is_between(c, ':', '~') || is_between(c, 0xff01, 0xff0f) ||
                                          is_between(c, 0xff1a, 0xff5e) || is_between(c, 0x2018, 0x201f) ||
                                          is_between(c, 0x3000, 0x3002) ?
                                  SIGNS :
                                  0));
}

static const struct tdm_pattern_stage line_end = { { ALTERNATIVE(ONE(LINE_END)) } };
static const struct tdm_pattern_stage listed_letters = { { ALTERNATIVE(OPTIONAL(WHITE), WITH(LETTERS)) } };
static const struct tdm_pattern_stage listed_signs = { { ALTERNATIVE(OPTIONAL(WHITE), WITH(SIGNS)) } };
static const struct tdm_pattern_stage last_white = { { { .steps = { SOME(WHITE) }, .look = TDM_LOOK_END } } };
static const struct tdm_pattern_stage east = { { ALTERNATIVE(WITH(EAST)) } };
static const struct tdm_pattern_stage letters = { { ALTERNATIVE(OPTIONAL(WHITE), SOME(L)) } };
static const struct tdm_pattern_stage signs = { { ALTERNATIVE(OPTIONAL(WHITE), SOME(P)) } };
static const struct tdm_pattern_stage three_digits = { { ALTERNATIVE(TIMES(N, 1, 3)) } };
static const struct tdm_pattern_stage kanji = { { ALTERNATIVE(WITH(KANJI)) } };
/* [ASCII punctuation and symbols][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*
 * |\s*[\r\n]+|\s+(?!\S)|\s+ */
static const struct tdm_pattern_stage deepseek3 = { {
        ALTERNATIVE(ONE(BIT(ASCII_PUNCT) | BIT(ASCII_SLASH) | BIT(ASCII_SYMBOL)),
                    SOME(BIT(ASCII_UPPER) | BIT(ASCII_LOWER))),
        ALTERNATIVE(OPTIONAL(NOT(LINE_END | L | P | S)), SOME(L | M)),
        ALTERNATIVE(OPTIONAL(SPACE), SOME(P | S), ANY(LINE_END)),
        TAIL,
} };

static const struct tdm_pretokenizer pretokenizers[] = {
        { NAMES("gpt-2", "olmo", "exaone4"), .stages = { &gpt2 } },
        { NAMES("default"), .properties = default_properties,
          .stages = { &default_symbols, &gpt2, &default_numbers, &default_digits } },
        { NAMES("smollm", "starcoder", "refact"), .stages = { &digit, &gpt2 } },
        { NAMES("command-r"), .nfc = true, .stages = { &digit, &gpt2 } },
        { NAMES("llama-bpe", "llama3", "llama-v3", "lfm2"), .whole_words = true, .add_bos = true,
          .stages = { &llama3 } },
        { NAMES("smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), .stages = { &llama3 } },
        { NAMES("qwen2", "deepseek-r1-qwen"), .nfc = true, .stages = { &qwen2 } },
        { NAMES("seed-coder"), .stages = { &seed_coder } },
        { NAMES("qwen35"), .nfc = true, .stages = { &qwen35 } },
        { NAMES("gpt-4o"), .stages = { &gpt4o } },
        { NAMES("tekken"), .whole_words = true, .add_bos = true, .stages = { &tekken } },
        { NAMES("deepseek-llm"), .properties = deepseek_properties,
          .stages = { &line_end, &listed_letters, &listed_signs, &last_white, &east, &digit } },
        { NAMES("deepseek-coder"), .properties = deepseek_properties,
          .stages = { &line_end, &letters, &signs, &east, &digit } },
        { NAMES("deepseek-v3", "hunyuan-dense"), .properties = deepseek_properties,
          .stages = { &three_digits, &kanji, &deepseek3 } },
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
