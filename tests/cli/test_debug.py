"""`debug=true`: what is seen of a run, that it computes the same, and the self-test at its end."""

import gzip
import json
from pathlib import Path

import pytest
import yaml

from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.fingerprint import fingerprint
from rl_lab.tracking.run_directory import RunDirectory
from tests.cli.test_alerts import PLUGIN, SCORING, rows

ALIKE = [  # what debug=true implies
    *("budget=tiny", "training.check_finite=every_update", "training.checkpoint_updates=2", "training.keep_last=4"),
    "experiment.compile=eager",
]


@pytest.fixture
def debug(train):
    def run(*overrides, at="run", code=0):
        result = train("--run-dir", at, "--plugin", PLUGIN, "debug=true", *overrides)
        assert result.exit_code == code, result.output
        return result

    return run


def test_a_debug_run_is_tiny_says_what_it_saw_and_computes_the_same(debug, train):
    result = debug(SCORING, "logging.every_updates=1")
    check_config()
    check_sizes()
    check_trace()
    line = "resume self-test passed: 64 env steps and 3 updates from checkpoint 000001 came out again to the bit"
    assert line in result.stderr
    assert "USDT" not in result.output  # of the profiler
    assert RunDirectory.open("run").read_manifest()["resume_self_test"].startswith("passed: 64 env steps")
    assert train("--run-dir", "plain", "--plugin", PLUGIN, SCORING, *ALIKE, "logging.every_updates=1").exit_code == 0
    seen = [{key: value for key, value in row.items() if not key.startswith("debug/")} for row in rows("run")]
    assert seen == rows("plain")
    first, second = (fingerprint(RunDirectory.open(name)) for name in ("run", "plain"))
    assert {**first, "metrics": ""} == {**second, "metrics": ""}


def test_the_self_test_tells_nobody_of_alerts_again(debug, tmp_path):
    told = tmp_path / "told.jsonl"
    low = "+alerts.rules.low={kind:below,metric:train/score,value:2,after:100,channels:[file]}"
    high = "+alerts.rules.high={kind:above,metric:train/score,value:0,after:100}"
    result = debug(SCORING, low, high, f"alerts.file={told}", "alerts.channels=[file,log]")
    assert "resume self-test passed" in result.stderr
    assert sorted(json.loads(line)["rule"] for line in told.read_text().splitlines()) == ["high", "low"]


def check_config():
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert (config["experiment"]["debug"], config["experiment"]["compile"]) == (True, "eager")
    assert config["training"]["total_timesteps"] == 128  # of 256
    assert config["training"]["check_finite"] == "every_update"


def check_sizes():
    state = CheckpointStore("run/checkpoints").load_newest().state["workflow"]
    last = [row for row in rows("run") if "debug/actor/weight_norm" in row][-1]
    weights = [*state["actor.weight"].flatten().tolist(), *state["actor.bias"].tolist()]
    assert last["debug/actor/weight_norm"] == pytest.approx(sum(w * w for w in weights) ** 0.5, rel=1e-5)
    assert last["debug/actor/weight_max"] == pytest.approx(max(map(abs, weights)), rel=1e-6)
    assert last["debug/actor/grad_norm"] > 0.0
    assert 0.0 < last["debug/actor/change_norm"] < 0.01  # Adam's steps are of the learning rate's size


def check_trace():
    trace = json.loads(gzip.decompress(Path("run/trace.json.gz").read_bytes()))
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("update_policy") == 2
    assert names.count("act") == 2 * 8
    assert "aten::addmm" in names


def test_what_a_checkpoint_forgets_is_found(debug):
    result = debug("workflow._target_=alert_plugin.Forgetful", code=1)
    assert "error: resume self-test: from checkpoint 000001, first difference at env step 64, in " in result.stderr
    assert RunDirectory.open("run").read_manifest()["resume_self_test"].startswith("failed: resumed from checkpoint")
    assert Path("run/status").read_text() == "done\n"


def test_an_environment_that_cannot_be_restored_is_said(debug):
    exact = ["environment._target_=alert_plugin.Mortal", "environment.exact_resume=false"]
    assert "resume self-test not done: environment 'tensor/CartPole'" in debug(*exact).stderr


def test_a_gradient_that_is_nan_is_named_with_its_line(debug):
    line = debug("workflow._target_=alert_plugin.Steep", code=1).stderr.strip().splitlines()[-1]
    assert line.startswith("error: the gradient of SqrtBackward0 is NaN, of `flat = [torch.sqrt(parameter * 0.0).sum()")
    assert "alert_plugin.py, line " in line
    assert "after update 0 (env step 32); no checkpoint was saved before; dump: " in line


def test_a_module_that_puts_out_nan_is_named(debug):
    line = debug("components.actor._target_=alert_plugin.Undefined", code=1).stderr.strip().splitlines()[-1]
    assert line.startswith("error: module actor (Undefined) puts out NaN after update 0 (env step 0); no checkpoint")


def test_what_is_said_on_the_command_line_stays(train, fails):
    shown = train("debug=true", "training.keep_last=9", "budget=full", "--cfg", "job").stdout
    config = yaml.safe_load(shown)
    assert (config["training"]["keep_last"], config["training"]["checkpoint_updates"]) == (9, 2)
    assert (config["budget"]["caps"], config["training"]["total_timesteps"]) == ({}, 256)
    assert "experiment.debug: must be a valid boolean, not 'perhaps'" in fails(train("debug=perhaps"), 2)


def test_another_runs_config_can_be_debugged(train, lab):
    assert train("--run-dir", "first").exit_code == 0
    config = yaml.safe_load(lab("train", "--from-run", "first", "debug=true", "--cfg", "job").stdout)
    assert (config["experiment"]["debug"], config["training"]["checkpoint_updates"]) == (True, 2)
    assert config["training"]["total_timesteps"] == 128  # of 256
