"""A Qwen3-MoE-shaped language model for training on a CPU (plain PyTorch).

Owns: the network, its initialisation, and the names its tensors have in a Hugging Face
checkpoint. The mathematics is that of transformers' Qwen3MoeForCausalLM; the experts run
as one hand-written autograd function, since thousands of small autograd nodes per step
would cost more than the matrix products. Shapes: N tokens, D width, F expert width,
E experts, K experts per token.
"""
import dataclasses

import torch
import torch.nn.functional as functional
from torch import nn


@dataclasses.dataclass
class Config:
    vocab_size: int = 4096
    hidden_size: int = 192
    moe_intermediate_size: int = 64
    num_hidden_layers: int = 5
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 32
    num_experts: int = 64
    num_experts_per_tok: int = 8
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 1024


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


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        D, hd = c.hidden_size, c.head_dim
        self.c = c
        self.input_norm = nn.Parameter(torch.ones(D))
        self.post_norm = nn.Parameter(torch.ones(D))
        self.q_norm = nn.Parameter(torch.ones(hd))
        self.k_norm = nn.Parameter(torch.ones(hd))
        std = D ** -0.5
        self.q = nn.Parameter(torch.randn(c.num_attention_heads * hd, D) * std)
        self.k = nn.Parameter(torch.randn(c.num_key_value_heads * hd, D) * std)
        self.v = nn.Parameter(torch.randn(c.num_key_value_heads * hd, D) * std)
        self.o = nn.Parameter(torch.randn(D, c.num_attention_heads * hd) * std * (2 * c.num_hidden_layers) ** -0.5)
        self.router = nn.Parameter(torch.randn(c.num_experts, D) * std)
        E, F = c.num_experts, c.moe_intermediate_size
        self.gate_up = nn.Parameter(torch.randn(E, D, 2 * F) * std)
        self.down = nn.Parameter(torch.randn(E, F, D) * F ** -0.5 * (2 * c.num_hidden_layers) ** -0.5)

    def attention(self, x, cos, sin):
        c, (B, T, _) = self.c, x.shape
        def heads(w, n):
            return functional.linear(x, w).view(B, T, n, c.head_dim).transpose(1, 2)
        q = functional.rms_norm(heads(self.q, c.num_attention_heads), (c.head_dim,), self.q_norm, c.rms_norm_eps)
        k = functional.rms_norm(heads(self.k, c.num_key_value_heads), (c.head_dim,), self.k_norm, c.rms_norm_eps)
        v = heads(self.v, c.num_key_value_heads)
        group = c.num_attention_heads // c.num_key_value_heads
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return functional.linear(y.transpose(1, 2).reshape(B, T, -1), self.o)

    def forward(self, x, cos, sin):
        c, shape = self.c, x.shape
        x = x + self.attention(functional.rms_norm(x, shape[-1:], self.input_norm, c.rms_norm_eps), cos, sin)
        h = functional.rms_norm(x, shape[-1:], self.post_norm, c.rms_norm_eps).view(-1, shape[-1])
        scores = torch.softmax(functional.linear(h, self.router), -1)
        weight, expert = torch.topk(scores, c.num_experts_per_tok, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        y = RoutedExperts.apply(h, weight, expert, self.gate_up, self.down)
        # Load-balancing loss of Switch Transformers / Qwen3-MoE: E * sum_e f_e * P_e, over the whole batch.
        share = torch.bincount(expert.reshape(-1), minlength=c.num_experts).float() / expert.numel()
        balance = c.num_experts * (share * scores.mean(0)).sum()
        return x + y.view(shape), balance, share


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = nn.Parameter(torch.randn(c.vocab_size, c.hidden_size) * 0.05)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(c.hidden_size))
        frequency = c.rope_theta ** (-torch.arange(0, c.head_dim, 2).float() / c.head_dim)
        angle = torch.outer(torch.arange(c.max_position_embeddings).float(), frequency)
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens):
        """tokens [B, T] -> (logits [B*T, V], mean balance loss, expert shares [L, E])."""
        T = tokens.shape[1]
        x, balance, shares = self.embed[tokens], 0.0, []
        for layer in self.layers:
            x, b, share = layer(x, self.cos[:T], self.sin[:T])
            balance = balance + b / len(self.layers)
            shares.append(share)
        x = functional.rms_norm(x, x.shape[-1:], self.norm, self.c.rms_norm_eps)
        return functional.linear(x, self.embed).view(-1, self.c.vocab_size), balance, torch.stack(shares)


def hugging_face_tensors(model):
    """Yields (name, tensor) with the names and orientation of Qwen3MoeForCausalLM; the head is tied."""
    F = model.c.moe_intermediate_size
    yield "model.embed_tokens.weight", model.embed
    yield "model.norm.weight", model.norm
    for i, layer in enumerate(model.layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", layer.input_norm
        yield p + "post_attention_layernorm.weight", layer.post_norm
        for name in "qkvo":
            yield p + f"self_attn.{name}_proj.weight", getattr(layer, name)
        yield p + "self_attn.q_norm.weight", layer.q_norm
        yield p + "self_attn.k_norm.weight", layer.k_norm
        yield p + "mlp.gate.weight", layer.router
        for e in range(model.c.num_experts):
            yield p + f"mlp.experts.{e}.gate_proj.weight", layer.gate_up[e, :, :F].t()
            yield p + f"mlp.experts.{e}.up_proj.weight", layer.gate_up[e, :, F:].t()
            yield p + f"mlp.experts.{e}.down_proj.weight", layer.down[e].t()
