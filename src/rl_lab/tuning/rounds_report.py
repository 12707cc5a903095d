"""What a search in rounds has found: every run with its end, and how the best one came to be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rl_lab.tracking.atomic import replace_file
from rl_lab.tuning.rounds_file import Member, RoundsFile
from rl_lab.tuning.selection import ranked
from rl_lab.tuning.sweep_directory import SweepDirectory


def write_report(directory: SweepDirectory, journal: RoundsFile, options: Mapping[str, Any]) -> dict[str, Any]:
    """Write and return `report.json`."""
    members = {member.run: member for each in journal.rounds for member in each.members}
    rows = [_row(number, member, directory, journal, options) for number, member in enumerate(members.values())]
    report: dict[str, Any] = {"search": str(directory.path), "metric": options["metric"], "goal": options["goal"]}
    report |= {"best": None, "importances": {}, "trials": rows, "rounds": len(journal.rounds)}
    newest = journal.rounds[-1] if journal.rounds else None
    if newest is not None and newest.scores is not None and any(score is not None for score in newest.scores):
        best = newest.members[ranked(newest.scores, options["goal"])[0]]
        report["best"] = next(row for row in rows if row["run"] == best.run)
        report["schedule"] = _schedule(best, members, journal)
        report["command"] = f"lab evaluate {directory.run_path(best.trial)}"
    replace_file(directory.path / "report.json", json.dumps(report, indent=1) + "\n")
    return report


def _row(
    number: int, member: Member, directory: SweepDirectory, journal: RoundsFile, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return how a member ended: `complete`, `pruned`, `replaced`, `fail`, or `running` while that is not known."""
    *_, last = [each for each in journal.rounds if any(other.run == member.run for other in each.members)]
    place = next(index for index, other in enumerate(last.members) if other.run == member.run)
    score = None if last.scores is None else last.scores[place]
    left = "pruned" if options["halving"] is not None else "replaced"
    state = "running" if last.scores is None else "fail" if score is None else "complete"
    if last.scores is not None and last is not journal.rounds[-1] and state != "fail":
        state = left
    row = {"number": number, "run": member.run, "state": state, "value": score, "values": member.values}
    why = f"copy of {member.parent} at {member.checkpoint}" if member.parent else ""
    why += f"{'; ' * bool(why)}{directory.failure(member.trial)}" if state == "fail" else ""
    return row | ({"parent": member.parent} if member.parent else {}) | ({"why": why} if why else {})


def _schedule(best: Member, members: Mapping[str, Member], journal: RoundsFile) -> list[dict[str, Any]]:
    """Return from which env step on the best run, and those it was copied from, had which values."""
    line, member = list[dict[str, Any]](), best
    while True:
        begun = next(each for each in journal.rounds if any(other.run == member.run for other in each.members))
        start = 0 if begun.number == 0 else journal.rounds[begun.number - 1].until
        line.insert(0, {"from_steps": start, "run": member.run, "values": member.values})
        if member.parent is None:
            return line
        member = members[member.parent]
