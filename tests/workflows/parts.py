"""What the workflow tests share: a PPO over plain components, a training loop, and a small fixed rollout."""

from contextlib import nullcontext
from functools import partial

import torch

from rl_lab.components.mlp import MLP
from rl_lab.core import HookCall, Named, Optimizers, Phase, RngStreams, WorkflowContext, flat_dim, seed_everything
from rl_lab.core.ranks import ALONE
from rl_lab.orchestration.collector import Collector
from rl_lab.workflows.ppo import PPO


def phase(progress=0.0):
    return Phase(
        "train",
        "online",
        (HookCall("collect"), HookCall("update_policy", is_update=True)),
        "steps",
        1,
        progress=progress,
    )


def trunks(spec, hidden=(16,), shared=False):
    """Return an actor and, unless the trunk is shared, a critic."""
    dim = flat_dim(spec.observation)
    return {"actor": MLP(dim, hidden)} | ({} if shared else {"critic": MLP(dim, hidden)})


def make_ppo(
    spec,
    components=None,
    *,
    num_envs=4,
    lr=1e-3,
    optimizer=None,
    seed=0,
    extensions=None,
    workflow_class=PPO,
    buffers=None,
    ranks=ALONE,
    **options,
):
    """Return an initialised PPO; the same seed gives the same parameters. Extensions are further components."""
    seed_everything(seed)
    workflow = workflow_class(**options)
    components = (trunks(spec) if components is None else components) | (extensions or {})
    workflow.initialize(
        WorkflowContext(
            config={},
            device=torch.device("cpu"),
            spec=spec,
            num_envs=num_envs,
            components=Named("component", components),
            controllers=Named("controller", {}),
            optimizers=Optimizers({"policy": optimizer or partial(torch.optim.Adam, lr=lr, eps=1e-5, fused=True)}),
            buffers=Named("buffer", buffers or {}),
            rng=RngStreams(seed),
            ranks=ranks,
        )
    )
    return workflow


def make_collector(env, seed=0):
    return Collector(env, seed, lambda name: nullcontext())


def collect(collector, workflow, steps):
    return collector.collect(workflow, steps, env_steps=0, should_stop=lambda: False).trajectory


def train(workflow, env, *, steps, updates, seed=0):
    """Alternate collecting and updating; return the mean reward of each rollout and the last metrics."""
    collector, rewards, metrics = make_collector(env, seed), [], {}
    for index in range(updates):
        rollout = collect(collector, workflow, steps)
        metrics = workflow.update_policy(rollout, phase=phase(index / updates))
        rewards.append(float(rollout["rewards"].mean()))
    return rewards, metrics


def parameters(workflow):
    return torch.cat([p.detach().flatten() for p in workflow.policy.parameters()])
