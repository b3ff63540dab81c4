"""Writes what `tokenizers` makes of the hard cases with the stages that each pre-tokenizer name of GGUF files stands for.

  python make_tokenizer_pre.py [--out tests/golden/tokenizer]

Needs hard_text.json of make_tokenizer.py. pre_tokenizers.json has one vocabulary, trained without cutting text into
words, so that a cut in another place shows in the ids; and for each name the cases' hashes, 32 bits as 8 hexadecimal
digits, one after another.
"""
import argparse
import json
import pathlib

import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import make_hard_text
from make_tokenizer import CASED, LLAMA3, QWEN2, SEED, byte_level, fnv1a, split, write
from make_tokenizer_tiktoken import PATTERN as KIMI

MAKER = "python/golden/make_tokenizer_pre.py"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = CASED.replace(CONTRACTIONS + "?", "").replace(r"\p{N}{1,3}", r"\p{N}")
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
V3 = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
LETTERS = (  # first and last, or a single one
    "AZ az \u00b5 \u00c0\u00d6 \u00d8\u00f6 \u00f8\u01ba \u01bc\u01bf \u01c4\u0293 \u0295\u02af \u0370\u0373 \u0376 \u0377 \u037b\u037d \u037f \u0386 \u0388\u038a \u038c "
    "\u038e\u03a1 \u03a3\u03f5 \u03f7\u0481 \u048a\u052f \u0531\u0556 \u10a0\u10c5 \u13a0\u13f5 \u13f8\u13fd \u1c90\u1cba \u1cbd\u1cbf \u1d00\u1d2b \u1d6b\u1d77 "
    "\u1d79\u1d9a \u1e00\u1f15 \u1f18\u1f1d \u1f20\u1f45 \u1f48\u1f4d \u1f50\u1f57 \u1f59 \u1f5b \u1f5d \u1f5f\u1f7d \u1f80\u1fb4 \u1fb6\u1fbc \u1fbe \u1fc2\u1fc4 "
    "\u1fc6\u1fcc \u1fd0\u1fd3 \u1fd6\u1fdb \u1fe0\u1fec \u1ff2\u1ff4 \u1ff6\u1ffc \u2102 \u2107 \u210a\u2113 \u2115 \u2119\u211d \u2124 \u2126 \u2128 \u212a\u212d "
    "\u212f\u2134 \u2139 \u213c\u213f \u2145\u2149 \u214e \u2183 \u2184 \u2c00\u2c7b \u2c7e\u2ce4 \u2ceb\u2cee \u2cf2 \u2cf3 \ua640\ua66d \ua680\ua69b \ua722\ua76f "
    "\ua771\ua787 \ua78b\ua78e \uab70\uabbf \ufb00\ufb06 \ufb13\ufb17 \uff21\uff3a \uff41\uff5a \U00010400\U0001044f \U000104b0\U000104d3 \U000104d8\U000104fb "
    "\U00010c80\U00010cb2 \U00010cc0\U00010cf2 \U000118a0\U000118df \U0001e900\U0001e943")
LLM = r"\s?[" + "".join("-".join(pair) for pair in LETTERS.split(" ")) + "]+"
MARKS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"

WHOLE_WORDS = ("llama-bpe", "gpt-4o", "minimax-m2", "tekken", "kimi-k2")  # a word that is a token stays whole


def stages(*patterns, nfc=False, own=False):
    """The normalizer and the pre-tokenizer: the patterns one after another, and ByteLevel's own if `own`."""
    return normalizers.NFC() if nfc else None, pre_tokenizers.Sequence([split(p) for p in patterns] + [byte_level(use_regex=own)])


def names():
    return {
        "gpt-2": stages(own=True), "olmo": stages(nfc=True, own=True), "qwen2": stages(QWEN2, nfc=True), "qwen35": stages(QWEN35, nfc=True),
        "hunyuan": stages(QWEN2), "grok-2": stages(QWEN2), "llama-bpe": stages(LLAMA3), "glm4": stages(LLAMA3), "chatglm-bpe": stages(LLAMA3), "gpt-4o": stages(CASED),
        "minimax-m2": stages(CASED), "tekken": stages(TEKKEN), "bailingmoe": stages(BAILING), "kimi-k2": stages(KIMI),
        "smollm": (None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)])),
        "deepseek-llm": stages("[\r\n]", LLM, MARKS, r"\s+$", ASIAN, r"\p{N}+"),
        "deepseek-coder": stages("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", ASIAN, r"\p{N}"),
        "deepseek-v3": stages(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", V3),
        "default": stages(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--out", default=str(root / "tests/golden/tokenizer"))
    out = pathlib.Path(parser.parse_args().out)
    cases = json.loads((out / "hard_text.json").read_text(encoding="utf-8"))["cases"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = byte_level(), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, max_token_length=16)
    # Not on texts of random code points: what some of them are depends on the version of Unicode.
    usual = [c for c in cases if len(c) < 500 and all(ord(x) < 0xE000 or 0x1F000 <= ord(x) < 0x1FA00 for x in c)]
    tokenizer.train_from_iterator(make_hard_text.training_text(SEED, 2000) + usual, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    golden = {"made_by": MAKER, "seed": SEED, "tokenizers": tokenizers.__version__, "tokens": sorted(model["vocab"], key=model["vocab"].get),
              "merges": [" ".join(m) for m in model["merges"]], "names": {}}
    bare = json.loads(tokenizer.to_str())
    for name, (normalizer, pre_tokenizer) in names().items():
        bare["model"]["ignore_merges"] = name in WHOLE_WORDS
        tokenizer = Tokenizer.from_str(json.dumps(bare, ensure_ascii=False))
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.normalizer = normalizer or normalizers.Sequence([])
        hashes = [fnv1a(tokenizer.encode(c).ids)[-8:] for c in cases]
        golden["names"][name] = "".join(hashes)
        print(name, len(hashes), "cases")
    write(out / "pre_tokenizers.json", golden)


if __name__ == "__main__":
    main()
