"""Writes reference motions of a robot task's own gait, for a motion prior (docs/ppo_amp.md).

Usage: python scripts/reference_gaits.py [--experiment quadruped_flat_ppo_amp] [--lift 0.08] OUT.npz
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rl_lab.config.allow_list import AllowList
from rl_lab.config.compose import compose, resolve
from rl_lab.config.targets import Targets
from rl_lab.config.validate import validate
from rl_lab.robots.reference_gaits import default_commands, gait_clips, write_clips


def main() -> None:
    """Make the task, let its robot go through the gait, and write the clips."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--experiment", default="quadruped_flat_ppo_amp", help="whose observations have a group amp")
    parser.add_argument("--lift", type=float, default=0.08, help="of a foot in mid-swing, m")
    arguments = parser.parse_args()
    targets = Targets(AllowList())
    config = compose([f"+experiment={arguments.experiment}", "environment.num_envs=1"])
    env = targets.instantiate("environment", validate(resolve(config), targets)["environment"], device="cpu")
    write_clips(arguments.out, gait_clips(env, default_commands(), lift=arguments.lift))


if __name__ == "__main__":
    main()
