"""Which environments resume exactly, and how fast each of them steps: all packaged ones and all that are registered.

Exact means: a process runs into an episode, saves the state as a checkpoint would and goes on; a second one restores
it and goes on with the same actions; observations, rewards, flags, final observations and infos are the same to the bit
over 600 vector steps that hold resets. An environment that cannot be made, crashes or hangs is a row that says so.

Writes results/environments.csv and .json, the table of docs/environments.md and configs/environment_facts.yaml (what
`lab list environments` says). Rows are kept on the way: started again after an interruption it goes on.

    python benchmarks/environments.py
    python benchmarks/environments.py --only dm_control/cartpole      # these rows anew, the others as they were
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from environment_probe import BATCHED, PER_WORKER, Lane, Subject, depends_on_name, go_on, save, speeds, subjects, survey
from harness import RESULTS, ROOT, markdown_table, provenance, write_results

PAGE = ROOT / "docs" / "environments.md"
FACTS = ROOT / "src" / "rl_lab" / "configs" / "environment_facts.yaml"
FACTS_HEADER = "# How the running episodes of each environment come back; written by benchmarks/environments.py.\n"
BY_NAME = "depends on the name"
MARKS = ("<!-- begin of the table that benchmarks/environments.py writes -->", "<!-- end of the table -->")
SPEEDS = ("single", "sync 8", "processes", "batched")
Row = dict[str, Any]


def main() -> None:
    args = parse_arguments()
    kept = Kept(RESULTS / f"try_{args.name}.jsonl")
    chosen = [subject for subject in subjects() if subject.name.startswith(args.only) and not depends_on_name(subject)]
    if not chosen:
        sys.exit(f"error: no environment begins with {args.only!r}")
    verify_all([subject for subject in chosen if key(subject) not in kept.rows], args, kept)
    measure_all([subject for subject in chosen if "single" not in kept.rows[key(subject)]], args, kept)
    rows = merged(args.name, [kept.rows[key(subject)] for subject in chosen])
    write_results(args.name, rows, steps=args.steps, seconds=args.seconds, families=family_rows(rows))
    if args.name == "environments":
        write_facts(rows)
        write_page(rows)
    kept.remove()
    print(markdown_table(packaged_rows(rows)), markdown_table(family_rows(rows)), sep="\n\n")
    if broken := [row["name"] for row in rows if row["verified"].startswith(("DIFFERENT", "failed"))]:
        sys.exit(f"error: not exact, although they say so: {', '.join(broken)}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PREFIX", help="options and names that begin with it")
    parser.add_argument("--steps", type=int, default=600, help="vector steps after the restore")
    parser.add_argument("--seconds", type=float, default=0.4, help="per speed of a packaged one; others get half")
    parser.add_argument("--lanes", type=int, default=os.cpu_count() or 1, help="environments that are verified at once")
    parser.add_argument("--name", default="environments", help="of the result files; another leaves the page alone")
    return parser.parse_args()


class Kept:
    """The rows so far, on disk as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows: dict[str, Row] = {row_key(row): row for row in map(json.loads, lines)}

    def add(self, row: Row) -> None:
        """Keep a row; a later one of the same environment counts."""
        self.rows[row_key(row)] = row
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def remove(self) -> None:
        """Forget them: they are in the results now."""
        self._path.unlink(missing_ok=True)


def key(subject: Subject) -> str:
    return f"{subject.family}: {subject.name}"


def row_key(row: Row) -> str:
    return f"{row['family']}: {row['name']}"


def verify_all(chosen: list[Subject], args: argparse.Namespace, kept: Kept) -> None:
    """Find out which are exact, several at once."""
    lanes: SimpleQueue[Lane] = SimpleQueue()
    for _ in range(args.lanes):
        lanes.put(Lane())

    def verify_one(subject: Subject) -> Row:
        lane = lanes.get()
        try:
            return verify(lane, subject, args.steps)
        finally:
            lanes.put(lane)

    with ThreadPoolExecutor(args.lanes) as threads:
        for count, row in enumerate(threads.map(verify_one, chosen), 1):
            kept.add(row)
            print(f"{count}/{len(chosen)} {row_key(row)}: {row['resumes']}, {row['verified']}", flush=True)
    for _ in range(args.lanes):
        lanes.get().close()


def verify(lane: Lane, subject: Subject, steps: int) -> Row:
    row: Row = {"family": subject.family, "name": subject.name, "resumes": "", "verified": ""}
    try:
        if subject.is_packaged:
            row["resumes"] = lane.call(0, survey, subject)
        saved = lane.call(0, save, subject, steps)
        row["resumes"] = row["resumes"] or saved.kind
        if not saved.actions:
            return row | {"verified": "declared"}
        difference = lane.call(1, go_on, subject, saved)
    except RuntimeError as error:
        return row | ({"verified": f"failed: {error}"} if row["resumes"] else {"resumes": f"not made: {error}"})
    told = f"{len(saved.actions)} steps, {saved.num_ended} ends"
    return row | {"verified": f"DIFFERENT: {difference}" if difference else told}


def measure_all(chosen: Iterable[Subject], args: argparse.Namespace, kept: Kept) -> None:
    """Measure the speeds, one environment at a time."""
    lane, today = Lane(), time.strftime("%Y-%m-%d")
    for subject in chosen:
        row = dict(kept.rows[key(subject)])
        found: dict[str, float | str] = {}
        if not row["resumes"].startswith("not made"):
            try:
                found = lane.call(0, speeds, subject, args.seconds if subject.is_packaged else args.seconds / 2)
            except RuntimeError as error:
                row["verified"] += f"; no speed: {error}"
        kept.add(row | {name: found.get(name, "") for name in SPEEDS} | {"date": today})
        print(f"{row_key(row)}: {found}", flush=True)
    lane.close()


def merged(name: str, rows: list[Row]) -> list[Row]:
    """Return the rows of the last results with the new ones in their place, those that are gone left out."""
    path = RESULTS / f"{name}.json"
    old = json.loads(path.read_text())["rows"] if path.exists() else []
    by_key = {row_key(row): row for row in [*old, *rows]}
    return [by_key[key(subject)] for subject in subjects() if key(subject) in by_key]


def packaged_rows(rows: list[Row]) -> list[Row]:
    """Return what the page shows of the packaged environments."""
    titles = ("1 copy", "8 copies", f"{PER_WORKER} per process", f"{BATCHED} copies")
    return [
        {"environment": f"`{row['name']}`", "resumes": row["resumes"], "checked over": row["verified"]}
        | {title: digits(row[column]) for title, column in zip(titles, SPEEDS, strict=True)}
        for row in rows
        if row["family"] == "packaged"
    ]


def family_rows(rows: list[Row]) -> list[Row]:
    """Return the counts and the speed of each family."""
    found = []
    for family in dict.fromkeys(row["family"] for row in rows if row["family"] != "packaged"):
        own = [row for row in rows if row["family"] == family]
        kinds = Counter("not made here" if row["resumes"].startswith("not made") else row["resumes"] for row in own)
        different = sum(row["verified"].startswith(("DIFFERENT", "failed")) for row in own)
        speeds_ = [row["single"] for row in own if row["single"] != ""]
        columns = ("exact (native state)", "exact (replay)", "not exact", "not made here")
        found.append(
            {"family": family, "environments": len(own)}
            | {column: kinds[column] for column in columns}
            | {"found different": different}
            | {"1 copy, median steps/s": digits(statistics.median(speeds_) if speeds_ else "")}
        )
    return found


def digits(speed: float | str) -> str:
    """Return a speed with three digits: more are noise."""
    return "" if speed == "" else f"{float(f'{speed:.3g}'):,.0f}"


def write_facts(rows: list[Row]) -> None:
    options = {subject.name for subject in subjects() if subject.is_packaged}
    old = dict(line.split(": ", 1) for line in FACTS.read_text().splitlines() if not line.startswith("#"))
    facts = {name: fact for name, fact in old.items() if name in options}
    facts |= {row["name"]: row["resumes"] for row in rows if row["family"] == "packaged"}
    facts |= {subject.name: BY_NAME for subject in subjects() if subject.is_packaged and depends_on_name(subject)}
    lines = (f"{name}: {fact.partition(':')[0]}\n" for name, fact in sorted(facts.items()))
    FACTS.write_text(FACTS_HEADER + "".join(lines))


def hardware() -> str:
    return f"measured on {provenance()['hardware']}, 1 thread"


def write_page(rows: list[Row]) -> None:
    begin, end = MARKS
    reasons = sorted({row["resumes"] for row in rows if row["resumes"].startswith("not made")})
    print(*reasons, sep="\n", file=sys.stderr)
    source = f"Every environment by name: [environments.csv](../benchmarks/results/environments.csv), {hardware()}."
    tables = f"{markdown_table(packaged_rows(rows))}\n\n{markdown_table(family_rows(rows))}\n\n{source}"
    table = f"{begin}\n{tables}\n{end}"
    page = PAGE.read_text()
    PAGE.write_text(re.sub(f"{re.escape(begin)}.*{re.escape(end)}", lambda _: table, page, flags=re.DOTALL))


if __name__ == "__main__":
    main()
