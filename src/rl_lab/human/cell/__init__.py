"""The robot cell: what a driver of a robot is, the environment around it, and two simulated cells. Knows no torch."""
