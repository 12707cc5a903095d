"""`python scripts/play.py --exp_name NAME --resume`: `lab play`."""

import sys

from rl_lab.cli.compat import run

run(sys.argv)
