"""What the quoted command lines become runs: configs assemble, launches and sweeps are planned, runs are looked at."""

import json
import shlex
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from rl_lab.buffers.datasets.open import open_writer
from rl_lab.cli.compat import read_command
from rl_lab.cli.main import app
from rl_lab.config.actors import assemble_actor
from rl_lab.config.allow_list import AllowList, load_plugins
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.overrides import expand_seeds
from rl_lab.config.parallel import num_wanted
from rl_lab.config.targets import Targets
from rl_lab.core.mp4 import Mp4Writer
from rl_lab.core.ranks import ALONE
from tests.buffers.test_dataset_tools import simple
from tests.cli.quoted_lines import QUOTED
from tests.config.test_parallel import Second
from tests.config.tiny import EXPERIMENT, PLUGIN
from tests.film_reader import read_film
from tests.tracking.synthetic import make_run, position

YOURS = ("your_experiment_name", "your_algorithm_env", "your_exp")  # where the manuals want a name
RUNS = ("ppo_cartpole_2024", "demo", "mine", "your_experiment_name")
ASSEMBLED = ("train", "learner", "actor", "start")
LOOKED_AT = {"resume": "done", "evaluate": "return", "export": "onnx"}  # and what is said


def lines_of(*commands):
    """Return the quoted lines that become these commands of the lab."""
    return [line for line, command in QUOTED.items() if command.split()[1] in commands]


def done(result):
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_no_line_is_left_out():
    """A window for a policy, and a film of it, are in test_compat.py and test_play.py."""
    covered = lines_of(*ASSEMBLED, *LOOKED_AT, "launch", "sweep", "runs", "data", "play")
    assert covered == list(QUOTED)


@pytest.fixture
def yours(place):
    """Write the experiments that the manuals only speak of."""
    for name in YOURS:
        (place / "conf/experiment" / f"{name}.yaml").write_text(EXPERIMENT.replace("name: tiny", f"name: {name}"))


@pytest.mark.usefixtures("yours")
@pytest.mark.parametrize("line", [line for line in lines_of(*ASSEMBLED) if "--cfg" not in QUOTED[line]])
def test_all_that_a_run_is_made_of_is_there(line):
    name, *words = shlex.split(QUOTED[line])[1:]
    given = read_command([name, *words]).params
    for overrides in expand_seeds(given.get("overrides") or given["arguments"], given.get("seed")):
        composed = compose([*overrides, "budget=tiny", "logging=quiet"], "conf")
        assert num_wanted(composed) in (1, 2)
        targets = Targets(AllowList(load_plugins([PLUGIN])))
        if name == "actor":
            assemble_actor(composed, targets)
        else:
            assemble(composed, targets, ranks=ALONE if num_wanted(composed) == 1 else Second())


@pytest.mark.usefixtures("yours")
@pytest.mark.parametrize("line", [line for line in lines_of("train") if "--cfg" in QUOTED[line]])
def test_configs_are_printed(line, lab):
    assert "experiment:\n" in done(lab(*shlex.split(QUOTED[line])[1:], "--config-dir", "conf"))


@pytest.mark.parametrize("line", lines_of("launch"))
def test_launches_are_planned(line, lab):
    """As quoted, and with --dry-run: what a cluster's owner must say has a placeholder."""
    result = lab("compat", *shlex.split(line), "--dry-run")
    place = QUOTED[line].split()[2]
    assert f"lab launch {place} --dry-run train" in result.stderr
    assert "# start\n" in done(result)
    wanted = {"gce": ["YOUR-PROJECT", "YOUR-SETUP"], "ec2": ["YOUR-IMAGE", "YOUR-SETUP"], "ray": []}[place]
    assert [word for word in ("YOUR-PROJECT", "YOUR-IMAGE", "YOUR-SETUP") if word in result.stdout] == wanted


@pytest.mark.parametrize(
    ("cloud", "missing"),
    [("gce", "--project is missing (or LAB_GCE_PROJECT)"), ("ec2", "--image is missing (or LAB_EC2_IMAGE)")],
)
def test_nothing_is_rented_before_it_is_said_for_whom(cloud, missing, lab, place):
    line = next(line for line in QUOTED if f"launch_example_{cloud}" in line)
    result = lab("compat", *shlex.split(line))
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-2:] == [QUOTED[line], f"error: {missing}"]
    assert not (place / "launches").exists()


@pytest.mark.parametrize("line", lines_of("sweep"))
def test_sweeps_are_planned(line, lab):
    told = json.loads(done(lab(*shlex.split(QUOTED[line])[1:], "--dry-run", "--json")))
    assert len(told["trials"]) == 27


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Train a tiny run, and return where copies of it have the names of the manuals."""
    root = tmp_path_factory.mktemp("finished")
    words = ["+experiment=ppo_cartpole", "budget=tiny", "--run-dir", str(root / RUNS[0])]
    done(CliRunner().invoke(app, ["train", *words]))
    for name in RUNS[1:]:
        shutil.copytree(root / RUNS[0], root / name)
    return root


@pytest.mark.parametrize("line", lines_of(*LOOKED_AT))
def test_runs_are_used(line, lab, place, finished):
    shutil.copytree(finished, place / "experiments")
    assert LOOKED_AT[QUOTED[line].split()[1]] in done(lab("compat", *shlex.split(line)))


@pytest.mark.parametrize("line", lines_of("runs"))
def test_runs_are_told_apart(line, lab, place):
    for name in ("exp1", "exp2", "exp3"):
        run = make_run(place / "experiments", name, name=name)
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps({**position(100), "train/policy_loss": 0.5, "train/value_loss": 2.0}) + "\n")
    told = done(lab("compat", *shlex.split(line)))
    assert ("train/policy_loss" in told and "train/value_loss" in told) == ("reward,loss" in line)


@pytest.fixture
def recordings(place):
    """Write what was recorded: a LeRobot dataset and two films, the second of another size."""
    with open_writer("lerobot/dobot/replay_buffer", "lerobot", fps=10) as writer:
        writer.save(simple(notes={}))
    films = place / "examples/experiments/dobot_pnp/videos"
    films.mkdir(parents=True)
    for number, size, grey in ((10, 32, 200), (9, 16, 50)):
        writer = Mp4Writer(films / f"step_{number}.mp4", 10.0)
        for _ in range(3):
            writer.add(np.full((size, size, 3), grey, np.uint8))
        writer.close()


@pytest.mark.usefixtures("recordings")
@pytest.mark.parametrize("line", lines_of("data"))
def test_recordings_are_looked_at(line, lab, place):
    told = done(lab("compat", *shlex.split(line)))
    if "html" in QUOTED[line]:
        assert told.startswith("exported: replay_buffer_episode_0.html, 1 episodes")
        assert (place / "replay_buffer_episode_0.html").is_file()
    else:
        film, fps = read_film(place / "examples/experiments/dobot_pnp/output.mp4")
        assert (film.shape, fps) == ((6, 16, 16, 3), 5.0)  # 9 is before 10
        assert abs(film[:3].mean() - 50) < 5
        assert abs(film[3:].mean() - 200) < 5


def test_a_policy_of_the_other_system_is_refused_in_one_line(lab):
    line = next(line for line in QUOTED if "simulate_policy" in line)
    result = lab("compat", *shlex.split(line))
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "seed=7585" in result.stderr.splitlines()[-1]
