"""The GLM-5 shape: the mathematics and tensor names of transformers' GlmMoeDsaForCausalLM.

Owns: sizes, attention over low-rank latents (MLA), the sigmoid router with its selection bias, the
shared expert, dense leading layers, and the tensors of the sparse-attention indexer. The indexer
stays as it was initialised: it keeps the best index_topk positions, never fewer than the context
here, so nothing it computes reaches the output. Does not own: experts (experts.py), the rule
that moves the selection bias and what surrounds the layers (network.py, which says what a shape has).
"""
import dataclasses

import torch
import torch.nn.functional as functional
from torch import nn

from experts import Experts, balance_of

BALANCE = 0.001
LATENT_NORM_EPS = 1e-6  # of the norms inside attention, whatever rms_norm_eps says
notes = """The sparse-attention indexer (`self_attn.indexer.*`) is present but untrained: its weights are random. config.json keeps
`index_topk` at the whole context, so that every position is attended to and the indexer cannot change the output; a
smaller `index_topk` would select at random."""


@dataclasses.dataclass
class Config:
    vocab_size: int
    hidden_size: int = 160
    intermediate_size: int = 512
    moe_intermediate_size: int = 64
    num_hidden_layers: int = 5
    first_k_dense_replace: int = 1
    num_attention_heads: int = 4
    q_lora_rank: int = 96
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    v_head_dim: int = 32
    index_n_heads: int = 4
    index_head_dim: int = 32
    num_experts: int = 64
    num_experts_per_tok: int = 8
    routed_scaling_factor: float = 2.5
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 1024

    @property
    def rope_dim(self):
        return self.qk_rope_head_dim


def matrix(rows, columns, scale=1.0):
    """A random matrix [out, in] that keeps the size of its input, times `scale`."""
    return torch.randn(rows, columns) * columns ** -0.5 * scale


class LatentAttention(nn.Module):
    def __init__(self, c, residual_scale):
        super().__init__()
        self.c = c
        D, H, qk = c.hidden_size, c.num_attention_heads, c.qk_nope_head_dim + c.qk_rope_head_dim
        self.q_a = nn.Parameter(matrix(c.q_lora_rank, D))
        self.q_a_norm = nn.Parameter(torch.ones(c.q_lora_rank))
        self.q_b = nn.Parameter(matrix(H * qk, c.q_lora_rank))
        self.kv_a = nn.Parameter(matrix(c.kv_lora_rank + c.qk_rope_head_dim, D))
        self.kv_a_norm = nn.Parameter(torch.ones(c.kv_lora_rank))
        self.kv_b = nn.Parameter(matrix(H * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank))
        self.o = nn.Parameter(matrix(D, H * c.v_head_dim, residual_scale))
        self.register_buffer("indexer_wq_b", matrix(c.index_n_heads * c.index_head_dim, c.q_lora_rank))
        self.register_buffer("indexer_wk", matrix(c.index_head_dim, D))
        self.register_buffer("indexer_k_norm", torch.ones(c.index_head_dim))
        self.register_buffer("indexer_k_norm_bias", torch.zeros(c.index_head_dim))
        self.register_buffer("indexer_weights", matrix(c.index_n_heads, D))

    def forward(self, x, cos, sin):
        c, (B, T, _) = self.c, x.shape
        nope, rope, H = c.qk_nope_head_dim, c.qk_rope_head_dim, c.num_attention_heads
        latent = functional.rms_norm(functional.linear(x, self.q_a), (c.q_lora_rank,), self.q_a_norm, LATENT_NORM_EPS)
        q = functional.linear(latent, self.q_b).view(B, T, H, nope + rope).transpose(1, 2)
        latent, k_rope = functional.linear(x, self.kv_a).split((c.kv_lora_rank, rope), -1)
        latent = functional.rms_norm(latent, (c.kv_lora_rank,), self.kv_a_norm, LATENT_NORM_EPS)
        kv = functional.linear(latent, self.kv_b).view(B, T, H, nope + c.v_head_dim).transpose(1, 2)
        k_nope, v = kv.split((nope, c.v_head_dim), -1)
        q = torch.cat((q[..., :nope], rotate(q[..., nope:], cos, sin)), -1)
        k_rope = rotate(k_rope.unsqueeze(1), cos, sin).expand(-1, H, -1, -1)
        k = torch.cat((k_nope, k_rope), -1)
        # The fast kernel of PyTorch wants values as wide as keys.
        v = functional.pad(v, (0, nope + rope - c.v_head_dim))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)[..., : c.v_head_dim]
        return functional.linear(y.transpose(1, 2).reshape(B, T, -1), self.o)

    def hugging_face_tensors(self):
        yield "q_a_proj.weight", self.q_a
        yield "q_a_layernorm.weight", self.q_a_norm
        yield "q_b_proj.weight", self.q_b
        yield "kv_a_proj_with_mqa.weight", self.kv_a
        yield "kv_a_layernorm.weight", self.kv_a_norm
        yield "kv_b_proj.weight", self.kv_b
        yield "o_proj.weight", self.o
        yield "indexer.wq_b.weight", self.indexer_wq_b
        yield "indexer.wk.weight", self.indexer_wk
        yield "indexer.k_norm.weight", self.indexer_k_norm
        yield "indexer.k_norm.bias", self.indexer_k_norm_bias
        yield "indexer.weights_proj.weight", self.indexer_weights


class GatedMlp(nn.Module):
    """down(silu(gate x) * up x) on every token: the dense layers and the shared expert."""

    def __init__(self, D, F, residual_scale):
        super().__init__()
        self.gate = nn.Parameter(matrix(F, D))
        self.up = nn.Parameter(matrix(F, D))
        self.down = nn.Parameter(matrix(D, F, residual_scale))

    def forward(self, x):
        return functional.linear(functional.silu(functional.linear(x, self.gate)) * functional.linear(x, self.up), self.down)

    def hugging_face_tensors(self, prefix):
        for name in ("gate", "up", "down"):
            yield f"{prefix}{name}_proj.weight", getattr(self, name)


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        D, residual_scale = c.hidden_size, (2 * c.num_hidden_layers) ** -0.5
        self.c = c
        self.input_norm = nn.Parameter(torch.ones(D))
        self.post_norm = nn.Parameter(torch.ones(D))
        self.attention = LatentAttention(c, residual_scale)
        dense = index < c.first_k_dense_replace
        # The dense layer's MLP, or the shared expert.
        self.mlp = GatedMlp(D, c.intermediate_size if dense else c.moe_intermediate_size, residual_scale)
        self.experts = None if dense else Experts(c.num_experts, D, c.moe_intermediate_size, residual_scale)
        self.router = None if dense else nn.Parameter(matrix(c.num_experts, D))
        self.register_buffer("selection_bias", None if dense else torch.zeros(c.num_experts))

    def forward(self, x, cos, sin):
        c, shape = self.c, x.shape
        x = x + self.attention(functional.rms_norm(x, shape[-1:], self.input_norm, c.rms_norm_eps), cos, sin)
        h = functional.rms_norm(x, shape[-1:], self.post_norm, c.rms_norm_eps).view(-1, shape[-1])
        y, routing = self.mlp(h), None
        if self.experts is not None:
            scores = torch.sigmoid(functional.linear(h, self.router))
            # The bias says who is chosen; the weights are made of the scores alone.
            expert = torch.topk(scores.detach() + self.selection_bias, c.num_experts_per_tok, -1).indices
            weight = scores.gather(1, expert)
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * c.routed_scaling_factor
            y = y + self.experts(h, weight, expert)
            routing = balance_of(scores / scores.sum(-1, keepdim=True), expert)
        return x + y.view(shape), routing


def rotate(x, cos, sin):
    """Rotates x [..., T, rope_dim] in pairs (2i, 2i + 1); cos and sin are [T, rope_dim/2]."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def hugging_face_tensors(layer):
    yield "input_layernorm.weight", layer.input_norm
    yield "post_attention_layernorm.weight", layer.post_norm
    for name, tensor in layer.attention.hugging_face_tensors():
        yield "self_attn." + name, tensor
    if layer.experts is None:
        yield from layer.mlp.hugging_face_tensors("mlp.")
        return
    yield "mlp.gate.weight", layer.router
    yield "mlp.gate.e_score_correction_bias", layer.selection_bias
    yield from layer.mlp.hugging_face_tensors("mlp.shared_experts.")
    yield from layer.experts.hugging_face_tensors("mlp.")


def config_fields(c):
    return {
        "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa",
        "num_attention_heads": c.num_attention_heads, "num_key_value_heads": c.num_attention_heads,
        "head_dim": c.qk_rope_head_dim, "q_lora_rank": c.q_lora_rank, "kv_lora_rank": c.kv_lora_rank,
        "qk_head_dim": c.qk_nope_head_dim + c.qk_rope_head_dim, "qk_nope_head_dim": c.qk_nope_head_dim,
        "qk_rope_head_dim": c.qk_rope_head_dim, "v_head_dim": c.v_head_dim,
        "index_n_heads": c.index_n_heads, "index_head_dim": c.index_head_dim,
        "index_topk": c.max_position_embeddings, "indexer_rope_interleave": True,
        "intermediate_size": c.intermediate_size, "moe_intermediate_size": c.moe_intermediate_size,
        "first_k_dense_replace": c.first_k_dense_replace, "moe_layer_freq": 1,
        "n_routed_experts": c.num_experts, "n_shared_experts": 1, "num_experts_per_tok": c.num_experts_per_tok,
        "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
        "norm_topk_prob": True, "routed_scaling_factor": c.routed_scaling_factor, "output_router_logits": False,
        "num_nextn_predict_layers": 0, "rope_interleave": True,
        "rope_parameters": {"rope_theta": c.rope_theta, "rope_type": "default"}, "dtype": "bfloat16",
    }


def architecture(c):
    return f"""`GlmMoeDsaForCausalLM`; {c.num_hidden_layers} layers of which the first {c.first_k_dense_replace} is dense
  (width {c.intermediate_size}), width {c.hidden_size}; {c.num_attention_heads} heads over latents of {c.q_lora_rank} (queries) and
  {c.kv_lora_rank} (keys and values), {c.qk_nope_head_dim} dimensions without and {c.qk_rope_head_dim} with rotation, values of {c.v_head_dim};
  {c.num_experts} experts of width {c.moe_intermediate_size}, {c.num_experts_per_tok} per token (sigmoid scores, selection bias, weights
  renormalised and scaled by {c.routed_scaling_factor}), 1 shared expert, tied embeddings"""


def balancing(args):
    return f"""after every step the selection biases move by {args.bias_rate} (times
  the learning rate's share) towards an even use of the experts, and a load-balancing loss has weight {args.balance}"""
