"""`python -m rl_lab.cli` is `lab`."""

from rl_lab.cli.entry import main

main()
