"""The texts that released files are looked at with: made here, of this tree and of lists. Texts for tokenizers change
with the tree, those for numbers do not."""
import functools
import glob
import lzma
import os
import random

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SENTENCES = (  # of languages whose letters meet a tokenizer's rules in different ways
    "人工智能正在改变我们的生活方式，许多人每天都在使用它。", "今天天气很好，我们一起去公园散步吧！", "春眠不覺曉，處處聞啼鳥。", "日本語の文章には漢字とひらがなとカタカナが混ざっています。",
    "東京は2026年も人口が1400万人を超える大都市です。", "コンピューターのメモリーを増設した。", "안녕하세요, 만나서 반갑습니다. 오늘은 무엇을 도와드릴까요?",
    "서울의 지하철 2호선은 순환선이다.", "Привет, как дела? Сегодня мы идём в музей.",
    "Η γλώσσα είναι ο καθρέφτης του πολιτισμού.", "שלום עולם, מה שלומך היום?", "مرحبا بالعالم، كيف حالك اليوم؟",
    "नमस्ते दुनिया, आप कैसे हैं?", "สวัสดีชาวโลก วันนี้อากาศดีมาก", "Xin chào thế giới, hôm nay trời đẹp quá.",
    "Größe, Straße, naïve café, über, Œuvre, smørrebrød, żółć.", "Türkçe'de İ ile ı ayrı harflerdir.",
    "ქართული ენა ძალიან ლამაზია.", "Ձայնավորներ և բաղաձայններ:", "தமிழ் மொழி மிகவும் பழமையானது.",
    "ཨོཾ་མ་ཎི་པདྨེ་ཧཱུྃ")
EMOJI = (
    "👍🏽", "👩‍👩‍👧‍👦", "🇨🇭", "😀", "❤️", "🏳️‍🌈", "1️⃣", "☕", "🤷🏿‍♀️", "✓", "→", "∑", "√2", "½", "²", "ﬁ", "e\u0301",
    "\u200b", "\u00a0", "\u3000", "…", "—", "“q”", "‰", "𝔘𝔫𝔦", "𐍈", "\ufeff", "\u2028", "\x07", "\x00")
MARKUP = (
    "<p class=\"a\">{}</p>", "## {}\n\n- one\n- two\n", "**{}** _{}_", "[{}](https://example.org/a?b=c&d=%20)",
    "| {} | {} |\n|---|---|", "<!-- {} -->", "{{\"key\": \"{}\", \"n\": [1, 2.5e-3, null]}}",
    "\\begin{{equation}} {} \\end{{equation}}", "&lt;{}&gt;&amp;", "```py\n{}\n```",
    "<b><i>{}</i></b><br/>\n\t<td>  {}</td>", "&nbsp;{}&#x27;")


@functools.lru_cache(None)
def tales():
    with lzma.open(os.path.join(TREE, "tests", "golden", "tales-tail.txt.xz"), "rt", encoding="utf-8") as f:
        return f.read()


@functools.lru_cache(None)
def sources():
    out = []
    for pattern in ("engine/text/*.c", "client-lib/cli/*.c", "tests/lib/*.py", "gpu-worker/vulkan/shaders/ffn/*",
                    "docs/*.md", "CMakeLists.txt"):
        for path in sorted(glob.glob(os.path.join(TREE, pattern))):
            with open(path, encoding="utf-8") as f:
                out.append(f.read())
    return "\n".join(out)


def piece(draw, text, least, most):
    n = draw.randint(least, most)
    at = draw.randrange(max(1, len(text) - n))
    return text[at:at + n]


def numbers(draw):
    n = draw.randrange
    forms = (lambda: str(n(10 ** draw.randint(1, 20))), lambda: f"{draw.uniform(-1e6, 1e6):,.3f}",
             lambda: f"{n(1 << 48):#x}", lambda: f"{n(1900, 2100)}-{n(1, 13):02}-{n(1, 29):02}",
             lambda: f"{n(24)}:{n(60):02}:{n(60):02}", lambda: f"{draw.random():.2e}", lambda: f"{n(100)}%",
             lambda: "٠١٢٣٤٥٦٧٨٩"[:draw.randint(1, 10)], lambda: "１２３４５"[:draw.randint(1, 5)],
             lambda: f"+41 {n(10)}{n(10)} 555 01 {n(100):02}")
    return draw.choice((" ", ", ", "", "\n", "\t", "  ")).join(draw.choice(forms)() for _ in range(draw.randint(1, 12)))


SPACES = (" ", "  ", "\n", "\r\n", "\t", "\n\n\n", "x", " y", ".", "'s", "'LL", "I'm", " \n", "\n ")
WORDS = ("camelCase", "HTTPServer2", "snake_case_x", "don’t", "WE'VE", "$x", "@y", "#z", "a/b\\c", "e.g.", "U.S.A.",
         "C++", "--flag=1", "~/.x", "foo()")
REPEATED = ("a", "ab", "!", "=", " ", "\n", "é", "好", "-", "9", "aA", "_")
LETTERS = ((32, 0x250), (0x370, 0x2000), (0x2e80, 0xd800), (0x1f000, 0x1fb00))  # any but surrogates


def odd(draw):
    """White space, repetitions, letters of anywhere, words that rules cut."""
    kind = draw.randrange(4)
    if kind == 0:
        return "".join(draw.choice(SPACES) for _ in range(draw.randint(1, 40)))
    if kind == 1:
        return draw.choice(REPEATED) * draw.randint(1, 200)
    if kind == 2:
        return "".join(chr(draw.randrange(*draw.choice(LETTERS))) for _ in range(draw.randint(1, 30)))
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 15)))


def plain_texts(n):
    """n texts of all kinds; what looks like a marker in them is text."""
    draw, out = random.Random(55), []
    kinds = (lambda: piece(draw, tales(), 20, 1500), lambda: piece(draw, sources(), 20, 1500),
             lambda: draw.choice(("", " ", "\n")).join(draw.choice(SENTENCES) for _ in range(draw.randint(1, 6))),
             lambda: draw.choice(("", " ")).join(draw.choice(EMOJI + ("a", "text ", "1"))
                                                 for _ in range(draw.randint(1, 15))),
             lambda: numbers(draw), lambda: draw.choice(MARKUP).replace("{}", piece(draw, tales(), 1, 80)),
             lambda: odd(draw),
             lambda: f"<start_of_turn>user\n{piece(draw, tales(), 5, 100)}<end_of_turn>\n<|im_start|>x<|im_end|>"
                     "<bos></s><unk><0x0A><|endoftext|>")
    while len(out) < n:
        out.append(kinds[len(out) % len(kinds)]())
    return out


def marked_texts(n, begin, end):
    """n chats as a template writes them: what looks like a marker is one."""
    draw, out = random.Random(56), []
    for _ in range(n):
        turns = []
        for i in range(draw.randint(1, 5)):
            words = draw.choice((piece(draw, tales(), 0, 300), draw.choice(SENTENCES), piece(draw, sources(), 0, 300),
                                 numbers(draw), odd(draw), ""))
            who = ("user", "model" if "turn" in begin else "assistant")[i % 2]
            turns.append(begin + who + "\n" + words + draw.choice(("", " ", "\n")) + end + "\n")
        out.append("".join(turns))
    return out


CODE = """#include <stdio.h>
#include <stdlib.h>

struct node {
        struct node *left, *right;
        int key;
};

/* Inserts a key unless the tree has it. Returns the new root, or NULL when memory ran out. */
static struct node *insert(struct node *root, int key)
{
        if (!root) {
                root = calloc(1, sizeof(*root));
                if (root)
                        root->key = key;
                return root;
        }
        if (key < root->key)
                root->left = insert(root->left, key);
        else if (key > root->key)
                root->right = insert(root->right, key);
        return root;
}

def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2

SELECT name, COUNT(*) AS orders FROM customers JOIN orders ON customers.id = orders.customer
WHERE orders.date >= '2026-01-01' GROUP BY name HAVING orders > 3 ORDER BY orders DESC LIMIT 10;
"""


def pieces(n):
    """n texts of several hundred letters for numbers, which do not change with the tree: tales, code, languages."""
    draw = random.Random(57)
    kinds = (lambda: piece(draw, tales(), 600, 600), lambda: piece(draw, CODE, 400, 400),
             lambda: "".join(draw.sample(SENTENCES, 8)))
    return [kinds[i % 3]() for i in range(n)]


QUESTIONS = """What is the capital of France?
What is 2+2?
Write a haiku about the sea.
Who wrote Romeo and Juliet?
Explain gravity in one sentence.
List three primary colors.
Translate 'good morning' into French.
What is the boiling point of water in Celsius?
Write a Python function that adds two numbers.
Name a mammal that can fly.
Why is the sky blue?
Give me a recipe for pancakes.
What is the largest planet in our solar system?
How do I boil an egg?
What is photosynthesis?
Tell me a short joke.
What does HTML stand for?
Who was the first person on the moon?
Summarize the story of Cinderella in two sentences.
What is the opposite of hot?
How many days are there in a leap year?
Write a short poem about autumn.
What is the square root of 144?
Name three countries in South America.
What is machine learning?
Give two synonyms for happy.
Correct this sentence: 'She go to school yesterday.'
What is the chemical symbol for gold?
How do plants drink water?
What is a noun?
Write a polite email asking for a day off.
What are the benefits of exercise?
Convert 10 miles to kilometers.
What is the currency of Japan?
Explain recursion to a child.
What is the tallest mountain on Earth?
Name five fruits.
How does a bicycle stay upright?
What year did World War II end?
Write one sentence with the word 'umbrella'.
What is DNA?
Is a tomato a fruit or a vegetable?
What is the speed of light?
Give me a name for a cat.
How do I say 'thank you' in Spanish?
What is an atom made of?
Write a SQL query that selects all users.
What causes tides?
What should I pack for a trip to the beach?
Finish the sentence: 'Once upon a time'""".splitlines()
