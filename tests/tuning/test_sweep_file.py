"""The YAML of a sweep, and the experiments that its trials are."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rl_lab.config.allow_list import AllowList, load_plugins
from rl_lab.config.compose import compose, resolve
from rl_lab.config.targets import Targets
from rl_lab.core.errors import ConfigError
from rl_lab.tuning.search import prepare_search
from rl_lab.tuning.sweep import draft, plan_sweep, write
from rl_lab.tuning.sweep_directory import SweepDirectory
from rl_lab.tuning.sweep_file import load_yaml, read_sweep
from rl_lab.tuning.trial_configs import hydra_value, open_configs
from tests.config.tiny import EXPERIMENT, PLUGIN

ROOT = Path(__file__).parents[2]
MONO_REPO = """\
base_config: configs/experiments/ppo_cartpole.yaml
sweep:
  algorithm.lr: [1e-4, 3e-4, 1e-3]
  algorithm.clip_ratio: [0.1, 0.2, 0.3]
  network.actor.hidden_dims: [[64, 64], [128, 128], [256, 256]]
parallel_jobs: 4
"""


@pytest.fixture
def targets():
    return Targets(AllowList(load_plugins([PLUGIN])))


def written(text, name="s.yaml"):
    Path(name).write_text(text)
    return name


def texts(file, targets, count=None, overrides=(), config_dir=None):
    sweep = read_sweep(file)
    with open_configs(sweep, targets, config_dir, overrides) as configs:
        trials = plan_sweep(sweep, configs)
        return [(trial.values, configs.text(trial.values)) for trial in trials[:count]]


def test_the_mono_repo_s_file_runs_as_it_is(place, targets):
    """27 trials of the lab's own experiment of that name, in its words for the same things."""
    sweep = read_sweep(written(MONO_REPO))
    assert sweep.notes == [
        "configs/experiments/ppo_cartpole.yaml is not there: the lab's own experiment ppo_cartpole is taken"
    ]
    assert sweep.options["parallel_jobs"] == 4
    with open_configs(sweep, targets) as configs:
        trials = plan_sweep(sweep, configs)
        last = OmegaConf.create(configs.text(trials[-1].values))
    assert len(trials) == 27
    assert (last.optimizers.policy.lr, last.algorithm.clip_range) == (1e-3, 0.3)
    assert last.components.actor.hidden_dims == [256, 256]
    assert last.components.critic.hidden_dims == [64, 64]


def test_a_packaged_sweep_goes_by_its_name(place, targets):
    """The mono-repo's own, in the lab's words; a file of that name in the current directory comes first."""
    packaged, own = read_sweep("ppo_sweep"), read_sweep(written(MONO_REPO))
    assert (packaged.name, packaged.base, packaged.space) == ("ppo_sweep", own.base, own.space)
    assert packaged.options["parallel_jobs"] == own.options["parallel_jobs"]
    Path("ppo_sweep").write_text("base_config: ppo_cartpole\nseeds: 2\n")
    assert read_sweep("ppo_sweep").seeds == [1, 2]


def test_so_does_one_whose_base_is_in_the_mono_repo_s_words(place, targets):
    file = Path("configs/experiments/ppo_cartpole.yaml")
    file.parent.mkdir(parents=True)
    file.write_text((ROOT / "examples" / "monorepo" / "ppo_cartpole.yaml").read_text())
    trials = texts(written(MONO_REPO), targets)
    last = OmegaConf.create(trials[-1][1])
    assert len(trials) == 27
    assert (last.optimizers.policy.lr, last.algorithm.clip_range, last.algorithm.entropy_coef) == (1e-3, 0.3, 0.01)
    assert last.components.actor.hidden_dims == [256, 256]
    assert last.components.critic.hidden_dims == [64, 64]
    assert "monorepo" not in last


def test_a_trial_s_experiment_composes_to_what_the_command_line_would(place, targets):
    ((_, text), *_) = texts("three.yaml", targets, 1, ["algorithm.mode=slow"])
    tree = place / "tree" / "experiment"
    tree.mkdir(parents=True)
    (tree / "one.yaml").write_text(text)
    words = [*load_yaml(Path("three.yaml"))["overrides"], "algorithm.mode=slow"]
    (values,) = (values for values, _ in texts("three.yaml", targets, 1))
    words += [f"{key}={hydra_value(value)}" for key, value in values.items()]
    wanted = resolve(compose(["+experiment=tiny", *words, "experiment.tags=[three]"], "conf"))
    assert resolve(compose(["+experiment=one"], place / "tree")) == wanted
    assert wanted["algorithm"] == {"gamma": 0.8, "width": 32, "mode": "slow"}


def test_an_experiment_with_a_sweep_block_is_a_sweep(place, targets):
    block = "sweep: {algorithm.gamma: [0.5, 0.6]}\nseeds: 2\n"
    found = texts(written(EXPERIMENT + block, "own.yaml"), targets)
    assert [values for values, _ in found] == [
        {"algorithm.gamma": gamma, "experiment.seed": seed} for gamma in (0.5, 0.6) for seed in (1, 2)
    ]
    config = OmegaConf.create(found[-1][1])
    assert (config.algorithm.gamma, config.experiment.name, config.experiment.tags) == (0.6, "tiny", ["own"])


def test_a_sweep_builds_on_another_one(place, targets):
    written("base_config: three.yaml\nseeds: [7]\nsweep: {algorithm.gamma: 0.7}\n", "upper.yaml")
    ((values, text),) = texts("upper.yaml", targets)
    assert (values["algorithm.gamma"], values["experiment.seed"]) == (0.7, 7)
    assert 1e-4 <= values["optimizers.policy.lr"] <= 1e-2
    assert OmegaConf.create(text).training.total_timesteps == 768


def test_groups_can_be_swept(place, targets):
    file = written("base_config: ppo_cartpole\nsweep: {environment: [cartpole, acrobot], budget: tiny}\n")
    names = [OmegaConf.create(text).environment.name for _, text in texts(file, targets)]
    assert names == ["CartPole-v1", "Acrobot-v1"]


@pytest.mark.parametrize(
    "value", ["it's", "a\\", "a\\'b", "", "null", "1e3", "${x}", [1, "a b", {"k": None}], True, 1e-7]
)
def test_values_come_through_hydra_s_grammar(value):
    from rl_lab.config.overrides import parse_overrides

    assert parse_overrides([f"key={hydra_value(value)}"])[0].value() == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base_config: a.yaml\n", "build on each other in a circle: a.yaml -> b.yaml -> a.yaml"),
        ("base_config: tinyy\nsweep: {a: [1]}\n", "unknown experiment or file 'tinyy'"),
        ("base_config: ppo_cartpol\nsweep: {a: [1]}\n", "did you mean 'ppo_cartpole'?"),
        ("base_config: three.yaml\nswep: {a: [1]}\n", "did you mean 'sweep'?"),
        ("base_config: three.yaml\nparallel_jobs: 0\n", "parallel_jobs: must be greater than or equal to 1, not 0"),
        ("base_config: three.yaml\nnum_samples: 0\n", "num_samples: must be greater than or equal to 1"),
        ("base_config: three.yaml\ntune: {sampler: tpee}\n", "tune.sampler: must be 'tpe', 'cma_es' or 'random'"),
        ("base_config: three.yaml\ntune: {trails: 3}\n", "did you mean 'trials'?"),
        ("base_config: ppo_cartpole\n", "nothing varies (zero trials)"),
        ("base_config: ppo_cartpole\nsweep: {algorithm.gamma: []}\n", "zero trials"),
        ("base_config: ppo_cartpole\nseeds: 0\nsweep: {x: [1, 2]}\n", "seeds: 0 makes zero trials"),
        ("base_config: ppo_cartpole\nseeds: []\nsweep: {x: [1, 2]}\n", "seeds: [] makes zero trials"),
        ("base_config: ppo_cartpole\nseeds: [0, 1, 0]\n", "seeds: 0 is given twice"),
        ("base_config: ppo_cartpole\nsweep: {x: [1e-4, 3, 0.0001]}\n", "sweep.x: 0.0001 is given twice"),
        ("base_config: ppo_cartpole\nsweep: {x: {grid: [[8], [9], [8]]}}\n", "sweep.x: [8] is given twice"),
        ("seeds: [1]\n", "base_config is missing"),
        ("base_config: 3\nseeds: [1]\n", "must be a name or a file, not 3"),
        ("base_config: ppo_cartpole\nsweep: {x: [1], x: [2]}\n", "line 2: found duplicate key x"),
        ("base_config: ppo_cartpole\nsweep: {algorithm.lr: [1], optimizers.policy.lr: [2]}\n", "they mean the same"),
        ("- 1\n", "expected key: value lines"),
        ("a: [\n", "cannot read s.yaml, line 2"),
    ],
)
def test_files_that_make_no_sense_are_one_line(place, text, message):
    if "a.yaml" in text:
        written("base_config: b.yaml\nsweep: {x: [1]}\n", "a.yaml")
        written("base_config: a.yaml\nsweep: {x: [1]}\n", "b.yaml")
    with pytest.raises(ConfigError) as error:
        read_sweep(written(text))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("block", "overrides", "message"),
    [
        ("sweep: {algorithm.gama: [0.5]}", [], "did you mean 'gamma'?"),
        ("sweep: {training.total_timestep: [5]}", [], "did you mean 'total_timesteps'?"),
        ("sweep: {algorithm.gamma: [1.5]}", [], "algorithm.gamma: must be less than 1"),
        ("sweep: {experiment.seed: [1]}\nseeds: 2", [], "'sweep.experiment.seed' and 'seeds' are both given"),
        ("sweep: {algorithm.gamma: [0.5]}", ["algorithm.gamma=0.6"], "'algorithm.gamma' is also given as an override"),
        ("sweep: {experiment.root: [a, b]}", [], "a sweep sets it itself"),
        ("sweep: {algorithm.width: {expression: 2 * algorithm.gama}}", [], "did you mean 'algorithm.gamma'?"),
    ],
)
def test_trials_that_no_run_could_be_are_one_line(place, targets, block, overrides, message):
    file = written(f"base_config: conf/experiment/tiny.yaml\n{block}\n")
    with pytest.raises(ConfigError) as error:
        texts(file, targets, overrides=overrides)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(place):
    with pytest.raises(ConfigError, match=r"^unknown sweep 'ppo_swep'; did you mean 'ppo_sweep'.*no file"):
        read_sweep("ppo_swep")
    with pytest.raises(ConfigError, match=r"cannot read nothing.yaml: No such file"):
        read_sweep("nothing.yaml")


class Overtaken:
    """The configs of a sweep, while whose trials are composed another process plans in the same directory."""

    def __init__(self, configs, other):
        self._configs, self._other = configs, other
        self.known = configs.known

    def text(self, values):
        other, self._other = self._other, lambda: None
        other()
        return self._configs.text(values)


def test_two_sweeps_that_begin_at_once_have_one_plan(place, targets):
    directory, sweep = SweepDirectory(place / "runs"), read_sweep("three.yaml")
    changed = read_sweep(written(Path("three.yaml").read_text() + "sample_seed: 1\n", "other.yaml"))
    with open_configs(sweep, targets) as configs, open_configs(changed, targets) as others:
        first = []
        overtaken = Overtaken(configs, lambda: first.append(write(directory, draft(directory, changed, [], others))))
        with pytest.raises(ConfigError, match="sample_seed is None now, but was 1 when the sweep"):
            write(directory, draft(directory, sweep, [], overtaken))
        assert directory.read_plan()[1] == first[0]
        found = [directory.config_file(trial).read_text() for trial in first[0]]
        assert found == [others.text(trial.values) for trial in first[0]]


def test_a_search_notices_that_its_base_has_changed(place, targets):
    directory, sweep, file = SweepDirectory(place / "runs"), read_sweep("three.yaml"), Path("conf/experiment/tiny.yaml")
    text = file.read_text()
    for change in ("", "# a remark\n"):
        file.write_text(text + change)
        with open_configs(sweep, targets) as configs:
            prepare_search(directory, sweep, [], configs)
    file.write_text(text.replace("{gamma: 0.9}", "{gamma: 0.9, mode: slow}"))
    with open_configs(sweep, targets) as configs, pytest.raises(ConfigError, match="tiny comes to another config"):
        prepare_search(directory, sweep, [], configs)
    definition, _ = directory.read_plan()
    del definition["base_hash"]
    directory.write_plan(definition, [])  # as a lab wrote it that did not keep the hash
    with open_configs(sweep, targets) as configs:
        prepare_search(directory, sweep, [], configs)
