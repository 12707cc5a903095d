"""Wrappers that YAML can name. Knows no torch."""
