"""Turns the last checkpoint of train.py into a Hugging Face model folder with its model card.

  python export.py --work DIR --books DIR --out models/books-qwen3 --train-options "--shape qwen3 --minutes 128 ..."

Weights become bfloat16 under the names of published checkpoints of the shape's family. Every number of the card
(README.md of the folder) is read from the run or measured here: losses on the held-out books before
and after rounding, how evenly the routers spread tokens, and texts that transformers generates from
the finished folder; a card is not written unless transformers computes the same logits as the
training code. Run it on the machine that trained, since the card names that machine. Does not choose
or change anything about the model; recipe: train.py, README.md.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import platform
import re
import shutil
import sys
from unittest import mock

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import corpus
import network
import train

SIZE_LIMIT_BYTES = 30 * 1000 * 1000
MEASURING_TEXTS = ("eval.txt", "prompts.txt")
SAMPLE_PROMPTS = ["The old clock in the hall struck nine, and nobody", '"Where have you been?" asked the captain.']
SOURCE = "https://github.com/mlschmitt/classic-books-markdown"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, type=pathlib.Path, help="the work folder of train.py")
    parser.add_argument("--books", required=True, type=pathlib.Path, help="the books it was trained on")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--train-options", required=True, help="options of the run besides --books and --out")
    parser.add_argument("--shares", type=pathlib.Path, help="a model folder whose tokenizer and measuring texts this one shares")
    parser.add_argument("--note", default="", help="a sentence on how this run differed from its options, for the card")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


def recipe_of(options):
    """The settings train.py had when it was given `options`: its own defaults, overridden."""
    words = ["train.py", "--books", "BOOKS", "--out", "WORK", *options.split()]
    with mock.patch.object(sys, "argv", words):
        return train.parse()


def load_checkpoint(work, shape):
    """(model, state, tokenizer). Sizes come from the defaults of the shape's Config, as in train.py."""
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    model = network.Model(network.SHAPES[shape], tokenizer.get_vocab_size())
    model.load_state_dict(load_file(str(work / "checkpoint.safetensors")))
    return model.eval(), json.loads((work / "checkpoint.json").read_text()), tokenizer


def stored(tensor, name):
    """The tensor as the folder holds it: bfloat16, but float32 for the selection bias, as in published checkpoints."""
    return tensor.detach().to(torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16).contiguous()


def rounded(model):
    """A copy whose weights went through the folder's types and back."""
    result = network.Model(model.shape, model.c.vocab_size).eval()
    result.load_state_dict(model.state_dict())
    with torch.no_grad():
        for name, tensor in network.hugging_face_tensors(result):
            tensor.copy_(stored(tensor, name).float())
    return result


def config_fields(model, end_ids):
    """config.json with every field that readers of this family look at."""
    c = model.c
    return model.shape.config_fields(c) | {
        "vocab_size": c.vocab_size, "hidden_size": c.hidden_size, "num_hidden_layers": c.num_hidden_layers,
        "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "rms_norm_eps": c.rms_norm_eps,
        "max_position_embeddings": c.max_position_embeddings, "tie_word_embeddings": True,
        "bos_token_id": None, "eos_token_id": end_ids, "pad_token_id": end_ids[0],
        "initializer_range": 0.02, "use_cache": True,
    }


def write_folder(model, tokenizer, work, out):
    """All files but the card; returns the size of the weights in bytes."""
    out.mkdir(parents=True, exist_ok=True)
    end_ids = [tokenizer.token_to_id(corpus.END_OF_TEXT), tokenizer.token_to_id(corpus.END)]
    (out / "config.json").write_text(json.dumps(config_fields(model, end_ids), indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps({
        "do_sample": True, "temperature": 0.8, "top_p": 0.95, "top_k": 0,
        "bos_token_id": None, "eos_token_id": end_ids, "pad_token_id": end_ids[0]}, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(work / name, out / name)
    tensors = {n: stored(t, n) for n, t in network.hugging_face_tensors(model)}
    weights = out / "model.safetensors"
    save_file(tensors, str(weights), metadata={"format": "pt"})
    weights.chmod(0o644)
    if weights.stat().st_size > SIZE_LIMIT_BYTES:
        raise SystemExit(f"{weights} has {weights.stat().st_size} bytes, more than {SIZE_LIMIT_BYTES}")
    return weights.stat().st_size


def token_bytes(tokenizer):
    """Bytes of text per token id; markers have none. In byte-level BPE one character stands for one byte."""
    sizes = torch.tensor([len(tokenizer.id_to_token(i)) for i in range(tokenizer.get_vocab_size())])
    for marker in corpus.SPECIAL_TOKENS:
        sizes[tokenizer.token_to_id(marker)] = 0
    return sizes


def count_training_tokens(tokenizer, paths):
    """(tokens of whole books, tokens of the chats made from them), counted as train.encode lays them out."""
    books = chats = 0
    texts = list(corpus.documents(paths))
    for text, encoding in zip(texts, tokenizer.encode_batch_fast(texts)):
        n = 1 + len(encoding.ids)
        books, chats = (books, chats + n) if text.startswith(corpus.USER) else (books + n, chats)
    return books, chats


def quality(model, windows, sizes, pool):
    """Nats per token, bits per byte, expert shares [layers with experts, E], on the targets of `windows`."""
    loss, shares = train.evaluate(model, windows, pool)
    targets = windows[:, 1:]
    return {"nats": loss, "shares": shares,
            "bits_per_byte": loss * targets.numel() / math.log(2) / sizes[targets].sum().item()}


def load_exported(out):
    model = transformers.AutoModelForCausalLM.from_pretrained(str(out), dtype=torch.float32).eval()
    return model, transformers.AutoTokenizer.from_pretrained(str(out))


def check_same(exported, ours, windows):
    """Largest logit difference between the exported folder in transformers and our rounded model."""
    with torch.no_grad():
        tokens = windows[:2, :-1]
        theirs = exported(input_ids=tokens).logits.flatten(0, 1)
        difference = (theirs - ours(tokens)[0]).abs().max().item()
    if difference > 5e-3:
        raise SystemExit(f"transformers computes other logits from the exported folder: difference {difference}")
    return difference


def check_tokenizer(loaded, tokenizer, text):
    """transformers must make the tokens that the model was trained on, markers included."""
    text = corpus.USER + "\n" + text + corpus.END
    if loaded(text).input_ids != tokenizer.encode(text).ids:
        raise SystemExit("AutoTokenizer makes other tokens than tokenizer.json")


def samples(exported, tokenizer):
    """[(prompt, greedy continuation, sampled continuation)], each of at most 80 tokens."""
    rows = []
    for prompt in SAMPLE_PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        texts = []
        for options in ({"do_sample": False, "temperature": None, "top_p": None, "top_k": None},
                        {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "top_k": 0}):
            torch.manual_seed(1)
            with torch.no_grad():
                out = exported.generate(ids, max_new_tokens=80, **options)
            texts.append(tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True))
        rows.append((prompt, *texts))
    return rows


def machine():
    """What computed the run, without the machine's name."""
    cpu = platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        found = re.search(r"model name\s*:\s*(.+)", pathlib.Path("/proc/cpuinfo").read_text())
        cpu = found[1] if found else cpu
    return f"{os.cpu_count()} CPU cores ({cpu}), no accelerator"


def title(path):
    head = path.read_text(encoding="utf-8")[:500]
    name, author = (re.search(rf"{field}: (.+)", head)[1].strip() for field in ("Title", "Author"))
    return f"{name} ({author})"


def run_log(work, tokens):
    """Rows of train.jsonl up to the checkpoint at `tokens`; where a resumed run repeats a row the later one counts."""
    rows = {}
    for line in (work / "train.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["tokens"] <= tokens:
            rows[row["tokens"], "heldout_loss" in row] = row
    return [rows[key] for key in sorted(rows)]


def curve(log):
    """Rows (million tokens, minutes, held-out loss, mean training loss since the row before)."""
    rows, recent = [], []
    for row in log:
        if "heldout_loss" in row:
            mean = f"{sum(recent) / len(recent):.3f}" if recent else "-"
            rows.append((f"{row['tokens'] / 1e6:.2f}", f"{row['minutes']:.0f}", f"{row['heldout_loss']:.3f}", mean))
            recent = []
        else:
            recent.append(row["loss"])
    return rows


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(v) for v in row) + " |" for row in rows])


def router_rows(layers, shares):
    """Per layer with experts: shares as multiples of the fair share 1/E, rarely used experts, entropy as a part of ln E."""
    E, rows = shares.shape[1], []
    for i, share in zip(layers, shares):
        entropy = -torch.special.xlogy(share, share).sum().item() / math.log(E)
        rows.append((i, f"{share.max().item() * E:.2f}", f"{share.min().item() * E:.3f}",
                     (share < 0.1 / E).sum().item(), f"{entropy:.3f}"))
    return rows


def quote(text):
    return "\n".join("> " + line if line else ">" for line in text.strip().split("\n"))


def card_of_data(facts):
    held = "\n".join("- " + title(p) for p in facts["held_paths"])
    books, chats = (f"{n / 1e6:.2f} million" for n in facts["train_tokens"])
    return f"""## Data

Books in English, first published before 1929, as Markdown, from the repository
[{SOURCE.split('/', 3)[-1]}]({SOURCE}), which states that they are in the public
domain: {facts['train_books']} books for training ({facts['train_bytes'] / 1e6:.1f} MB, {books} tokens). Another {chats} tokens are
paragraphs of the same books once more, recast as two-turn chats (one paragraph asks, the next ones answer), so that
the markers `<|user|>`, `<|assistant|>` and `<|end|>` are trained tokens. Tokenizer: byte-level BPE,
{facts['config'].vocab_size} tokens, trained on the same books{facts['shares'] and f" (the file of {facts['shares']})"}; {facts['bytes_per_token']:.2f} bytes per token on
the held-out text.
Held out, never trained on:

{held}"""


def commands(facts):
    """The three commands that made the model, indented as in a card."""
    shares, options = facts["shares"], facts["options"]
    lines = [f"cp {shares}/tokenizer*.json WORK" if shares else "python python/train/tokenizer.py --books BOOKS --out WORK",
             f"python python/train/train.py --books BOOKS --out WORK {options}",
             f"python python/train/export.py --books BOOKS --work WORK --out {facts['out_name']} \\",
             *([f"    --shares {shares} \\"] if shares else []),
             f'    --train-options "{options}"']
    return "\n".join("      " + line for line in lines)


def card_of_recipe(facts):
    c, a, state = facts["config"], facts["recipe"], facts["state"]
    passes = state["tokens"] / sum(facts["train_tokens"])
    total, active = (f"{n / 1e6:.2f} million" for n in (facts["parameters"], facts["active_parameters"]))
    return f"""## Recipe

- Architecture: {facts['shape'].architecture(c)}; {total} parameters, {active} of them
  used per token.
- Optimizer: Muon on matrices (rate {a.lr_muon}, momentum 0.95, weight decay 0.01), AdamW on embeddings, norms and routers
  (rate {a.lr_adam}, betas 0.9 and 0.95); {facts['shape'].balancing(a)}; float32.
- Schedule: 30 steps of warm-up, constant, linear fall to zero over the last {100 * a.cooldown:.0f} % of the run
  (at the last logged step: {facts['last_rate']:.3g} of the full rate).
- Batch: {a.batch} windows of {a.length} tokens; {state['step']} steps, {state['tokens'] / 1e6:.2f} million tokens
  ({passes:.2f} passes over the data), {state['minutes']:.0f} minutes.
- Machine: {machine()}.{facts['note'] and chr(10) + "- As it went: " + facts['note']}
- Commands (python/train/README.md explains them):

{commands(facts)}
"""


def card_of_results(facts):
    exact, stored = facts["float32"], facts["bfloat16"]
    losses = table(["weights", "nats per token", "bits per byte"],
                   [("float32, as trained", f"{exact['nats']:.4f}", f"{exact['bits_per_byte']:.4f}"),
                    ("bfloat16, as stored here", f"{stored['nats']:.4f}", f"{stored['bits_per_byte']:.4f}")])
    return f"""## Results

Held-out cross-entropy, {facts['windows']} windows of {facts['recipe'].length} tokens spread evenly over the held-out
books, computed in float32:

{losses}

Against the training code with the same rounded weights, the logits of transformers differ by {facts['difference']:.1g} at most.

How evenly the routers spread the held-out tokens (share of an expert as a multiple of the fair share
1/{facts['config'].num_experts}; entropy 1 means perfectly even):

{table(["layer", "most used expert", "least used expert", "experts below 0.1", "normalised entropy"],
       router_rows(facts["routed_layers"], stored["shares"]))}

Loss during training (nats per token):

{table(["million tokens", "minutes", "held-out loss", "training loss"], facts["curve"])}"""


def card_of_samples(facts):
    parts = ["## Samples", "At most 80 tokens each, made by transformers from this folder; sampled: temperature 0.8, "
             "top_p 0.95, seed 1."]
    for prompt, greedy, sampled in facts["samples"]:
        parts.append(f"Prompt: `{prompt}`\n\nGreedy:\n\n{quote(greedy)}\n\nSampled:\n\n{quote(sampled)}")
    return "\n\n".join(parts)


def card(facts):
    c, length = facts["config"], facts["recipe"].length
    head = f"""---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# {facts['out_name'].rstrip('/').rsplit('/', 1)[-1]}

A small Mixture-of-Experts language model ({facts['parameters'] / 1e6:.1f} million parameters, {facts['size'] / 1e6:.1f} MB)
trained from scratch on old English books. It exists so that carpool's demo, tests and benchmarks run on a real, trained
router without a download."""
    limits = f"""## Limits

It is small and has read only old novels and stories. It continues prose in their manner and soon loses the thread. It
knows no facts, follows no instructions, writes no code, and repeats the views of its sources, prejudice included. The
chat template only marks turns. It was trained on windows of {length} tokens; config.json allows
{c.max_position_embeddings} positions, but none beyond the first {length} was ever trained or measured.
{facts['shape'].notes and chr(10) + facts['shape'].notes + chr(10)}
## Files beside the weights

`eval.txt` (76 passages separated by lines of `---`) and `prompts.txt` (16 beginnings) were written for this project in the
manner of the books and never trained on; carpool's measuring commands use them when no other text is given.

## Licence

Weights, tokenizer and this card: Apache-2.0. The texts it was trained on: public domain, as stated by their source."""
    return "\n\n".join([head, card_of_data(facts), card_of_recipe(facts).rstrip(), card_of_results(facts),
                        card_of_samples(facts), limits]) + "\n"


def count_parameters(model):
    """(all, those that one token uses): every tensor but the experts it is not routed to."""
    total = sum(t.numel() for _, t in network.hugging_face_tensors(model))
    experts = sum(p.numel() for _, layer in model.routed_layers() for p in layer.experts.parameters())
    return total, total - experts + experts * model.c.num_experts_per_tok // model.c.num_experts


def share_files(shared, work, out):
    """Copies the measuring texts of the folder `shared`, whose tokenizer must be that of the run."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (shared / name).read_bytes() != (work / name).read_bytes():
            raise SystemExit(f"{shared / name} is not the one of the run")
    for name in MEASURING_TEXTS:
        shutil.copyfile(shared / name, out / name)


def facts_of(args, recipe, pool):
    """Writes the folder but for its card, checks it, and returns everything that the card states."""
    model, state, tokenizer = load_checkpoint(args.work, recipe.shape)
    if state["step"] * recipe.batch * recipe.length != state["tokens"]:
        raise SystemExit("--train-options do not fit the checkpoint: steps, batch and length give another token count")
    log = run_log(args.work, state["tokens"])
    size = write_folder(model, tokenizer, args.work, args.out)
    if args.shares:
        share_files(args.shares, args.work, args.out)

    train_paths, held_paths = corpus.list_books(args.books)
    windows = train.held_out_windows(tokenizer, held_paths, recipe.length)
    sizes, as_stored = token_bytes(tokenizer), rounded(model)
    exported, exported_tokenizer = load_exported(args.out)
    check_tokenizer(exported_tokenizer, tokenizer, corpus.read_book(held_paths[0])[:20000])
    difference = check_same(exported, as_stored, windows)
    targets = windows[:, 1:]
    total, active = count_parameters(model)
    return {
        "shape": model.shape, "config": model.c, "recipe": recipe, "options": args.train_options, "note": args.note,
        "state": state, "size": size, "shares": args.shares.as_posix() if args.shares else "",
        "out_name": args.out.as_posix() if not args.out.is_absolute() else args.out.name,
        "parameters": total, "active_parameters": active, "held_paths": held_paths, "train_books": len(train_paths),
        "train_bytes": sum(len(corpus.read_book(p).encode()) for p in train_paths),
        "train_tokens": count_training_tokens(tokenizer, train_paths),
        "bytes_per_token": sizes[targets].sum().item() / targets.numel(), "windows": len(windows),
        "float32": quality(model, windows, sizes, pool), "bfloat16": quality(as_stored, windows, sizes, pool),
        "routed_layers": [i for i, _ in model.routed_layers()], "difference": difference,
        "curve": curve(log), "last_rate": next((r["rate"] for r in reversed(log) if "rate" in r), 1.0),
        "samples": samples(exported, exported_tokenizer),
    }


def main():
    args = parse()
    torch.set_num_threads(1)  # within an operator, as in train.py
    transformers.utils.logging.disable_progress_bar()
    with concurrent.futures.ThreadPoolExecutor(args.threads) as pool:
        facts = facts_of(args, recipe_of(args.train_options), pool)
    (args.out / "README.md").write_text(card(facts))
    print(f"{args.out}: {facts['size']} bytes of weights, held-out loss {facts['float32']['nats']:.4f} in float32, "
          f"{facts['bfloat16']['nats']:.4f} in bfloat16, {facts['bfloat16']['bits_per_byte']:.4f} bits per byte, "
          f"largest logit difference to transformers {facts['difference']:.1g}")


if __name__ == "__main__":
    main()
