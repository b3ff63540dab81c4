"""What the environment asks for."""
from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Mapping, Optional

log = logging.getLogger("carpool_routing")

OLD_NAMES = ("SGLANG_OEA_K0", "SGLANG_OEA_MIN_BATCH")


@dataclass(frozen=True)
class Settings:
    policy: str
    """A spec, "oea:k0=5"."""
    max_rows: int = 512
    """Steps with more rows stay plain: they load nearly every expert whatever the policy."""


def _number(environ: Mapping[str, str], name: str) -> Optional[int]:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ValueError(f"{name} must be a number, got {text!r}")
    return int(text)


def from_environment(environ: Optional[Mapping[str, str]] = None) -> Optional[Settings]:
    """Settings, or None when nothing is switched on. Raises ValueError with one sentence on what cannot be meant.

    CARPOOL_POLICY is a whole spec and wins over CARPOOL_OEA_K0 (0 or empty: off) and CARPOOL_OEA_MIN_BATCH.
    """
    environ = os.environ if environ is None else environ
    for name in OLD_NAMES:
        if environ.get(name, "").strip():
            log.warning("carpool: %s IS SET AND READ BY NOTHING. It belonged to a patch that never ran in decode. Set %s "
                        "instead.", name, name.replace("SGLANG", "CARPOOL"))
    k0, min_batch = _number(environ, "CARPOOL_OEA_K0"), _number(environ, "CARPOOL_OEA_MIN_BATCH")
    max_rows = _number(environ, "CARPOOL_MAX_ROWS")
    policy = environ.get("CARPOOL_POLICY", "").strip()
    if not policy:
        if k0 is None and min_batch is not None:
            raise ValueError("CARPOOL_OEA_MIN_BATCH is set without CARPOOL_OEA_K0, which alone switches nothing on")
        if not k0:
            return None
        policy = f"oea:k0={k0}" + (f",min_batch={min_batch}" if min_batch is not None else "")
    return Settings(policy, 512 if max_rows is None else max_rows)
