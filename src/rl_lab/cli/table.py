"""Tables on a terminal, drawn without a library: importing one takes longer than listing ten thousand runs."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from itertools import zip_longest

_WIDTH = 120  # where there is no terminal
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_LINES = ("┏━┳┓", "┃", "┡━╇┩", "│", "└─┴┘")  # above and beside the titles, below them, beside and below the rows
_ASCII = ("+-++", "|", "+-++", "|", "+-++")


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text under their titles, as wide as the terminal; long cells wrap."""
    out = sys.stdout
    is_terminal = out.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else _WIDTH
    is_bold = is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    is_ascii = not (out.encoding or "utf-8").lower().startswith("utf")
    out.write(table(titles, rows, width, is_bold=is_bold, is_ascii=is_ascii))


def table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, is_bold: bool = False, is_ascii: bool = False
) -> str:
    """Return the lines of a table that is at most so wide, if that can be."""
    widths = _widths([titles, *rows], width - 3 * len(titles) - 1)
    top, beside_titles, below, beside, bottom = _ASCII if is_ascii else _LINES
    lines = [_rule(top, widths), *_row(titles, widths, beside_titles, is_bold), _rule(below, widths)]
    for row in rows:
        lines += _row(row, widths, beside)
    return "\n".join([*lines, _rule(bottom, widths)]) + "\n"


def _widths(rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return how wide each column is; the widest give way where there is no room for all."""
    cells = ([max((_width(line) for line in cell.splitlines()), default=0) for cell in row] for row in rows)
    widths = [max(column) for column in zip(*cells, strict=True)]
    while sum(widths) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], bar: str, is_bold: bool = False) -> list[str]:
    """Return the lines of a row."""
    lines = []
    for parts in zip_longest(*map(_wrapped, cells, widths), fillvalue=""):
        padded = [part + " " * (width - _width(part)) for part, width in zip(parts, widths, strict=True)]
        shown = [f"{_BOLD}{part}{_PLAIN}" for part in padded] if is_bold else padded
        lines.append(f"{bar} {f' {bar} '.join(shown)} {bar}")
    return lines


def _rule(signs: str, widths: Sequence[int]) -> str:
    return signs[0] + signs[2].join(signs[1] * (width + 2) for width in widths) + signs[3]


def _wrapped(cell: str, width: int) -> list[str]:
    """Return the lines of a cell: cut between words where possible."""
    lines: list[str] = []
    for line in cell.expandtabs().splitlines():
        if _width(line) <= width:
            lines.append(line)
        elif line.isascii():
            lines += textwrap.wrap(line, width, break_on_hyphens=False)
        else:
            lines += _folded(line, width)
    return lines or [""]


def _folded(line: str, width: int) -> list[str]:
    """Return a line cut wherever it is full; letters may be two columns wide, or none."""
    lines = [""]
    for letter in line:
        if lines[-1] and _width(lines[-1] + letter) > width:
            lines.append("")
        lines[-1] += letter
    return lines


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)
