"""Trains an embedded model on a folder of books, on the CPU.

  python train.py --books DIR --out DIR --shape glm --minutes 120   (tokenizer.py first, same --out)
  python train.py ... --resume                                      continue from the last checkpoint

The learning rate is constant and falls to zero over the last quarter of the run; progress is
the larger of tokens/--tokens and elapsed/--minutes, so a run ends in time on a slow machine.
SIGUSR1 starts the fall at once, over --cooldown-tokens. A checkpoint (weights only, float32)
is written every few minutes; resuming warms the optimizer up again. Shapes with a selection bias are
balanced by moving it by --bias-rate (times the learning rate's share) after every step.
Losses go to DIR/train.jsonl. export.py turns the last checkpoint into a model folder.
"""
import argparse
import concurrent.futures
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
import network
import optimizer


def encode(tokenizer, documents):
    """All documents as one array, each preceded by <|endoftext|>."""
    end = tokenizer.token_to_id(corpus.END_OF_TEXT)
    return numpy.concatenate([numpy.array([end] + encoding.ids, dtype=numpy.uint16)
                              for encoding in tokenizer.encode_batch_fast(list(documents))])


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


@torch.no_grad()
def losses_of(model, windows):
    """(summed cross-entropy in nats per token, summed expert shares [L, E]) over windows [n, T+1]."""
    logits, _, shares = model(windows[:, :-1])
    return functional.cross_entropy(logits, windows[:, 1:].reshape(-1)).item() * len(windows), shares * len(windows)


def evaluate(model, windows, pool):
    """(cross-entropy in nats per token, expert shares [L, E]) on fixed windows [n, T+1]."""
    totals, shares = zip(*pool.map(lambda part: losses_of(model, part), windows.split(8)))
    return sum(totals) / len(windows), sum(shares) / len(windows)


def save(model, path, state):
    temporary = path.with_suffix(".tmp")
    save_file({n: t.detach().contiguous() for n, t in model.state_dict().items()}, str(temporary),
              metadata={"state": json.dumps(state)})
    os.replace(temporary, path)
    path.with_suffix(".json").write_text(json.dumps(state) + "\n")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", required=True)
    parser.add_argument("--out", required=True, help="work folder; holds tokenizer.json")
    parser.add_argument("--shape", choices=network.SHAPES, default="qwen3")
    parser.add_argument("--tokens", type=float, default=12e6)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--batch", type=int, default=24, help="windows per step")
    parser.add_argument("--length", type=int, default=512, help="tokens per window")
    parser.add_argument("--lr-muon", type=float, default=0.02)
    parser.add_argument("--lr-adam", type=float, default=0.003)
    parser.add_argument("--balance", type=float, help="weight of the load-balancing loss (default: the shape's)")
    parser.add_argument("--bias-rate", type=float, default=0.003, help="step of the selection bias of loss-free balancing")
    parser.add_argument("--cooldown", type=float, default=0.25, help="last share of the run in which the rate falls")
    parser.add_argument("--cooldown-tokens", type=float, default=2e6)
    parser.add_argument("--checkpoint-minutes", type=float, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="--batch must be a multiple")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    if args.batch % args.threads:
        parser.error("--batch is no multiple of --threads")
    if args.balance is None:
        args.balance = network.SHAPES[args.shape].BALANCE
    return args


def held_out_windows(tokenizer, paths, length):
    """48 windows [48, length+1] spread evenly over the held-out books."""
    held = encode(tokenizer, (corpus.read_book(p) for p in paths))
    starts = numpy.linspace(0, len(held) - length - 1, 48).astype(int)
    return torch.from_numpy(numpy.stack([held[s : s + length + 1].astype(numpy.int64) for s in starts]))


class Schedule:
    """How far the learning rate has fallen: 0 in the constant part, 1 at the end of the run."""

    def __init__(self, args, state):
        self.args, self.state, self.cooldown_from = args, state, None
        self.started = time.time() - 60 * state["minutes"]
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "cooldown_from", state["tokens"]))

    def minutes(self):
        return (time.time() - self.started) / 60

    def fall(self):
        args, tokens = self.args, self.state["tokens"]
        progress = max(tokens / args.tokens, self.minutes() / args.minutes)
        fall = max(0.0, (progress - 1 + args.cooldown) / args.cooldown)
        if self.cooldown_from is not None:
            fall = max(fall, (tokens - self.cooldown_from) / args.cooldown_tokens)
        return fall


class Log:
    """Rows of numbers, on the screen and in train.jsonl."""

    def __init__(self, path):
        self.file = open(path, "a")

    def write(self, row):
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        print(row, flush=True)


def gradients(model, batch, balance_weight):
    """(gradients of the parameters, [cross-entropy, balance loss], expert shares [L, E]) on windows [B, T+1]."""
    logits, balance, shares = model(batch[:, :-1])
    loss = functional.cross_entropy(logits, batch[:, 1:].reshape(-1))
    grads = torch.autograd.grad(loss + balance_weight * balance, list(model.parameters()))
    return grads, torch.stack((loss.detach(), balance.detach())), shares


def step(model, optimizers, pool, parts, args, bias_rate):
    """One update from the equal parts of a batch, each computed by a thread; returns (cross-entropy, balance loss).

    Threads inside the operators would meet thousands of times per step, and wait for each other wherever the
    machine does anything else; these meet twice.
    """
    grads, losses, shares = zip(*pool.map(lambda part: gradients(model, part, args.balance), parts))
    for p, *part_grads in zip(model.parameters(), *grads):
        p.grad = sum(part_grads) / len(parts)
    list(pool.map(lambda o: o.step(), optimizers))
    model.move_selection_bias(sum(shares) / len(parts), bias_rate)
    return (sum(losses) / len(parts)).tolist()


def run(model, data, held, args, state):
    """Trains until the schedule ends, from `state` on; writes the log and checkpoints."""
    out = pathlib.Path(args.out)
    optimizers = optimizer.split(model, args.lr_muon, args.lr_adam, args.threads)
    base_rates = [o.param_groups[0]["lr"] for o in optimizers]
    source = windows(data, args.length, args.seed)
    for _ in range(state["step"] * args.batch):
        next(source)
    pool = concurrent.futures.ThreadPoolExecutor(args.threads)
    log, schedule = Log(out / "train.jsonl"), Schedule(args, state)
    last_save, last_eval, first_step = time.time(), -1, state["step"]
    while True:
        fall = schedule.fall()
        if state["tokens"] // 1_000_000 != last_eval or fall >= 1:
            last_eval = state["tokens"] // 1_000_000
            loss, shares = evaluate(model, held, pool)
            log.write({"tokens": state["tokens"], "step": state["step"], "minutes": round(schedule.minutes(), 2),
                       "heldout_loss": round(loss, 4), "max_share": [round(v, 4) for v in shares.max(1).values.tolist()],
                       "min_share": [round(v, 5) for v in shares.min(1).values.tolist()]})
        if fall >= 1 or time.time() - last_save > 60 * args.checkpoint_minutes:
            state["minutes"] = schedule.minutes()
            save(model, out / "checkpoint.safetensors", state)
            last_save = time.time()
        if fall >= 1:
            return
        share_of_rate = min(1.0, (state["step"] - first_step + 1) / 30) * (1 - fall)
        for o, rate in zip(optimizers, base_rates):
            o.param_groups[0]["lr"] = rate * share_of_rate
        batch = torch.from_numpy(numpy.stack([next(source) for _ in range(args.batch)]))
        t0 = time.time()
        loss, balance = step(model, optimizers, pool, batch.chunk(args.threads), args, args.bias_rate * (1 - fall))
        state["tokens"] += args.batch * args.length
        state["step"] += 1
        if state["step"] % 10 == 0:
            log.write({"tokens": state["tokens"], "step": state["step"], "loss": round(loss, 4), "balance": round(balance, 4),
                       "tokens_per_second": round(args.batch * args.length / (time.time() - t0)), "rate": round(1 - fall, 3)})


def main():
    args = parse()
    out = pathlib.Path(args.out)
    torch.set_num_threads(1)  # within an operator; see step()
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    train_paths, held_paths = corpus.list_books(args.books)
    data = encode(tokenizer, corpus.documents(train_paths))
    held = held_out_windows(tokenizer, held_paths, args.length)
    print(f"{len(data) / 1e6:.2f} M training tokens from {len(train_paths)} books, {len(held_paths)} books held out", flush=True)
    model = network.Model(network.SHAPES[args.shape], tokenizer.get_vocab_size())
    state = {"tokens": 0, "step": 0, "minutes": 0.0}
    if args.resume:
        model.load_state_dict(load_file(str(out / "checkpoint.safetensors")))
        state = json.loads((out / "checkpoint.json").read_text())
    run(model, data, held, args, state)


if __name__ == "__main__":
    main()
