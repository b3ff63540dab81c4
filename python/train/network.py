"""The language model around the layers of a shape: embedding, layers, final norm, tied head.

Owns: what all shapes share, and the list of shapes. A shape is a module with
  Config                        sizes; dataclass with vocab_size, hidden_size, num_hidden_layers, rope_theta,
                                rms_norm_eps, max_position_embeddings, num_experts, num_experts_per_tok, rope_dim
  Layer(config, index)          (x [B, T, D], cos, sin) -> (x, routing); routing is (balance loss, expert shares [E]),
                                None for a layer without experts. `experts` are its experts, `selection_bias`, where
                                there is one, the buffer [E] that loss-free balancing moves
  BALANCE                       default weight of the balance loss
  hugging_face_tensors(layer)   yields (name within the layer, tensor)
  config_fields(config)         what config.json says of this family
  architecture(config), balancing(options of train.py), notes   sentences for the model card
Does not know any of them: shape_qwen3.py, shape_glm.py.
"""
import torch
import torch.nn.functional as functional
from torch import nn

import shape_glm
import shape_qwen3

SHAPES = {"qwen3": shape_qwen3, "glm": shape_glm}


class Model(nn.Module):
    def __init__(self, shape, vocab_size):
        super().__init__()
        self.shape, self.c = shape, shape.Config(vocab_size=vocab_size)
        c = self.c
        self.embed = nn.Parameter(torch.randn(c.vocab_size, c.hidden_size) * 0.05)
        self.layers = nn.ModuleList(shape.Layer(c, i) for i in range(c.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(c.hidden_size))
        frequency = c.rope_theta ** (-torch.arange(0, c.rope_dim, 2).float() / c.rope_dim)
        angle = torch.outer(torch.arange(c.max_position_embeddings).float(), frequency)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens):
        """tokens [B, T] -> (logits [B*T, V], mean balance loss, expert shares [layers with experts, E])."""
        T = tokens.shape[1]
        x, routings = self.embed[tokens], []
        for layer in self.layers:
            x, routing = layer(x, self.cos[:T], self.sin[:T])
            routings += [] if routing is None else [routing]
        x = functional.rms_norm(x, x.shape[-1:], self.norm, self.c.rms_norm_eps)
        balances, shares = zip(*routings)
        logits = functional.linear(x, self.embed).view(-1, self.c.vocab_size)
        return logits, torch.stack(balances).mean(), torch.stack(shares)

    def routed_layers(self):
        """[(index, layer)] of the layers that have experts."""
        return [(i, layer) for i, layer in enumerate(self.layers) if layer.experts is not None]

    @torch.no_grad()
    def move_selection_bias(self, shares, rate):
        """Loss-free balancing: experts below the mean share become likelier by `rate`, those above less likely."""
        for (_, layer), share in zip(self.routed_layers(), shares):
            if layer.selection_bias is not None:
                layer.selection_bias += rate * torch.sign(share.mean() - share)


def hugging_face_tensors(model):
    """Yields (name, tensor) with the names and orientation of published checkpoints; the head is tied."""
    yield "model.embed_tokens.weight", model.embed
    yield "model.norm.weight", model.norm
    for i, layer in enumerate(model.layers):
        for name, tensor in model.shape.hugging_face_tensors(layer):
            yield f"model.layers.{i}.{name}", tensor
