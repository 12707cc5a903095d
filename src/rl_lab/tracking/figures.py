"""Figures of a comparison: learning curves with bands, performance profiles, probabilities of improvement."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from rl_lab.core.errors import UsageError
from rl_lab.tracking.atomic import replace_file
from rl_lab.tracking.comparison import Comparison
from rl_lab.tracking.curves import AXES
from rl_lab.tracking.published import Gate, task_of

Format = Literal["png", "svg"]
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")  # Okabe and Ito
_COLUMNS = 3
_MARKED = 30  # points of a curve; one alone would not be seen without
_SEEDS_SHOWN = 12  # of a group; more lines would be a cloud


def require_matplotlib() -> None:
    """Refuse figures where nothing can draw them."""
    if find_spec("matplotlib") is None:
        raise UsageError("figures need matplotlib: pip install 'rl-lab[plot]'")


def draw_curves(comparison: Comparison, gates: Sequence[Gate] = ()) -> Any:
    """Return a figure with a panel per environment: thin lines are seeds, bands intervals, diamonds published."""
    names = list(dict.fromkeys(band.environment for band in comparison.bands))
    columns = min(len(names), _COLUMNS)
    figure, panels = _panels(-(-len(names) // columns), columns, 4.6, 3.4)
    colors = _colors(band.group for band in comparison.bands)
    for name, panel in zip(names, panels, strict=False):
        for group, color in colors.items():
            seeds = [each for each in comparison.members if (each.run.environment, each.group) == (name, group)]
            for curve in (seed.curve.thinned(500) for seed in seeds[:_SEEDS_SHOWN]):
                panel.plot(curve.x, curve.y, color=color, linewidth=0.5, alpha=0.35)
        for band in comparison.bands:
            if band.environment == name:
                _draw_band(panel, band.x, band.center, band.low, band.high, colors[band.group], band.group)
        _draw_published(panel, [gate for gate in gates if gate.task == task_of(name)])
        panel.set(title=name, xlabel=AXES[comparison.axis], ylabel=comparison.metric)
        panel.legend(fontsize="x-small")
    for panel in panels[len(names) :]:
        panel.remove()
    return figure


def draw_profiles(comparison: Comparison) -> Any:
    """Return a figure of the share of runs above each scaled score."""
    figure, (panel,) = _panels(1, 1, 5.0, 3.4)
    colors = _colors(profile.group for profile in comparison.profiles)
    for each in comparison.profiles:
        _draw_band(panel, each.thresholds, each.share, each.low, each.high, colors[each.group], each.group)
    panel.set(xlabel="score, from the lowest to the highest run of an environment", ylabel="share of runs above")
    if comparison.profiles:
        panel.legend(fontsize="x-small")
    return figure


def draw_improvements(comparison: Comparison) -> Any:
    """Return a figure of the probabilities that one group beats another, each pair once."""
    pairs = [each for each in comparison.improvements if each.better < each.worse]
    figure, (panel,) = _panels(1, 1, 5.0, 0.8 + 0.4 * max(len(pairs), 1))
    for place, each in enumerate(pairs):
        panel.plot([each.low, each.high], [place, place], color=_COLORS[0], linewidth=5, alpha=0.35)
        panel.plot([each.probability], [place], color=_COLORS[0], marker="|", markersize=12)
    panel.axvline(0.5, color="#999999", linewidth=0.8)
    panel.set_yticks(range(len(pairs)), [f"{each.better} > {each.worse}" for each in pairs])
    panel.set(xlim=(0, 1), ylim=(-0.6, max(len(pairs), 1) - 0.4), xlabel="probability of improvement")
    return figure


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure as its name ends: .png or .svg."""
    suffix: Any = path.suffix.removeprefix(".")
    replace_file(path, render(figure, suffix), durable=False)


def render(figure: Any, format_: Format) -> bytes:
    """Return a figure as PNG or SVG; the same figure gives the same bytes."""
    import matplotlib as mpl

    target = io.BytesIO()
    metadata = {"Software": None} if format_ == "png" else {"Date": None}
    with mpl.rc_context({"svg.hashsalt": "rl-lab", "svg.fonttype": "none"}):
        figure.savefig(target, format=format_, dpi=120, metadata=metadata)
    return target.getvalue()


def _panels(rows: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _colors(groups: Any) -> dict[str, str]:
    return {group: _COLORS[place % len(_COLORS)] for place, group in enumerate(dict.fromkeys(groups))}


def _draw_band(panel: Any, x: Any, center: Any, low: Any, high: Any, color: str, label: str) -> None:
    panel.plot(x, center, color=color, linewidth=1.5, marker="." if len(x) <= _MARKED else None, label=label)
    panel.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)


def _draw_published(panel: Any, gates: Sequence[Gate]) -> None:
    points = {(gate.source, gate.frames): gate for gate in gates}
    for source in dict.fromkeys(source for source, _ in points):
        known = [gate for (name, _), gate in points.items() if name == source]
        frames, values = [gate.frames for gate in known], [gate.published for gate in known]
        spread = [gate.published_std for gate in known]
        panel.errorbar(frames, values, spread, fmt="D", color="#555555", markersize=4, label=f"published: {source}")
