"""`python scripts/train.py` with `+experiment=`, `--config` or `--exp_name`: `lab train` and `lab resume`."""

import sys

from rl_lab.cli.compat import run

run(sys.argv)
