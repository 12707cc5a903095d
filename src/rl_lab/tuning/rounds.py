"""A search in rounds: all members train to the same env step, pause there exactly, are compared, and some go on.

With `tune.population` the worst become copies of the best with other values (population based training), with
`tune.halving` only the best go on. Nothing is decided before all are there, so that no decision depends on who was
faster: whatever was killed, and however many ran at once, the search comes to the same runs, to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from rl_lab.config.changes import FORK_MAY_CHANGE
from rl_lab.config.resume import has_checkpoints
from rl_lab.core.errors import ConfigError
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tuning.crew import POLL_S, Crew
from rl_lab.tuning.objective import GrowingMetric
from rl_lab.tuning.plan import derived, plan
from rl_lab.tuning.rounds_file import Member, Round, RoundsFile
from rl_lab.tuning.search import search_space
from rl_lab.tuning.selection import pauses, perturbed, replacements, rungs, survivors
from rl_lab.tuning.space import Space
from rl_lab.tuning.sweep import trial_name
from rl_lab.tuning.sweep_directory import Trial
from rl_lab.tuning.sweep_file import SweepFile
from rl_lab.tuning.trial_configs import TrialConfigs

TOTAL, SAMPLERS = "training.total_timesteps", "transport.samplers"
_TRIES = 4  # values that no run can have, before a copy keeps those of its donor
TellRound = Callable[[str], None]


class Rounds:
    """Runs a search in rounds to its end, or until it is asked to stop; goes on after any kill."""

    def __init__(self, crew: Crew, file: SweepFile, configs: TrialConfigs, options: Mapping[str, Any]) -> None:
        self._crew, self._file, self._configs, self._options = crew, file, configs, options
        self._space, self._seed = file.space, file.options["sample_seed"]
        self.journal = RoundsFile(crew.directory.path)

    def run(self, tell: TellRound) -> None:
        """Train and compare until all members of a round are at their end."""
        with self._crew.on_duty(), self._crew.directory.claim("rounds"):
            if not self.journal.rounds:
                self.journal.begin(first_members(self._file, self._configs, self._options), self._until(0))
            while (newest := self.journal.rounds[-1]).scores is None:
                self._write_experiments(newest)
                if not self._train(newest, tell):
                    return
                self._judge(newest, tell)

    def _until(self, number: int) -> int | None:
        """Return after how many env steps a round ends; None: with its runs."""
        steps = round_ends(self._options, self._configs)
        return steps[number] if number < len(steps) else None

    def _write_experiments(self, newest: Round) -> None:
        directory = self._crew.directory
        for member in newest.members:
            if not directory.has(member.trial):
                directory.add(member.trial, self._configs.text(member.values | self._origin(member)))

    def _origin(self, member: Member) -> dict[str, Any]:
        """Return the options that make a run go on from another's checkpoint."""
        if member.parent is None or member.checkpoint is None:
            return {}
        path = self._crew.directory.run_path(Trial(member.parent)) / "checkpoints" / member.checkpoint
        return {"training.resume_path": str(path), "training.resume_mode": "fork"}

    def _train(self, newest: Round, tell: TellRound) -> bool:
        """Let all members come to the end of a round; False when they were asked to stop before."""
        crew, directory = self._crew, self._crew.directory
        pause = [] if newest.until is None else ["--until", str(newest.until)]
        members = sorted(newest.members, key=lambda member: member.parent is None)  # copies first: donors wait for them
        waiting = [member.trial for member in members if directory.state(member.trial) not in ("done", "failed")]
        while crew.running or (waiting and crew.stop_signal is None):
            for trial in list(waiting):
                if crew.has_room() and self._is_free(trial, newest) and crew.try_start(trial, pause):
                    waiting.remove(trial)
            for trial, message in crew.ended():
                if message is not None:
                    tell(f"{trial.name} failed: {message}")
                elif crew.codes[trial] != 0:  # asked to stop, by whom it may be
                    waiting.append(trial)
            time.sleep(POLL_S)
        return not waiting

    def _is_free(self, trial: Trial, newest: Round) -> bool:
        """Return whether nobody needs a run's checkpoint any more: it would be dropped once there are newer ones."""
        copies = [member.trial for member in newest.members if member.parent == trial.name]
        return all(self._is_begun(copy) for copy in copies)

    def _is_begun(self, trial: Trial) -> bool:
        directory = self._crew.directory
        if directory.state(trial) in ("waiting", "failed"):
            return directory.state(trial) == "failed"
        return has_checkpoints(RunDirectory.open(directory.run_path(trial)))

    def _judge(self, newest: Round, tell: TellRound) -> None:
        """Compare the members and decide who takes part in the next round."""
        scores = self._scores(newest)
        is_over = newest.until is None or not any(score is not None for score in scores)
        following = None if is_over else self._following(newest, scores)
        self.journal.decide(scores, following, self._until(newest.number + 1))
        for line in _lines(newest, scores, following or ()):
            tell(line)

    def _scores(self, newest: Round) -> list[float | None]:
        """Return what each is worth; None: it failed, or has no value, unless nobody has one: a typo."""
        directory, options = self._crew.directory, self._options
        scores: list[float | None] = []
        errors: list[ConfigError] = []
        for member in newest.members:
            metric = GrowingMetric(directory.run_path(member.trial) / "metrics.jsonl", options["metric"])
            try:
                is_failed = directory.state(member.trial) == "failed"
                scores.append(None if is_failed else metric.score(options["score"], options["goal"]))
            except ConfigError as error:
                errors.append(error)
                scores.append(None)
        if errors and not any(score is not None for score in scores):
            raise ConfigError(
                f"{errors[0]} (a round must hold an evaluation: this one ended after {newest.until} steps)"
            )
        return scores

    def _following(self, newest: Round, scores: list[float | None]) -> list[Member]:
        options, members = self._options, newest.members
        if options["halving"] is not None:
            return [members[index] for index in survivors(scores, options["goal"], options["halving"]["keep"])]
        number = newest.number + 1
        rng = np.random.default_rng([self._seed, 2, number])
        donors = replacements(scores, options["goal"], options["population"]["share"], rng)
        return [
            self._copy(index, number, members[donors[index]]) if index in donors else member
            for index, member in enumerate(members)
        ]

    def _copy(self, index: int, number: int, donor: Member) -> Member:
        """Return a new member that goes on from where its donor is, with values near the donor's."""
        folder = self._crew.directory.run_path(donor.trial) / "checkpoints"
        checkpoint = max(path.name for path in folder.iterdir() if path.name.isdigit())
        copy = Member(f"{trial_name(index)}_r{number}", donor.values, donor.run, checkpoint)
        for attempt in range(_TRIES):
            rng = np.random.default_rng([self._seed, 3, number, index, attempt])
            try:
                values = explored(donor.values, self._space, self._configs.known, self._options["population"], rng)
                self._configs.text(values)
            except ConfigError:
                continue
            return Member(copy.run, values, copy.parent, checkpoint)
        return copy


def first_members(file: SweepFile, configs: TrialConfigs, options: Mapping[str, Any]) -> list[Member]:
    """Return the members of the first round, drawn from the space."""
    drawn = plan(
        file.space,
        method="random",
        num_samples=options["trials"],
        seed=file.options["sample_seed"],
        known=configs.known,
    )
    return [Member(trial_name(number), values) for number, values in enumerate(drawn)]


def round_ends(options: Mapping[str, Any], configs: TrialConfigs) -> list[int]:
    """Return the env steps at which members are compared before their end."""
    total = int(configs.known[TOTAL])
    if options["halving"] is not None:
        return rungs(total, options["halving"]["first_steps"], options["halving"]["keep"])
    return pauses(total, options["population"]["every_steps"])


def check_rounds(file: SweepFile, configs: TrialConfigs, options: Mapping[str, Any]) -> None:
    """Refuse what a search in rounds cannot do, before anything is written."""
    kind = "population" if options["population"] is not None else "halving"
    if file.seeds:
        raise ConfigError(f"seeds: every member of tune.{kind} is one run (give experiment.seed)")
    if TOTAL in file.space:
        raise ConfigError(f"sweep.{TOTAL}: members of tune.{kind} are compared at the same env steps")
    if SAMPLERS in file.space or configs.known[SAMPLERS] is not None:
        raise ConfigError(f"{SAMPLERS}: members of tune.{kind} pause at an env step, which a run with actors cannot")
    if options["trials"] < 2:
        raise ConfigError(f"tune.trials: tune.{kind} compares 2 members or more, not {options['trials']}")
    if not round_ends(options, configs):
        key = "every_steps" if kind == "population" else "first_steps"
        steps, total = options[kind][key], configs.known[TOTAL]
        raise ConfigError(f"tune.{kind}.{key}: {steps} env steps are not less than {TOTAL}={total}: one round only")
    members = first_members(file, configs, options)
    if options["population"] is not None:
        explored(members[0].values, file.space, configs.known, options["population"], np.random.default_rng(0))
    for member in members:
        configs.text(member.values)


def explored(
    values: Mapping[str, Any],
    space: Space,
    known: Mapping[str, Any],
    options: Mapping[str, Any],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Return values near these, with what is computed from them; what a running agent cannot change stays."""
    chosen = {key: values[key] for key in search_space(space)}
    moved = {key: value for key, value in chosen.items() if may_move(key)}
    given = {"factor": options["factor"], "resample": options["resample"]}
    chosen |= perturbed(moved, search_space(space), rng, **given)
    new = chosen | derived(space, chosen, known)
    fixed = [key for key in space if new[key] != values[key] and not may_move(key)]
    if fixed:
        raise ConfigError(
            f"sweep.{fixed[0]}: follows a key that a population changes on the way, but cannot change then (only "
            f"{', '.join(FORK_MAY_CHANGE)} can)"
        )
    return {key: new[key] for key in space}


def may_move(key: str) -> bool:
    """Return whether an agent that has learned already can go on with another value of a key."""
    return any(fnmatchcase(key, pattern) for pattern in FORK_MAY_CHANGE)


def _lines(newest: Round, scores: list[float | None], following: Any) -> list[str]:
    """Return what a person is told of a round's end."""
    known = [score for score in scores if score is not None]
    where = "at the end" if newest.until is None else f"after {newest.until} env steps"
    span = f"{min(known):.6g} to {max(known):.6g}" if known else "no score"
    before = {member.run for member in newest.members}
    copies = [f"{member.run} of {member.parent}" for member in following if member.run not in before]
    left = before - {member.run for member in following} if following else set()
    text = f"round {newest.number} {where}: {len(known)} members, {span}"
    text += f"; copies: {', '.join(copies)}" if copies else ""
    return [text + (f"; {len(left)} left behind" if left and not copies else "")]
