"""What drawing every action uniformly brings in an experiment's environment: the least that learning must beat.

python benchmarks/random_policy.py dqn_minatar_breakout --episodes 100
"""

from __future__ import annotations

import argparse
import json

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble, build_evaluator
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.workflows.random_policy import RandomPolicy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("--episodes", type=int, default=100)
    args = parser.parse_args()
    parts = assemble(compose([f"+experiment={args.experiment}", "experiment.device=cpu"]), Targets(AllowList()))
    policy = RandomPolicy()
    policy.initialize(parts.context)
    evaluator = build_evaluator(parts, args.episodes, explore=True)
    print(json.dumps(evaluator.evaluate(policy, step=0)))
    for env in (parts.env, evaluator.env):
        env.close()


if __name__ == "__main__":
    main()
