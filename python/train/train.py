"""Trains an embedded model on a folder of books, on the CPU.

  python train.py --books DIR --out DIR --minutes 120        (tokenizer.py first, same --out)
  python train.py ... --resume                               continue from the last checkpoint

The learning rate is constant and falls to zero over the last quarter of the run; progress is
the larger of tokens/--tokens and elapsed/--minutes, so a run ends in time on a slow machine.
SIGUSR1 starts the fall at once, over --cooldown-tokens. A checkpoint (weights only, float32)
is written every few minutes; resuming warms the optimizer up again.
Losses go to DIR/train.jsonl. export.py turns the last checkpoint into a model folder.
"""
import argparse
import json
import os
import pathlib
import signal
import time

import numpy
import torch
import torch.nn.functional as functional
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import corpus
import moe_model
import optimizer


def encode(tokenizer, documents):
    """All documents as one array, each preceded by <|endoftext|>."""
    end = tokenizer.token_to_id(corpus.END_OF_TEXT)
    parts = []
    for text in documents:
        parts.append(numpy.array([end] + tokenizer.encode(text).ids, dtype=numpy.uint16))
    return numpy.concatenate(parts)


def windows(data, length, seed):
    """Non-overlapping windows of length+1 in a new random order each epoch, for ever."""
    epoch = 0
    while True:
        rng = numpy.random.default_rng((seed, epoch))
        offset = int(rng.integers(0, length))
        starts = offset + length * rng.permutation((len(data) - offset - 1) // length)
        for s in starts:
            yield data[s : s + length + 1].astype(numpy.int64)
        epoch += 1


def evaluate(model, batch):
    """(cross-entropy in nats per token, expert shares [L, E]) on fixed windows [n, T+1]."""
    total, shares = 0.0, 0.0
    with torch.no_grad():
        for part in batch.split(8):
            logits, _, share = model(part[:, :-1])
            total += functional.cross_entropy(logits, part[:, 1:].reshape(-1)).item() * len(part)
            shares = shares + share * len(part)
    return total / len(batch), shares / len(batch)


def save(model, path, state):
    temporary = path.with_suffix(".tmp")
    save_file({n: p.detach().contiguous() for n, p in model.named_parameters()}, str(temporary),
              metadata={"state": json.dumps(state)})
    os.replace(temporary, path)
    path.with_suffix(".json").write_text(json.dumps(state) + "\n")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", required=True)
    parser.add_argument("--out", required=True, help="work folder; holds tokenizer.json")
    parser.add_argument("--tokens", type=float, default=12e6)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--batch", type=int, default=24, help="windows per step")
    parser.add_argument("--length", type=int, default=512, help="tokens per window")
    parser.add_argument("--lr-muon", type=float, default=0.02)
    parser.add_argument("--lr-adam", type=float, default=0.003)
    parser.add_argument("--balance", type=float, default=0.03, help="weight of the load-balancing loss")
    parser.add_argument("--cooldown", type=float, default=0.25, help="last share of the run in which the rate falls")
    parser.add_argument("--cooldown-tokens", type=float, default=2e6)
    parser.add_argument("--checkpoint-minutes", type=float, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


def main():
    args = parse()
    out = pathlib.Path(args.out)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    train_paths, held_paths = corpus.list_books(args.books)
    data = encode(tokenizer, corpus.documents(train_paths))
    held = encode(tokenizer, (corpus.read_book(p) for p in held_paths))
    held = torch.from_numpy(numpy.stack([held[s : s + args.length + 1].astype(numpy.int64)
                                         for s in numpy.linspace(0, len(held) - args.length - 1, 48).astype(int)]))
    print(f"{len(data) / 1e6:.2f} M training tokens from {len(train_paths)} books, {len(held_paths)} books held out", flush=True)

    model = moe_model.Model(moe_model.Config(vocab_size=tokenizer.get_vocab_size()))
    checkpoint, state = out / "checkpoint.safetensors", {"tokens": 0, "step": 0, "minutes": 0.0}
    if args.resume:
        model.load_state_dict(load_file(str(checkpoint)))
        state = json.loads(checkpoint.with_suffix(".json").read_text())
    optimizers = optimizer.split(model, args.lr_muon, args.lr_adam)
    base_rates = [o.param_groups[0]["lr"] for o in optimizers]
    source = windows(data, args.length, args.seed)
    for _ in range(state["step"] * args.batch):
        next(source)
    cooldown = {"from": None}
    signal.signal(signal.SIGUSR1, lambda *_: cooldown.update({"from": state["tokens"]}))
    log = open(out / "train.jsonl", "a")
    started = time.time() - 60 * state["minutes"]
    last_save, last_eval, steps_here = time.time(), -1, 0
    while True:
        elapsed = (time.time() - started) / 60
        progress = max(state["tokens"] / args.tokens, elapsed / args.minutes)
        fall = max(0.0, (progress - 1 + args.cooldown) / args.cooldown)
        if cooldown["from"] is not None:
            fall = max(fall, (state["tokens"] - cooldown["from"]) / args.cooldown_tokens)
        warm = min(1.0, (steps_here + 1) / 30)
        if fall < 1:
            for o, rate in zip(optimizers, base_rates):
                o.param_groups[0]["lr"] = rate * warm * (1 - fall)
        if state["tokens"] // 1_000_000 != last_eval or fall >= 1:
            last_eval = state["tokens"] // 1_000_000
            loss, shares = evaluate(model, held)
            row = {"tokens": state["tokens"], "step": state["step"], "minutes": round(elapsed, 2), "heldout_loss": round(loss, 4),
                   "max_share": [round(v, 4) for v in shares.max(1).values.tolist()],
                   "min_share": [round(v, 5) for v in shares.min(1).values.tolist()]}
            log.write(json.dumps(row) + "\n")
            log.flush()
            print(row, flush=True)
        if fall >= 1 or time.time() - last_save > 60 * args.checkpoint_minutes:
            state["minutes"] = elapsed
            save(model, checkpoint, state)
            last_save = time.time()
        if fall >= 1:
            break
        batch = torch.from_numpy(numpy.stack([next(source) for _ in range(args.batch)]))
        t0 = time.time()
        logits, balance, _ = model(batch[:, :-1])
        loss = functional.cross_entropy(logits, batch[:, 1:].reshape(-1))
        (loss + args.balance * balance).backward()
        for o in optimizers:
            o.step()
            o.zero_grad(set_to_none=True)
        state["tokens"] += args.batch * args.length
        state["step"] += 1
        steps_here += 1
        if state["step"] % 10 == 0:
            row = {"tokens": state["tokens"], "step": state["step"], "loss": round(loss.item(), 4), "balance": round(balance.item(), 4),
                   "tokens_per_second": round(args.batch * args.length / (time.time() - t0)), "rate": round(1 - fall, 3)}
            log.write(json.dumps(row) + "\n")
            log.flush()
            print(row, flush=True)


if __name__ == "__main__":
    main()
