"""Tables as text for other programs: CSV, JSON and LaTeX."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rl_lab.tracking.catalogue import RunInfo

_LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def to_csv(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return the rows under their titles; what is missing is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(["" if value is None else _plain(value) for value in row] for row in rows)
    return text.getvalue()


def to_json(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a list of objects."""
    return json.dumps([dict(zip(titles, row, strict=True)) for row in rows], indent=1) + "\n"


def to_latex(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a tabular with the rules of booktabs, numbers to the right."""
    content = [list(row) for row in rows]
    columns = ["r" if content and all(_is_number(row[i]) for row in content) else "l" for i in range(len(titles))]
    body = [" & ".join(latex_text(show(value)) for value in row) + r" \\" for row in content]
    head = " & ".join(map(latex_text, titles)) + r" \\"
    parts = [rf"\begin{{tabular}}{{{''.join(columns)}}}", r"\toprule", head, r"\midrule", *body]
    return "\n".join([*parts, r"\bottomrule", r"\end{tabular}"]) + "\n"


def latex_text(text: str) -> str:
    """Return a text whose characters mean nothing to LaTeX."""
    return "".join(_LATEX.get(char, char) for char in text)


def show(value: Any) -> str:
    """Return a value as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return _plain(value) if not isinstance(value, str) else value


def registry(runs: Iterable[RunInfo]) -> dict[str, list[dict[str, str]]]:
    """Return the runs as the mono-repo's `registry.json` has them."""
    return {
        "experiments": [
            {
                "id": run.id,
                "name": run.name,
                "algorithm": run.algorithm,
                "environment": run.environment,
                "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(run.created)),
                "git_hash": run.git_hash,
                "config_hash": run.config_hash,
                "directory": str(run.path),
            }
            for run in runs
        ]
    }


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _plain(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else json.dumps(value)
