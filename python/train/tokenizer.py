"""Trains the byte-level BPE tokenizer of the embedded models (Qwen2's split expression).

  python tokenizer.py --books DIR --out DIR [--vocab 4096]

Writes tokenizer.json and tokenizer_config.json (with the chat template).
"""
import argparse
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import corpus

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message['role'] == 'assistant' %}{{- '<|assistant|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{%- else %}{{- '<|user|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)


def train(paths, vocab):
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=[AddedToken(t, special=True) for t in corpus.SPECIAL_TOKENS],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator((corpus.read_book(p) for p in paths), trainer)
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--vocab", type=int, default=4096)
    args = parser.parse_args()
    paths, held = corpus.list_books(args.books)
    tokenizer = train(paths, args.vocab)
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, "add_bos_token": False,
        "clean_up_tokenization_spaces": False, "bos_token": None, "eos_token": corpus.END_OF_TEXT,
        "pad_token": corpus.END_OF_TEXT, "chat_template": CHAT_TEMPLATE}, indent=2) + "\n")
    sample = corpus.read_book(held[0])[:100000]
    print(f"{tokenizer.get_vocab_size()} tokens, {len(sample.encode()) / len(tokenizer.encode(sample).ids):.2f} bytes per token on held-out text")


if __name__ == "__main__":
    main()
