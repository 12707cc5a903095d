"""A comparison as rows of tables, and as one HTML page that needs nothing but itself."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Sequence
from typing import Any

from rl_lab.tracking.comparison import Comparison
from rl_lab.tracking.curves import AXES
from rl_lab.tracking.figures import draw_curves, draw_improvements, draw_profiles, render
from rl_lab.tracking.published import Gate
from rl_lab.tracking.tables import show

Table = tuple[list[str], list[list[Any]]]  # titles and rows
_STYLE = """body{font:14px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}svg{max-width:100%;height:auto}.below{color:#b30000}
.above,.reproduced{color:#00703c}footer,.note{color:#666}"""


def score_table(comparison: Comparison) -> Table:
    """Return a row per group and environment: seeds, and each statistic with its 95 % interval."""
    titles = [comparison.group_by, "environment", "at", "seeds", "mean", "median", "IQM"]
    rows = [
        [each.group, each.environment, each.at, len(each.scores), *(_with_interval(*x) for x in each.summary.values())]
        for each in comparison.scores
    ]
    return titles, rows


def improvement_table(comparison: Comparison) -> Table:
    """Return a row per ordered pair of groups."""
    rows = [
        [each.better, each.worse, _with_interval(each.probability, each.low, each.high)]
        for each in comparison.improvements
    ]
    return ["better", "than", "probability"], rows


def gate_table(gates: Sequence[Gate]) -> Table:
    """Return a row per published point."""
    titles = ["group", "task", "published by", "frames", "seeds", "ours", "published", "margin", "verdict"]
    rows = [
        [
            *(gate.group, gate.task, gate.source, gate.frames, gate.num_seeds, round(gate.value, 1)),
            *(f"{gate.published:g} ± {gate.published_std:g} ({gate.published_seeds})", round(gate.margin, 1)),
            gate.verdict,
        ]
        for gate in gates
    ]
    return titles, rows


def long_table(comparison: Comparison) -> Table:
    """Return a row per run, for other programs."""
    titles = [comparison.group_by, "environment", "run", "seed", "at", comparison.metric]
    rows = [
        [each.group, each.run.environment, each.run.shown, each.run.seed, each.at, each.score]
        for each in comparison.members
    ]
    return titles, rows


def to_object(comparison: Comparison, gates: Sequence[Gate]) -> dict[str, Any]:
    """Return what `--json` prints."""
    names = ("probability", "low", "high")
    return {
        "metric": comparison.metric,
        "group_by": comparison.group_by,
        "axis": comparison.axis,
        "scores": [
            {
                "group": each.group,
                "environment": each.environment,
                "at": each.at,
                "scores": list(each.scores),
                **{name: _finite(numbers) for name, numbers in each.summary.items()},
            }
            for each in comparison.scores
        ],
        "improvements": [
            {"better": each.better, "worse": each.worse, **dict(zip(names, _finite(numbers), strict=True))}
            for each in comparison.improvements
            for numbers in [(each.probability, each.low, each.high)]
        ],
        "published": [{**vars(gate), "verdict": gate.verdict} for gate in gates],
        "runs": [dict(zip(long_table(comparison)[0], row, strict=True)) for row in long_table(comparison)[1]],
        "notes": comparison.notes,
    }


def to_html(comparisons: Sequence[Comparison], gates: Sequence[Gate] = ()) -> str:
    """Return a page with all figures inside: it can be mailed and opened without a network."""
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>Comparison of runs</title>"]
    parts += [f"<style>{_STYLE}</style><h1>Comparison of runs</h1>"]
    for comparison in comparisons:
        parts += _section(comparison, gates if comparison is comparisons[0] else ())
    runs = len({member.run.path for comparison in comparisons for member in comparison.members})
    stamp = time.strftime("%Y-%m-%d %H:%M")
    parts += [f"<footer>{runs} runs, {stamp}; intervals: stratified bootstrap over seeds, 95 %</footer></html>"]
    return "\n".join(parts) + "\n"


def _section(comparison: Comparison, gates: Sequence[Gate]) -> list[str]:
    title = f"{comparison.metric} by {comparison.group_by}, over {AXES[comparison.axis]}"
    parts = [f"<h2>{html.escape(title)}</h2>", _html_table(*score_table(comparison))]
    parts += [f"<p class=note>{html.escape(note)}</p>" for note in comparison.notes]
    parts += [_svg(draw_curves(comparison, gates))]
    if gates:
        parts += ["<h2>Beside published curves</h2>", _html_table(*gate_table(gates))]
    if len(comparison.profiles) > 1:
        parts += ["<h2>Performance profiles</h2>", _svg(draw_profiles(comparison))]
        parts += ["<h2>Probability of improvement</h2>", _svg(draw_improvements(comparison))]
        parts += [_html_table(*improvement_table(comparison))]
    return [*parts, "<h2>Runs</h2>", _html_table(*long_table(comparison))]


def _html_table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    kind = " class=n" if isinstance(value, int | float) else ""
    if value in ("below", "above", "reproduced"):
        kind = f" class={value}"
    return f"<td{kind}>{html.escape(show(value))}</td>"


def _svg(figure: Any) -> str:
    text = render(figure, "svg").decode()
    return text[text.index("<svg") :]


def _with_interval(value: float, low: float, high: float) -> str:
    return f"{value:.4g}" if math.isnan(low) else f"{value:.4g} [{low:.4g}, {high:.4g}]"


def _finite(numbers: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(number) else number for number in numbers]
