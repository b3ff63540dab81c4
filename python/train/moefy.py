"""Cuts the dense blocks of a published small model into experts: a trained Mixture-of-Experts model to measure policies on.

  python python/train/moefy.py --out DIRECTORY [--gguf FILE] [--text FILE ...] [--experts 48] [--experts-per-token 36]

Without --gguf, SmolLM2-135M-Instruct (Apache-2.0) is downloaded by compare/fetch_smollm2.py. Of each dense block:

1. The neurons' activations on a text, times the norm of what a neuron adds, say which neurons work together; balanced
   k-means on their cosines makes experts of equal size.
2. A linear router with bias is fitted by ridge regression from the block's input to the logarithm of the squared norm of
   each expert's output. So the softmax of its logits is what share of the output each expert is expected to have.

An expert counts whole (weight 1): the block is the sum of its experts, so with all of them active the model is the dense one
whatever the router says. After MoEfication (arXiv 2110.01786), without training. Writes a folder of the family
`llama_moefied`, and prints what leaving experts out costs on every eighth window of the text, which nothing was fitted on.
Needs torch, numpy, gguf, tokenizers and safetensors (python/requirements.txt); some minutes on two cores.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional

from dense_llama import BLOCK_MATRICES, DenseLlama

ROOT = pathlib.Path(__file__).resolve().parents[2]
OWN_TEXT = [ROOT / "models" / "books-qwen3" / "eval.txt", ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HELD_OUT = 8  # one window of so many is not fitted on
ROUNDS = 10   # of k-means, at most


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the folder to make")
    parser.add_argument("--gguf", type=pathlib.Path, help="a dense model of the architecture llama; default: downloaded")
    parser.add_argument("--text", type=pathlib.Path, nargs="+", default=OWN_TEXT, help="default: this repository's prose")
    parser.add_argument("--windows", type=int, default=16, help="of --window tokens, spread evenly over the texts")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--experts", type=int, default=48)
    parser.add_argument("--experts-per-token", type=int, default=36)
    parser.add_argument("--ridge", type=float, default=0.1, help="penalty, in units of the inputs' mean variance")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def fetch(directory):
    program = ROOT / "python" / "compare" / "fetch_smollm2.py"
    done = subprocess.run([sys.executable, program, directory], check=True, stdout=subprocess.PIPE, text=True)
    return pathlib.Path(done.stdout.strip())


def read_windows(tokenizer, paths, count, length):
    """[count, length] token ids, at even distances in the texts one after the other."""
    ids = [i for path in paths for i in tokenizer.encode(path.read_text()).ids]
    if len(ids) < count * length:
        raise SystemExit(f"the text has {len(ids)} tokens, {count} windows of {length} need {count * length}")
    starts = torch.linspace(0, len(ids) - length, count).long().tolist()
    return torch.tensor([ids[s:s + length] for s in starts])


# Experts ---------------------------------------------------------------------------------------------------------


def assign_evenly(likeness, size):
    """The expert of each neuron, `size` to an expert: neurons ask for their best, experts keep the likest, the rest ask on."""
    likeness = likeness.clone()
    while True:
        best, wanted = likeness.max(dim=1)
        crowded = (torch.bincount(wanted, minlength=likeness.shape[1]) > size).nonzero().flatten().tolist()
        if not crowded:
            return wanted
        for e in crowded:
            asking = (wanted == e).nonzero().flatten()
            likeness[asking[best[asking].argsort(descending=True, stable=True)[size:]], e] = -torch.inf


def cluster(activity, experts, seed):
    """[F] experts of the neurons. activity [T, F]: how much each neuron adds, not negative."""
    generator = torch.Generator().manual_seed(seed)
    vectors = functional.normalize(activity, dim=0)
    cosines = vectors.T @ vectors
    size = len(cosines) // experts
    seeds = [int(torch.randint(len(cosines), (1,), generator=generator))]
    for _ in range(experts - 1):  # far from those before, as k-means++ has it
        distance = (1 - cosines[:, seeds].amax(1)).clamp_min(0)
        seeds.append(int(torch.multinomial(distance.square(), 1, generator=generator)))
    found = assign_evenly(cosines[:, seeds], size)
    for _ in range(ROUNDS):
        members = functional.one_hot(found, experts).float()
        sums = cosines @ members
        again = assign_evenly(sums / (members * sums).sum(0).sqrt(), size)
        if torch.equal(again, found):
            break
        found = again
    return found


def fit_router(inputs, energies, ridge):
    """weight [E, D] and bias [E] that predict the logarithm of energies [T, E] from inputs [T, D]."""
    wanted = energies.clamp_min(1e-12).log()
    mean, level = inputs.mean(0), wanted.mean(0)
    centred = inputs - mean
    gram = centred.T @ centred / len(centred)
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram))
    weight = torch.linalg.solve(gram, centred.T @ (wanted - level) / len(centred)).T
    return weight, level - weight @ mean


class Block:
    """A dense block cut into experts: `neurons` [E, F / E], the router's `weight` [E, D] and `bias` [E]."""

    def __init__(self, matrices, inputs, options):
        gate, up, down = matrices
        E = options.experts
        neurons = functional.silu(inputs @ gate.T) * (inputs @ up.T)
        self.expert = cluster(neurons.abs() * down.norm(dim=0), E, options.seed)
        self.neurons = self.expert.argsort(stable=True).view(E, -1)
        energies = torch.stack([((neurons[:, n] @ (down[:, n].T @ down[:, n])) * neurons[:, n]).sum(1)
                                for n in self.neurons], dim=1)  # squared norms of the experts' outputs
        self.weight, self.bias = fit_router(inputs, energies, options.ridge)

    def active(self, inputs, k):
        """[..., F] 1 where a neuron belongs to one of the k experts of its row, else 0."""
        logits = inputs @ self.weight.T + self.bias
        return torch.zeros_like(logits).scatter_(-1, logits.topk(k, dim=-1).indices, 1)[..., self.expert]


def run_blocks(model, layer, x, active=None):
    """x plus the dense block of `layer`, or plus what `active` leaves of it; and the block's inputs."""
    gate, up, down = model.block(layer)
    inputs = model.norm(x, f"model.layers.{layer}.post_attention_layernorm.weight")
    neurons = functional.silu(inputs @ gate.T) * (inputs @ up.T)
    if active:
        neurons *= active(inputs)
    return x + neurons @ down.T, inputs


def fit(model, windows, held_out, options):
    """The blocks of all layers, and the dense model's loss on the windows held out."""
    x, blocks = model.embed(windows), []
    for layer in range(model.config["num_hidden_layers"]):
        x, inputs = run_blocks(model, layer, model.attention(layer, x))
        blocks.append(Block(model.block(layer), inputs[~held_out].flatten(0, 1), options))
        print(f"\rlayer {layer}", end="", file=sys.stderr, flush=True)
    print("\r", end="", file=sys.stderr)
    return blocks, model.losses(x[held_out], windows[held_out]).mean().item()


def loss_with(model, blocks, windows, k):
    x = model.embed(windows)
    for layer, block in enumerate(blocks):
        x, _ = run_blocks(model, layer, model.attention(layer, x), lambda inputs: block.active(inputs, k))
    return model.losses(x, windows).mean().item()


# The folder ------------------------------------------------------------------------------------------------------


def tensors_of(model, blocks, dtype):
    """By the names of the family; routers and norms stay float32."""
    out = {name: t.to(dtype if t.dim() > 1 else torch.float32) for name, t in model.tensors.items() if ".mlp." not in name}
    for layer, block in enumerate(blocks):
        p = f"model.layers.{layer}.mlp."
        out[p + "gate.weight"], out[p + "gate.bias"] = block.weight, block.bias
        for matrix, values in zip(BLOCK_MATRICES, model.block(layer)):
            for e, neurons in enumerate(block.neurons):
                part = values[:, neurons] if matrix == "down_proj" else values[neurons]
                out[f"{p}experts.{e}.{matrix}.weight"] = part.to(dtype)
    return {name: t.contiguous() for name, t in out.items()}


def write(model, blocks, options):
    config = {"architectures": ["LlamaMoefiedForCausalLM"], "model_type": "llama_moefied", **model.config,
              "num_experts": options.experts, "num_experts_per_tok": options.experts_per_token,
              "moe_intermediate_size": model.config["intermediate_size"] // options.experts, "torch_dtype": options.dtype}
    options.out.mkdir(parents=True, exist_ok=True)
    for name, content in (("config.json", config), ("tokenizer.json", model.tokenizer()),
                          ("tokenizer_config.json", model.tokenizer_config())):
        (options.out / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    save_file(tensors_of(model, blocks, getattr(torch, options.dtype)), str(options.out / "model.safetensors"),
              metadata={"format": "pt"})


def check(model, options):
    width, E = model.config["intermediate_size"], options.experts
    if E < 1 or width % E != 0:
        raise SystemExit(f"--experts {E} does not divide the {width} neurons of a block")
    if not 1 <= options.experts_per_token <= E:
        raise SystemExit(f"--experts-per-token {options.experts_per_token} must be 1 to {E}")
    if options.windows < HELD_OUT:
        raise SystemExit(f"--windows {options.windows} must be at least {HELD_OUT}: one in {HELD_OUT} is held out")


@torch.no_grad()
def main():
    options = parse()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        model = DenseLlama(options.gguf or fetch(scratch))
        check(model, options)
        tokenizer = Tokenizer.from_str(json.dumps(model.tokenizer()))
        windows = read_windows(tokenizer, options.text, options.windows, options.window)
        held_out = torch.arange(len(windows)) % HELD_OUT == HELD_OUT - 1
        blocks, dense = fit(model, windows, held_out, options)
        print(f"fitted on {int((~held_out).sum()) * options.window} tokens; nats per token on {int(held_out.sum())} other windows:")
        print(f"  dense                  {dense:.4f}")
        E, K = options.experts, options.experts_per_token
        for k in sorted({E // 4, E // 2, 3 * E // 4, K, E} - {0}):
            print(f"  {k:4} of {E} experts{'  <-' if k == K else '    '} {loss_with(model, blocks, windows[held_out], k):.4f}")
        write(model, blocks, options)


if __name__ == "__main__":
    main()
