"""What every shape does after its router has chosen: the routed experts and how evenly they are used.

Owns: the parameters of one layer's experts, their product with the tokens routed to them, and the
load-balancing loss. The experts run as one hand-written autograd function, since thousands of small
autograd nodes per step would cost more than the matrix products. Does not choose experts or weigh
them: shape_qwen3.py, shape_glm.py. Shapes: N tokens, D width, F expert width, E experts, K experts
per token.
"""
import torch
import torch.nn.functional as functional
from torch import nn


class RoutedExperts(torch.autograd.Function):
    """y[n] = sum over the K experts e of token n of w[n,e] * down_e(silu(gate_e x) * up_e x)."""

    @staticmethod
    def forward(ctx, x, weight, expert, gate_up, down):
        # x [N, D]; weight, expert [N, K]; gate_up [E, D, 2F]; down [E, F, D]
        N, K = expert.shape
        E, F = down.shape[0], down.shape[1]
        order = torch.argsort(expert.reshape(-1), stable=True)
        counts = torch.bincount(expert.reshape(-1), minlength=E).tolist()
        token = order // K
        rows = x.index_select(0, token)
        hidden = x.new_empty(N * K, 2 * F)
        start = 0
        for e, n in enumerate(counts):
            if n:
                torch.mm(rows[start:start + n], gate_up[e], out=hidden[start:start + n])
            start += n
        act = functional.silu(hidden[:, :F]) * hidden[:, F:]
        out = x.new_empty(N * K, x.shape[1])
        start = 0
        for e, n in enumerate(counts):
            if n:
                torch.mm(act[start:start + n], down[e], out=out[start:start + n])
            start += n
        w = weight.reshape(-1).index_select(0, order)
        y = torch.zeros_like(x).index_add_(0, token, out * w[:, None])
        ctx.save_for_backward(rows, hidden, act, out, w, order, token, gate_up, down)
        ctx.counts, ctx.shape = counts, (N, K)
        return y

    @staticmethod
    def backward(ctx, grad):
        rows, hidden, act, out, w, order, token, gate_up, down = ctx.saved_tensors
        F = down.shape[1]
        g = grad.index_select(0, token)
        grad_w = torch.empty(ctx.shape[0] * ctx.shape[1])
        grad_w[order] = (g * out).sum(1)
        g *= w[:, None]
        grad_down, grad_gate_up = torch.zeros_like(down), torch.zeros_like(gate_up)
        grad_act = torch.empty_like(act)
        start = 0
        for e, n in enumerate(ctx.counts):
            if n:
                part = slice(start, start + n)
                torch.mm(act[part].t(), g[part], out=grad_down[e])
                torch.mm(g[part], down[e].t(), out=grad_act[part])
            start += n
        gate, up = hidden[:, :F], hidden[:, F:]
        sig = torch.sigmoid(gate)
        silu = gate * sig
        grad_hidden = torch.empty_like(hidden)
        torch.mul(grad_act, silu, out=grad_hidden[:, F:])
        grad_hidden[:, :F] = grad_act * up * (sig + silu * (1 - sig))
        grad_rows = torch.empty_like(rows)
        start = 0
        for e, n in enumerate(ctx.counts):
            if n:
                part = slice(start, start + n)
                torch.mm(rows[part].t(), grad_hidden[part], out=grad_gate_up[e])
                torch.mm(grad_hidden[part], gate_up[e].t(), out=grad_rows[part])
            start += n
        grad_x = torch.zeros_like(grad).index_add_(0, token, grad_rows)
        return grad_x, grad_w.view(ctx.shape), None, grad_gate_up, grad_down


class Experts(nn.Module):
    """The E gated experts of one layer; `residual_scale` shrinks the initial output."""

    def __init__(self, E, D, F, residual_scale):
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(E, D, 2 * F) * D ** -0.5)
        self.down = nn.Parameter(torch.randn(E, F, D) * F ** -0.5 * residual_scale)

    def forward(self, x, weight, expert):
        return RoutedExperts.apply(x, weight, expert, self.gate_up, self.down)

    def hugging_face_tensors(self, prefix):
        """Yields (name, tensor) of every expert under the names of published checkpoints."""
        F = self.down.shape[1]
        for e, (gate_up, down) in enumerate(zip(self.gate_up, self.down)):
            yield f"{prefix}experts.{e}.gate_proj.weight", gate_up[:, :F].t()
            yield f"{prefix}experts.{e}.up_proj.weight", gate_up[:, F:].t()
            yield f"{prefix}experts.{e}.down_proj.weight", down.t()


def balance_of(probabilities, expert):
    """(loss, shares [E]) of the choices `expert` [N, K] made from router `probabilities` [N, E] that sum to 1.

    The loss is that of Switch Transformers over the whole batch: E * sum over e of share_e * mean probability_e.
    """
    E = probabilities.shape[1]
    share = torch.bincount(expert.reshape(-1), minlength=E).float() / expert.numel()
    return E * (share * probabilities.mean(0)).sum(), share
