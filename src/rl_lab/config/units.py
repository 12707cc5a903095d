"""How often a run learns, in every unit that papers use: what one calls 0.5 another calls 512."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rl_lab.core.buffer import Buffer
from rl_lab.core.phase import Phase


def ratio_notes(phases: Sequence[Phase], buffers: Mapping[str, Buffer], frames: int) -> Iterator[str]:
    """Yield a line for each phase with a `train_ratio`; an env step has `frames` frames."""
    for phase in phases:
        if phase.train_ratio is None or phase.buffer is None:
            continue
        updates = phase.train_ratio * sum(call.times for call in phase.hooks if call.is_update)
        parts = [f"{updates:g} updates per env step"]
        if frames > 1:
            parts.append(f"{updates / frames:g} per frame ({frames} frames per env step)")
        if rows := buffers[phase.buffer].batch_rows:
            parts.append(f"{updates * rows:g} replayed steps per env step")
        yield f"phase {phase.name}: {', '.join(parts)}"
