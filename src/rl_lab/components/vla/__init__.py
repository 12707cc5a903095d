"""A vision-language-action model after pi0 (Black et al., 2024, https://arxiv.org/abs/2410.24164), as a denoiser."""
