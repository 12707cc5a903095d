"""`python scripts/export_policy.py --exp_name NAME --resume`: `lab export`."""

import sys

from rl_lab.cli.compat import run

run(sys.argv)
