"""Muon for matrices, Adam for everything else.

Muon (momentum, then the nearest semi-orthogonal matrix by Newton-Schulz iterations) needs
about half as many tokens as Adam at this size, and all experts of a layer go through the
iterations as one batched product. Embeddings, norms and routers stay with Adam.
"""
import torch


def orthogonalise(g, steps=5):
    """g [..., m, n] -> roughly U V^T of its singular value decomposition; quintic Newton-Schulz."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = g.shape[-2] <= g.shape[-1]
    x = g if wide else g.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * (s @ s)) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                m = state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                update = torch.lerp(p.grad, m, group["momentum"])
                # gate and up are stored side by side but are two matrices
                halves = update.chunk(2, -1) if getattr(p, "two_matrices", False) else (update,)
                update = torch.cat([orthogonalise(h) for h in halves], -1)
                rows, columns = halves[0].shape[-2:]
                scale = max(1.0, (columns / rows if p.dim() == 3 else rows / columns)) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * scale)


def split(model, lr_muon, lr_adam, parts):
    """Returns [Muon] * parts + [AdamW] over the model's parameters; the Muons have about equal work."""
    matrices, rest = [], []
    for name, p in model.named_parameters():
        p.two_matrices = name.endswith("gate_up")
        (matrices if p.dim() >= 2 and "embed" not in name and "router" not in name else rest).append(p)
    matrices.sort(key=lambda p: p.numel(), reverse=True)
    return [*(Muon(matrices[i::parts], lr=lr_muon) for i in range(parts)),
            torch.optim.AdamW(rest, lr=lr_adam, betas=(0.9, 0.95), weight_decay=0.0)]
