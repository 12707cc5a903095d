"""`python scripts/analyze.py RUN...`: `lab runs compare`."""

import sys

from rl_lab.cli.compat import run

run(sys.argv)
