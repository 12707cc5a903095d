"""`python -m examples.development.simulate_policy CHECKPOINT`: `lab play` or `lab evaluate`."""

import sys

from rl_lab.cli.compat import run

run(sys.argv)
