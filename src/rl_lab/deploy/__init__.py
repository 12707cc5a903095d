"""Policies that leave the lab: as one function in a file, checked, with all that a robot's program must know."""
