"""Text that tokenizers get wrong: the cases of the tokenizer golden files, and words to train small tokenizers on.

Everything is generated from a seed; nothing is copied. Used by make_tokenizer.py.
"""
import random

WORDS = ("the a of to and in it was that he she they said old river wagon driver seat road share ride carried passengers morning "
         "engine wheel water light window garden story between through question number letter return value function class "
         "const int while print import self index range token model expert layer router batch").split()
CONTRACTIONS = ["don't", "I'LL", "we'Re", "it'S", "they'VE", "I'm", "he'D", "o'clock", "'tis", "DON'T", "y'all'd've", "'s", "''s", "s'"]
CODE = ["def f(x):\n    return x ** 2\n", "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n", "{\"key\": [1, 2.5e-3, null]}",
        "if a != b && !c || d == 0x1F:", "std::vector<std::pair<int,int>> v;", "#include <cstdio>\r\n", "a=b;c=d;;", "x->y.z()"]
SCRIPTS = {  # code point ranges: Latin with marks, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Thai, Hiragana, Han, Hangul
    "latin": (0x00C0, 0x017F), "greek": (0x0391, 0x03C9), "cyrillic": (0x0410, 0x044F), "hebrew": (0x05D0, 0x05EA),
    "arabic": (0x0621, 0x064A), "devanagari": (0x0904, 0x0939), "thai": (0x0E01, 0x0E2E), "hiragana": (0x3041, 0x3096),
    "han": (0x4E00, 0x9FA5), "hangul": (0xAC00, 0xD7A3), "math": (0x1D400, 0x1D433), "han-b": (0x20000, 0x2A6D6)}
SPACES = ["\u0020", "\t", "\n", "\r\n", "\r", "\u000b", "\u000c", "\u0085", "\u00a0", "\u1680", "\u180e", "\u2003", "\u200b", "\u2028",
          "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", "\u001c", "\u001f"]
EMOJI = ["\U0001F600", "\U0001F468\u200D\U0001F469\u200D\U0001F467", "\U0001F1E9\U0001F1EA", "\u2764\uFE0F", "\U0001F44D\U0001F3FD",
         "\U0001F9D1\U0001F3FB\u200D\U0001F91D\u200D\U0001F9D1\U0001F3FF", "1\uFE0F\u20E3", "\u2122", "\U0001F3F4\U000E0067\U000E007F"]
ODD = ["\u0000", "\u0001", "\u001b[31m", "\u007f", "\u0080", "\u00ad", "\ufffd", "\ufffe", "\uffff", "\ufdd0", "\U0010FFFF", "\U0001FFFE",
       "\ue000", "\u202e", "\u2066", "\u0378", "\u01c5", "\u02b0", "\u2160", "\u00b2", "\u00bd", "\u0663", "\u3007", "\u4e03", "\u017f", "\u212a"]
COMPOSED = ["e\u0301", "\u00e9", "A\u030a", "\u212b", "\u1e9b\u0323", "q\u0307\u0323", "q\u0323\u0307", "\u0344", "\u0958", "\u2126", "\uf900",
            "\u1100\u1161\u11a8", "\uac00\u11a8", "\ufb01", "\u0130", "o\u0328\u0304", "\u0308\u0301", "\u1e69", "s\u0323\u0307",
            "\u2adc", "\U0001D15E", "\u0f73", "a\u0315\u0300\u05ae\u0062"]
SPECIAL = ["<|begin|>", "<|end|>", "<|end", "|end|>", "<|end|><|end|>", " <|end|> ", "<|END|>", "<|pad|>x", "x<|pad|>", "<|mask|>",
           "  <|mask|>  ", "\n<|mask|>\t", "<|<|end|>|>", "carpool", "carpools", "a carpool!", "carpool_", "Zu\u0308rich", "Z\u00fcrich", "wordtoken wordtoken1"]


def mixed(rng, parts, n):
    return "".join(rng.choice(parts) for _ in range(n))


def script_word(rng, name, n):
    low, high = SCRIPTS[name]
    return "".join(chr(rng.randint(low, high)) for _ in range(n))


def sentence(rng, n):
    return " ".join(rng.choice(WORDS).capitalize() if rng.random() < 0.1 else rng.choice(WORDS) for _ in range(n)) + rng.choice(".?!,;:")


def training_text(seed, lines):
    rng = random.Random(seed)
    out = []
    for _ in range(lines):
        out.append(sentence(rng, rng.randint(4, 14)))
        if rng.random() < 0.2:
            out.append(rng.choice(CODE) + " " + rng.choice(CONTRACTIONS) + " " + str(rng.randint(0, 10 ** rng.randint(1, 9))))
        if rng.random() < 0.1:
            out.append(script_word(rng, rng.choice(["greek", "cyrillic", "hiragana", "latin"]), 4) + " " * rng.randint(1, 8) + rng.choice(EMOJI))
    return out


def short_cases():
    """Small texts, each about one thing."""
    return (["", " ", "  ", "a", "A b", "\n", "\n\n", " \n", "\n ", "\r\n\r\n", "a\n\n\nb", "   a", "a   ", "a   b", "\t\ta", "123", "1234567", "3.14159",
             "a1b22c333", "12 345 6789", "x\u0301", " \u0301", "\u0301", "\u0301\u0300 \u0323"]
            + CONTRACTIONS + CODE + SPACES + [f"a{s}b" for s in SPACES] + [f"{s}{s}a" for s in SPACES] + EMOJI + ODD + [f"x{c}y" for c in ODD]
            + COMPOSED + SPECIAL)


def hard_cases(seed, target_bytes):
    """The short cases, then mixtures and long runs until `target_bytes` of UTF-8."""
    rng = random.Random(seed)
    cases = short_cases()
    cases += ["a" * 3000, "ab" * 1500, " " * 2000, "\n" * 1500, " \n" * 800, "0" * 999, "!" * 1200, "\u4e00" * 700, script_word(rng, "han", 700),
              "\U0001F600" * 300, "e\u0301" * 500, "the" * 700, "\u0301\u0323" * 300]
    everything = SPACES + EMOJI + ODD + COMPOSED + SPECIAL + CONTRACTIONS + CODE + WORDS
    size = sum(len(c.encode()) for c in cases)
    while size < target_bytes:
        kind = rng.randrange(7)
        if kind == 0:
            case = sentence(rng, rng.randint(3, 20))
        elif kind == 1:
            case = mixed(rng, everything, rng.randint(2, 25))
        elif kind == 2:
            case = " ".join(script_word(rng, rng.choice(list(SCRIPTS)), rng.randint(1, 8)) for _ in range(rng.randint(1, 6)))
        elif kind == 3:
            case = mixed(rng, SPACES + WORDS[:4], rng.randint(3, 20))
        elif kind == 4:
            case = mixed(rng, COMPOSED + ["a", " ", "\u0300", "\u0316", "\u0334", "\u0345"], rng.randint(3, 20))
        elif kind == 5:
            case = "".join(chr(c) for c in (rng.randint(0, 0x10FFFF) for _ in range(rng.randint(1, 20))) if not 0xD800 <= c <= 0xDFFF)
        else:
            case = mixed(rng, list("0123456789.,'-+ ") + SPECIAL, rng.randint(3, 30))
        cases.append(case)
        size += len(case.encode())
    return cases
