"""Command lines that people know from the five systems, as `lab` commands: a file per system with its flags."""
