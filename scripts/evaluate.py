"""`python scripts/evaluate.py RUN`: `lab evaluate`."""

import sys

from rl_lab.cli.compat import run

run(sys.argv)
