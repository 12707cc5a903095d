import pytest

from rl_lab.core import (
    ACTION_MASK,
    Box,
    Discrete,
    MultiDiscrete,
    Workflow,
    WorldModelWorkflow,
    flat_dim,
    hook,
    unknown_name,
)
from rl_lab.core.buffer import Buffer


class Base(Workflow):
    def initialize(self, context):
        pass

    def act(self, obs, carry, *, is_first, explore, step):
        return obs, {}, carry

    @hook
    def update_model(self, batch, *, phase):
        return {}

    @hook(batch=False, group="controller")
    def update_controller(self, *, phase):
        return {}


class Derived(Base):
    def update_model(self, batch, *, phase):
        return {}

    @hook
    def update_value(self, batch, *, phase):
        return {}

    @hook(group="eval", is_update=False)
    def judge(self, batch, *, phase):
        return {}


def test_hooks_in_order_of_definition_with_their_kind():
    assert list(Derived.hooks()) == ["update_model", "update_controller", "update_value", "judge"]
    assert Base.hooks()["update_controller"] == (False, "controller", True)
    assert Base.hooks()["update_model"] == (True, "train", True)
    assert Derived.hooks()["judge"] == (True, "eval", False)


def test_defaults_of_the_contract():
    workflow = Base()
    assert workflow.initial_carry(3) is None
    assert workflow.collect_step(0, phase=None) is None
    assert workflow.get_state() == {}
    workflow.set_state({})
    assert WorldModelWorkflow is Workflow


def test_flat_dim_counts_what_a_network_reads_or_writes():
    assert flat_dim(Box((3, 4))) == 12
    assert flat_dim(Discrete(5)) == 5
    assert flat_dim(MultiDiscrete((2, 3))) == 5
    assert flat_dim({"a": Box((2,)), "b": Discrete(3), ACTION_MASK: Box((9,))}) == 5


def test_a_buffer_that_takes_nothing_back_says_so():
    class Plain(Buffer):
        size = 0

        def add(self, trajectory): ...
        def is_ready(self): ...
        def sample(self): ...
        def get_state(self): ...
        def set_state(self, state): ...

    with pytest.raises(TypeError, match=r"Plain takes nothing back, but the workflow returned \['priority'\]"):
        Plain().write_back({"priority": None})


def test_unknown_name_without_choices():
    assert unknown_name("buffer", "x", []) == "unknown buffer 'x' (choices: none)"
