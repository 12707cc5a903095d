"""Run directories, metrics and checkpoints: all that a run leaves on disk."""
