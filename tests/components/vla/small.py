"""Sizes that a test can afford, and what the tests of the VLA share."""

import torch

from rl_lab.components.vla.sizes import AttentionSizes, ExpertSizes, Pi0Sizes, VisionSizes

VISION = VisionSizes(width=12, mlp_dim=20, depth=2, num_heads=3, patch_size=4, picture_size=8)
ATTENTION = AttentionSizes(depth=3, num_heads=4, num_key_heads=2, head_dim=6)
SIZES = Pi0Sizes(VISION, ATTENTION, ExpertSizes(16, 24), ExpertSizes(10, 14), vocabulary=30, state_dim=5, action_dim=4)
BLIND = Pi0Sizes(None, ATTENTION, ExpertSizes(16, 24), ExpertSizes(10, 14), vocabulary=30, state_dim=5, action_dim=4)


def shaken(module, seed=0):
    """Return the module with no parameter left at 0, so that none can hide."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return module
