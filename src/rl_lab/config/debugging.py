"""What `debug=true` means for the other options: tiny sizes, and everything looked at after every update."""

from __future__ import annotations

from collections.abc import Collection

from omegaconf import DictConfig, OmegaConf

from rl_lab.config.trees import CONFIGS

TINY = CONFIGS / "budget" / "tiny.yaml"
IMPLIED = {
    "training.check_finite": "every_update",
    "training.checkpoint_updates": 2,  # so that there is one to resume from before the end
    "training.keep_last": 4,
    "experiment.compile": "eager",  # what is compiled cannot be looked into
}


def is_debug(config: DictConfig) -> bool:
    """Return whether a composed config asks for it; what is no boolean is refused later."""
    return OmegaConf.select(config, "experiment.debug") is True


def imply_debug(config: DictConfig, said: Collection[str]) -> None:
    """Set what a debug run implies; what was `said` on the command line stays."""
    if not is_debug(config):
        return
    if "budget" not in said:
        OmegaConf.update(config, "budget.caps", OmegaConf.load(TINY).caps, merge=False)
    for key, value in IMPLIED.items():
        if key not in said:
            OmegaConf.update(config, key, value)
