"""A model's own routing rule, as data."""
from __future__ import annotations

from dataclasses import dataclass

SCORINGS = ("softmax", "softmax_topk", "sigmoid")
GROUP_SCORES = ("top2", "max")
FILLERS = ("none", "repeat")


@dataclass(frozen=True)
class Model:
    """What the model's router does with its logits, and how the output is laid out.

    Some models (a checkpoint's own configuration decides): Qwen3-MoE ``Model(128, 8)``, OLMoE
    ``Model(64, 8, renormalize=False)``, DeepSeek-V3 ``Model(256, 8, "sigmoid", n_group=8, topk_group=4,
    routed_scaling_factor=2.5)``, GLM-5 ``Model(256, 8, "sigmoid", routed_scaling_factor=2.5)``, gpt-oss-20b
    ``Model(32, 4, "softmax_topk")``.
    """

    n_experts: int
    """Routed experts, E."""
    top_k: int
    """Routed experts per row, K; shared ones are not counted."""
    scoring: str = "softmax"
    """"softmax" over all experts, "softmax_topk" over the chosen ones, or "sigmoid"."""
    renormalize: bool = True
    """Weights are divided by their sum over the row."""
    n_group: int = 1
    topk_group: int = 1
    group_score: str = "top2"
    """A group's score: "top2", the sum of its two best, or "max"."""
    routed_scaling_factor: float = 1.0
    """What the weights of routed experts are multiplied by in the end."""
    n_shared: int = 0
    """Columns at the end of each row for fused shared experts, ids E, E+1, ..."""
    shared_weight: float = 1.0
    """Their weight, not scaled."""
    filler: str = "none"
    """Columns that a row does not need: "none", id -1 and weight 0, or "repeat", an expert that runs anyway with
    weight 0, for kernels that take no -1."""

    def __post_init__(self) -> None:
        for name, value, known in (("scoring", self.scoring, SCORINGS), ("group_score", self.group_score, GROUP_SCORES),
                                   ("filler", self.filler, FILLERS)):
            if value not in known:
                raise ValueError(f"{name} {value!r} is none of {', '.join(known)}")
