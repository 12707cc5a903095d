"""Why episodes end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.robots.managers.terms import flag, functions_of, read_terms
from rl_lab.robots.mdp import terminations
from rl_lab.robots.mdp.state import RobotFacts, RobotState


class TerminationManager:
    """Tells of every world whether its task ended, or whether it is cut by a term with `time_out: true`."""

    def __init__(self, config: Mapping[str, Any], facts: RobotFacts) -> None:
        path, known, options = "environment.terminations", functions_of([terminations]), {"time_out": False}
        self.terms = read_terms(path, config, known, facts, options=options)
        for term in self.terms:
            flag(f"{path}.{term.name}.time_out", term.options["time_out"])

    def __call__(self, state: RobotState) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return terminated [N], cut [N], and by name which term held, [N] float."""
        terminated = torch.zeros(len(state.base_pos), dtype=torch.bool, device=state.base_pos.device)
        cut, infos = terminated, {}
        for term in self.terms:
            ended = term(state)
            infos[f"ended/{term.name}"] = ended.float()
            if term.options["time_out"]:
                cut = cut | ended
            else:
                terminated = terminated | ended
        return terminated, cut, infos
