"""carpool's routing core for Python: which experts does each row of a batch use?

    from carpool_routing import Model, Router
    router = Router("oea:k0=5", Model(n_experts=256, top_k=8, scoring="sigmoid", routed_scaling_factor=2.5))
    routed = router.route(logits, bias=bias)      # numpy arrays or torch tensors on the CPU, not copied

`Router` calls the C library. `carpool_routing.tensor.TensorRouter` is the same as a torch program for GPUs, and
`carpool_routing.plugins` puts it into SGLang and vLLM; neither is imported here, so torch is needed only by them.
"""
from .model import Model
from .router import (DECODE, ISOLATED, PAD, PREFILL, REASONS, Routed, Router, RoutingError, library_version, policies)

__all__ = ["DECODE", "ISOLATED", "Model", "PAD", "PREFILL", "REASONS", "Routed", "Router", "RoutingError",
           "library_version", "policies"]
__version__ = "0.1.0"
