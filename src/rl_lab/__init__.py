"""RL Lab: one lab for reinforcement learning."""

import os

__version__ = "0.1.0"

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy multiplies small matrices here; `num_threads` is torch's
