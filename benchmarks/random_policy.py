"""What drawing every action uniformly brings in an experiment's environment: the least that learning must beat.

python benchmarks/random_policy.py dqn_minatar_breakout --episodes 100
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from torch import Tensor

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble, build_evaluator
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import Box, Discrete, Workflow, WorkflowContext


class UniformPolicy(Workflow):
    """Draws from the whole action space, whatever it sees."""

    def initialize(self, context: WorkflowContext) -> None:
        """Take note of the actions."""
        self._space = context.spec.action

    def act(
        self, obs: Any, carry: Any, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Tensor, dict[str, Any], Any]:
        """Return uniform actions."""
        count = len(is_first)
        if isinstance(self._space, Discrete):
            return torch.randint(self._space.n, (count,)), {}, carry
        assert isinstance(self._space, Box)
        return torch.empty(count, *self._space.shape).uniform_(self._space.low, self._space.high), {}, carry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("--episodes", type=int, default=100)
    args = parser.parse_args()
    parts = assemble(compose([f"+experiment={args.experiment}", "experiment.device=cpu"]), Targets(AllowList()))
    policy = UniformPolicy()
    policy.initialize(parts.context)
    evaluator = build_evaluator(parts, args.episodes, explore=True)
    print(json.dumps(evaluator.evaluate(policy, step=0)))
    for env in (parts.env, evaluator.env):
        env.close()


if __name__ == "__main__":
    main()
