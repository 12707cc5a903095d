"""Calls of a captured update that replay its graph, beside the same calls of the eager one.

The first calls of a captured function run eagerly, and after a few updates rounding has grown into other parameters.
So every call begins with the same parameters and the same state of optimisers, and has a batch and noise of its own:
what an earlier call left behind cannot pass for its result.
"""

from dataclasses import replace

import torch

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import Update, tree_leaves, tree_map
from rl_lab.orchestration.captured_function import WARM_UP_CALLS
from tests.workflows.off_policy import phase
from tests.workflows.parts import collect, make_collector

CALLS = WARM_UP_CALLS + 3  # the last three replay
ROUNDING = 1e-5  # of the longest gradient: a convolution's bias whose channel is normalised alone has none
MOMENTS = {"exp_avg", "exp_avg_sq", "square"}  # that follow gradients, and not their signs


class Updates:
    """An assembled agent whose update is called from one state, over and over.

    Args:
        overrides: The config.
        hook: The update.
        buffer: Whose batches it takes.
        options: Of `experiment`.
    """

    def __init__(self, overrides, hook="update_agent", buffer="replay", **options):
        chosen = [f"experiment.{name}={value}" for name, value in options.items()]
        made = assemble(compose([*overrides, *chosen]), Targets(AllowList()))
        self.made, self.workflow, self.buffer = made, made.workflow, made.context.buffers[buffer]
        self.hook, self.phase = getattr(made.workflow, hook), replace(phase(), buffer=buffer)

    def begin(self, steps):
        """Return a batch for every call, of `steps` that it collects or of what there is, and a state to begin with."""
        if not self.buffer.brings_data:
            self.buffer.add(collect(make_collector(self.made.env), self.workflow, steps))
        self.hook(self.buffer.sample(), phase=self.phase)  # so that no layer is zero any more
        return [self.buffer.sample() for _ in range(CALLS)], tree_map(torch.clone, self.state())

    def state(self):
        """Return all tensors that an update may change, themselves."""
        optimizers = self.made.context.optimizers
        states = {
            f"{name}/{number}/{key}": value
            for name in optimizers
            for number, state in enumerate(optimizers[name].state.values())
            for key, value in state.items()
        }
        return {**self.workflow.state_dict(), **states}

    def calls(self, batches, state):
        """Return what each call reports and writes back, and what it makes of the state."""
        rows = []
        for seed, batch in enumerate(batches):
            for name, held in self.state().items():
                held.copy_(state[name])
            torch.manual_seed(seed)
            found = self.hook(batch, phase=self.phase)
            metrics, written = (found.metrics, found.write_back) if isinstance(found, Update) else (found, {})
            metrics = {name: torch.as_tensor(value) for name, value in metrics.items()}
            rows.append((metrics, dict(tree_leaves(written)), tree_map(torch.clone, self.state())))
        return rows


def assert_alike(found, expected, *, rtol=2e-3, atol=2e-4, gradients=1e-2):
    """Compare calls that replay: metrics, what is written back, and the gradients that the optimisers saw.

    A bias before a normalisation that takes it away again has no gradient but rounding, which is nowhere the same: of
    moments, a hundred thousandth of the largest of their kind is nothing.
    """
    for (metrics, written, state), (own_metrics, own_written, own_state) in zip(
        found[WARM_UP_CALLS:], expected[WARM_UP_CALLS:], strict=True
    ):
        for name, value in own_metrics.items():
            torch.testing.assert_close(
                metrics[name], value, rtol=rtol, atol=atol, msg=lambda text, n=name: f"{n}: {text}"
            )
        for name, value in own_written.items():
            torch.testing.assert_close(
                written[name], value, rtol=1e-2, atol=1e-3, msg=lambda text, n=name: f"{n}: {text}"
            )
        for kind in MOMENTS:
            moments = {name: value for name, value in own_state.items() if name.rpartition("/")[-1] == kind}
            nothing = ROUNDING * max((float(value.norm()) for value in moments.values()), default=0.0)
            for name, value in moments.items():
                assert (state[name] - value).norm() <= gradients * value.norm() + nothing, name
        assert any(value.any() for name, value in own_state.items() if name.rpartition("/")[-1] in MOMENTS)


def assert_the_same_bits(found, expected):
    """Compare everything that the calls gave."""
    for mine, others in zip(found, expected, strict=True):
        for trees in zip(mine, others, strict=True):
            assert all(torch.equal(trees[0][name], value) for name, value in trees[1].items())
