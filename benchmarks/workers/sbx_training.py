"""Algorithms of SBX, Stable-Baselines3 in JAX.

Its DQN makes every layer as wide as the first (120x120 instead of 120x84), and does not clip gradients.
"""

from __future__ import annotations

import flax.linen
import sb3_training
import sbx

sb3_training.measure(sbx, "sbx", relu=flax.linen.relu, tanh=flax.linen.tanh, can_clip=False)
