"""`python scripts/train.py +experiment=NAME ...` is `lab train +experiment=NAME ...`."""

import sys

from rl_lab.cli.main import app

app(["train", *sys.argv[1:]])
