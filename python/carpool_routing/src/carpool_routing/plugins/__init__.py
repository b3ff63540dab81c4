"""Batch-aware routing inside SGLang and vLLM. docs/plugins.md says how to switch it on and how to prove that it ran.

settings: the environment. host: everything the two plug-ins share: which rows take part, the tensor program per layer,
the counters. sglang, vllm: where each engine is hooked. http: counters and the policy over the server's own port.
"""
