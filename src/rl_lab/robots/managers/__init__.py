"""Managers: they read the dicts of terms in a task's YAML, call the terms and keep what lies between two steps."""
