"""How static functions run: the choice, what a checkpoint says of it, and captured graphs."""

import os
import subprocess
import sys

import pytest
import torch

from rl_lab.core import CheckpointError, ConfigError, LabError
from rl_lab.orchestration import static_step
from rl_lab.orchestration.static_step import FEW_LONG_UPDATES, FEW_UPDATES, StaticSteps, choose_execution, keep_compiled

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("name", "device", "updates", "has_parts", "expected"),
    [
        ("auto", CPU, FEW_UPDATES, False, "compiled"),
        ("auto", CPU, FEW_UPDATES - 1, False, "eager"),
        ("auto", CPU, FEW_LONG_UPDATES, True, "compiled"),
        ("auto", CPU, FEW_LONG_UPDATES - 1, True, "eager"),
        ("auto", CUDA, 1, False, "captured"),
        ("eager", CUDA, 10**9, True, "eager"),
        ("compiled", CPU, 1, True, "compiled"),
    ],
)
def test_the_choice(name, device, updates, has_parts, expected, monkeypatch):
    monkeypatch.setattr(static_step, "missing_compiler", lambda: None)
    assert choose_execution(name, device, num_updates=updates, has_parts=has_parts) == expected


def test_without_a_compiler_auto_is_eager_and_compiled_is_an_error(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert choose_execution("auto", CPU, num_updates=10**9, has_parts=False) == "eager"
    with pytest.raises(ConfigError, match=r"experiment\.compile: compiled needs the C\+\+ compiler 'no-such-compiler'"):
        choose_execution("compiled", CPU, num_updates=1, has_parts=False)


def test_a_capture_without_a_gpu_is_refused():
    with pytest.raises(ConfigError, match=r"experiment\.compile: captured needs a GPU"):
        choose_execution("captured", CPU, num_updates=1, has_parts=False)


def test_a_resumed_run_keeps_to_the_checkpoints_way():
    steps = StaticSteps("eager")
    calls = []
    function = steps(lambda x: calls.append(steps.execution) or x + 1)
    steps.set_state({"execution": "compiled"})
    assert steps.get_state() == {  # an early checkpoint compiled no parts, and knew one library of products
        "execution": "compiled",
        "fuses": False,
        "products": "torch",
    }
    steps.set_state({"execution": "eager", "fuses": None})
    assert int(function(torch.tensor(1))) == 2
    assert calls == ["eager"]
    with pytest.raises(CheckpointError, match="ran captured, which experiment.compile=eager does not"):
        steps.set_state({"execution": "captured"})


def test_a_compiled_function_changes_tensors_in_place():
    weight = torch.zeros(3)

    def add(batch):
        weight.add_(batch["x"])
        return {"sum": weight.sum()}

    steps = StaticSteps("compiled")
    run = steps(add)
    for _ in range(3):
        result = run({"x": torch.ones(3)})
    assert weight.tolist() == [3.0, 3.0, 3.0]
    assert float(result["sum"]) == 9.0
    assert steps.first_call_s > 0.0


@torch._dynamo.config.patch(recompile_limit=1)  # 8 by default: the ninth seed would fail
def test_many_runs_of_one_process_compile():
    class Workflow:
        def __init__(self, factor):
            self.factor = factor

        def learn(self, batch):
            return batch["x"] * self.factor

    for factor in (2.0, 3.0):
        run = StaticSteps("compiled")(Workflow(factor).learn)
        assert run({"x": torch.ones(2)}).tolist() == [factor, factor]


class Uncompilable:
    """Counts its calls; a graph cannot be made of it."""

    def __init__(self):
        self.total = torch.zeros(())

    def __call__(self, x):
        torch._dynamo.graph_break()
        self.total += x
        return self.total.clone()


def test_auto_runs_eager_what_cannot_be_compiled_and_says_so_once():
    steps, said, other = StaticSteps("compiled", may_fall_back=True), [], Uncompilable()
    steps.warn = lambda *, message: said.append(message)
    first = steps(lambda x: x + (1 if torch.compiler.is_compiling() else 2))
    assert int(first(torch.tensor(0))) == 1
    failing, third = steps(Uncompilable().__call__), steps(other.__call__)
    assert [float(failing(torch.ones(()))) for _ in range(2)] == [1.0, 2.0]  # what failed has changed nothing
    assert float(third(torch.ones(()))) == 1.0
    assert int(first(torch.tensor(0))) == 2  # all of a run's functions run the same way
    assert steps.get_state().items() >= {"execution": "eager", "fuses": False}.items()
    (line,) = said
    assert line.startswith("updates run eager, they could not be compiled: Unsupported: ")
    assert "\n" not in line


@pytest.mark.parametrize("is_resumed", [False, True])
def test_compiled_that_cannot_be_is_an_error_of_one_line(is_resumed):
    steps = StaticSteps("eager" if is_resumed else "compiled", may_fall_back=is_resumed)
    if is_resumed:  # the checkpoint's updates ran compiled: eager ones would not be exact
        steps.set_state({"execution": "compiled"})
    with pytest.raises(LabError, match=r"^experiment\.compile: compiling failed \(choices: auto, eager\): ") as error:
        steps(Uncompilable().__call__)(torch.ones(()))
    assert "\n" not in str(error.value)


COMPILER = """#!/bin/sh
kill -TERM 0
exec /usr/bin/env PATH="$REST" g++ "$@"
"""
COMPILING = """
import signal, torch
from rl_lab.orchestration.static_step import StaticSteps
heard = []
signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
steps = StaticSteps("compiled", may_fall_back=True)
steps.warn = lambda *, message: print(message)
total = steps(lambda x: (x.sin() * 2.0).sum())(torch.zeros(64))
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
print(steps.execution, bool(heard), float(total), signal.SIGTERM in blocked)
"""


def test_a_signal_to_the_group_is_heard_and_kills_no_compiler(tmp_path):
    compiler = tmp_path / "g++"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    path = os.environ["PATH"]
    surroundings = {"PATH": f"{tmp_path}:{path}", "REST": path, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.run(
        [sys.executable, "-c", COMPILING],
        env=os.environ | surroundings,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=300,
        check=False,
    )
    assert process.stdout == "compiled True 0.0 False\n", process.stderr[-2000:]


def test_where_parts_are_compiled_the_whole_is_not():
    seen = []

    def noting(name):
        def function(x):
            seen.append((name, torch.compiler.is_compiling()))
            return x + 1.0

        return function

    steps = StaticSteps("compiled")
    part = steps.fuse(noting("part"))
    whole = steps(lambda x: part(noting("whole")(x)))
    assert [float(whole(torch.zeros(()))) for _ in range(2)] == [2.0, 2.0]
    assert seen == 2 * [("whole", False), ("part", True)]
    assert steps.get_state().items() >= {"execution": "compiled", "fuses": True}.items()
    steps.set_state({"execution": "eager", "fuses": False})
    assert float(whole(torch.zeros(()))) == 2.0
    assert seen[-2:] == [("whole", False), ("part", False)]


def test_a_checkpoint_before_the_first_part_does_not_decide_for_it():
    before, after = StaticSteps("compiled"), StaticSteps("eager")
    before.fuse(torch.relu)
    after.set_state(before.get_state())
    part = after.fuse(lambda x: x + (1.0 if torch.compiler.is_compiling() else 2.0))
    assert float(part(torch.zeros(()))) == 1.0


def test_a_part_that_cannot_be_compiled_is_done_as_it_is():
    steps, said = StaticSteps("compiled", may_fall_back=True), []
    steps.warn = lambda *, message: said.append(message)
    part = steps.fuse(Uncompilable().__call__)
    assert [float(part(torch.ones(()))) for _ in range(2)] == [1.0, 2.0]
    assert steps.get_state().items() >= {"execution": "eager", "fuses": False}.items()
    assert len(said) == 1


def test_a_checkpoint_with_compiled_parts_needs_a_compiler(monkeypatch):
    monkeypatch.setattr(static_step, "missing_compiler", lambda: "the C++ compiler 'g++'")
    steps, said = StaticSteps("compiled"), []
    steps.warn = lambda *, message: said.append(message)
    assert float(steps.fuse(lambda x: x + 1.0)(torch.zeros(()))) == 1.0
    assert said == ["parts of updates are not compiled: the C++ compiler 'g++' is missing"]
    with pytest.raises(CheckpointError, match=r"ran compiled, but the C\+\+ compiler 'g\+\+' is missing"):
        steps.set_state({"execution": "compiled", "fuses": True})


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "set, so that what the test leaves is taken back")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert keep_compiled() == "compiled updates are not kept for the next run: Not a directory"
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert keep_compiled() is None
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "rl-lab" / "compiled")
    assert (tmp_path / "rl-lab" / "compiled").is_dir()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_function_does_what_the_eager_one_does():
    def make():
        torch.manual_seed(0)
        weight = torch.zeros(64, device="cuda")

        def step(batch):
            weight.lerp_(batch["x"] + torch.randn_like(weight), 0.1)
            return {"mean": weight.mean()}, weight * 2.0

        return weight, step

    weight, step = make()
    eager = [step({"x": torch.full((64,), float(i), device="cuda")}) for i in range(8)]
    captured_weight, captured_step = make()
    run = StaticSteps("captured")(captured_step)
    found = [run({"x": torch.full((64,), float(i), device="cuda")}) for i in range(8)]
    assert torch.equal(weight, captured_weight)
    for (one, two), (other, both) in zip(eager, found, strict=True):
        assert torch.equal(one["mean"], other["mean"])
        assert torch.equal(two, both)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_number_that_was_captured_is_looked_up_again_after_renew():
    steps, rate = StaticSteps("captured"), [2.0]
    function = steps(lambda x: x * rate[0])
    ones = torch.ones(1, device="cuda")
    results = [function(ones).item() for _ in range(6)]
    rate[0] = 3.0
    assert function(ones).item() == results[-1] == 2.0  # what was captured
    steps.renew()
    assert [function(ones).item() for _ in range(6)] == [3.0] * 6


def test_what_is_not_captured_is_not_made_anew():
    steps = StaticSteps("eager")
    function = steps(lambda x: x + 1)
    function(torch.ones(1))
    spent = steps.first_call_s
    steps.renew()
    assert function(torch.ones(1)).item() == 2.0
    assert steps.first_call_s == spent
