import json
from pathlib import Path

import pytest


@pytest.fixture
def run(train):
    assert train("training.total_timesteps=128").exit_code == 0
    (path,) = Path("experiments").glob("*")
    return path


def test_without_an_argument_the_newest_run_goes_on(run, lab, train):
    result = lab("resume", "training.total_timesteps=192", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["run"] == str(run.absolute())
    assert json.loads(result.stdout)["position"]["step"] == 192
    result = lab("resume", run.name, "--json", "training.total_timesteps=256")
    assert json.loads(result.stdout)["position"]["step"] == 256


def test_a_warm_start_is_a_new_run(run, lab):
    checkpoint = sorted((run / "checkpoints").glob("0*"))[0]
    result = lab("resume", run, "--mode", "warm_start", "algorithm.gamma=0.5", "--checkpoint", checkpoint)
    assert result.exit_code == 0, result.stderr
    assert "drops optimisers, counters" in result.stderr
    assert len(list(Path("experiments").glob("*"))) == 2


def test_a_warm_start_without_a_checkpoint_makes_no_run(run, lab):
    result = lab("resume", run, "--mode", "warm_start", "--checkpoint", "nowhere")
    assert result.exit_code == 1
    assert "error: no checkpoint at nowhere" in result.stderr
    assert len(list(Path("experiments").glob("*"))) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["nowhere"], 1, "error: unknown run in "),
        (["./nowhere"], 1, "error: no run directory at "),
        (["conf"], 1, "error: "),
        (["--mode", "cold"], 2, "error: unknown --mode 'cold' (choices: exact, warm_start, warm_start_optimizer)"),
        (["--checkpoint", "x"], 2, "error: --checkpoint needs --mode warm_start"),
        (["algorithm.gamma=0.1"], 2, "error: an exact resume cannot change algorithm.gamma: 0.9 -> 0.1"),
        (
            ["training.total_timesteps=64"],
            2,
            "error: an exact resume cannot change training.total_timesteps: 128 -> 64",
        ),
        (["training.totl=64"], 2, "error: unknown key in training 'totl'"),
        (["experiment.seed=1,2"], 2, "error: experiment.seed=1,2: a resumed run takes key=value only"),
    ],
)
def test_bad_input_is_one_line_and_leaves_the_run_alone(run, lab, fails, arguments, code, text):
    before = json.loads(lab("runs", "fingerprint", "--json").stdout)
    line = fails(lab("resume", *arguments), code)
    assert line.startswith(text), line
    assert json.loads(lab("runs", "fingerprint", "--json").stdout) == before


def test_no_run_at_all(lab, fails):
    assert "no runs in" in fails(lab("resume"), 1)


def test_a_hostile_config_executes_nothing(run, lab, fails):
    for name in ("config.yaml", "composed.yaml"):
        path = run / name
        path.write_text(path.read_text().replace("tiny_plugin.TinyBuffer", "os.system"))
    assert "buffers.rollout._target_: 'os.system' is not allowed" in fails(lab("resume"), 2)
    assert "buffers.rollout._target_: 'os.system' is not allowed" in fails(lab("evaluate"), 2)


def test_a_newer_config_is_refused(run, lab, fails):
    for name in ("config.yaml", "composed.yaml"):
        path = run / name
        path.write_text(path.read_text().replace("schema_version: 1", "schema_version: 2"))
    assert "schema_version 2 is not known" in fails(lab("resume"), 2)


def test_a_damaged_checkpoint_is_named_and_passed_over(run, lab):
    newest = sorted((run / "checkpoints").glob("0*"))[-1]
    (newest / "state.json").write_text("{")
    assert lab("resume", "logging.terminal=true").exit_code == 0
    assert "skipped a damaged checkpoint" in (run / "events.jsonl").read_text()


def test_other_versions_than_those_the_run_began_with_are_told(run, lab):
    shown = ("logging.terminal=true", "training.total_timesteps=192")
    assert "versions: " not in lab("resume", *shown).stdout
    manifest = json.loads((run / "manifest.json").read_text())
    now = manifest["versions"] | {}
    manifest["versions"] |= {"torch": "1.0", "numpy": "0.9", "python": "2.7", "mujoco": "9.9"}
    (run / "manifest.json").write_text(json.dumps(manifest))
    result = lab("resume", "training.total_timesteps=256")
    assert result.exit_code == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("versions: ")]
    changes = f"torch 1.0 -> {now['torch']}, numpy 0.9 -> {now['numpy']}, mujoco 9.9 -> {now.get('mujoco', 'none')}"
    assert line == f"versions: {changes}: a run goes on to the bit only with the versions it began with"
    events = (run / "events.jsonl").read_text()
    assert events.count('"versions"') == 1
    result = lab("resume", "--mode", "warm_start")
    assert "versions: " not in result.stdout + result.stderr
