"""DQN's targets from the environment on: steps of CartPole replayed in gymnasium itself, summed up by plain loops."""

import gymnasium
import numpy as np
import pytest
import torch

from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.components.mlp import MLP
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.workflows.dqn import DQN
from tests.workflows.off_policy import start
from tests.workflows.parts import collect, make_collector

torch.set_num_threads(1)
SEED, NUM_ENVS, LENGTH, LIMIT, GAMMA = 5, 2, 150, 12, 0.9
CHUNKS = (8, 1, 8, 60, 8, 115)  # vector steps: more than the ring keeps


def replayed(actions, lane):
    """Return (obs, action, reward, next obs, terminated, truncated) of each step, by gymnasium alone."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=LIMIT)
    obs, _ = env.reset(seed=int(np.random.SeedSequence(SEED).generate_state(NUM_ENVS)[lane]) >> 1)
    steps = []
    for action in actions:
        following, reward, terminated, truncated, _ = env.step(int(action))
        steps.append((obs, int(action), float(reward), following, terminated, truncated))
        obs = env.reset()[0] if terminated or truncated else following
    return steps


def q_values(critic, obs):
    """Return the values of both actions, in float64."""
    x = np.asarray(obs, np.float64)
    for layer in (critic.trunk[0], critic.trunk[2]):
        x = np.maximum(0.0, layer.weight.detach().double().numpy() @ x + layer.bias.detach().double().numpy())
    return critic.head.weight.detach().double().numpy() @ x + critic.head.bias.detach().double().numpy()


def naive_target(steps, first, n_step, workflow):
    """Return the target of step `first`, and how it came about: ended, cut (by the time limit), newest or full."""
    total, row, why = 0.0, first, "full"
    for k in range(n_step):
        row = first + k
        total += GAMMA**k * steps[row][2]
        if steps[row][4] or steps[row][5]:
            why = "ended" if steps[row][4] else "cut"
            break
        if row + 1 == len(steps) and k + 1 < n_step:
            why = "newest"
            break
    if why == "ended":
        return total, why
    last = steps[row][3]
    best = int(q_values(workflow.critic, last).argmax())
    return total + GAMMA ** (row - first + 1) * q_values(workflow.target_critic, last)[best], why


@pytest.mark.parametrize("n_step", [1, 3])
def test_targets_of_real_steps_are_those_of_a_naive_computation(n_step):
    env = GymnasiumEnv("CartPole-v1", NUM_ENVS, env_kwargs={"max_episode_steps": LIMIT})
    workflow = start(
        DQN(gamma=GAMMA, double=True, epsilon_start=0.5, epsilon_end=0.5),
        env.spec,
        lambda: {"critic": MLP(4, (16, 16), "relu")},
        names=("critic",),
        num_envs=NUM_ENVS,
    )
    for parameter in workflow.target_critic.parameters():
        parameter.add_(0.5 * torch.randn_like(parameter))  # so that it matters who is asked
    buffer = ReplayBuffer(LENGTH * NUM_ENVS, 256, n_step=n_step, gamma=GAMMA, num_envs=NUM_ENVS, spec=env.spec)
    collector, actions = make_collector(env, SEED), []
    for chunk in CHUNKS:
        trajectory = collect(collector, workflow, chunk)
        buffer.add(trajectory)
        actions.append(trajectory["actions"])
    taken = torch.cat(actions)
    lanes = [replayed(taken[:, lane].tolist(), lane) for lane in range(NUM_ENVS)]
    written, seen = len(taken), []
    for _ in range(8):
        batch = buffer.sample()
        found = workflow._targets(workflow.perception(batch, workflow.target_perception, workflow.gamma)).tolist()
        for number, (index, target) in enumerate(zip(batch["indices"].tolist(), found, strict=True)):
            place, lane = divmod(index, NUM_ENVS)
            step = written - 1 - (written - 1 - place) % LENGTH
            obs, action, *_ = lanes[lane][step]
            assert batch["observations"][number].tolist() == obs.tolist()
            assert int(batch["actions"][number]) == action
            expected, why = naive_target(lanes[lane], step, n_step, workflow)
            assert target == pytest.approx(expected, rel=1e-5, abs=1e-5), (step, lane, why)
            seen.append(why)
    env.close()
    assert {why for why in set(seen) if seen.count(why) > 3} >= {"ended", "cut", "full"}
    assert ("newest" in seen) == (n_step > 1)
