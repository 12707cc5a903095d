"""Open-loop prediction: errors against loops in float64, a model that is never wrong, what counts and what is drawn."""

import copy

import numpy as np
import pytest
import torch

from rl_lab.components.identity_representation import IdentityDecoder, IdentityEncoder
from rl_lab.components.layers import LayerStyle
from rl_lab.components.mlp_dynamics import MLPDynamics
from rl_lab.components.model_actions import ModelActions
from rl_lab.components.prediction import (
    CURVE_HEIGHT,
    CURVE_WIDTH,
    EXPECTED,
    SEEN,
    UNSEEN,
    Forecast,
    _rgb,
    errors_of,
    evaluate_predictions,
    forecast,
    pictures_of,
    planning_gain,
)
from rl_lab.components.scalar_heads import ContinueHead, ScalarHead
from rl_lab.components.world_model import KLTerms, WorldModel
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, Picture
from rl_lab.ops.raster import FRAME, GAP
from tests.workflows.off_policy import phase
from tests.workflows.test_planet import SPEC as PLANET_SPEC
from tests.workflows.test_planet import affine, fixed_batch, gru, hidden, joint, normal, small_model

torch.set_num_threads(1)
SPEC = EnvSpec("line", Box((2,)), Box((1,), low=-1.0, high=1.0))
STYLE = LayerStyle("silu", "none", "glorot")


def exact_model():
    """Return a model of x' = x + (1, 2) a with reward x_0 + x_1 and episodes that never end."""
    model = WorldModel(
        IdentityEncoder(),
        MLPDynamics(8, 0, STYLE),
        IdentityDecoder(),
        ScalarHead(8, 0, STYLE, kind="gaussian", scale=1.0),
        ContinueHead(8, 0, STYLE),
        kl=KLTerms("mean", 0.0),
    )
    model.bind(SPEC, "Test")
    model.rssm.change[1].weight.data = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]])
    model.reward_head.out.weight.data = torch.ones(1, 2)
    model.cont_head.out.weight.data = torch.zeros(1, 2)
    model.cont_head.out.bias.data = torch.tensor([100.0])
    return model


def walks(size=3, length=9, seed=0):
    """Return sequences of that world: quarters, so that float32 is exact."""
    generator = torch.Generator().manual_seed(seed)
    actions = torch.randint(-4, 5, (size, length, 1), generator=generator) / 4.0
    start = torch.randint(-8, 9, (size, 1, 2), generator=generator) / 4.0
    moves = actions * torch.tensor([1.0, 2.0])
    moves[:, 0] = 0.0
    obs, flags = start + moves.cumsum(1), torch.zeros(size, length, dtype=torch.bool)
    return {
        "observations": obs,
        "actions": actions,
        "rewards": obs.sum(-1),
        "is_first": flags.clone(),
        "is_last": flags.clone(),
        "is_terminal": flags.clone(),
    }


def values(metrics):
    return {name: float(mean.total / mean.weight) for name, mean in metrics.items() if not isinstance(mean, Picture)}


def test_a_model_that_knows_the_world_is_never_wrong():
    found = values(evaluate_predictions(exact_model(), walks(), phase(prediction_context=3)))
    names = {f"{name}_{step}" for name in ("prediction_error", "reward_error") for step in (1, 3, 6)}
    assert set(found) == names | {"continue_bias", "continue_brier", "continue_calibration"}
    assert all(value == 0.0 for value in found.values())


def test_errors_are_those_of_the_recorded_actions_and_not_of_others():
    batch = walks()
    batch["actions"][:, 5] += 0.5  # the second of the predicted steps: 0.5 and 1 from there on
    found = values(errors_of(forecast(exact_model(), batch, context=4, horizon=4)))
    expected = {"prediction_error_1": 0.0, "prediction_error_2": 0.625, "prediction_error_4": 0.625}
    expected |= {"reward_error_1": 0.0, "reward_error_2": 2.25, "reward_error_4": 2.25}
    assert {name: found[name] for name in expected} == expected


def test_what_follows_an_episodes_end_does_not_count():
    batch = walks(size=2)
    batch["observations"][1, 6:] += 100.0  # another episode, from anywhere
    batch["rewards"][1, 6:] = -7.0
    batch["is_last"][1, 5] = batch["is_terminal"][1, 5] = batch["is_first"][1, 6] = True
    metrics = errors_of(forecast(exact_model(), batch, context=4, horizon=99))
    assert values(metrics)["prediction_error_5"] == 0.0
    weights = {name: float(mean.weight) for name, mean in metrics.items()}
    assert [weights[f"reward_error_{step}"] for step in (1, 3, 5)] == [2, 1, 1]
    assert weights["continue_bias"] == 5 + 2
    found = values(metrics)  # certain to go on, and one step of seven did not
    assert found["continue_bias"] == found["continue_brier"] == pytest.approx(1 / 7)
    whole = {**walks(size=2), "is_first": torch.ones(2, 9, dtype=torch.bool)}
    assert all(
        float(mean.weight) == 0 for mean in errors_of(forecast(exact_model(), whole, context=4, horizon=5)).values()
    )


def test_short_sequences_leave_a_shorter_context():
    found = forecast(exact_model(), walks(length=3), context=5, horizon=15)
    assert (found.num_seen, len(found.is_known)) == (2, 1)
    continues = {"continue_bias", "continue_brier", "continue_calibration"}
    assert set(values(errors_of(found))) == {"prediction_error_1", "reward_error_1"} | continues
    with pytest.raises(ConfigError, match="prediction_horizon of phase 'train' must be a whole number >= 1, not 0"):
        evaluate_predictions(exact_model(), walks(), phase(prediction_horizon=0))


def naive_errors(model, batch, context, horizon):
    """Return mean errors by one sequence and one step after the other, without noise and in float64."""
    model, found = copy.deepcopy(model).double(), {}
    rssm, rows = model.rssm, {key: leaf.double() for key, leaf in batch.items()}
    size, length = rows["rewards"].shape
    for b in range(size):
        deter, stoch = torch.zeros(8).double(), torch.zeros(4).double()
        for t in range(min(context + horizon, length)):
            row = {key: leaf[b, t] for key, leaf in rows.items()}
            if row["is_first"]:
                if t >= context:
                    break
                deter, stoch, row["actions"] = deter * 0.0, stoch * 0.0, row["actions"] * 0.0
            deter = gru(rssm.core.cell, joint(rssm.core.input, row["actions"] / 2.0, stoch), deter)
            if t < context:
                token = hidden(model.encoder.vectors, row["observations"])
                stoch, _ = normal(affine(rssm.posterior_output, joint(rssm.posterior_input, token, deter)))
                continue
            stoch, _ = normal(affine(rssm.prior[1], hidden(rssm.prior[0], deter)))
            x, step = torch.cat([deter, stoch]), t - context + 1
            seen = affine(model.decoder.vectors[1], hidden(model.decoder.vectors[0], x))
            reward = affine(model.reward_head.out, hidden(model.reward_head.trunk, x))[0]
            chance = 1.0 / (1.0 + (-affine(model.cont_head.out, hidden(model.cont_head.trunk, x))[0]).exp())
            missed = chance / 0.98 - (1.0 - row["is_terminal"])  # the head learns 0.98 for sure
            errors = {f"prediction_error_{step}": ((seen - row["observations"]) ** 2).mean()}
            errors |= {f"reward_error_{step}": (reward - row["rewards"]) ** 2}
            for name, error in {**errors, "continue_bias": missed, "continue_brier": missed**2}.items():
                found.setdefault(name, []).append(float(error.detach()))
    return {name: sum(errors) / len(errors) for name, errors in found.items()}


def test_errors_of_an_rssm_equal_a_loop_in_float64():
    torch.manual_seed(0)
    model = small_model(cont=True, discount_horizon=50.0)
    model.bind(PLANET_SPEC, "Test")
    model.rssm.latent_space.noise = lambda shape, device: torch.zeros(*shape, 4)
    batch = fixed_batch(4, 9)
    batch["is_first"][2, 5] = batch["is_terminal"][2, 4] = True  # one ends within what is predicted, two before it
    found, expected = values(errors_of(forecast(model, batch, context=3, horizon=5))), naive_errors(model, batch, 3, 5)
    assert {"prediction_error_1", "prediction_error_3", "reward_error_5", "continue_brier"} <= set(found)
    assert found.pop("continue_calibration") >= abs(found["continue_bias"])  # its own test has the numbers
    assert found == pytest.approx({name: expected[name] for name in found}, rel=1e-4, abs=1e-6)


def test_calibration_compares_chances_with_frequencies_bin_by_bin():
    generator = np.random.default_rng(0)
    expected, weights = generator.random((5, 40)), generator.random((5, 40)) < 0.8
    expected[0, :3] = [0.0, 1.0, 0.1]
    true = generator.random((5, 40)) < expected**2  # surer than is right
    total = 0.0
    for low in range(10):
        inside = [i for i in np.ndindex(5, 40) if min(9, int(expected[i] * 10)) == low and weights[i]]
        total += abs(sum(expected[i] - float(true[i]) for i in inside))
    numbers = (torch.tensor(expected).float(), torch.tensor(true).float())
    found = Forecast(2, torch.tensor(weights), {"x": torch.zeros(5, 40)}, torch.zeros(5, 40), numbers, {})
    assert values(errors_of(found))["continue_calibration"] == pytest.approx(total / weights.sum(), rel=1e-4)


def test_plans_gain_over_random_actions_what_the_model_promises_for_them():
    actions = ModelActions(SPEC, "Test")
    pull = torch.tensor([1.0, 3.0])

    def worth(sequences):
        return sequences.sum((0, 3)) * pull.unsqueeze(1)

    torch.manual_seed(0)
    found = values(planning_gain(worth, torch.full((4, 2, 1), 0.5), actions))
    torch.manual_seed(0)
    drawn = actions.random(4 * 2 * 64, torch.device("cpu")).view(4, 2, 64).sum(0).double().numpy()  # [N, 64]
    ahead = (2.0 - drawn) * np.array([[1.0], [3.0]])
    assert found["planning_gain"] == pytest.approx(ahead.mean(), rel=1e-4)
    assert found["planning_wins"] == pytest.approx((ahead > 0).mean())
    assert values(planning_gain(worth, torch.full((4, 2, 1), -1.0), actions))["planning_wins"] == 0.0


def test_recorded_states_are_begun_in():
    model, batch = small_model(), fixed_batch(3, 6)
    model.bind(PLANET_SPEC, "Test")
    model.rssm.latent_space.noise = lambda shape, device: torch.zeros(*shape, 4)
    batch["latent"] = {"deter": torch.randn(3, 6, 8), "stoch": torch.randn(3, 6, 4)}
    seen = model.observe(batch).latents  # by another way: all steps at once
    shown, _ = forecast(model, batch, context=5, horizon=1).shown["vector"]
    torch.testing.assert_close(shown[:5], model.decoder.predict(torch.cat(seen, -1))[:5].detach())


def test_parts_are_reported_apart_and_together():
    torch.manual_seed(0)
    model = small_model()
    space = {"x": Box((3,)), "kind": Discrete(4), "time": Box(())}
    spec = EnvSpec("parts", space, Box((2,), low=-2.0, high=2.0))
    model.bind(spec, "Test")
    batch = fixed_batch(3, 6)
    numbers = torch.arange(18).view(3, 6)
    batch["observations"] = {"x": batch["observations"], "kind": numbers % 4, "time": numbers.float()}
    metrics = evaluate_predictions(model, batch, phase(prediction_context=2, prediction_horizon=2))
    found = values(metrics)
    for step in (1, 2):
        parts = [found[f"prediction_error_{key}_{step}"] for key in space]
        assert found[f"prediction_error_{step}"] == pytest.approx(sum(parts) / 3)
    pictures = [name for name, value in metrics.items() if isinstance(value, Picture)]
    assert pictures == ["open_loop_x", "open_loop_time"]


# Pictures.


def test_a_film_shows_truth_prediction_and_error():
    generator = torch.Generator().manual_seed(0)
    true, expected = (torch.rand(5, 6, 3, 8, 10, generator=generator) for _ in range(2))
    is_known = torch.ones(3, 6, dtype=torch.bool)
    is_known[2, 1] = False
    found = Forecast(2, is_known, {}, torch.zeros(3, 6), None, {"camera": (expected, true)})
    ((name, picture),) = pictures_of(found).items()
    assert name == "open_loop_camera"
    film = picture.pixels
    height, width = 3 * 8 + 2 * GAP + 2 * FRAME, 10 + 2 * FRAME
    assert film.shape == (5, height, 6 * width + 5 * GAP, 3)
    assert [film[t, 0, 0].tolist() for t in range(5)] == [list(SEEN)] * 2 + [list(UNSEEN)] * 3

    def panel(t, row, column):
        top, left = FRAME + row * (8 + GAP), column * (width + GAP) + FRAME
        return film[t, top : top + 8, left : left + 10].permute(2, 0, 1).double().numpy()

    for column in (0, 1):
        wanted, guess = (x[4, column].double().numpy() for x in (true, expected))
        shown = 1.0 if is_known[2, column] else 0.0
        for row, image in enumerate((wanted, shown * guess, shown * (0.5 + (guess - wanted) / 2))):
            np.testing.assert_allclose(panel(4, row, column), 255 * image, atol=0.51)


@pytest.mark.parametrize(("channels", "shown"), [(1, [0, 0, 0]), (2, [1, 1, 1]), (3, [0, 1, 2]), (6, [3, 4, 5])])
def test_of_stacked_pictures_the_last_is_shown(channels, shown):
    images = torch.arange(channels).view(1, channels, 1, 1) / 255.0
    assert _rgb(images.expand(2, -1, 4, 4))[1, 2, 3].tolist() == shown


def test_curves_end_where_the_episode_does():
    batch = walks(size=1, length=9)
    batch["is_first"][0, 6] = True
    picture = pictures_of(forecast(exact_model(), batch, context=3, horizon=9))["open_loop_vector"].pixels
    assert picture.shape == (2 * (CURVE_HEIGHT + 2 * FRAME) + GAP, CURVE_WIDTH + 2 * FRAME, 3)
    picture = picture[:, FRAME:-FRAME]
    is_drawn = (picture == torch.tensor(EXPECTED)).all(-1).any(0)  # on top of the truth, which is the same
    assert bool(is_drawn[: CURVE_WIDTH // 2].all())
    assert not is_drawn[CURVE_WIDTH * 3 // 4 :].any()
