# SPDX-License-Identifier: Apache-2.0
"""Fragments from which the mixed test text is composed, and the generator itself.

The same generator stands in tests/unit/text/mixed_text_util.cpp; both must give the same bytes for (seed, index).
"""
import unicodedata

MASK = (1 << 64) - 1

FRAGMENTS = """
the|of|and|to|in|that|it|was|he|his|with|for|as|had|you|not|be|her|on|at|by|which|have|or|from|this|but|all|she|they|were
Moebius|strip|half-twist|surface|orientable|checkpoint|tensor|expert|router|quantized|activation|tokenizer|vocabulary
I'm|you're|we've|they'll|don't|it's|he'd|I'M|DON'T|IT'S|o'clock|rock'n'roll|'tis|’twas|l’été|'S|'ſ|x'LLy
Once upon a time, there was a small river.|What is 2+2? It is 4!|"Quoted text," she said.|Mr. Smith's dog; Dr. Jones: yes.
internationalization|antidisestablishmentarianism|camelCaseIdentifier|snake_case_name|SCREAMING_CASE|HTTPServerError|XMLHttpRequest2
def add(a, b):|    return a + b|for (int i = 0; i < n; ++i) {|  x[i] *= 0.5f;|}|#include <vector>|std::vector<int> v{1, 2, 3};|fn main() { println!("{}", 42); }
SELECT * FROM t WHERE id = 7;|<div class="row"><p>text</p></div>|{"key": [1, 2.5, null], "b": true}|https://example.org/path?q=1&r=%20#top|C:\\Users\\me\\file.txt|$ ls -la /usr/lib|git commit -m 'fix'|a := b->c()|x = y if z else w
0|1|12|123|1234|3.14159|1,000,000|0x7fff|1e-9|2024-11-15|12:34:56|+49 30 1234567|½|²|Ⅷ|٣٤٥|१२३|①②③|𝟘𝟙𝟚
你好，世界。|今天天气很好|模型的专家|漢字とかな|ひらがな|カタカナ|ｶﾀｶﾅ|東京タワーへ行きました。|안녕하세요 세계|한국어 문장입니다.|각|中文English混排123|「引用」|、。！？
Привет, мир!|Съешь ещё этих мягких булок|Γειά σου Κόσμε|Καλημέρα|Zażółć gęślą jaźń|Füße über Äpfel|naïve façade coöperate|İstanbul ığdır|ŒUVRE æther|ﬁ ﬂ ﬃ
مرحبا بالعالم|السلام عليكم|שלום עולם|סֵפֶר|पढ़ना हिन्दी|नमस्ते दुनिया|বাংলা লেখা|தமிழ் மொழி|ไทยภาษา|ភាសាខ្មែរ|မြန်မာ|ქართული|Հայերեն|አማርኛ|ᐃᓄᒃᑎᑐᑦ
😀|😃😄|👍🏽|👨‍👩‍👧‍👦|🇩🇪🇫🇷|❤️|✈️|🏳️‍🌈|🧑🏿‍🚀|☕|✓|→|←↑↓|≤≥≠|∑∫√∞|€100|£5|¥|©2024|™|…|—|–|«»|“”‘’|•|░▒▓|♠♥♦♣|𝒜𝓑𝒞|𝔘𝔫𝔦|ℵ|Å|Ω|K|﷽|\u200b|\u200d|\ufeff|\u00ad|\u202e|\u2060
e\u0301|a\u0308o\u0302|\u1100\u1161\u11a8|n\u0303|s\u0323\u0307|\u0915\u093c|q\u0307\u0323|\u212b|\u2126|\u0344|\u0f73|\u1e9b\u0323|\u0958
\t|\t\t|  |    |        |\u00a0|\u3000|\u2028|\x0b|\x0c|\x85|\x00|\x1b|\x7f
▁|▁▁|Ġ|Ċ|<0x41>|<0xE4>|ĠĊ|â|##ing|@@|</w>
!!!|???|...|---|===|***|///|###|<<<>>>|(())|[[]]|{{}}|;;|::|''|""|``|~~|@@|$$|%%|^^|&&|||
"""

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<pad>", "<think>", "</think>", "<tool_call>",
            "[INST]", "[/INST]", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<start_of_turn>", "<end_of_turn>", "<bos>",
            "<mask>", "strip me", "WORD", "naïve", "<|im_start|", "<|im_", "<|", "|>", "<|im_end|><|im_end|>", "  ", "    "]


BREAKS = ["\n", "\n\n", "\r\n", " \n ", "\n\t", "\t\n\n", "\r", "\n    "]


def fragments():
    return [part for line in FRAGMENTS.split("\n") for part in line.split("|") if part] + BREAKS


def code_ranges():
    """Runs of code points assigned in the Unicode version of this Python, without controls, surrogates and private use."""
    out, start = [], None
    for c in range(0x21, 0xE0000):
        good = unicodedata.category(chr(c)) not in ("Cn", "Cc", "Cs", "Co")
        if good and start is None:
            start = c
        if not good and start is not None:
            out.append([start, c - 1])
            start = None
    return out


class Rng:
    """splitmix64."""

    def __init__(self, state):
        self.state = state & MASK

    def next(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % n


SPACES = [" ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2028", " \n"]
PUNCTUATION = "!?.,;:-_=+*/\\|<>()[]{}'\"`~@#$%^&"


def mixed_line(pools, seed, index):
    """The bytes of one line; they may be invalid UTF-8."""
    rng = Rng(seed * 1000003 + index)
    out = bytearray()
    fragment = lambda: pools["fragments"][rng.next(len(pools["fragments"]))]
    for _ in range(1 + rng.next(10)):
        kind = rng.next(17)
        if kind < 7:
            out += fragment().encode()
        elif kind == 7:
            for _ in range(1 + rng.next(12)):
                out.append(48 + rng.next(10))
        elif kind == 8:
            piece = SPACES[rng.next(len(SPACES))].encode()
            out += piece * (1 + rng.next(9))
        elif kind == 9:
            low, high = pools["ranges"][rng.next(len(pools["ranges"]))]
            for _ in range(1 + rng.next(6)):
                out += chr(low + rng.next(high - low + 1)).encode()
        elif kind == 10:
            for _ in range(1 + rng.next(4)):
                out.append(b"aeoinAEO"[rng.next(8)])
                out += chr(0x300 + rng.next(0x4F)).encode()
        elif kind == 11:
            if rng.next(4) == 0:
                for _ in range(1 + rng.next(4)):
                    out.append(0x80 + rng.next(128))
        elif kind == 12:
            for _ in range(1 + rng.next(5)):
                out.append(ord(PUNCTUATION[rng.next(len(PUNCTUATION))]))
        elif kind == 13:
            for byte in fragment().encode():
                letter = 65 <= byte <= 90 or 97 <= byte <= 122
                out.append(byte ^ 32 if letter and rng.next(2) else byte)
        elif kind == 14:
            if rng.next(3) == 0:
                out += b" " * rng.next(3)
                out += pools["specials"][rng.next(len(pools["specials"]))].encode()
        elif kind == 15:
            letter = 97 + rng.next(26)
            if rng.next(4) == 0:
                out += bytes([letter]) * (1 + rng.next(60))
        else:
            first = fragment()
            out += (first + fragment()).encode()
        if rng.next(8) < 5:
            out += b" "
    return bytes(out)


def pools():
    return {"fragments": fragments(), "specials": SPECIALS, "ranges": code_ranges()}
