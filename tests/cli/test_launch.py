"""`lab launch`: a round trip to another machine, command lines, and what is refused before anything is sent."""

import dataclasses
import json
import os
import shlex
import shutil
import sys
import time

import pytest

from rl_lab.cli.launch.words import canonical, read_order
from rl_lab.launching import keeper, record
from rl_lab.launching.order import Plan, on_ray
from rl_lab.tracking.lock import exclusive_lock
from tests.cli.far_machine import make_far_machine
from tests.config.tiny import PLUGIN
from tests.launching.orders import order

TINY = ("train", "+experiment=tiny", "--config-dir", "conf")
PLUGGED = ("--plugin", "tiny_plugin.py")
ENDLESS = ("training.total_timesteps=1_000_000_000", "training.checkpoint_frequency=null")
LIST = "base_config: ppo_cartpole\nsweep: {algorithm.clip_range: [0.1, 0.2]}\n"
LONG_S = 180.0


def wait_until(is_true):
    end = time.monotonic() + LONG_S
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.05)


def steps_of(run):
    """Return the env steps of a run's rows."""
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]


@pytest.fixture
def far(place, monkeypatch, tmp_path_factory):
    """Return the home directory of another machine; a plugin in the project is all that a run there has."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.delenv("LAB_PLUGINS")
    shutil.copy(PLUGIN, place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = sys.modules.pop("tiny_plugin", None)  # that of other tests, which read where it is from
    home = make_far_machine(tmp_path_factory.mktemp("machine"))
    yield home
    sys.modules.pop("tiny_plugin", None)
    sys.modules.update({} if known is None else {"tiny_plugin": known})
    for path in home.glob("rl-lab/*/launches/*"):
        launch = record.read(path.parent, path.name)
        while not keeper.wait(launch, 0.0):
            keeper.stop(launch)
            keeper.wait(launch, 5.0)


@pytest.fixture
def ssh(lab):
    def run(*words):
        return lab("launch", "ssh", "--host", "far", "--python", sys.executable, "--name", "mine", *words)

    return run


def done(result):
    assert result.exit_code == 0, result.output
    return result.stdout


def test_there_and_back(far, lab, ssh, place):
    """All verbs, with real processes at the other end; the launch there is one that was stopped, of a quick command."""
    for name in ("experiments/old/big.bin", ".git/HEAD", "__pycache__/a.pyc"):
        (place / name).parent.mkdir(parents=True)
        (place / name).touch()
    there = far / "rl-lab" / "mine"
    sent = read_order((*TINY, *PLUGGED), "mine", place / "launches", shares_files=False).words
    what = order(("runs", "list", "--root", "experiments/mine"), words=sent, project=there)
    launch = record.create(there / "launches", "local", what, Plan())
    done(ssh(*TINY, *PLUGGED))
    assert keeper.wait(launch, LONG_S)
    assert (there / "conf/experiment/tiny.yaml").is_file()
    assert not [name for name in ("experiments/old", ".git", "__pycache__") if (there / name).exists()]
    (there / "experiments/mine").mkdir(parents=True)
    (there / "experiments/mine/manifest.json").write_text("{}")
    assert "launch: mine (local), done" in done(lab("launch", "status", "mine"))
    assert "lab runs list --root experiments/mine" in done(lab("launch", "logs", "mine"))
    done(lab("launch", "pull", "mine"))
    assert (place / "experiments/mine/manifest.json").read_text() == "{}"
    assert "is not running (done)" in done(lab("launch", "down", "mine"))


@pytest.mark.learning
def test_a_run_is_stopped_there_and_goes_on(far, lab, ssh, place):
    """Launch, look, fetch, stop, go on, stop: a real training at the other end."""
    done(ssh(*TINY, *PLUGGED, *ENDLESS))
    run = far / "rl-lab" / "mine" / "experiments" / "mine"
    wait_until(lambda: steps_of(run))
    assert "launch: mine (local), running" in done(lab("launch", "status", "mine"))
    assert "lab train --run-dir experiments/mine" in done(lab("launch", "logs", "mine"))
    done(lab("launch", "pull", "mine"))
    assert json.loads((place / "experiments/mine/manifest.json").read_text())["name"] == "tiny"

    assert "launch: mine, stopped" in done(lab("launch", "down", "mine"))
    assert (run / "status").read_text() == "stopped\n"
    before = steps_of(run)
    assert "is not running (stopped)" in done(lab("launch", "down", "mine"))  # once more does no harm

    done(lab("launch", "up", "mine"))
    wait_until(lambda: len(steps_of(run)) > len(before))
    done(lab("launch", "down", "mine"))
    steps = steps_of(run)
    assert steps[: len(before)] == before
    assert steps == sorted(set(steps))  # every row once
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events].count("resume") == 1


def test_a_host_that_cannot_be_reached_is_one_line(far, lab, place, fails):
    result = lab("launch", "ssh", "--host", "nowhere", "--name", "lost", *TINY, *PLUGGED)
    line = fails(result, 1)
    assert "the host cannot be reached: ssh: connect to host nowhere port 22: No route to host" in line
    assert line.endswith("`lab launch up lost` tries again")
    assert "launch: lost (ssh), not started" in done(lab("launch", "status", "lost"))
    assert [row["state"] for row in json.loads(done(lab("launch", "list", "--json")))] == ["not started"]


def test_the_same_command_goes_on_under_its_name_and_another_is_refused(lab, fails, place):
    """What `lab launch ssh` says on the other machine; with a command that ends at once."""
    launch = record.create(place / "launches", "local", order(("runs", "list"), project=place), Plan())
    assert "launch: mine (local), new" in done(lab("launch", "status"))
    done(lab("launch", "local", "--again", "--name", "mine", "runs", "list"))
    assert "lab runs list" in done(lab("launch", "logs", "--follow", "mine"))  # until it has ended
    assert keeper.wait(launch, LONG_S)
    assert "launch: mine (local), done" in done(lab("launch", "status", "mine"))
    assert done(lab("launch", "pull", "mine")) == f"runs: {place / 'experiments' / 'mine'}\n"
    with exclusive_lock(launch.path / keeper.LOCK):
        assert "running" in done(lab("launch", "local", "--again", "--name", "mine", "runs", "list"))
    other = lab("launch", "local", "--again", "--name", "mine", "train", "+experiment=tiny")
    assert "--name mine is that of another command: lab runs list" in fails(other, 2)


TOOLS = ("sbatch", "squeue", "scancel", "ray", "kubectl")
SAYS = """#!/bin/sh
printf '%s\\n' "${{0##*/}} $*" >> {calls}
[ "$1" != "$(cat {failing})" ]
"""


@pytest.fixture
def calls(place, monkeypatch, tmp_path_factory):
    """Put programs of clusters on the path that only note how they are called; `ray up` fails where a file says so."""
    folder = tmp_path_factory.mktemp("tools")
    (folder / "calls").touch()
    (folder / "failing").touch()
    for name in TOOLS:
        (folder / name).write_text(SAYS.format(calls=folder / "calls", failing=folder / "failing"))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "calls"


PLACES = {
    "slurm": ("--partition", "gpu"),
    "ray": (),
    "gce": ("--project", "p", "--setup", "true"),
    "ec2": ("--image", "ami", "--setup", "true"),
    "k8s": ("--image", "i", "--claim", "c"),
}


@pytest.mark.parametrize("name", PLACES)
def test_what_is_recorded_is_what_is_called(name, lab, calls, place):
    done(lab("launch", name, *PLACES[name], "--name", "mine", *TINY))
    launch = record.read(place / "launches", "mine")
    done(lab("launch", "status", "mine"))
    expected = [*launch.commands["start"], *launch.commands["status"]]
    for verb in ("logs", "pull", "down", "up"):
        done(lab("launch", verb, "mine"))
        expected += launch.commands.get(verb, [])
    said = [" ".join(words[2].split(" || ")[0].split() if words[0] == "sh" else words) for words in expected]
    assert calls.read_text().splitlines() == [line for line in said if line.split()[0] in TOOLS]


def test_machines_of_a_start_that_failed_are_given_back(lab, calls, fails):
    (calls.parent / "failing").write_text("up")
    line = fails(lab("launch", "gce", *PLACES["gce"], "--name", "mine", *TINY), 1)
    assert "`ray` failed with code 1: it said nothing" in line
    done(lab("launch", "down", "mine"))
    assert calls.read_text().splitlines() == [
        "ray up -y launches/mine/cluster.yaml",
        "ray down -y launches/mine/cluster.yaml",
    ]


def test_a_damaged_launch_hides_no_other(lab, place):
    for name in ("mine", "broken"):
        what = dataclasses.replace(order(("runs", "list"), project=place), name=name)
        record.create(place / "launches", "local", what, Plan())
    (place / "launches/broken/launch.yaml").write_text("[")
    rows = {row["name"]: row["state"] for row in json.loads(done(lab("launch", "list", "--json")))}
    assert rows == {"mine": "new", "broken": "damaged"}
    assert "damaged" in done(lab("launch", "list"))


def test_a_dry_run_writes_nothing(lab, place):
    shown = done(lab("launch", "slurm", "--partition", "gpu", "--name", "mine", "--dry-run", *TINY, "--seed", "1,2"))
    assert "#SBATCH --array=0-1\n" in shown
    for seed in (1, 2):
        own = f"--run-dir experiments/mine/seed_{seed} --config-dir conf -- +experiment=tiny experiment.seed={seed}"
        assert f"-m rl_lab train {own} ;;\n" in shown
        assert f"# runs: lab train {own}\n" in shown
    assert "# start\nsbatch --parsable launches/mine/job.sbatch\n" in shown
    assert not (place / "launches").exists()


MISSING = {
    "ssh": ["host"],
    "slurm": ["partition"],
    "gce": ["project", "setup"],
    "ec2": ["image", "setup"],
    "k8s": ["image", "claim"],
}


@pytest.mark.parametrize("name", MISSING)
def test_a_dry_run_shows_what_is_to_be_said(name, lab, place):
    result = lab("launch", name, "--dry-run", *TINY)
    shown = done(result)
    assert [line.split()[1] for line in result.stderr.splitlines()] == [f"--{option}" for option in MISSING[name]]
    assert all(f"YOUR-{option.upper()}" in shown for option in MISSING[name])
    assert not (place / "launches").exists()


def test_clouds_are_told_by_environment_variables(lab, monkeypatch):
    monkeypatch.setenv("LAB_GCE_PROJECT", "mine")
    monkeypatch.setenv("LAB_EC2_IMAGE", "ami-1")
    assert "project_id: mine\n" in done(lab("launch", "gce", "--dry-run", "--setup", "true", *TINY))
    assert "ImageId: ami-1\n" in done(lab("launch", "ec2", "--dry-run", "--setup", "true", *TINY))


def test_a_sweep_has_a_directory_of_its_own(lab, place):
    (place / "a.yaml").write_text(LIST)
    for command in ("sweep", "tune"):
        words = ("--name", "mine", "--dry-run", command, "a.yaml", "budget=tiny")
        shown = done(lab("launch", "ray", *words))
        assert f"# runs: lab {command} --dir experiments/mine -- a.yaml budget=tiny\n" in shown


@pytest.mark.parametrize("made", [lambda order: order, on_ray])
@pytest.mark.parametrize(
    "words", [(*TINY, "--seed", "1,2"), (*TINY, "experiment.seed=3"), ("sweep", "a.yaml"), ("tune", "a.yaml")]
)
def test_another_machine_reads_the_same_order(words, made, place):
    """The words that are sent come to the same runs there, whatever its own directory for runs is called."""
    (place / "a.yaml").write_text(LIST)
    here = made(read_order(words, "mine", place / "launches", shares_files=False))
    os.environ["LAB_EXPERIMENTS"] = "elsewhere"
    try:
        there = read_order(here.words, "mine", place / "launches", shares_files=True)
    finally:
        del os.environ["LAB_EXPERIMENTS"]
    assert (there.words, there.results) == (canonical(here.words), here.results)
    own = [canonical(task) for task in here.tasks]
    assert [task[:3] for task in there.tasks] == [task[:3] for task in own]  # with the directory of each


@pytest.mark.parametrize("words", [(*TINY, "--seed", "1,2"), ("sweep", "a.yaml")])
def test_absolute_paths_below_the_project_are_said_from_there(words, place, monkeypatch):
    (place / "a.yaml").write_text(LIST)
    told = read_order((*words, "--config-dir", "conf"), "mine", place / "launches", shares_files=False)
    monkeypatch.setenv("LAB_EXPERIMENTS", str(place / "experiments"))
    spelt = [str(place / word) if word in ("conf", "a.yaml") else word for word in (*words, "--config-dir", "conf")]
    assert read_order(spelt, "mine", place / "launches", shares_files=False) == told
    if words[0] == "train":
        spelt.append(f"experiment.root={place}/runs")
        order = read_order(spelt, "mine", place / "launches", shares_files=False)
        assert (order.results, order.words[-1]) == ("runs/mine", "experiment.root=runs")


def test_a_sweep_on_rented_machines_goes_on(lab, place):
    """What `lab launch up` says on the first of them: the same words as at the start, in their order."""
    (place / "a.yaml").write_text(LIST)
    sent = on_ray(read_order(("sweep", "a.yaml"), "mine", place / "launches", shares_files=False)).words
    read = read_order(sent, "mine", place / "launches", shares_files=True)
    launch = record.create(place / "launches", "local", read, Plan())
    with exclusive_lock(launch.path / keeper.LOCK):
        assert "running" in done(lab("launch", "local", "--again", "--name", "mine", *sent))


def test_a_run_goes_on_elsewhere(lab, place, train):
    done(train("--run-dir", "experiments/old"))
    words = ("--name", "mine", "--dry-run", "resume", "old", "training.total_timesteps=512")
    shown = done(lab("launch", "ssh", "--host", "far", *words))
    assert "# runs: lab resume -- experiments/old training.total_timesteps=512\n" in shown
    assert " ./experiments/old far:rl-lab/mine/\n" in shown
    assert "-m rl_lab launch local --again --name mine resume -- experiments/old" in shown
    assert "far:rl-lab/mine/experiments/old experiments/\n" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lcoal train +experiment=tiny", "unknown place or command of lab launch 'lcoal'; did you mean 'local'?"),
        ("ssh train +experiment=tiny", "--host is missing"),
        ("slurm train +experiment=tiny", "--partition is missing"),
        ("gce train +experiment=tiny", "--project is missing (or LAB_GCE_PROJECT)"),
        ("ec2 train +experiment=tiny", "--image is missing (or LAB_EC2_IMAGE)"),
        ("k8s --image i train +experiment=tiny", "--claim is missing"),
        ("local trian +experiment=tiny", "unknown command to launch 'trian'; did you mean 'train'?"),
        ("local evaluate a", "unknown command to launch 'evaluate'"),
        ("local --name My_Run train +experiment=tiny --config-dir conf", "--name 'My_Run' must be"),
        ("local train +experiment=tyni --config-dir conf", "unknown experiment 'tyni' (choices:"),
        (
            "local train +experiment=tiny --config-dir conf algorithm.gama=1",
            "TinyWorkflow 'gama'; did you mean 'gamma'?",
        ),
        ("local train +experiment=tiny --config-dir conf --sed 1", "No such option: --sed"),
        (
            "local train +experiment=tiny --config-dir conf --dry-run",
            "(options of lab launch stand before `train`)",
        ),
        ("local train +experiment=tiny --config-dir conf --cfg job", "--cfg of lab train only prints"),
        (
            "local train +experiment=tiny --config-dir conf --run-dir a --seed 1,2",
            "--run-dir a is one run, but 2 seeds",
        ),
        ("local sweep nothing.yaml", "cannot read nothing.yaml"),
        ("local tune nothing.yaml", "cannot read nothing.yaml"),
        ("ssh --host far train +experiment=tiny --config-dir /etc", "--config-dir /etc: only what lies below"),
        ("ssh --host far train +experiment=tiny --plugin ../a.py", "--plugin ../a.py: only what lies below"),
        ("ssh --host far train --from-run a", "--from-run: another machine has no runs of this one"),
        ("ssh --host far sweep /tmp/a.yaml", "the sweep's file /tmp/a.yaml: only what lies below"),
        ("ssh --host far train +experiment=tiny --config-dir conf experiment.root=/data", "only what lies below"),
        ("local resume a --mode warm_start", "--mode warm_start: launched again it would begin again"),
    ],
)
def test_what_is_refused_leaves_nothing(words, message, lab, fails, place):
    assert message in fails(lab("launch", *shlex.split(words)), 2)
    assert not (place / "launches").exists()


def test_a_run_that_is_not_there_is_one_line(lab, fails):
    assert "nothing" in fails(lab("launch", "local", "resume", "nothing"), 1)


@pytest.mark.parametrize("verb", ["status", "logs", "pull", "down", "up"])
def test_unknown_launches_are_one_line(verb, lab, fails, place):
    assert "no launches in" in fails(lab("launch", verb), 2)
    assert "unknown launch in launches: 'mien'" in fails(lab("launch", verb, "mien"), 2)


def test_a_name_that_is_taken_is_refused(lab, fails, place):
    (place / "launches" / "mine").mkdir(parents=True)
    words = ("launch", "slurm", "--partition", "gpu", "--name", "mine", *TINY)
    assert "--name mine is taken" in fails(lab(*words), 2)
    assert os.listdir(place / "launches") == ["mine"]


def test_a_program_that_is_missing_is_one_line(lab, fails, place, monkeypatch):
    monkeypatch.setenv("PATH", str(place))
    line = fails(lab("launch", "slurm", "--partition", "gpu", "--name", "mine", *TINY), 1)
    assert "`sbatch` is not on this machine" in line
    assert (place / "launches/mine/job.sbatch").is_file()  # as it would have been sent
