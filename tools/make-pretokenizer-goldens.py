#!/usr/bin/env python3
"""Write tests/golden/tokens/pretokenizers.cuts: where the original expressions cut texts into words.

usage: tools/make-pretokenizer-goldens.py [--random N] [--seed S] [--out FILE]

The expressions are those of the models' own tokenizer.json, run by the module regex (Debian: python3-regex, Unicode
15.0), each stage over the words of the one before: what matches and what lies between are words. A pre-tokenizer that
is added to engine/text/pretokenizers.c is added here. N random texts (200) come on top of those in the list.
"""
import argparse
import os
import random
import sys
import unicodedata

import regex

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "tokens",
                   "pretokenizers.cuts")
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
CAPITALS, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The class of cased letters that the expression of deepseek-llm spells out.
LETTER_RANGES = (
    "41-5A 61-7A B5-B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F-37F "
    "386-386 388-38A 38C-38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD "
    "1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 "
    "1F59-1F59 1F5B-1F5B 1F5D-1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE-1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 "
    "1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102-2102 2107-2107 210A-2113 2115-2115 2119-211D 2124-2124 "
    "2126-2126 2128-2128 212A-212D 212F-2134 2139-2139 213C-213F 2145-2149 214E-214E 2183-2184 2C00-2C7B "
    "2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 "
    "FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 "
    "118A0-118DF 1E900-1E943")
DEEPSEEK_LETTERS = "".join(r"\U%08X-\U%08X" % tuple(int(x, 16) for x in r.split("-"))
                           for r in LETTER_RANGES.split())
EAST = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
PRE = {
    "gpt-2": [GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL],
    "smaug-bpe": [CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL],
    "qwen2": [CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL],
    "seed-coder": [CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + TAIL],
    "qwen35": [CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + TAIL],
    "gpt-4o": [rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}*{SMALL}+{CONTRACTION}?"
               rf"|[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}+{SMALL}*{CONTRACTION}?"
               r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL],
    "tekken": [rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}*{SMALL}+|[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}+{SMALL}*"
               r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL],
    "deepseek-llm": [r"[\r\n]", rf"\s?[{DEEPSEEK_LETTERS}]+",
                     r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$",
                     EAST, r"\p{N}"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                    r"| ?[\p{P}\p{S}]+[\r\n]*" + TAIL],
}
# The same expressions under other names.
for alias, name in (("olmo", "gpt-2"), ("exaone4", "gpt-2"), ("dbrx", "llama-bpe"), ("glm4", "llama-bpe"),
                    ("chatglm-bpe", "llama-bpe"), ("command-r", "smollm"),
                    ("hunyuan-dense", "deepseek-v3")):
    PRE[alias] = PRE[name]
TEXTS = [
    "", " ", "  ", "   a", "Hello world", "  Hello   world  ", "Hello\nworld", "\n\n\n \n x", "a\r\nb\rc\nd",
    "\ta\t\tb", " \t \n \r\n x", "x   \n   y", "trailing   ", "trailing \n", "\u00a0x\u00a0\u00a0y", "\u3000全角\u3000",
    "a\u2003b\u2009 c", "\u0085x\u2028y\u2029z", "\u200bzero\u200dwidth\ufeff", "a\u00adb", "1234567", "3.14159 x86_64",
    "1 2  3", "a1 b22  c333   4444", "²³½Ⅷ ٣٤٥٦٧ १२३४", "0x1F 1e-10", "\x1c\x1d x\x1ey\x1f", "\u180ex\u180e y",
    "I'm you're he's we've they'll I'd can't", "I'M YOU'RE HE'S WE'VE", "'s 'S 'll 'LL 'rE", "it’s ''s '' '1 'sa",
    "USA's JOHN'S McDonald's", "\u017fee 'ſ x'ſ y'\u017fz", "'\u212aelvin", "日本語のテキスト、中文。", "カタカナ・ひらがな ー",
    "안녕하세요 세계", "한\u1100\u1161국", "مرحبا بالعالم، كيف؟", "שָׁלוֹם עוֹלָם", "สวัสดีชาวโลก",
    "हिन्दी में नमस्ते", "தமிழ் বাংলা", "ÉCOLE École ÉcOle",
    "Straße GROẞ ΑΒΓ αβγ Σσς", "ǅungla ʰa ªº", "cafe\u0301 vs café", "a\u0301\u0302\u0303b \u0301x", "e\u0301\u0323",
    "👍🏽 ok 👨‍👩‍👧‍👦", "❤️ ✓ a👍b", "𝔘𝔫𝔦 𝟏𝟐𝟑 \U00010348", "!!!??? ... foo(bar); a+b=c",
    "http://example.com/a/b?c=d", "/usr/bin/\n", "//\n/\n//", "*** \n", "`code` **bold** $x^2$ <b> a|b ~",
    "“curly” «g» …—–",
    "    if x:\n        return 1\n\n\n", " " * 33, "a" + " " * 40 + "b", "=" * 20, "ab" * 20, "\n" * 9,
    "HELLOworld parseXML",
    "CamelCaseHTTPServer iPhone", "x\x00y \x1b[0m", "\ufffd", "ﬁ Å \u212b Ω \u2126",
    "\u0344\u0958\U0001d160\ufb2c", "한글 각 \u1112\u1161\u11ab",
]
ALPHABETS = [
    "ab AB'sdtre\n", " \t\r\n\u00a0\u3000x1", "aBcD'SLlMm \u0301\u0304é", "0123456789٣½ a.", "!/.,$+<=>^~|` \nxX1",
    "漢字かカナ・ー、。 aA1", "한글\u1100\u1161\u11a8 a", "\u0e2a\u0e27\u0e31\u0e2a \u0939\u093f\u0928\u094d a",
    "\u0301\u0323\u0327\u0345\u0344aoAO\u212b\u00c5", "ǅʰªaA\u02b0 'll'LL\u017f", "\x00\x1c\x7f\u0085\u200b\ufeff a",
    "Ｆullｗidth！／：１ ‘’‟", "\U00010400\U00010428\U0001f600\U0001f3fd a1",
    "\u0378\u07bf\u0800\u4e00\u9fa5\u9fa6\ud7ff\uac00 x",
]


def escape(text):
    names = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(names.get(c) or (c if 0x20 < ord(c) < 0x7f or ord(c) > 0xa0 and c.isprintable() and
                                    not unicodedata.combining(c) or c == " "
                                    else "".join(f"\\x{b:02x}" for b in c.encode())) for c in text)


def words(stages, text):
    parts = [text] if text else []
    for stage in stages:
        out = []
        for part in parts:
            at = 0
            for m in regex.finditer(stage, part):
                if m.start() > at:
                    out.append(part[at:m.start()])
                if m.end() > m.start():
                    out.append(m.group())
                at = m.end()
            if at < len(part):
                out.append(part[at:])
        parts = out
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default=OUT)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    texts = TEXTS + ["".join(draw.choice(draw.choice(ALPHABETS) if draw.random() < 0.2 else alphabet)
                             for _ in range(draw.randint(1, 40)))
                     for alphabet in (draw.choice(ALPHABETS) for _ in range(args.random))]
    with open(args.out, "w", encoding="utf-8") if args.out != "-" else sys.stdout as f:
        f.write("# Generated by tools/make-pretokenizer-goldens.py: do not edit. The bytes of the words of each text;\n"
                "# nfc: the text in normalization form C, where that differs.\n")
        for text in texts:
            f.write(f"text {escape(text)}\n")
            if unicodedata.normalize("NFC", text) != text:
                f.write(f"nfc {escape(unicodedata.normalize('NFC', text))}\n")
            for name, stages in PRE.items():
                cut = words(stages, text)
                assert "".join(cut) == text
                f.write(f"{name} {' '.join(str(len(w.encode())) for w in cut)}\n")


main()
