"""Vector environments: batched tensor toys and adapters."""
