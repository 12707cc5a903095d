"""The live panel: progress bar, time to go, rates, phase, returns and a few training metrics."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rl_lab.tracking.terminal_view import RunView, duration, number

_REFRESH_S = 0.25  # four times a second
_MAX_METRICS = 8


class ProgressPanel:
    """Draws a RunView in place, without a thread of its own."""

    def __init__(self, title: str, view: RunView, console: Console, clock: Callable[[], float]) -> None:
        self._title, self._view, self._clock = title, view, clock
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._live.start()
        self._last = -_REFRESH_S
        self.refresh(force=True)

    def refresh(self, force: bool = False) -> None:
        """Draw again, unless that was a moment ago."""
        now = self._clock()
        if force or now - self._last >= _REFRESH_S:
            self._last = now
            self._live.update(self._render(), refresh=True)

    def say(self, line: str) -> None:
        """Print a line above the panel."""
        self._live.console.print(Text(line))

    def close(self) -> None:
        """Draw the end and give the terminal back."""
        self.refresh(force=True)
        self._live.stop()

    def _render(self) -> Panel:
        view = self._view
        head = Table.grid(padding=(0, 2))
        head.add_row(
            f"[bold]{view.step:,}[/] / {view.total_steps:,} steps ({view.fraction:.0%})",
            f"{view.updates:,} updates",
            f"phase [bold]{escape(view.phase)}[/]",
        )
        head.add_row(
            f"{view.steps_per_s:,.0f} env steps/s",
            f"{view.updates_per_s:,.1f} updates/s",
            f"elapsed {duration(view.elapsed_s)}, eta {duration(view.eta_s)}",
        )
        bar = Table.grid(expand=True)  # the bar itself ends without a new line
        bar.add_row(ProgressBar(total=max(1, view.total_steps), completed=min(view.step, view.total_steps)))
        return Panel(Group(bar, head, self._metrics()), title=escape(self._title), title_align="left")

    def _metrics(self) -> Table:
        """Return the returns first, then what is true of buffers, then of single agents, two to a line."""
        table = Table.grid(padding=(0, 2))
        keys = sorted(self._view.metrics, key=_place)[:_MAX_METRICS]
        cells = [f"{escape(key)} [bold]{number(self._view.metrics[key])}[/]" for key in keys]
        for start in range(0, len(cells), 2):
            table.add_row(*cells[start : start + 2])
        return table


def _place(key: str) -> tuple[bool, bool, bool, str]:
    return "/seed_" in key, "return" not in key, key.startswith("buffer/"), key
