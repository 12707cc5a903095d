"""The replay buffer of Stable-Baselines3 with `optimize_memory_usage`."""

from sb3_buffers import measure

if __name__ == "__main__":
    measure("sb3_lean", is_lean=True)
