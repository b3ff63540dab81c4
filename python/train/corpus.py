"""The training corpus: a folder of public-domain books in Markdown.

Owns: which files are read (never those named in HOLDOUT.txt), the removal of the
metadata header, and the small share of text that is recast as a two-turn chat so that
the chat markers of the template are trained tokens. Does not own the tokenizer
(tokenizer.py) nor the sampling of training windows (train.py).
"""
import pathlib
import random
import re

END_OF_TEXT, USER, ASSISTANT, END = "<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = [END_OF_TEXT, USER, ASSISTANT, END]


def list_books(folder):
    """Returns (train, holdout): sorted lists of paths of the Markdown files in `folder`."""
    folder = pathlib.Path(folder)
    held = set((folder / "HOLDOUT.txt").read_text().split())
    files = sorted(folder.glob("*.md"))
    if not files:
        raise SystemExit(f"no .md files in {folder}")
    return ([f for f in files if f.name not in held], [f for f in files if f.name in held])


def read_book(path):
    """The book's text without the title/author/year header that ends at the first rule."""
    text = path.read_text(encoding="utf-8")
    head, rule, body = text.partition("\n-------\n")
    body = body if rule and len(head) < 2000 else text
    return re.sub(r"\n{3,}", "\n\n", body).strip() + "\n"


def chat_documents(text, share, rng):
    """Recasts a `share` of runs of paragraphs as chats: one paragraph asks, the next ones answer."""
    paragraphs = [p for p in text.split("\n\n") if 40 <= len(p) <= 600 and not p.startswith("#")]
    i, documents = 0, []
    while i + 3 < len(paragraphs):
        if rng.random() < share:
            answer = "\n\n".join(paragraphs[i + 1 : i + 1 + rng.randint(1, 3)])
            documents.append(f"{USER}\n{paragraphs[i]}{END}\n{ASSISTANT}\n{answer}{END}\n")
        i += 4
    return documents


def documents(paths, chat_share=0.08, seed=0):
    """Yields whole books and the chats made from them, in a fixed order."""
    rng = random.Random(seed)
    for path in paths:
        text = read_book(path)
        yield text
        chats = chat_documents(text, chat_share * 4, rng)
        if chats:
            yield END_OF_TEXT.join(chats)
