"""The loop: what to do next, doing it, and resuming it."""
