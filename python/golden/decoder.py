"""What makers of tiny decoders with ordinary attention share: tensors by their published names, and mistakes.

Used by make_olmoe.py, make_mixtral.py, make_llama.py, make_qwen3.py, make_minimax_m2.py and make_gpt_oss.py; family.py
turns what they say into golden files.
"""
import torch


def ends(made, config):
    D = config["hidden_size"]
    made.matrix("model.embed_tokens.weight", config["vocab_size"], D, 0.5)
    made.vector("model.norm.weight", D, 1.0, 0.3)
    if not config["tie_word_embeddings"]:
        made.matrix("lm_head.weight", config["vocab_size"], D, 0.5)


def attention(made, config, p, biases="", norms=None):
    """Norms of a layer and its projections; `biases`: of which of q, k, v, o; `norms`: sizes of q_norm and k_norm."""
    D, H, G = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    hd = config.get("head_dim") or D // H
    made.vector(p + "input_layernorm.weight", D, 1.0, 0.3)
    made.vector(p + "post_attention_layernorm.weight", D, 1.0, 0.3)
    for name, rows, columns in (("q", H * hd, D), ("k", G * hd, D), ("v", G * hd, D), ("o", D, H * hd)):
        made.matrix(p + f"self_attn.{name}_proj.weight", rows, columns, 1.4 * columns ** -0.5)
        if name in biases:
            made.vector(p + f"self_attn.{name}_proj.bias", rows, 0.0, 0.3)
    if norms:
        made.vector(p + "self_attn.q_norm.weight", norms[0], 1.4, 0.4)
        made.vector(p + "self_attn.k_norm.weight", norms[1], 1.4, 0.4)


def experts(made, config, p, count, inner, names=("gate_proj", "up_proj", "down_proj")):
    for e in range(count):
        made.mlp(f"{p}{e}.", config["hidden_size"], inner, names)


# Mistakes: functions of (model, stack), as family.py calls them.


def fill(suffix, value):
    """A vector left out: every parameter or buffer whose name ends so becomes `value`."""
    def change(model, stack):
        found = [p for name, p in (*model.named_parameters(), *model.named_buffers()) if name.endswith(suffix)]
        assert found, suffix
        for p in found:
            p.data.fill_(value)
    return change


def each(kind, act):
    """`act` on every module whose class is called `kind`."""
    def change(model, stack):
        found = [m for m in model.modules() if type(m).__name__ == kind]
        assert found, kind
        for m in found:
            act(m)
    return change


def put(**values):
    def act(module):
        for name, value in values.items():
            assert hasattr(module, name), name
            setattr(module, name, value)
    return act


def swap_halves(module):
    gate, up = module.gate_up_proj.data.chunk(2, 1)
    module.gate_up_proj.data = torch.cat((up, gate), 1)


def shift_down(module):
    module.down_proj.data = module.down_proj.data.roll(1, 0)


def norms_of_heads(model, stack):
    """The mean square of each head where that of all heads is meant."""
    for layer in model.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            def forward(x, norm=norm, size=layer.self_attn.head_dim):
                heads = x.unflatten(-1, (-1, size))
                scale = torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
                return norm.weight * (heads * scale).flatten(-2)
            norm.forward = forward


def scale_frequencies(module):
    for name, buffer in module.named_buffers():
        if name.endswith("inv_freq"):
            buffer.mul_(0.5)


def mistakes(prefix, config, experts=True, norms=False):
    """What any decoder can get wrong; `prefix`: of the names of its classes, "Olmoe"."""
    result = {
        "input norm weight left out": fill("input_layernorm.weight", 1.0),
        "post-attention norm weight left out": fill("post_attention_layernorm.weight", 1.0),
        "final norm weight left out": fill("model.norm.weight", 1.0),
        "rotary frequencies halved": each(prefix + "RotaryEmbedding", scale_frequencies),
    }
    if norms:
        result["query norm weight left out"] = fill("q_norm.weight", 1.0)
        result["key norm weight left out"] = fill("k_norm.weight", 1.0)
    if experts:
        K = config["num_experts_per_tok"]
        result["one expert more per token"] = each(prefix + "TopKRouter", put(top_k=K + 1))
        result["down projections of neighbouring experts exchanged"] = each(prefix + "Experts", shift_down)
    return result
