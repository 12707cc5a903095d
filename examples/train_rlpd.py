"""`python train_rlpd.py algo=NAME task=NAME learner=true`: `lab learner` or `lab actor`."""

import sys

from rl_lab.cli.compat import run

run(sys.argv)
