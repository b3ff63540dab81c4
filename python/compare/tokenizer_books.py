"""Encodes a text with the Python package `tokenizers` and writes the ids that TokenizerBooks tests compare against.

  python tokenizer_books.py --tokenizer models/books-qwen3/tokenizer.json --books ../shared/data/books --out /tmp/ids.bin
  CARPOOL_TOKENIZER_IDS=/tmp/ids.bin text_test --gtest_filter='TokenizerBooks.*'

Reads whole books in order of their names until --bytes are reached. The file holds little-endian
uint32 values; per book the length of its name, the name (one value a byte), the number of ids, the ids.
"""
import argparse
import pathlib
import struct

from tokenizers import Tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--books", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--bytes", type=int, default=1 << 20)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(args.tokenizer)
    total = n_ids = 0
    with open(args.out, "wb") as out:
        for path in sorted(pathlib.Path(args.books).glob("*.md")):
            if total >= args.bytes:
                break
            data = path.read_bytes()
            ids = tokenizer.encode(data.decode("utf-8")).ids
            name = path.name.encode()
            out.write(struct.pack(f"<I{len(name)}II{len(ids)}I", len(name), *name, len(ids), *ids))
            total += len(data)
            n_ids += len(ids)
    print(f"{total} bytes, {n_ids} ids")


if __name__ == "__main__":
    main()
