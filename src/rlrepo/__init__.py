"""`python -m rlrepo`, the command of the modular mono-repo: see docs/coming_from.md."""
