"""Specimens: the mistakes that an earlier OEA patch made or invited, each as the few lines that make it.

Nothing here is used by anything but the tests named after the traps, which show what goes wrong with each.
"""
import numpy as np
import torch


def rank_by_logits(logits, k):
    """"The sigmoid is monotone, so the logits rank the same": not with a selection bias."""
    return logits.sort(dim=-1, descending=True, stable=True).indices[:, :k]


def union_fill(ids, ranking, k0, k):
    """The patch's core on ids as they came: its first k0 columns, then the union, in the order of `ranking`."""
    out, union = [], set(ids[:, :k0].flatten().tolist())
    for row, order in zip(ids.tolist(), ranking.tolist()):
        base = row[:k0]
        out.append((base + [e for e in order if e in union and e not in base])[:k])
    return out


def plain_if_underfilled(filled, ids, k):
    """Rows that find fewer than k experts keep their own: at small batches that is nearly all rows."""
    return [row if len(row) == k else own[:k] for row, own in zip(filled, ids.tolist())]


def renormalise_to_one(scores, ids):
    """Re-gathers and divides by the sum: loses the routed scale, and normalises models that do not."""
    weights = scores.gather(-1, ids)
    return weights / weights.sum(-1, keepdim=True)


def recover_scores(biased, bias):
    """(score + bias) - bias: what float32 left of the score beside a bias of 34.5."""
    return (biased + bias) - bias


def union_by_mask(ids, n_experts):
    """Marks the union by indexing: the id -1 of a padded row is the last expert."""
    mask = torch.zeros(n_experts, dtype=torch.bool)
    mask[ids.flatten().long()] = True
    return mask


def union_by_unique(ids):
    """A union whose size depends on data: no graph can hold it, and the host waits for it."""
    return ids.flatten().unique()


def expected_unique(n_experts, k, batch):
    """Distinct experts if every row chose uniformly and independently."""
    return n_experts * (1 - (1 - k / n_experts) ** batch)


def peak_output(token_times):
    """Tokens of the fullest second: the largest of many noisy numbers."""
    return np.bincount(np.asarray(token_times, dtype=np.int64)).max()


def guarded_hook(get_forward_context, rewrite):
    """Acts when a context says decode, in a bare try: without a context it does nothing and says nothing."""

    def hook(ids):
        try:
            context = get_forward_context()
            return rewrite(ids) if context.forward_mode.is_decode() else ids
        except Exception:
            return ids

    return hook


def is_decode(forward_mode):
    """ForwardMode.is_decode: false for mixed batches and for the verification of drafts."""
    return forward_mode.name == "DECODE"


def banner(environ):
    """Printed at import from the environment, whatever runs later."""
    return f"OEA enabled: k0={environ.get('SGLANG_OEA_K0', '0')}"


def lenient_arguments(spec):
    """Reads what it knows and ignores the rest."""
    return {k: v for k, v in (item.split("=") for item in spec.partition(":")[2].split(",")) if k in ("k0", "min_batch")}


def fused_kernel_is_used(n_experts, n_group):
    """A rule about one version's kernels, taken as a fact about all."""
    return n_experts // n_group > 32
