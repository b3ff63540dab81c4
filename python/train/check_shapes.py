"""Checks that every shape computes what transformers computes, before anything is trained.

  python check_shapes.py [SHAPE ...]

Each shape gets random weights (norms and selection biases too, which start as ones and zeros), is
written as a model folder in float32 and read back by transformers; the logits must agree to 1e-4
and no tensor may be missing or left over. What it does not check: training (train.py), bfloat16 and the trained
folder (export.py).
"""
import json
import pathlib
import sys
import tempfile

import torch
import transformers
from safetensors.torch import save_file

import export
import network

VOCAB, LENGTH, TOLERANCE = 512, 64, 1e-4


def random_model(shape):
    """Every tensor random; vectors around their first value."""
    model = network.Model(shape, VOCAB).eval()
    with torch.no_grad():
        for name, tensor in network.hugging_face_tensors(model):
            if tensor.dim() == 1:
                tensor += torch.randn_like(tensor) * 0.2
            elif "embed" not in name:
                tensor *= 1.5
    return model


def difference(shape):
    """Largest logit difference between `shape` and transformers."""
    torch.manual_seed(1)
    model = random_model(shape)
    tokens = torch.randint(VOCAB, (2, LENGTH))
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        (out / "config.json").write_text(json.dumps(export.config_fields(model, [0, 3])))
        tensors = {n: t.detach().contiguous() for n, t in network.hugging_face_tensors(model)}
        save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
        reference, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(kind):
            raise SystemExit(f"{kind}: {sorted(info[kind])[:5]}")
    with torch.no_grad():
        return (reference.eval()(input_ids=tokens).logits.flatten(0, 1) - model(tokens)[0]).abs().max().item()


def main():
    transformers.utils.logging.disable_progress_bar()
    failed = False
    for name in sys.argv[1:] or network.SHAPES:
        worst = difference(network.SHAPES[name])
        failed = failed or not worst < TOLERANCE
        print(f"{name}: largest logit difference {worst:.1e}")
    raise SystemExit("another network than transformers'" if failed else 0)


if __name__ == "__main__":
    main()
