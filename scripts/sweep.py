"""`python scripts/sweep.py --config FILE`: `lab sweep`."""

import sys

from rl_lab.cli.compat import run

run(sys.argv)
