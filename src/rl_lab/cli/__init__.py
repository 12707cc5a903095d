"""The `lab` command."""
