"""The function of a policy: the same numbers as `act`, and only the inputs that matter."""

import numpy as np
import pytest
import torch

from rl_lab.core import Box, Discrete, EnvSpec, LabError, MultiDiscrete, UsageError, Workflow
from rl_lab.core.workflow import ALL_STEPS
from rl_lab.deploy.capture import capture
from rl_lab.deploy.draws import Draws
from rl_lab.deploy.function import PolicyFunction
from rl_lab.deploy.ports import Port, port_of_leaf
from tests.deploy.building import build

SPEC = EnvSpec("some", {"seen": Box((3,)), "hidden": Box((2,))}, Discrete(4))


class Some(Workflow):
    """Reads `seen` alone; of its carry, `last` matters through `memory` and `idle` never does."""

    def __init__(self, draw=torch.rand):
        super().__init__()
        self.draw = draw

    def initialize(self, context):
        raise AssertionError

    def initial_carry(self, num_envs):
        zeros = torch.zeros(num_envs, 3)
        return {"memory": zeros, "last": zeros + 7.0, "idle": torch.zeros(num_envs, dtype=torch.int64), "none": None}

    def act(self, obs, carry, *, is_first, explore, step):
        assert (explore, step) == (False, ALL_STEPS)
        memory = torch.where(is_first[:, None], 0.0, carry["memory"] + carry["last"])
        unused = self.draw(1, 5)
        scores = torch.cat([obs["seen"] + memory, torch.rand(len(memory), 1) + 0.0 * unused.detach().sum() * 0], -1)
        after = {"memory": memory, "last": obs["seen"], "idle": carry["idle"] + 1, "none": None}
        return scores.argmax(-1), {}, after


def test_inputs_that_no_action_depends_on_are_left_out():
    whole = PolicyFunction(Some(draw=torch.zeros), SPEC)
    assert [port.name for port in whole.inputs] == [
        *("observation.seen", "observation.hidden", "state.memory", "state.last", "state.idle", "is_first", "noise.0")
    ]
    function = capture(whole).function
    names = ["observation.seen", "state.memory", "state.last", "is_first", "noise.0"]
    assert [port.name for port in function.inputs] == names
    assert [port.name for port in function.outputs] == ["action", "next_state.memory", "next_state.last"]
    (action,) = (port for port in function.outputs if port.kind == "action")
    assert action == Port("action", "action", (1,), "int32", "int64", 0, 3)


def test_neutral_noise_is_no_input():
    function = capture(PolicyFunction(Some(draw=torch.zeros), SPEC, "neutral")).function
    assert [port.name for port in function.inputs] == ["observation.seen", "state.memory", "state.last", "is_first"]
    zeros = {port.name: np.zeros(port.shape, np.float32) for port in function.inputs}
    low, high = (dict(zeros, **{"observation.seen": np.full((1, 3), value, np.float32)}) for value in (0.4, 0.6))
    assert function.call(low | {"is_first": np.ones(1, np.float32)})["action"] == 3  # the draw is 0.5
    assert function.call(high | {"is_first": np.ones(1, np.float32)})["action"] == 0


@pytest.mark.parametrize("experiment", ["ppo_memory_lstm", "dreamer_mixed_actions"])
def test_it_is_what_act_does(experiment):
    """Over steps with a carry of `act` itself; a first step forgets whatever state is given."""
    workflow, spec, env = build(experiment)
    function = PolicyFunction(workflow, spec)
    obs, carry = env.reset(3), workflow.initial_carry(1)
    garbage = {port.name: np.full(port.shape, 0.7, np.float32) for port in function.inputs if port.kind == "state"}
    state, is_first = garbage, torch.ones(1, dtype=torch.bool)
    noise = {port.name: np.full(port.shape, 0.3, np.float32) for port in function.inputs if port.kind == "noise"}
    for _ in range(5):
        leaves = {f"observation.{k}": v.numpy() for k, v in obs.items()} if isinstance(obs, dict) else {}
        seen = leaves or {"observation": obs.numpy()}
        outputs = function.call({**seen, **state, **noise, "is_first": is_first.float().numpy()})
        with torch.no_grad(), Draws([torch.full(port.shape, 0.3) for port in function.inputs if port.kind == "noise"]):
            actions, _, carry = workflow.act(obs, carry, is_first=is_first, explore=False, step=ALL_STEPS)
        for name, action in actions.items() if isinstance(actions, dict) else [("", actions)]:
            np.testing.assert_array_equal(outputs[f"action.{name}" if name else "action"], action)
        state = {name: outputs[f"next_{name}"] for name in state}
        step = env.step(actions)
        obs, is_first = step.observations, step.terminated | step.truncated


def test_other_draws_are_refused():
    with pytest.raises(UsageError, match="cannot be exported: it draws its actions with torch's multinomial"):
        PolicyFunction(Some(draw=lambda *_: torch.multinomial(torch.ones(1, 2), 1)), SPEC)


def test_what_branches_on_values_is_refused():
    with pytest.raises(LabError, match="the policy of Branching cannot be exported: ") as error:
        capture(PolicyFunction(Branching(), EnvSpec("e", Box((3,)), Box((3,)))))
    assert "\n" not in str(error.value)


class Branching(Some):
    def initial_carry(self, num_envs):
        return None

    def act(self, obs, carry, *, is_first, explore, step):
        return (obs if float(obs.sum()) > 0.0 else -obs), {}, carry


@pytest.mark.parametrize(
    ("leaf", "kind", "port"),
    [
        (Box((2,), low=-1.0), "observation", Port("x", "observation", (1, 2), low=-1.0)),
        (
            Box((3, 4, 4), torch.uint8, 0, 255),
            "observation",
            Port("x", "observation", (1, 3, 4, 4), "float32", "uint8", 0, 255),
        ),
        (Discrete(5), "observation", Port("x", "observation", (1,), "float32", "int64", 0, 4)),
        (MultiDiscrete((2, 3)), "action", Port("x", "action", (1, 2), "int32", "int64", [0, 0], [1, 2])),
    ],
)
def test_ports(leaf, kind, port):
    assert port_of_leaf("x", kind, leaf) == port
    assert Port.from_json(port.to_json()) == port


def test_ports_read_numbers_as_the_lab_holds_them():
    given = torch.tensor([0.2, 0.8, 2.0])
    for holds, wanted in {"bool": [False, True, True], "uint8": [0, 1, 2], "int64": [0, 1, 2]}.items():
        read = Port("x", "state", (3,), holds=holds).read(given)
        assert (read.tolist(), str(read.dtype)) == (wanted, f"torch.{holds}")
