"""`python -m rlrepo list|compare|export|cleanup`."""

import sys

from rl_lab.cli.compat import run

run(["rlrepo", *sys.argv[1:]])
