"""Small real parts for the tests of this room: a workflow that counts, and a timer that does not."""

from contextlib import nullcontext

import torch
from torch import nn

from rl_lab.core import Discrete, Workflow, hook
from rl_lab.environments.counting import ENV, STEP, Counting


def no_timer(name):
    return nullcontext()


class Counter(Workflow):
    """Recurrent: its carry counts the steps of the episode. Acts at random, or by the count when not exploring."""

    def __init__(self, num_actions: int = 4) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.calls = []

    def initialize(self, context):
        assert isinstance(context.spec.action, Discrete)
        self.weight = nn.Parameter(torch.zeros(3))
        self.optimizer = context.optimizers.build("policy", [self.weight], lambda p: torch.optim.Adam(p, lr=0.1))

    def initial_carry(self, num_envs):
        return (torch.zeros(num_envs), None)

    def act(self, obs, carry, *, is_first, explore, step):
        count = torch.where(is_first, 0.0, carry[0]) + 1
        sampled = torch.randint(self.num_actions, (len(count),))
        actions = sampled if explore else count.long() % self.num_actions
        return actions, {"carry": carry[0], "count": count}, (count, None)

    @hook
    def update_policy(self, batch, *, phase):
        self.calls.append(phase.progress)
        loss = ((self.weight - batch["rewards"].mean()) ** 2).sum() + torch.rand(()) * self.weight.sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach()}

    @hook(batch=False, group="workflow")
    def refresh(self, *, phase):
        return {"calls": float(len(self.calls))}

    def get_state(self):
        return {"calls": list(self.calls)}

    def set_state(self, state):
        self.calls = list(state["calls"])


class Reporting(Counting):
    """Reports the step within the episode and the number of the copy, as infos."""

    def step(self, actions):
        step = super().step(actions)
        final = step.final_observations
        return step._replace(infos={"steps": final[..., STEP].clone(), "copy": final[..., ENV] * 0.5})
