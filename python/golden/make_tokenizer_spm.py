"""Trains a small SentencePiece BPE model and writes the golden files of src/text's tests about character vocabularies.

  python make_tokenizer_spm.py [--out tests/golden/tokenizer]

Needs hard_text.json of make_tokenizer.py. Writes, from one trained model,
  llama2, metaspace, metaspace_split, unknown: NAME.json, a tokenizer.json with the stages of published ones, and
    NAME.golden.json with what `tokenizers` makes of the cases (make_tokenizer.py says what is in it);
  spm.gguf, the model as the metadata of a GGUF file, and spm.golden.json with what `sentencepiece` makes of the cases,
    with and without the space that a text begins with.
"""
import argparse
import io
import json
import pathlib
import random

import gguf
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Tokenizer

import make_hard_text
import make_tokenizer
from make_tokenizer import SEED, fnv1a, write

MAKER = "python/golden/make_tokenizer_spm.py"
SPACE = "\u2581"


def train():
    """The serialized model: byte tokens, digits of their own, no normalization, as Llama 2 was trained."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(make_hard_text.training_text(SEED, 4000)), model_writer=out, model_type="bpe", vocab_size=700,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        allow_whitespace_only_pieces=True, character_coverage=0.995, num_threads=1, minloglevel=2)
    return out.getvalue()


def merges_of(pieces):
    """What the converters of `transformers` list: every way to cut a piece in two, the best score first."""
    ids = {p.piece: i for i, p in enumerate(pieces)}
    merges = []
    for piece in pieces:
        cuts = [(piece.piece[:n], piece.piece[n:]) for n in range(1, len(piece.piece))]
        cuts = sorted((c for c in cuts if c[0] in ids and c[1] in ids), key=lambda c: (ids[c[0]], ids[c[1]]))
        merges += [(piece.score, *c) for c in cuts]
    return [list(m[1:]) for m in sorted(merges, key=lambda m: m[0], reverse=True)]


def tokenizer_of(pieces, normalizer, pre_tokenizer, strip, **model):
    data = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"},
                                                     {"type": "Fuse"}] + ([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strip else [])},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": {p.piece: i for i, p in enumerate(pieces)},
                  "merges": merges_of(pieces), **model}}
    tokenizer = Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|begin|>", "<|end|>", "<|pad|>")])
    tokenizer.add_tokens([AddedToken("carpool", normalized=True), AddedToken("wordtoken", normalized=False)])
    return tokenizer


def styles(pieces):
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]}
    metaspace = {"type": "Metaspace", "replacement": SPACE}
    return {
        "llama2": tokenizer_of(pieces, prepend, None, True),
        "metaspace": tokenizer_of(pieces, None, {**metaspace, "prepend_scheme": "first", "split": False}, True),
        "metaspace_split": tokenizer_of(pieces, {"type": "NFC"}, {**metaspace, "prepend_scheme": "always", "split": True}, True, byte_fallback=False),
        "unknown": tokenizer_of(pieces, prepend["normalizers"][1], None, False, byte_fallback=False, fuse_unk=False),
    }


def decoded(tokenizer, cases):
    """Texts of random tokens. Bytes that are no characters are left out: the reference writes one U+FFFD for each."""
    rng = random.Random(SEED)
    plain = [i for i in range(tokenizer.get_vocab_size()) if not tokenizer.id_to_token(i).startswith("<0x")]
    out = []
    while len(out) < 60:
        sequence = []
        for _ in range(rng.randint(1, 8)):
            sequence += [rng.choice(plain)] if rng.random() < 0.7 else tokenizer.encode(rng.choice(cases[:150]), add_special_tokens=False).ids[:40]
        text = tokenizer.decode(sequence, skip_special_tokens=False)
        if "\ufffd" not in text:
            out.append({"ids": sequence, "text": text, "without_special": tokenizer.decode(sequence, skip_special_tokens=True)})
    return out


def write_gguf(path, model):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([p.piece for p in model.pieces])
    writer.add_token_scores([p.score for p in model.pieces])
    writer.add_token_types([p.type for p in model.pieces])
    writer.add_bos_token_id(model.trainer_spec.bos_id)
    writer.add_eos_token_id(model.trainer_spec.eos_id)
    writer.add_unk_token_id(model.trainer_spec.unk_id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--out", default=str(root / "tests/golden/tokenizer"))
    out = pathlib.Path(parser.parse_args().out)
    cases = json.loads((out / "hard_text.json").read_text(encoding="utf-8"))["cases"]
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(train())
    for name, tokenizer in styles(model.pieces).items():
        write(out / f"{name}.json", json.loads(tokenizer.to_str()))
        write(out / f"{name}.golden.json", make_tokenizer.golden(tokenizer, cases, MAKER, decoded(tokenizer, cases)))
        print(name, tokenizer.get_vocab_size(), "tokens", len(cases), "cases")
    write_gguf(out / "spm.gguf", model)
    golden = {"made_by": MAKER, "seed": SEED, "sentencepiece": sentencepiece.__version__, "tokenizers": tokenizers.__version__, "vocab_size": len(model.pieces)}
    for key, prefix in (("hashes", True), ("hashes_without_prefix", False)):
        model.normalizer_spec.add_dummy_prefix = prefix
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
        ids = [processor.encode(c) for c in cases]
        golden[key] = [f"{len(i)} {fnv1a(i)}" for i in ids]
    golden["decoded"] = [{"ids": processor.encode(c), "text": processor.decode(processor.encode(c))} for c in cases[:60]]
    write(out / "spm.golden.json", golden)
    print("spm", len(model.pieces), "tokens", len(cases), "cases")


if __name__ == "__main__":
    main()
