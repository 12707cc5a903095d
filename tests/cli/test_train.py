import json
from pathlib import Path

import pytest
import torch
import yaml

from rl_lab.config import memory
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.lock import exclusive_lock


def runs():
    return sorted(Path("experiments").glob("*"))


def test_a_run_says_where_it_is_and_what_came_out(train):
    result = train()
    assert result.exit_code == 0, result.stderr
    (run,) = runs()
    assert str(run.absolute()) in result.stdout.replace("\n", "")
    assert "train/loss" in result.stdout
    assert (run / "status").read_text() == "done\n"
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["schema_version"] == 1
    assert config["components"]["actor"]["in_features"] == 4


def test_json_is_one_object_or_a_list(train):
    one = json.loads(train("--json", "--run-dir", "one", "logging.terminal=true").stdout)
    assert (one["status"], one["run"]) == ("done", str(Path("one").absolute()))
    assert one["position"]["step"] == 256
    assert yaml.safe_load(Path("one", "config.yaml").read_text())["logging"]["terminal"]  # for a later resume
    many = json.loads(train("--json", "--seed", "1,2").stdout)
    assert [yaml.safe_load(Path(each["run"], "config.yaml").read_text())["experiment"]["seed"] for each in many] == [
        1,
        2,
    ]
    assert json.loads(train("--json", "experiment.seed=3").stdout)["status"] == "done"


def test_the_budget_is_a_matter_of_the_config(train):
    result = train(
        "--json", "budget=tiny", "training.total_timesteps=1e8", "training.phases.0.workflow_hooks=[{collect: 9999}]"
    )
    assert json.loads(result.stdout)["position"]["step"] == 128


def test_the_config_can_be_printed(train, lab):
    whole = train("--cfg", "job", "algorithm.gamma=0.5")
    config = yaml.safe_load(whole.stdout)
    assert config["algorithm"]["gamma"] == 0.5
    assert config["components"]["actor"]["in_features"] == "${_dims.observation}"
    assert config["training"]["keep_last"] == 2
    block = train("--cfg", "job", "--package", "training.phases")
    assert yaml.safe_load(block.stdout)[0]["name"] == "train"
    assert train("--cfg", "job", "--package", "algorithm.gamma").stdout == "0.9\n"
    assert runs() == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--cfg", "hydra"], 2, "error: unknown --cfg 'hydra' (choices: job)"),
        (["--cfg", "job", "--package", "trainig"], 2, "error: unknown --package 'trainig'; did you mean 'training'?"),
        (["+experiment=tny"], 2, "error: unknown experiment 'tny'; did you mean 'tiny'?"),
        (["budget=small"], 2, "error: unknown budget 'small' (choices: full, tiny)"),
        (["--config-dir", "nowhere"], 2, "error: --config-dir nowhere: no such directory"),
        (["--plugin", "nowhere.py"], 2, "error: --plugin nowhere.py: no such file"),
        (["a b"], 2, "error: cannot read the override 'a b'"),
        (["algorithm.gamma=0.1,0.2"], 2, "error: algorithm.gamma=0.1,0.2: only experiment.seed takes a comma list"),
        (["--seed", "1,2", "--run-dir", "x"], 2, "error: --run-dir x is one run, but 2 seeds are given"),
        (["training.total_timestep=1"], 2, "error: unknown key in training 'total_timestep'; did you mean"),
        (["algorithm.gama=1"], 2, "error: algorithm: unknown argument of TinyWorkflow 'gama'"),
        (["algorithm.width=wide"], 2, "error: algorithm.width: must be a valid integer, not 'wide'"),
        (
            ["components.actor._target_=torch.nn.Linea"],
            2,
            "error: components.actor._target_: unknown name in torch.nn 'Linea'",
        ),
        (["environment._target_=rl_lab.environments.cartpol.X"], 2, "error: environment._target_: unknown module"),
        (["environment._target_=os.system"], 2, "error: environment._target_: 'os.system' is not allowed"),
        (
            ["training.phases.0.workflow_hooks=[jump]"],
            2,
            "error: unknown hook of phase 'train' 'jump' (choices: collect",
        ),
        (["training.phases.0.buffer=replay"], 2, "error: unknown buffer of phase 'train' 'replay' (choices: rollout)"),
        (["training.phases=[{name: a, hooks: [collect]}]"], 2, "error: phase 'a' needs exactly one of duration_steps"),
        (["experiment.device=cuda:99"], 2, "error: experiment.device: 'cuda:99' is not on this machine"),
        (["training.resume_path=nowhere"], 1, "error: no run directory at "),
        (["experiment.root=conf/experiment/tiny.yaml"], 1, "error: cannot create run directory "),
        (["--run-dir", "conf"], 1, "error: "),
        (["logging.wandb=true"], 2, "error: logging.wandb: the package wandb is not installed: pip install 'rl-lab[wa"),
        (["tiny"], 2, "error: cannot read the override 'tiny': expected key=value"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(train, fails, arguments, code, text):
    line = fails(train(*arguments), code)
    assert line.startswith(text), line
    assert runs() == []


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("components.other={_target_: torch.nn.Identity}", "error: the workflow does not use component 'other'"),
        ("components.actor=null", "error: unknown component 'actor'"),
        ("optimizers.other={_target_: torch.optim.Adam, _partial_: true}", "error: unknown optimizers entry 'other'"),
        (
            "buffers.idle={_target_: tiny_plugin.TinyBuffer}",
            "error: neither a phase nor the workflow uses buffer 'idle'",
        ),
    ],
)
def test_what_only_the_workflow_can_know_is_one_line_too(train, fails, override, text):
    assert fails(train(override, "training.phases.0.buffer=rollout"), 2).startswith(text)


SIZED = "buffers.rollout={_target_: tiny_plugin.SizedBuffer, capacity: 5000}"


def test_the_size_of_buffers_is_told_before_there_is_a_run(train):
    result = train(SIZED)
    assert result.exit_code == 0, result.stderr
    first, second = result.stdout.splitlines()[:2]
    assert first == "buffer rollout: 5,000 steps of 48 bytes, 240.0 kB on cpu when full, without what act adds"
    assert second.startswith("run: ")
    assert json.loads(train(SIZED, "--json").stdout)["status"] == "done"


def test_buffers_that_cannot_fit_are_refused_also_on_a_resume(train, lab, fails, monkeypatch):
    assert train(SIZED, "--run-dir", "x", "training.total_timesteps=128").exit_code == 0
    before = json.loads(lab("runs", "fingerprint", "x", "--json").stdout)
    monkeypatch.setattr(memory, "free_host_memory", lambda: 100_000)
    text = "error: buffers.rollout.capacity: 5,000 steps of 48 bytes, 240.0 kB, does not fit into the 100.0 kB that are"
    for arguments in ((), ("--run-dir", "y"), ("--run-dir", "x"), ("--json",)):
        line = fails(train(SIZED, *arguments), 2)
        assert line.startswith(text), line
        assert line.endswith("at most buffers.rollout.capacity=1979")  # 95,000 / 48
    assert fails(lab("resume", "x", "training.total_timesteps=256"), 2).startswith(text)
    on_disk = "buffers.rollout={_target_: tiny_plugin.SizedBuffer, place: disk, capacity: 1e15}"
    assert "that are free on disk; at most buffers.rollout.capacity=" in fails(train(on_disk), 2)
    assert runs() == []
    assert not Path("y").exists()
    assert json.loads(lab("runs", "fingerprint", "x", "--json").stdout) == before


def test_a_run_that_cannot_be_resumed_says_so_at_its_start(train, lab, fails):
    result = train("--run-dir", "x", FAULTY, "environment.exact_resume=false")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == (
        "environment 'tensor/CartPole' cannot be restored exactly: this run can be warm-started but not resumed"
    )
    assert json.loads(Path("x/manifest.json").read_text())["exact_resume"] is False
    text = (
        "error: environment 'tensor/CartPole' cannot be restored exactly (exact_resume: false); start from the weights"
    )
    assert fails(lab("resume", "x", "training.total_timesteps=512"), 1).startswith(text)
    assert fails(train("--run-dir", "x", FAULTY, "environment.exact_resume=false"), 1).startswith(text)
    exact = ("training.resume_path=x", FAULTY, "environment.exact_resume=false")
    assert fails(train("--run-dir", "y", *exact), 1).startswith(text)
    assert not Path("y").exists()
    assert train("--run-dir", "y", *exact, "training.resume_mode=warm_start").exit_code == 0


def test_without_an_experiment_the_choices_are_told(lab, fails):
    assert "choose an experiment with +experiment=NAME (choices: " in fails(lab("train"), 2)


def test_weights_that_do_not_fit_are_named(train, fails):
    assert train("--run-dir", "x", "training.total_timesteps=64").exit_code == 0
    warm = ("training.resume_path=x", "training.resume_mode=warm_start")
    flat = "components.actor={_target_: torch.nn.Linear, in_features: 4, out_features: 2, bias: false}"
    line = fails(train("--run-dir", "y", *warm, flat), 1)
    assert line == "error: the checkpoint's networks do not fit this config: actor.bias is only in it"
    line = fails(train("--run-dir", "z", *warm, flat, "training.resume_parts=[actor]"), 1)
    assert line == "error: training.resume_parts: 'actor' of the checkpoint does not fit: actor.bias is only in it"
    assert not Path("y").exists()
    assert not Path("z").exists()


FAULTY = "environment._target_=tiny_plugin.FaultyEnv"


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("raise", "error: environment 'tensor/CartPole' raised RuntimeError: the motor is on fire"),
        ("poison", "error: environment 'tensor/CartPole' returned NaN or infinity in rewards: copy 0"),
    ],
)
def test_a_failing_environment_ends_the_run_and_what_was_saved_stays(train, fails, fault, text):
    line = fails(train("--run-dir", "x", FAULTY, f"environment.fault={fault}"), 1)
    assert line.startswith(text), line
    assert Path("x/status").read_text() == "failed\n"
    assert list(Path("x/checkpoints").glob("0*/MANIFEST.json"))


def test_debug_shows_the_traceback(train):
    result = train("--run-dir", "x", "--debug", FAULTY, "environment.fault=raise")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "FaultyEnv" in result.stderr or "tiny_plugin" in result.stderr


def test_two_processes_on_one_directory(train, fails):
    assert train("--run-dir", "x").exit_code == 0
    with exclusive_lock(Path("x/lock")):
        line = fails(train("--run-dir", "x"), 1)
    assert "is in use by pid" in line
    assert "on host" in line


@pytest.mark.parametrize(("fault", "code"), [("sigint", 130), ("sigterm", 143)])
def test_signals_checkpoint_and_leave_and_the_run_goes_on(train, lab, fails, fault, code):
    line = fails(train("--run-dir", "x", FAULTY, f"environment.fault={fault}"), code)
    assert "lab resume" in line
    assert Path("x/status").read_text() == "stopped\n"
    whole = train("--run-dir", "y", FAULTY, "environment.fault=none")
    assert whole.exit_code == 0, whole.stderr
    # the same run, with an environment that no longer sends the signal
    for name in ("config.yaml", "composed.yaml"):
        path = Path("x", name)
        path.write_text(path.read_text().replace(fault, "none"))
    assert lab("resume", "x").exit_code == 0
    prints = [json.loads(lab("runs", "fingerprint", name, "--json").stdout) for name in ("x", "y")]
    assert prints[0] == prints[1]


def test_run_dir_of_an_existing_run_continues_it(train, lab, fails):
    assert train("--run-dir", "x", "training.total_timesteps=128").exit_code == 0
    assert train("--run-dir", "x", "training.total_timesteps=256").exit_code == 0
    assert train("--run-dir", "y", "training.total_timesteps=256").exit_code == 0
    prints = [json.loads(lab("runs", "fingerprint", name, "--json").stdout) for name in ("x", "y")]
    assert prints[0] == prints[1]
    assert json.loads(lab("train", "--run-dir", "x", "--json").stdout)["position"]["step"] == 256
    line = fails(train("--run-dir", "x", "training.total_timesteps=256", "algorithm.gamma=0.1"), 2)
    assert "an exact resume cannot change algorithm.gamma: 0.9 -> 0.1" in line


@pytest.mark.parametrize("storage", ["device", "disk"])
def test_replay_goes_on_to_the_bit(train, lab, storage):
    replay = f"{{_target_: rl_lab.buffers.replay.ReplayBuffer, capacity: 200, batch_size: 16, storage: {storage}}}"
    options = (f"buffers.rollout={replay}", "training.keep_last=9", "training.checkpoint_frequency=16")
    whole = train("--run-dir", "whole", *options)
    assert whole.exit_code == 0, whole.stderr
    assert whole.stdout.startswith("buffer rollout: 200 steps of ")
    assert train("--run-dir", "parts", *options, "training.total_timesteps=128").exit_code == 0
    assert lab("resume", "parts", "training.total_timesteps=256").exit_code == 0
    prints = [json.loads(lab("runs", "fingerprint", name, "--json").stdout) for name in ("whole", "parts")]
    assert prints[0] == prints[1]
    rows = [Path(name, "metrics.jsonl").read_bytes() for name in ("whole", "parts")]
    assert rows[0] == rows[1]
    assert b'"buffer/rollout/size": 200.0' in rows[0]
    assert list(Path("whole/checkpoints").glob("*/segment-*"))


def test_a_run_that_died_before_its_first_checkpoint_begins_anew(train, lab):
    assert train("--run-dir", "y").exit_code == 0
    train("--run-dir", "x", FAULTY, "environment.fault=raise", "environment.at=3")
    assert not list(Path("x/checkpoints").glob("0*"))
    result = train("--run-dir", "x")
    assert result.exit_code == 0, result.stderr
    assert Path("x/metrics.jsonl").read_bytes() == Path("y/metrics.jsonl").read_bytes()


def test_a_new_run_starts_from_another(train):
    assert train("--run-dir", "x").exit_code == 0
    result = train("--run-dir", "y", "training.resume_path=x", "training.resume_mode=warm_start", "algorithm.gamma=0.5")
    assert result.exit_code == 0, result.stderr
    assert json.loads(Path("y/manifest.json").read_text())["parent"] == str(Path("x").absolute())


@pytest.mark.parametrize(
    ("experiment", "optimizer"),
    [
        ("ppo_cartpole", "optimizers.policy={_target_: torch.optim.Adam, _partial_: true, lr: 1e30}"),
        ("dqn_cartpole", "optimizers.critic={_target_: torch.optim.Adam, _partial_: true, lr: 1e30}"),
        ("dreamer_cartpole", "optimizers.world_model.lr=1e30"),
    ],
)
def test_losses_that_are_no_numbers_end_the_run_in_one_line(lab, fails, experiment, optimizer):
    """With a checkpoint after every update each of them is looked at, whatever is asked for."""
    options = (optimizer, "budget=tiny", "logging=quiet", "training.checkpoint_updates=1")
    line = fails(lab("train", f"+experiment={experiment}", "--run-dir", "x", *options), 1)
    assert line.startswith("error: train/")
    assert Path("x/status").read_text() == "failed\n"
    (dump,) = Path("x/crash").glob("0*")
    assert line.endswith(f"dump: {dump.absolute()}")
    good = CheckpointStore("x/checkpoints").load_newest()
    assert f"; last good checkpoint: {good.path.absolute()}; " in line
    assert all(torch.isfinite(tensor).all() for tensor in good.state["workflow"].values())
    assert torch.isfinite(CheckpointStore.load(dump).state["batch"]["rewards"]).all()
    again = fails(lab("resume", "x", "training.check_finite=every_update"), 1)
    assert again == line.replace("crash/000001", "crash/000002")
    before = CheckpointStore.load("x/crash/000002").state["before"]["workflow"]
    assert all(torch.isfinite(tensor).all() for tensor in before.values())


def test_a_run_that_pauses_is_the_run_that_did_not(train, lab):
    assert train("--run-dir", "whole").exit_code == 0
    for until in (1, 100, 100, 192):
        result = train("--run-dir", "parts", "--until", until)
        assert result.exit_code == 0, result.stderr
        reached = -(-until // 32) * 32  # a cycle is 8 steps of 4 environments
        assert result.stderr.strip() == f"paused after {reached} env steps; continue with `lab resume`"
        assert Path("parts/status").read_text().strip() == "stopped"
    assert train("--run-dir", "parts").exit_code == 0
    assert Path("parts/metrics.jsonl").read_bytes() == Path("whole/metrics.jsonl").read_bytes()
    whole, parts = (json.loads(lab("runs", "fingerprint", run, "--json").stdout) for run in ("./whole", "./parts"))
    assert list(whole.values()) == list(parts.values())


def test_every_seed_has_its_turn_though_those_before_pause(train):
    result = train("--seed", "1,2,3", "--until", 40, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.strip() == "paused after 64 env steps; continue with `lab resume`"
    found = json.loads(result.stdout)
    assert [each["status"] for each in found] == ["stopped"] * 3
    seeds = [yaml.safe_load(Path(each["run"], "config.yaml").read_text())["experiment"]["seed"] for each in found]
    assert seeds == [1, 2, 3]


def test_a_seed_that_an_alert_stops_keeps_no_other_from_its_turn(train):
    stop = "+alerts.rules.r={kind: above, metric: train/loss, value: -1e9, respond: stop}"
    result = train("--seed", "1,2", stop, "--json")
    assert result.exit_code == 1
    assert result.stderr.startswith("stopped by alert r: train/loss is ")
    assert [each["status"] for each in json.loads(result.stdout)] == ["stopped"] * 2


def test_a_run_that_died_before_its_first_checkpoint_begins_with_what_it_should(train, lab):
    import shutil

    assert train("--run-dir", "source").exit_code == 0
    words = ["training.resume_path=source", "training.resume_mode=fork", "training.total_timesteps=320"]
    assert train("--run-dir", "whole", *words).exit_code == 0
    assert train("--run-dir", "dead", *words, "--until", 1).exit_code == 0
    shutil.rmtree("dead/checkpoints")
    for name in ("metrics.jsonl", "events.jsonl"):  # which would tell of a checkpoint
        Path("dead", name).unlink()
    assert train("--run-dir", "dead", *words).exit_code == 0
    assert Path("dead/metrics.jsonl").read_bytes() == Path("whole/metrics.jsonl").read_bytes()
