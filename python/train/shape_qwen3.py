"""The Qwen3-MoE shape: the mathematics and tensor names of transformers' Qwen3MoeForCausalLM.

Owns: sizes, attention with grouped heads and normalised queries and keys, the softmax router.
Does not own: experts (experts.py), what surrounds the layers (network.py, which says what a shape has).
"""
import dataclasses

import torch
import torch.nn.functional as functional
from torch import nn

from experts import Experts, balance_of

BALANCE = 0.03
notes = ""


@dataclasses.dataclass
class Config:
    vocab_size: int
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

    @property
    def rope_dim(self):
        return self.head_dim


class Layer(nn.Module):
    selection_bias = None

    def __init__(self, c, index):
        super().__init__()
        D, hd = c.hidden_size, c.head_dim
        self.c = c
        self.input_norm = nn.Parameter(torch.ones(D))
        self.post_norm = nn.Parameter(torch.ones(D))
        self.q_norm = nn.Parameter(torch.ones(hd))
        self.k_norm = nn.Parameter(torch.ones(hd))
        std, residual_scale = D ** -0.5, (2 * c.num_hidden_layers) ** -0.5
        self.q = nn.Parameter(torch.randn(c.num_attention_heads * hd, D) * std)
        self.k = nn.Parameter(torch.randn(c.num_key_value_heads * hd, D) * std)
        self.v = nn.Parameter(torch.randn(c.num_key_value_heads * hd, D) * std)
        self.o = nn.Parameter(torch.randn(D, c.num_attention_heads * hd) * std * residual_scale)
        self.router = nn.Parameter(torch.randn(c.num_experts, D) * std)
        self.experts = Experts(c.num_experts, D, c.moe_intermediate_size, residual_scale)

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
        return x + self.experts(h, weight, expert).view(shape), balance_of(scores, expert)


def rotate(x, cos, sin):
    """Rotates x [..., T, head_dim] in pairs (i, i + head_dim/2); cos and sin are [T, head_dim/2]."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def hugging_face_tensors(layer):
    yield "input_layernorm.weight", layer.input_norm
    yield "post_attention_layernorm.weight", layer.post_norm
    for name in "qkvo":
        yield f"self_attn.{name}_proj.weight", getattr(layer, name)
    yield "self_attn.q_norm.weight", layer.q_norm
    yield "self_attn.k_norm.weight", layer.k_norm
    yield "mlp.gate.weight", layer.router
    yield from layer.experts.hugging_face_tensors("mlp.")


def config_fields(c):
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "num_attention_heads": c.num_attention_heads, "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        # No layer is dense, so intermediate_size is read by nobody; it says how wide one token's experts are together.
        "intermediate_size": c.moe_intermediate_size * c.num_experts_per_tok,
        "moe_intermediate_size": c.moe_intermediate_size, "num_experts": c.num_experts,
        "num_experts_per_tok": c.num_experts_per_tok, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "router_aux_loss_coef": 0.001, "output_router_logits": False,
        "rope_theta": c.rope_theta, "rope_scaling": None, "max_window_layers": c.num_hidden_layers,
        "use_sliding_window": False, "sliding_window": None, "torch_dtype": "bfloat16",
    }


def architecture(c):
    return f"""`Qwen3MoeForCausalLM`; {c.num_hidden_layers} layers, width {c.hidden_size}, {c.num_attention_heads} query and
  {c.num_key_value_heads} key/value heads of {c.head_dim}, {c.num_experts} experts of width {c.moe_intermediate_size},
  {c.num_experts_per_tok} per token (weights renormalised), tied embeddings"""


def balancing(args):
    return f"load-balancing loss with weight {args.balance}"
