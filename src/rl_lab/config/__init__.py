"""From YAML to a run: compose, validate, freeze, build."""
