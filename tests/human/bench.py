"""One simulated robot, a policy that always says the same and an operator, step by step."""

import time

import torch

from rl_lab.core import Counters
from rl_lab.core.operator import Station
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.human.operators.jogging import Jogging
from rl_lab.human.operators.person import Rules

ARM = Jogging({"arm": {"x": "move.x", "y": "move.y", "z": "move.z"}})
FAST = Rules(steps_per_second=1_000.0)
LONG_S = 60.0  # seconds that anything may take on a machine that does other things


class Bench:
    def __init__(self, operator, name="cell/Insertion-v0", *, proposed=0.25, **env_kwargs):
        self.env = GymnasiumEnv(name, 1, env_kwargs=env_kwargs, info_keys=["is_success"])
        self.operator, self.lines = operator, []
        operator.bind(Station(self.env, Counters(), 1_000))
        operator.report_to(self.lines.append)
        self.proposed = torch.full((1, *self.env.spec.action.shape), proposed)
        self.obs, self.is_first = self.env.reset(0), torch.ones(1, dtype=torch.bool)
        self.orders = self.last = None

    def step(self):
        """Do one step if the operator is ready; return whether it was done."""
        if not self.operator.is_ready():
            return False
        self.orders, _ = self.operator.watch(self.obs, self.proposed, None, is_first=self.is_first)
        taken = torch.where(self.orders.is_acting[:, None], self.orders.actions, self.proposed)
        self.last = self.env.step(taken)
        self.obs, self.is_first = self.last.observations, self.last.terminated | self.last.truncated
        return True

    def step_until(self, is_true):
        """Go on until something has come about."""
        deadline = time.monotonic() + LONG_S
        while not is_true():
            assert time.monotonic() < deadline, "it never came about"
            self.step()

    @property
    def is_acting(self):
        return self.orders is not None and bool(self.orders.is_acting[0])

    @property
    def action(self):
        return [round(float(value), 4) for value in self.orders.actions[0]]

    def verdict(self):
        return self.operator.judge(self.last.final_observations, self.last.rewards).tolist()

    def close(self):
        self.operator.close()
        self.env.close()
