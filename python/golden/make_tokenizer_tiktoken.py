"""Trains a small tiktoken vocabulary as Kimi's models have it and writes the golden files of src/text's tests.

  python make_tokenizer_tiktoken.py [--out tests/golden/tokenizer]

Needs hard_text.json of make_tokenizer.py. Writes kimi/tiktoken.model (a line of base64 and rank for each token),
kimi/tokenizer_config.json and kimi.golden.json with what `tiktoken` makes of the cases (make_tokenizer.py says what is
in it): with all special tokens recognised, and with none.
"""
import argparse
import base64
import json
import pathlib
import random

import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import make_hard_text
from make_tokenizer import FULL_IDS, SEED, byte_level, fnv1a, split, write

MAKER = "python/golden/make_tokenizer_tiktoken.py"
SPECIAL_IDS = 256
PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def train_ranks():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split(PATTERN), byte_level()])
    trainer = trainers.BpeTrainer(vocab_size=800, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(make_hard_text.training_text(SEED, 4000), trainer)
    # The alphabet again as bytes: printable ones stand for themselves, the others for 256 and up, in order.
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    byte_of = {chr(b): b for b in printable}
    byte_of.update((chr(256 + n), b) for n, b in enumerate(b for b in range(256) if b not in printable))
    return {bytes(byte_of[c] for c in token): rank for token, rank in tokenizer.get_vocab().items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--out", default=str(root / "tests/golden/tokenizer"))
    out = pathlib.Path(parser.parse_args().out)
    cases = json.loads((out / "hard_text.json").read_text(encoding="utf-8"))["cases"]
    ranks = train_ranks()
    n = len(ranks)
    named = {n: ("<|begin|>", True), n + 1: ("<|end|>", True), n + 5: ("<|pad|>", True), n + 7: ("<|mask|>", False)}
    special = {named.get(i, (f"<|reserved_token_{i}|>",))[0]: i for i in range(n, n + SPECIAL_IDS)}
    (out / "kimi").mkdir(exist_ok=True)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in sorted(ranks.items(), key=lambda item: item[1])]
    (out / "kimi/tiktoken.model").write_text("".join(lines))
    write(out / "kimi/tokenizer_config.json", {
        "added_tokens_decoder": {str(i): {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": flag}
                                 for i, (text, flag) in named.items()},
        "bos_token": "<|begin|>", "eos_token": "<|end|>", "tokenizer_class": "TikTokenTokenizer", "chat_template": "{{ messages[0].content }}"})
    encoding = tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    ids = [encoding.encode(c, allowed_special="all") for c in cases]
    untrusted = [encoding.encode(c, disallowed_special=()) for c in cases]
    hidden = {i for i in special.values() if named.get(i, ("", True))[1]}
    rng, decoded = random.Random(SEED), []
    for k in range(60):
        sequence = [rng.randrange(n + SPECIAL_IDS if k % 2 else 260) for _ in range(rng.randint(1, 12))]
        decoded.append({"ids": sequence, "text": encoding.decode(sequence), "without_special": encoding.decode([i for i in sequence if i not in hidden])})
    write(out / "kimi.golden.json", {
        "made_by": MAKER, "seed": SEED, "tiktoken": tiktoken.__version__, "vocab_size": n + SPECIAL_IDS, "ids": ids[:FULL_IDS],
        "hashes": [f"{len(i)} {fnv1a(i)}" for i in ids],
        "untrusted_hashes": {str(k): f"{len(u)} {fnv1a(u)}" for k, (i, u) in enumerate(zip(ids, untrusted)) if i != u}, "decoded": decoded})
    print("kimi", n + SPECIAL_IDS, "tokens", len(cases), "cases")


if __name__ == "__main__":
    main()
