"""Policies of packaged experiments with weights that do something, without a run."""

import torch

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.deploy.capture import capture
from rl_lab.deploy.function import PolicyFunction
from rl_lab.deploy.parity import compare, record


def build(experiment, *overrides, scale=0.3):
    """Return workflow, spec and an environment of one copy; all weights are moved, for heads that begin at zero."""
    composed = compose([f"+experiment={experiment}", "budget=tiny", "experiment.compile=eager", *overrides])
    parts = assemble(composed, Targets(AllowList()), with_teacher=False)
    node = {**parts.config["environment"], "num_envs": 1}
    env = parts.targets.instantiate("environment", node, device=torch.device("cpu"))
    parts.env.close()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in parts.workflow.parameters():
            weight.add_(scale * torch.randn(weight.shape, generator=generator))
    parts.workflow.requires_grad_(False).eval()
    return parts.workflow, parts.context.spec, env


def captured(experiment, **options):
    workflow, spec, env = build(experiment, **options)
    return capture(PolicyFunction(workflow, spec)), env


def parity(policy, env, path, module, count):
    """Write a file and return how far it is from the policy."""
    calls = record(policy.function, env, count)
    module.write(policy, path, {"workflow": '"X"'})
    run = module.load(path, policy.function.inputs, policy.function.outputs)
    return compare(policy.function, calls, run(calls.inputs)), calls
