"""PPO of SBX, Stable-Baselines3 in JAX."""

from __future__ import annotations

import flax.linen
import sb3_ppo
import sbx

sb3_ppo.measure(sbx.PPO, "sbx", sbx.__version__, activation_fn=flax.linen.tanh)
