"""The state of a running episode as plain arrays, layer by layer. Knows no torch."""
