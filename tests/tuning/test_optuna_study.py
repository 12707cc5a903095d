"""The study: what it proposes, remembers and gives up."""

import math

import pytest

pytest.importorskip("optuna")

from rl_lab.core.errors import ConfigError
from rl_lab.tuning.optuna_study import Study
from rl_lab.tuning.search import search_space
from rl_lab.tuning.space import read_space
from rl_lab.tuning.sweep_file import TuneConfig

SPACE = {
    "x": {"uniform": [-2, 2]},
    "n": {"log_int": [1, 64]},
    "dims": [[8], [16, 16]],
    "k": {"int": [0, 4], "step": 2},
    "lr": {"log_uniform": [1e-4, 1e-1]},
}


def study(directory, **options):
    return Study(directory, search_space(read_space(SPACE)), TuneConfig(**options).model_dump(), seed=3)


def value(chosen):
    return -((chosen["x"] - 1) ** 2) - 0.01 * math.log2(chosen["n"])


def search(directory, count, reopen, **options):
    """Search serially; with `reopen` every trial by a new process, so to say."""
    current = study(directory, **options)
    for _ in range(count):
        told = current.ask()
        if reopen:
            current = study(directory, **options)
            told = current.adopt(told.number)
        current.tell(told.number, "complete", value(told.chosen))
    return current


@pytest.mark.parametrize("sampler", ["tpe", "cma_es", "random"])
def test_what_is_proposed_does_not_depend_on_restarts(tmp_path, sampler):
    for name in ("whole", "restarted"):
        (tmp_path / name).mkdir()
    whole = search(tmp_path / "whole", 16, reopen=False, sampler=sampler)
    restarted = search(tmp_path / "restarted", 16, reopen=True, sampler=sampler)
    assert whole.trials() == restarted.trials()
    assert len({str(trial.chosen) for trial in whole.trials()}) == 16
    for trial in whole.trials():
        assert -2 <= trial.chosen["x"] <= 2
        assert trial.chosen["k"] in (0, 2, 4)
        assert trial.chosen["dims"] in ([8], [16, 16])
    best = whole.best()
    assert best.value == max(value(trial.chosen) for trial in whole.trials())


def test_what_matters_is_found(tmp_path):
    found = search(tmp_path, 40, reopen=False, sampler="random").importances()
    assert max(found, key=found.get) == "x"
    assert sum(found.values()) == pytest.approx(1)


def test_a_trial_that_died_while_it_asked_gets_what_it_would_have_got(tmp_path):
    for name in ("whole", "died"):
        (tmp_path / name).mkdir()
    whole = study(tmp_path / "whole").ask()
    dying = study(tmp_path / "died")
    dying._study.sampler = dying._sampler(0)
    dying._study.ask()  # and no key of it was suggested yet
    (left,) = study(tmp_path / "died").trials()
    assert (left.state, left.chosen) == ("running", {})
    assert study(tmp_path / "died").adopt(0) == whole


def test_half_a_line_in_the_journal_is_cut_off(tmp_path):
    search(tmp_path, 2, reopen=False)
    with (tmp_path / "study.journal").open("ab") as journal:
        journal.write(b'{"op_code": 4, "wor')
    assert len(search(tmp_path, 2, reopen=False).trials()) == 4
    assert all(trial.state == "complete" for trial in study(tmp_path).trials())


def test_hopeless_trials_end_early(tmp_path):
    current = study(tmp_path, pruner="median", startup_trials=2)
    for _ in range(3):
        good = current.ask().number
        assert not current.report(good, [1, 2, 3])
        current.tell(good, "complete", 3)
    bad = current.ask().number
    assert not current.report(bad, [0])  # the first evaluation decides nothing
    current = study(tmp_path, pruner="median", startup_trials=2)
    current.adopt(bad)
    assert current.report(bad, [0, 0.5])
    current = study(tmp_path, pruner="median", startup_trials=2)  # it died before it could say so
    current.adopt(bad)
    assert current.report(bad, [0, 0.5, 9])
    current.tell(bad, "pruned")
    assert current.trials()[bad].state == "pruned"
    assert current.best().value == 3


@pytest.mark.parametrize("pruner", ["halving", "hyperband", "none"])
def test_other_pruners_take_the_same_reports(tmp_path, pruner):
    current = study(tmp_path, pruner=pruner, goal="minimize")
    for number in range(4):
        current.ask()
        is_pruned = current.report(number, [float(number)] * 3)
        assert not is_pruned or pruner != "none"
        current.tell(number, "pruned" if is_pruned else "complete", float(number))
    assert current.best().number == 0


def test_a_database_remembers_as_well(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    search(tmp_path, 3, reopen=True, storage=url)
    assert len(study(tmp_path, storage=url).trials()) == 3
    assert not (tmp_path / "study.journal").exists()


def test_another_measure_is_refused_once_trials_were_measured(tmp_path):
    study(tmp_path, metric="eval/retrn").settle()
    study(tmp_path).settle()  # nothing was measured by then
    search(tmp_path, 1, reopen=False)
    study(tmp_path).settle()
    with pytest.raises(ConfigError, match=r"tune.score: 'best', but .* measured by 'last'"):
        study(tmp_path, score="best").settle()


def test_what_cannot_be_searched_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"tune.storage: must be journal"):
        study(tmp_path, storage="redis")
    for url in ("postgresq://me:secret@host/db", "postgresq://host/db?user=me&password=secret"):
        with pytest.raises(ConfigError, match=r"^tune.storage: cannot open postgresq://host/db: Can't load plugin"):
            study(tmp_path, storage=url)
    with pytest.raises(ConfigError, match="nothing to choose"):
        search_space(read_space({"x": 3}))
