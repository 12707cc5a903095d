import json
import shutil
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
        (["--mode", "cold"], 2, "error: unknown --mode 'cold' (choices: exact, fork, warm_start, warm_start_opt"),
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


def _contents(run):
    return {path.relative_to(run): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(("status", "state"), [("done", "is done"), ("failed", "had some"), ("running", "had some")])
@pytest.mark.parametrize("folder", [True, False])
def test_a_run_that_lost_its_checkpoints_is_refused_and_loses_nothing_more(run, lab, fails, status, state, folder):
    shutil.rmtree(run / "checkpoints")
    if folder:
        (run / "checkpoints").mkdir()
    (run / "status").write_text(f"{status}\n")
    before = _contents(run)
    for command in (["resume", run], ["train", "--run-dir", run]):
        line = fails(lab(*command), 1)
        assert "no checkpoint in" in line
        assert f"but the run {state}" in line
        assert _contents(run) == before


def test_a_done_run_without_events_and_checkpoints_does_not_begin_anew(run, lab, fails):
    shutil.rmtree(run / "checkpoints")
    (run / "events.jsonl").unlink()
    before = _contents(run)
    assert "but the run is done" in fails(lab("resume", run, "training.total_timesteps=192"), 1)
    assert _contents(run) == before


def test_a_run_that_died_before_its_first_checkpoint_begins_anew(run, lab):
    shutil.rmtree(run / "checkpoints")
    events = [line for line in (run / "events.jsonl").read_text().splitlines() if '"checkpoint"' not in line]
    (run / "events.jsonl").write_text("".join(f"{line}\n" for line in events))
    (run / "status").write_text("failed\n")
    result = lab("resume", run, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["position"]["step"] == 128


@pytest.mark.parametrize("mode", ["fork", "exact"])
def test_a_fork_that_died_before_its_first_checkpoint_begins_with_its_source_again(run, train, lab, mode):
    """Its events begin with those of the source, which name the source's checkpoints."""
    options = [f"training.resume_path={run.absolute()}", f"training.resume_mode={mode}"]
    result = train(*options, "training.total_timesteps=192", "--run-dir", "fork")
    assert result.exit_code == 0, result.stderr
    _check_that_it_begins_as_before(Path("fork"), lab)


@pytest.mark.parametrize("mode", ["fork", "warm_start", "warm_start_optimizer"])
@pytest.mark.parametrize("is_newest", [True, False])
def test_a_run_that_resume_made_begins_with_its_source_again(run, lab, mode, is_newest):
    first = min((run / "checkpoints").glob("0*"))
    chosen = [] if is_newest else ["--checkpoint", first]
    result = lab("resume", run, "--mode", mode, *chosen, "training.total_timesteps=192", "--json")
    assert result.exit_code == 0, result.stderr
    _check_that_it_begins_as_before(Path(json.loads(result.stdout)["run"]), lab)


def _check_that_it_begins_as_before(made, lab):
    """Take from a run what it did, resume it, and compare what it then does."""
    before = json.loads(lab("runs", "fingerprint", made, "--json").stdout)
    shutil.rmtree(made / "checkpoints")
    rows = (made / "events.jsonl").read_text().splitlines()
    last = max(index for index, row in enumerate(rows) if json.loads(row)["kind"] == "resume")
    (made / "events.jsonl").write_text("".join(f"{row}\n" for row in rows[: last + 1]))
    (made / "status").write_text("failed\n")
    result = lab("resume", made, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["position"]["step"] == 192
    assert json.loads(lab("runs", "fingerprint", made, "--json").stdout) == before
