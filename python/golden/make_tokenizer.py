"""Trains small byte-level BPE tokenizers and writes the golden files of src/text's tests.

  python make_tokenizer.py [--out tests/golden/tokenizer]

Writes hard_text.json (the cases, about 100 KB of text) and for each tokenizer NAME.json (a tokenizer.json) and
NAME.golden.json: per case the number of ids and their FNV-1a hash, the ids themselves for the first cases, the same
with control tokens left as text, and decoded texts of id sequences. Deterministic for the versions in requirements.txt.
"""
import argparse
import json
import pathlib
import random

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import make_hard_text

SEED = 20261129
MAKER = "python/golden/make_tokenizer.py"
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Letters by case, marks joined to letters, contractions attached: the style of o200k.
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
FULL_IDS = 150  # cases whose ids are stored in full


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)


def byte_level(prefix=False, use_regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)


def special(*texts, **flags):
    return [AddedToken(t, special=True, normalized=False, **flags) for t in texts]


def styles():
    """name -> (pre-tokenizer, normalizer, ignore_merges, added tokens, begin token, vocabulary size)"""
    plain = special("<|begin|>", "<|end|>", "<|pad|>")
    flagged = (special("<|begin|>", "<|end|>") + special("<|pad|>", lstrip=True) + special("<|mask|>", rstrip=True, lstrip=True)
               + [AddedToken("carpool", single_word=True, normalized=False), AddedToken("Zu\u0308rich", normalized=True),
                  AddedToken("wordtoken", single_word=True, normalized=True)])
    return {
        "gpt2": (byte_level(use_regex=True), None, False, plain + [AddedToken(" " * n, normalized=True) for n in (2, 3, 5)], None, 600),
        "qwen2": (pre_tokenizers.Sequence([split(QWEN2), byte_level()]), normalizers.NFC(), False, plain, None, 800),
        "llama3": (pre_tokenizers.Sequence([split(LLAMA3), byte_level()]), None, True, plain, "<|begin|>", 800),
        "flags": (pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f]+"), split(CASED), byte_level()]),
                  normalizers.Sequence([normalizers.NFC()]), False, flagged, None, 600),
        "digits": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(prefix=True, use_regex=True)]),
                   None, False, plain, None, 450),
        "behaviors": (pre_tokenizers.Sequence([split(r"[.,;]", "merged_with_previous"), split(r"\s", "merged_with_next"),
                                               split(r"[a-z]+|\d+", "contiguous", True), split(r"^x|\u200b+", "removed"),
                                               pre_tokenizers.Split("!", "isolated"), byte_level()]),
                      normalizers.NFC(), False, plain, None, 450),
    }


def train(style):
    pre_tokenizer, normalizer, ignore_merges, added, begin, vocab = style
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  special_tokens=[t for t in added[:2]])
    tokenizer.train_from_iterator(make_hard_text.training_text(SEED, 4000), trainer)
    if ignore_merges:
        data = json.loads(tokenizer.to_str())
        data["model"]["ignore_merges"] = True
        # A word that merging alone would never build, which the flag makes one token.
        data["model"]["vocab"]["\u0120zqxj"] = tokenizer.get_vocab_size()
        tokenizer = Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
    tokenizer.add_tokens(added)
    if begin:
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))])])
    return tokenizer


def without_bytes(tokenizer):
    """The same without tokens for some bytes that text hardly has, which then disappear."""
    data = json.loads(tokenizer.to_str())
    absent = [c for c in byte_level().pre_tokenize_str("\x00\x01\x1b\x7f")[0][0]] + ["\u00f1", "\u00f2", "\u00f4"]
    kept = sorted((i, t) for t, i in data["model"]["vocab"].items() if t not in absent)
    data["model"]["vocab"] = {t: n for n, (_, t) in enumerate(kept)}
    for token in data["added_tokens"]:
        token["id"] = data["model"]["vocab"].setdefault(token["content"], len(data["model"]["vocab"]))
    return Tokenizer.from_str(json.dumps(data, ensure_ascii=False))


def fnv1a(ids):
    h = 0xCBF29CE484222325
    for i in ids:
        for byte in i.to_bytes(4, "little"):
            h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def decoded_texts(tokenizer):
    rng = random.Random(SEED)
    # Left out: an added token outside ASCII, whose characters the reference takes for spelled bytes.
    usable = [i for i in range(tokenizer.get_vocab_size()) if tokenizer.id_to_token(i).isascii() or i not in tokenizer.get_added_tokens_decoder()]
    decoded = []
    for n in range(60):
        sequence = [rng.choice(usable) if n % 2 else rng.choice(usable[:260]) for _ in range(rng.randint(1, 12))]
        decoded.append({"ids": sequence, "text": tokenizer.decode(sequence, skip_special_tokens=False),
                        "without_special": tokenizer.decode(sequence, skip_special_tokens=True)})
    return decoded


def golden(tokenizer, cases, maker=MAKER, decoded=None):
    ids = [tokenizer.encode(c).ids for c in cases]
    bare = [tokenizer.encode(c, add_special_tokens=False).ids for c in cases]
    tokenizer.encode_special_tokens = True
    untrusted = [tokenizer.encode(c, add_special_tokens=False).ids for c in cases]
    tokenizer.encode_special_tokens = False
    return {"made_by": maker, "seed": SEED, "tokenizers": tokenizers.__version__, "vocab_size": tokenizer.get_vocab_size(), "ids": ids[:FULL_IDS],
            "hashes": [f"{len(i)} {fnv1a(i)}" for i in ids],
            "untrusted_hashes": {str(n): f"{len(u)} {fnv1a(u)}" for n, (i, u) in enumerate(zip(bare, untrusted)) if i != u},
            "decoded": decoded or decoded_texts(tokenizer)}


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--out", default=str(root / "tests/golden/tokenizer"))
    out = pathlib.Path(parser.parse_args().out)
    out.mkdir(parents=True, exist_ok=True)
    cases = make_hard_text.hard_cases(SEED, 100_000) + [" zqxj", " zqxjz"]
    write(out / "hard_text.json", {"made_by": MAKER, "seed": SEED, "cases": cases})
    tokenizers_by_name = {name: train(style) for name, style in styles().items()}
    smollm = train((pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)]), None, False,
                    special("<|begin|>", "<|end|>", "<|pad|>"), None, 500))
    tokenizers_by_name["smollm"] = without_bytes(smollm)
    for name, tokenizer in tokenizers_by_name.items():
        write(out / f"{name}.json", json.loads(tokenizer.to_str()))
        write(out / f"{name}.golden.json", golden(tokenizer, cases))
        print(name, tokenizer.get_vocab_size(), "tokens", len(cases), "cases")


if __name__ == "__main__":
    main()
