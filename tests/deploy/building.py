"""Policies of packaged experiments with weights that do something, without a run."""

import torch

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.deploy.capture import capture
from rl_lab.deploy.function import PolicyFunction
from rl_lab.deploy.observing import from_sensors
from rl_lab.deploy.parity import compare, record

LONG = (
    *("ppo_cartpole_transformer", "ppo_identity_multidiscrete", "sac_pendulum_flow", "rainbow_cartpole"),
    *("flow_pusht", "diffusion_transformer_pusht"),
)
GENERATIVE = ("flow_pusht", "diffusion_transformer_pusht", "sft_insertion", "sac_pi0_insertion")
EVERY = {  # experiment -> inputs of the function
    "ppo_pendulum": "observation",
    "ppo_memory_lstm": "observation state.0 state.1 is_first",
    "sac_pendulum": "observation",
    "td3_reach_her": "observation.observation observation.achieved_goal observation.desired_goal",
    "dqn_minatar_breakout": "observation",
    "sql_pendulum": "observation noise.0",
    "dreamer_mixed_actions": "observation state.deter state.stoch state.action is_first noise.0 noise.1 noise.2",
    "tdmpc2_pendulum_tensor": "observation",
    "world_models_cartpole": "observation state.hidden state.cell state.latent state.action is_first",
    "bc_pusht": "observation.agent_pos observation.environment_state state.observations.agent_pos "
    "state.observations.environment_state state.queue state.left is_first",
    "biped_pm01_flat_ppo": " ".join(
        (
            *(f"observation.actor.{term}" for term in ("base_ang_vel", "base_roll_pitch", "joint_pos", "joint_vel")),
            *(f"observation.actor.{term}" for term in ("actions", "gait_phase", "command")),
            *(f"state.seen.actor.{term}" for term in ("base_ang_vel", "base_roll_pitch", "joint_pos", "joint_vel")),
            "state.seen.actor.actions is_first",
        )
    ),
    "ppo_amp_circle": "observation.observation observation.achieved_goal observation.desired_goal",
    "rlpd_insertion": "observation",
    "sft_insertion": "observation state.observations state.queue state.left is_first noise.0 noise.1",
    "sac_pi0_insertion": "observation state.observations state.queue state.left is_first noise.0",
    "random_cartpole": "noise.0",
    "reward_classifier_insertion": "noise.0",
    "hiors_insertion": "observation state.observations state.queue state.left is_first noise.0 noise.1",
}


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


def moved_by(experiment):
    """Return how far to move weights so that float32 tells the answers apart: many steps in a row amplify rounding."""
    return 0.01 if experiment in GENERATIVE else 0.05


def captured(experiment, **options):
    workflow, spec, env = from_sensors(*build(experiment, **options))
    return capture(PolicyFunction(workflow, spec)), env


def parity(policy, env, path, module, count):
    """Write a file and return how far it is from the policy."""
    calls = record(policy.function, env, count)
    module.write(policy, path, {"workflow": '"X"'})
    run = module.load(path, policy.function.inputs, policy.function.outputs)
    return compare(policy.function, calls, run(calls.inputs)), calls
