"""Networks and normalisers: plain modules, chosen by `_target_` in YAML."""
