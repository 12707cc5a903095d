"""Latent models: states against float64 NumPy, initial weights tensor by tensor, published sizes, images and tasks."""

import itertools
import math

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from rl_lab.components.latent_encoder import TDMPC2_STYLE, ImageTokens, LatentEncoder
from rl_lab.components.latent_model import LatentModel, LatentState
from rl_lab.components.layers import LayerStyle
from rl_lab.components.q_ensemble import QEnsemble
from rl_lab.components.scalar_heads import ContinueHead, ScalarHead
from rl_lab.components.task_embedding import TaskEmbedding
from rl_lab.components.world_actors import WorldActor
from rl_lab.config.allow_list import AllowList
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec

torch.set_num_threads(1)
SPEC = EnvSpec("numbers", Box((5,)), Box((2,), low=-2.0, high=2.0), 100)
TASKS = EnvSpec("tasks", {"task": Discrete(3), "x": Box((4,))}, Box((3,), low=-1.0, high=1.0), 100)
ELU = LayerStyle("elu", "none", "orthogonal")


def small_model(spec=SPEC, *, style=TDMPC2_STYLE, group_size=4, cont=True, tasks=None, **options):
    """Return a bound model; the same seed gives the same parameters."""
    torch.manual_seed(0)
    model = LatentModel(
        LatentEncoder(7, 1, style, **options),
        ScalarHead(6, 2, style, kind="symlog_two_hot", num_bins=11, limit=3.0),
        ContinueHead(6, 1, style) if cont else None,
        tasks,
        latent_dim=8,
        group_size=group_size,
        units=6,
        num_layers=2,
        style=style,
    )
    model.bind(spec, "Test")
    return model


def scrambled(module, scale=0.5):
    """Give parameters values that no initialisation has."""
    for index, parameter in enumerate(module.parameters()):
        generator = torch.Generator().manual_seed(index)
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return module


# The model once more, in float64.


def linear(layer, x):
    return x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()


def normed(layer, x):
    if isinstance(layer, torch.nn.Identity):
        return x
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return x * layer.weight.detach().double().numpy() + layer.bias.detach().double().numpy()


def hidden(stack, x):
    """Return what a stack of layers makes of x."""
    for index in range(0, len(stack), 3):
        x = normed(stack[index + 1], linear(stack[index], x))
        is_elu = isinstance(stack[index + 2], torch.nn.ELU)
        x = np.where(x > 0, x, np.expm1(x)) if is_elu else x * np.tanh(np.log1p(np.exp(x)))
    return x


def latent(layers, x, group_size=4):
    """Return a state: linear, normalised, softmax in groups."""
    x = normed(layers[1], linear(layers[0], x))
    if group_size is None:
        return x
    exps = np.exp(x.reshape(*x.shape[:-1], -1, group_size))
    return (exps / exps.sum(-1, keepdims=True)).reshape(x.shape)


def naive_encode(model, obs):
    return latent(model.project, hidden(model.encoder.vectors, obs), model.group_size)


def naive_next(model, state, action):
    joint = np.concatenate([state, action], -1)
    return latent(model.dynamics[1], hidden(model.dynamics[0], joint), model.group_size)


@pytest.mark.parametrize(("style", "group_size"), [(TDMPC2_STYLE, 4), (ELU, None)])
def test_states_equal_loops(style, group_size):
    model = scrambled(small_model(style=style, group_size=group_size))
    obs, actions = torch.randn(3, 5), torch.rand(4, 3, 2) * 2 - 1
    states = model.imagine(model.encode(obs), actions)
    expected = naive_encode(model, obs.double().numpy())
    np.testing.assert_allclose(states.z[0].detach(), expected, rtol=1e-4, atol=1e-5)
    for step in range(4):
        joint = np.concatenate([expected, actions[step].double().numpy()], -1)
        logits = linear(model.reward_head.out, hidden(model.reward_head.trunk, joint))
        shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        mean = (shares * np.linspace(-3, 3, 11)).sum(-1)
        reward = model.reward(states.at(step), actions[step])
        np.testing.assert_allclose(reward.detach(), np.sign(mean) * np.expm1(abs(mean)), rtol=1e-3, atol=1e-5)
        expected = naive_next(model, expected, actions[step].double().numpy())
        np.testing.assert_allclose(states.z[step + 1].detach(), expected, rtol=1e-4, atol=1e-4)
        chance = 1.0 / (1.0 + np.exp(-linear(model.cont_head.out, hidden(model.cont_head.trunk, expected))[:, 0]))
        np.testing.assert_allclose(model.cont(states.at(step + 1)).detach(), chance, rtol=1e-4)
    assert torch.equal(small_model(cont=False).cont(LatentState(torch.zeros(2, 3, 8))), torch.ones(2, 3))


# Initial weights.


def parts_of(preset, *overrides, spec):
    """Return world model, actor and critics of a preset, bound as the workflow does."""
    config = compose([f"+preset={preset}", "+environment=tensor_pendulum", "experiment.name=x", *overrides])
    components, targets = OmegaConf.to_container(config.components, resolve=True), Targets(AllowList())
    torch.manual_seed(0)
    model, actor, critic = (
        targets.instantiate(f"components.{name}", components[name]) for name in ("world_model", "actor", "critic")
    )
    model.bind(spec, "Test")
    actor.bind(model.feature_dim, spec, "Test")
    critic.bind(model.joint_dim)
    return model, actor, critic


WIDE = EnvSpec("wide", Box((24,)), Box((6,), low=-1.0, high=1.0), 500)  # walker-walk


def test_every_tensor_of_tdmpc2_begins_as_published():
    model, actor, critic = parts_of("tdmpc2", spec=WIDE)
    names = set()
    for part, prefix in ((model, "model."), (actor, "actor."), (critic, "critic.")):
        for name, parameter in part.named_parameters():
            value = parameter.detach()
            names.add(prefix + name)
            if name in ("reward_head.out.weight", "last.weight"):  # zero: rewards and values begin at exactly 0
                assert not value.any(), name
            elif ".norm.weight" in name or (value.ndim == 1 and name.endswith("weight")):
                assert torch.equal(value, torch.ones_like(value)), name
            elif name.endswith("bias"):
                assert not value.any(), name
            else:
                assert float(value.std()) == pytest.approx(0.02, rel=0.05), name
                assert float(value.mean()) == pytest.approx(0.0, abs=5 * 0.02 / math.sqrt(value.numel())), name
                kurtosis = float((value / value.std()).pow(4).mean())
                assert kurtosis == pytest.approx(3.0, abs=0.6), name  # normal, and not uniform: 1.8
    assert {"critic.layers.0.linear.weight", "critic.layers.1.norm.weight", "model.project.0.weight"} <= names
    members = critic.layers[0].linear.weight.detach()  # every critic its own
    assert all(float((members[0] - other).abs().mean()) > 0.01 for other in members[1:])


def test_every_tensor_of_tdmpc_begins_as_published():
    model, actor, critic = parts_of("tdmpc", spec=WIDE)
    for part in (model, actor, critic):
        for name, value in part.named_parameters():
            if name in ("reward_head.out.weight", "last.weight") or name.endswith("bias"):
                assert not value.any(), name
            elif "norm.weight" in name:
                assert torch.equal(value, torch.ones_like(value)), name
            else:
                for matrix in value.detach() if value.ndim == 3 else [value.detach()]:
                    small = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
                    torch.testing.assert_close(small @ small.T, torch.eye(len(small)), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("stride", "is_orthogonal"), [(1, False), (2, True)])
def test_convolutions_begin_as_torchs_or_orthogonal(stride, is_orthogonal):
    torch.manual_seed(0)
    tokens = ImageTokens((9, 84, 84), 32, stride, is_orthogonal)
    for layer in (module for module in tokens if isinstance(module, torch.nn.Conv2d)):
        rows = layer.weight.detach().flatten(1)
        if is_orthogonal:
            torch.testing.assert_close(rows @ rows.T, 2.0 * torch.eye(32), atol=1e-4, rtol=0)
            assert not layer.bias.any()
        else:
            bound = 1.0 / math.sqrt(rows.shape[1])  # torch's default: uniform in +- 1 / sqrt(fan in)
            assert float(rows.abs().max()) == pytest.approx(bound, rel=0.02)
            assert float(rows.std()) == pytest.approx(bound / math.sqrt(3.0), rel=0.03)
    assert tokens.output_dim == 32 * (9 if is_orthogonal else 36)


@pytest.mark.parametrize(
    ("size", "units", "enc", "layers", "dim", "members", "millions"),
    [
        ("1m", 384, 256, 1, 128, 2, 1.2),
        ("5m", 512, 256, 1, 512, 5, 5.0),
        ("19m", 1024, 1024, 2, 768, 5, 18.0),
        ("48m", 1792, 1792, 3, 768, 5, 48.4),
        ("317m", 4096, 4096, 4, 1376, 8, 315.0),
    ],
)
def test_sizes_are_the_published_ones(size, units, enc, layers, dim, members, millions):
    def mlp(inputs, widths, outputs, is_normed_out=False):
        """Return the parameters of linear layers with biases and norms, of which the last may have none."""
        sizes = [inputs, *widths, outputs]
        total = sum(a * b + b for a, b in itertools.pairwise(sizes)) + 2 * sum(widths)
        return total + (2 * outputs if is_normed_out else 0)

    obs, action, heads = 24, 6, [units, units]
    expected = mlp(obs, [enc] * layers, dim, is_normed_out=True) + mlp(dim + action, heads, dim, is_normed_out=True)
    expected += mlp(dim + action, heads, 101) + mlp(dim, heads, 2 * action) + members * mlp(dim + action, heads, 101)
    with torch.device("meta"):
        overrides = [f"+model_size=tdmpc2_{size}", "components.world_model.cont=null"]
        parts = parts_of("tdmpc2", *overrides, spec=WIDE)
    found = sum(parameter.numel() for part in parts for parameter in part.parameters())
    assert found == expected
    assert found / 1e6 == pytest.approx(millions, rel=0.05)


# Images.


def test_a_lone_image_is_the_state_as_published():
    space = Box((9, 64, 64), dtype=torch.uint8)
    style, spec = TDMPC2_STYLE, EnvSpec("pixels", space, Box((2,), low=-1.0, high=1.0), 10)
    model = LatentModel(LatentEncoder(style=style), ScalarHead(6, 1, style), latent_dim=512, units=6)
    model.bind(spec, "Test")
    images = torch.randint(0, 256, (2, 3, 9, 64, 64), dtype=torch.uint8)
    z = model.encode(images).z
    assert z.shape == (2, 3, 512)
    assert not list(model.project.parameters())  # only groups
    torch.testing.assert_close(z.unflatten(-1, (64, 8)).sum(-1), torch.ones(2, 3, 64))
    net, row = model.encoder.images[0], images[1, 2].float() / 255.0 - 0.5
    for layer in list(net)[:-1]:
        row = layer(row)
    torch.testing.assert_close(row.flatten().view(64, 8).softmax(-1).flatten(), z[1, 2], rtol=1e-4, atol=1e-5)


def test_images_are_moved_only_where_asked_and_each_by_itself():
    space = {"camera": Box((3, 40, 40), dtype=torch.uint8), "x": Box((2,))}
    encoder = LatentEncoder(7, 1, TDMPC2_STYLE, depth=4, shift_pad=3)
    encoder.bind(space)
    images = torch.zeros(2, 50, 3, 40, 40, dtype=torch.uint8)
    images[..., 20, 20] = 255
    obs = {"camera": images, "x": torch.randn(2, 50, 2)}
    torch.manual_seed(0)
    moved = encoder.augmented(obs)
    assert moved["x"] is obs["x"]
    places = moved["camera"][:, :, 0].flatten(2).argmax(-1).flatten()
    offsets = torch.stack([places // 40 - 20, places % 40 - 20])
    assert set(offsets.flatten().tolist()) == set(range(-3, 4))
    assert len(set(places.tolist())) > 25
    still = LatentEncoder(7, 1, TDMPC2_STYLE, depth=4, shift_pad=0)
    still.bind(space)
    assert still.augmented(obs) is obs
    assert encoder(obs).shape == (2, 50, encoder.output_dim)
    with pytest.raises(ConfigError, match="images of 20x20 are too small for four convolutions"):
        LatentEncoder().bind(Box((3, 20, 20), dtype=torch.uint8))


# Tasks.


def test_states_know_their_task_and_ignore_numbers_that_it_does_not_use():
    model = scrambled(small_model(TASKS, tasks=TaskEmbedding(dim=2, action_dims=[3, 1, 2])))
    model.tasks.vectors.data = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, -2.0]])
    obs = {"task": torch.tensor([0, 1, 2, 1]), "x": torch.randn(4, 4)}
    state = model.encode(obs)
    torch.testing.assert_close(state.task, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, -1.0], [0.3, 0.4]]))
    assert state.used.tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]]
    vector = np.concatenate([obs["x"].double().numpy(), state.task.detach().double().numpy()], -1)
    np.testing.assert_allclose(
        state.z.detach(), naive_encode(model, vector), rtol=1e-4
    )  # the choice itself is not read
    left, right = torch.rand(4, 3), torch.rand(4, 3)
    right = torch.where(state.used.bool(), left, right)
    assert not torch.equal(left, right)
    for function in (lambda a: model.next(state, a).z, lambda a: model.reward(state, a)):
        torch.testing.assert_close(function(left), function(right))
    later = model.imagine(state, left.expand(2, 4, 3))
    assert later.task.shape == (3, 4, 2)
    assert torch.equal(later.task[2], state.task)
    one_hot = TaskEmbedding(dim=2)
    named = one_hot.bind({"task": Box((3,)), "x": Box((4,))}, model.action_code)  # as gymnasium's choices come
    assert list(named) == ["x"]
    one_hot.vectors.data.copy_(model.tasks.vectors)
    task, used = one_hot({"task": torch.eye(3)[obs["task"]], "x": obs["x"]})
    torch.testing.assert_close(task, state.task)
    assert bool(used.all())


def test_states_know_the_discount_of_their_task():
    """By the length of episodes, (L/5 - 1) / (L/5) within 0.95 and 0.995."""
    model = small_model(TASKS, tasks=TaskEmbedding(dim=2, episode_steps=[500, 50, 10_000]))
    state = model.encode({"task": torch.tensor([[0, 1], [2, 1]]), "x": torch.randn(2, 2, 4)})
    expected = torch.tensor([[0.99, 0.95], [0.995, 0.95]])
    torch.testing.assert_close(state.discount(0.5), expected)
    assert model.encode({"task": torch.tensor([0]), "x": torch.randn(1, 4)}).at(0).discount(0.5) == pytest.approx(0.99)
    later = model.imagine(state.at(0), torch.rand(3, 2, 3))
    torch.testing.assert_close(later.discount(0.5), expected[:1].expand(4, 2))
    assert (
        small_model(TASKS, tasks=TaskEmbedding(dim=2))
        .encode({"task": torch.tensor([0]), "x": torch.randn(1, 4)})
        .discount(0.5)
        == 0.5
    )


def test_vectors_of_tasks_begin_as_published_and_learn():
    model = small_model(TASKS, tasks=TaskEmbedding(dim=500))
    vectors = model.tasks.vectors
    assert float(vectors.detach().abs().max()) <= 0.02
    assert float(vectors.detach().std()) == pytest.approx(0.04 / math.sqrt(12), rel=0.05)
    obs = {"task": torch.tensor([0, 2]), "x": torch.randn(2, 4)}
    model.encode(obs).z.square().sum().backward()
    assert vectors.grad.any(-1).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("spec", "tasks", "message"),
    [
        (SPEC, {}, r"part of the observation 'task' .*"),
        (TASKS, {"key": "kind"}, r"'kind'.*task.*x"),
        (TASKS, {"action_dims": [3, 1]}, r"components\.world_model\.tasks\.action_dims: 2 of 3 tasks are given"),
        (TASKS, {"episode_steps": [3, 1]}, r"components\.world_model\.tasks\.episode_steps: 2 of 3 tasks are given"),
        (TASKS, {"action_dims": [3, 1, 9]}, r"action_dims: an action has 3 numbers, \[3, 1, 9\] do not fit"),
    ],
)
def test_wrong_tasks_are_one_line(spec, tasks, message):
    with pytest.raises(ConfigError, match=message) as error:
        small_model(spec, tasks=TaskEmbedding(**tasks))
    assert "\n" not in str(error.value)


def test_actor_and_critics_fit_the_model():
    model, actor, critic = small_model(), WorldActor(6, 1, TDMPC2_STYLE, kind="squashed_normal"), QEnsemble(6)
    actor.bind(model.feature_dim, SPEC, "Test")
    critic.bind(model.joint_dim)
    state = model.encode(torch.randn(3, 5))
    assert critic.value(model.joint(state, actor(model.features(state)).sample()), "mean").shape == (3,)
