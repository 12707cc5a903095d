"""Which optimisers compiled and captured updates may have, and in which precision updates run."""

from functools import partial

import pytest
import torch

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.execution import reject_uncapturable, reject_uncompilable
from rl_lab.config.targets import Targets
from rl_lab.core import ConfigError, Optimizers, Update
from rl_lab.orchestration.static_step import StaticSteps
from tests.workflows.off_policy import phase
from tests.workflows.parts import collect, make_collector


class OnDevice(torch.optim.Optimizer):
    """A user's optimiser that counts its steps where the parameters are."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"step": torch.zeros((), device=parameter.device)}


class OnHost(OnDevice):
    """A user's optimiser that counts them as a number."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.state[self.param_groups[0]["params"][0]]["step"] = 0


def built(**kinds):
    """Return optimisers by name, of parameters that are not in the host's memory."""
    optimizers = Optimizers({name: partial(kind, lr=1e-3) for name, kind in kinds.items()})
    for name in kinds:
        optimizers.build(name, [torch.nn.Parameter(torch.zeros(2, device="meta"))])
    return optimizers


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.SGD, OnDevice])
@pytest.mark.parametrize("name", ["auto", "captured"])
def test_optimizers_that_can_be_captured_are(kind, name):
    static = StaticSteps("captured")
    reject_uncapturable({"experiment": {"compile": name}}, static, built(actor=torch.optim.Adam, critic=kind))
    assert static.execution == "captured"


@pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.Adafactor, OnHost])
def test_others_make_auto_eager_and_captured_an_error(kind):
    optimizers, static = built(actor=torch.optim.Adam, critic=kind), StaticSteps("captured")
    reject_uncapturable({"experiment": {"compile": "auto"}}, static, optimizers)
    assert static.execution == "eager"
    with pytest.raises(ConfigError) as error:
        reject_uncapturable({"experiment": {"compile": "captured"}}, StaticSteps("captured"), optimizers)
    assert str(error.value).startswith("experiment.compile: captured needs")
    assert f"optimizers.critic is {kind.__name__} (choices: auto, eager)" in str(error.value)


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_other_ways_take_any(way):
    static = StaticSteps(way)
    reject_uncapturable({"experiment": {"compile": way}}, static, built(critic=torch.optim.Adagrad))
    assert static.execution == way


SGD = {"experiment": {"compile": "compiled"}, "optimizers": {"actor": {"_target_": "torch.optim.SGD"}, "critic": None}}


def test_whole_updates_are_compiled_with_adam_only_and_parts_with_any_optimizer():
    with pytest.raises(ConfigError, match="compiled needs optimizers Adam or AdamW"):
        reject_uncompilable(SGD, StaticSteps("compiled"))
    static = StaticSteps("compiled")
    reject_uncompilable({**SGD, "experiment": {"compile": "auto"}}, static)
    assert static.execution == "eager"
    static = StaticSteps("compiled")
    static.fuse(torch.relu)
    reject_uncompilable(SGD, static)
    assert static.execution == "compiled"


@pytest.mark.parametrize("experiment", ["sac_pendulum", "c51_cartpole", "fast_sac_pendulum_tensor"])
def test_low_precision_changes_products_and_neither_parameters_nor_much(experiment):
    found = {}
    for precision in ("float32", "bfloat16"):
        options = [f"experiment.precision={precision}", "buffers.replay.min_size=64", "experiment.device=cpu"]
        parts = assemble(compose([f"+experiment={experiment}", "budget=tiny", *options]), Targets(AllowList()))
        buffer = parts.context.buffers["replay"]
        buffer.add(collect(make_collector(parts.env), parts.workflow, 100))
        torch.manual_seed(0)
        metrics = parts.workflow.update_agent(buffer.sample(), phase=phase())
        metrics = metrics.metrics if isinstance(metrics, Update) else metrics
        found[precision] = metrics["critic_loss"]
        assert {parameter.dtype for parameter in parts.workflow.parameters()} == {torch.float32}
    assert not torch.equal(found["float32"], found["bfloat16"])
    torch.testing.assert_close(found["bfloat16"], found["float32"], rtol=0.02, atol=0.02)


def test_tf32_is_for_gpus():
    with pytest.raises(ConfigError, match=r"experiment\.precision: tf32 needs a GPU \(choices: float32, bfloat16\)"):
        assemble(
            compose(["+experiment=sac_pendulum", "experiment.precision=tf32", "experiment.device=cpu"]),
            Targets(AllowList()),
        )
