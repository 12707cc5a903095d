"""What a person sees of a run: a live panel on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console

from rl_lab.core.errors import LabError
from rl_lab.tracking.sinks import Row, Sink, numbers
from rl_lab.tracking.terminal_panel import ProgressPanel
from rl_lab.tracking.terminal_view import RunView, duration, number

_LINE_S = 2.0  # between plain lines
_MAX_LINE_METRICS = 4


def make_console(stream: TextIO | None = None) -> Console:
    """Return a console that writes colours and cursor codes to a terminal only, whatever FORCE_COLOR says."""
    stream = stream or sys.stdout
    if stream.isatty():
        return Console(file=stream)
    return Console(file=stream, force_terminal=False, color_system=None, width=120)


class TerminalSink(Sink):
    """The panel or the lines, whichever the stream can show."""

    def __init__(self, title: str, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._clock = title, clock
        self._console = console or make_console()
        self._view = RunView(clock)
        self._panel: ProgressPanel | None = None
        self._last_line = -_LINE_S

    def open(self, *, total_steps: int, start_step: int, resumed: bool) -> None:
        """Show the panel, or say in a line where the run begins."""
        self._view.begin(total_steps, start_step)
        if self._console.file.isatty() and not self._console.is_dumb_terminal:
            self._panel = ProgressPanel(self._title, self._view, self._console, self._clock)
        else:
            self._say(
                f"{self._title}: {'resumes at' if resumed else 'starts at'} step {start_step:,} of {total_steps:,}"
            )

    def row(self, row: Row) -> None:
        """Show the metrics; evaluations always, others every two seconds at most."""
        self._view.update(row)
        is_evaluation = any(key.startswith("eval/") for key in row)
        if self._panel is not None:
            self._panel.refresh(force=is_evaluation)
        elif is_evaluation or self._clock() - self._last_line >= _LINE_S:
            self._last_line = self._clock()
            self._say(self._line(row))

    def perf(self, row: Row) -> None:
        """Show the rates."""
        self._view.rates(row)

    def event(self, event: Row) -> None:
        """Show the message, or the reason, of an event that has one."""
        text = event.get("message", event.get("reason"))
        if text is None:
            return
        (self._panel.say if self._panel is not None else self._say)(f"{event['kind']}: {text}")

    def progress(self, position: Row) -> None:
        """Move the bar."""
        self._view.update(position)
        if self._panel is not None:
            self._panel.refresh()

    def close(self) -> None:
        """Leave the last panel on the screen."""
        if self._panel is not None:
            self._panel.close()
            self._panel = None

    def _say(self, line: str) -> None:
        try:
            self._console.file.write(line + "\n")  # not through rich: it would wrap the line
            self._console.file.flush()
        except BrokenPipeError as error:
            raise LabError("nobody reads what the run prints any more; continue with `lab resume`") from error

    def _line(self, row: Row) -> str:
        view = self._view
        shown = numbers(row)
        first = [key for key in shown if "return" in key]
        keys = first + [key for key in shown if key not in first][: max(0, _MAX_LINE_METRICS - len(first))]
        parts = [f"step {view.step:,}/{view.total_steps:,} ({view.fraction:.0%})", f"phase {row['phase']}"]
        parts += [f"{view.steps_per_s:,.0f} steps/s", f"eta {duration(view.eta_s)}"] if view.steps_per_s else []
        return " | ".join(parts + [f"{key} {number(shown[key])}" for key in keys])
