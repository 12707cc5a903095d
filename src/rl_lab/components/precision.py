"""Where autocast makes matrix products low: what is low now, and what must not be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


def lower_precision(device: torch.device) -> torch.dtype | None:
    """Return in which precision matrix products are done, if that is not the parameters' own; not for compiled code."""
    kind = device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def may_be_low(device: torch.device) -> bool:
    """Return whether matrix products are low; compiled code cannot ask, and reckons with it."""
    return torch.compiler.is_compiling() or lower_precision(device) is not None


def precision_now(device: torch.device) -> Callable[[], torch.autocast]:
    """Return what makes the present precision of matrix products again."""
    lower = lower_precision(device)
    return partial(torch.autocast, device.type, dtype=lower, enabled=lower is not None, cache_enabled=False)


def in_float32(head: nn.Module, x: Tensor, *others: Any) -> Any:
    """Return what a head makes of `x`, in float32 whatever the layers before it did: bfloat16 knows no 100.2."""
    if not may_be_low(x.device):
        return head(x, *others)
    with torch.autocast(x.device.type, enabled=False):
        return head(x.float(), *others)
