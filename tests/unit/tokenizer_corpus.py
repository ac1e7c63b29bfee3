"""Texts that tokenizers get wrong: every script, odd whitespace, control characters, the text of special tokens."""

from __future__ import annotations

PROSE = """The quick brown fox jumps over the lazy dog. It's what we'd've said, they're sure -- "quoted" (and 'nested').
Éric naïvely ordered a café crème for 3,50 € at 10:45 a.m.; ÅNGSTRÖM, STRASSE, straße, İstanbul, ﬁne.\r\nNext line…"""

CODE = '''def fibonacci(n: int) -> int:
    """Return the n-th number."""
\ta, b = 0, 1
    for _ in range(n):\n        a, b = b, a + b  # swap\n    return a


if __name__ == "__main__":
    print(f"{fibonacci(10)=:>10}", end="\\n")
#include <stdio.h>
int main(void) { for (int i=0;i<10;++i) printf("%d\\t%s\\n", i, x->y[i] ? "a" : "b"); return 0; }
<div class="x">&nbsp;<table></s><br/></div>   {"key": [1, 2.5e-3, null, true]} SELECT * FROM t WHERE a >= 1;'''

TEXTS = {
    "empty": "",
    "prose": PROSE,
    "code": CODE,
    "chinese": "我能吞下玻璃而不伤身体。天地玄黃，宇宙洪荒。「引号」、《书名》——省略……",
    "japanese": "私はガラスを食べられます。ｶﾀｶﾅと全角ＡＢＣ１２３、そして「カギ括弧」。",
    "korean": "나는 유리를 먹을 수 있어요. 그래도 아프지 않아요",
    "arabic": "أنا قادر على أكل الزجاج و هذا لا يؤلمني، مَرْحَبًا بِالْعَالَمِ؟",
    "hebrew and thai": "אני יכול לאכול זכוכית וזה לא מזיק לי. ฉันกินกระจกได้ แต่มันไม่ทำให้ฉันเจ็บ",
    "hindi and tamil": "मैं काँच खा सकता हूँ और मुझे उससे कोई चोट नहीं पहुंचती। நான் கண்ணாடி சாப்பிடுவேன்",
    "greek and cyrillic": "Μπορώ να φάω σπασμένα γυαλιά. Я могу есть стекло, оно мне не вредит. Ґанок, їжак",
    "emoji": "👍 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 ☺️ 1️⃣ #️⃣ ❤️‍🔥 🧑🏿‍🚀 plain ☺ 🤷🏻‍♀️",
    "rare planes": "𝒳𝕐𝔷 𐍈 𓀀 𠜎 \U000e0041 \U0010ffff \ue000",
    "ascii digits": "1 12 123 1234 12345 0x7F 3.14159 1e-10 10000000000000 2024-02-29 a1b2 1.2.3.4 ",
    "spaces": " lead  two   three    four" + " " * 40 + "forty trail ",
    "only space": " ",
    "only spaces": " " * 33,
    "tabs and newlines": "a\tb\t\tc\n\n\nd\r\n\r\ne\n \n\t\n  f\n" + "\n" * 40 + "\t" * 40 + "g\r\r\rh",
    "unicode spaces": "a\u00a0b\u00a0\u00a0c\u2003d\u3000e\u2028f\u2029g\u200bh\ufeffi\u1680j\u202fk\x85l",
    "control characters": "a\x00b\x01\x02c\x07\x08d\x0b\x0ce\x1b[31mf\x7fg\x80h\x9fi",
    "directions": "a\u200eb\u200fc\u202ad\u202ce\u2066f\u2069g\u00adh",
    "symbols": "!!! ??? ... --- === +-*/ ~`@#$%^&*()_+{}|:\"<>?[]\\;',./ ©®™ §¶•ªº «» ‹› ∑∫√≤≥≠ ┌─┐ ▁▂▃ ● ♠",
    "contractions": "I'm you're he's we'll they'd I've can't I'M YOU'RE O'Neil 'tis ’s ''s 'S'LL",
    "markup of turns": "<|im_start|>user\nHi<|im_end|>\n<|endoftext|> <start_of_turn>model\nYo<end_of_turn><eos></s>",
    "broken markup": "<|im_start |> <|im_end|<|im_end|>> <| im_end |> <start_of_turn <unused1> <unused99999>",
    "tool markup": '<tool_call>\n{"name": "f"}\n</tool_call> <|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>',
    "long word": "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 3,
    "url": "https://example.org/a/b?c=d&e=%20f#g user@example.com C:\\Windows\\System32 ../../etc/passwd",
    "leading newline": "\n\n  indented\n",
}

# Characters that Unicode's composed form (NFC) writes in another way.
DECOMPOSED = {
    "accents": "cafe\u0301 A\u030angstro\u0308m n\u0303",
    "hangul": "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "order of marks": "a\u0315\u0300\u05ae\u0300\u0062",
    "singletons": "\u212b \u2126 \uf900",
    "arabic marks": "مَرَّحَبًا شُكْرًا \u0628\u0651\u064e",
}

# Numbers that are no ASCII digits: letters and marks to some rules, single digits to others.
FOREIGN_NUMBERS = {
    "arabic": " \u0661\u0662\u0663 \u0664\u0665",
    "devanagari": "\u0967\u0968\u0969 और \u096a",
    "fractions and powers": "½ ¼ x²y³ 10⁻⁵",
    "circled and roman": "①②③ Ⅷ ⅻ ㊿",
    "fullwidth": "１２３ ４５",
}
