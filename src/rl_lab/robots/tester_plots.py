"""What a tester wrote down, as curves."""

from __future__ import annotations

import csv
from importlib.util import find_spec
from pathlib import Path

PANELS = (  # columns of a tester's CSV that are drawn together, and their label
    (("vx", "command_vx"), "m/s"),
    (("vy", "command_vy"), "m/s"),
    (("yaw_rate", "command_yaw"), "rad/s"),
    (("height",), "m"),
    (("power",), "W"),
)


def plot_tester(path: Path) -> Path | None:
    """Draw a tester's CSV as PNG beside it; None without matplotlib."""
    if find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure  # optional

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    series = {name: [float(row[name]) for row in rows] for name in rows[0]}
    figure = Figure(figsize=(8, 10))
    panels = figure.subplots(len(PANELS), sharex=True)
    for panel, (names, unit) in zip(panels, PANELS, strict=True):
        for name in names:
            panel.plot(series["time"], series[name], label=name, linestyle="--" if "command" in name else "-")
        panel.set_ylabel(unit)
        panel.legend(loc="upper right")
    panels[0].set_title(path.stem)
    panels[-1].set_xlabel("s")
    target = path.with_suffix(".png")
    figure.savefig(target)
    return target
