"""`python -m rl_lab`, and so `torchrun -m rl_lab`, is `lab`."""

from rl_lab.cli.entry import main

main()
