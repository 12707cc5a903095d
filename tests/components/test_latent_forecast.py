"""What a latent model predicts, against loops over sequences and steps in float64."""

import numpy as np
import pytest
import torch

from rl_lab.components.latent_forecast import latent_forecast
from rl_lab.components.prediction import errors_of, evaluate_predictions
from rl_lab.core import Picture
from tests.components.test_latent_model import hidden, linear, naive_encode, naive_next, scrambled, small_model
from tests.components.test_prediction import values
from tests.workflows.off_policy import phase

torch.set_num_threads(1)


def sequences(size=4, length=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    is_first, is_terminal = torch.zeros(2, size, length, dtype=torch.bool)
    is_first[2, 4] = is_terminal[2, 3] = True
    return {
        "observations": torch.randn(size, length, 5, generator=generator),
        "actions": torch.rand(size, length, 2, generator=generator) * 4 - 2,  # bounds are -2 and 2
        "rewards": torch.randn(size, length, generator=generator),
        "is_first": is_first,
        "is_terminal": is_terminal,
    }


def naive_errors(model, batch, horizon):
    """Return mean errors by one sequence and one step after the other."""
    rows, found = {key: leaf.double().numpy() for key, leaf in batch.items()}, {}
    for b in range(len(rows["rewards"])):
        z = naive_encode(model, rows["observations"][b, 0])
        for step in range(1, horizon + 1):
            if rows["is_first"][b, step]:
                break
            action = rows["actions"][b, step] / 2.0
            logits = linear(model.reward_head.out, hidden(model.reward_head.trunk, np.concatenate([z, action])))
            shares = np.exp(logits) / np.exp(logits).sum()
            mean = float((shares * np.linspace(-3, 3, 11)).sum())
            z = naive_next(model, z, action)
            chance = 1.0 / (1.0 + np.exp(-linear(model.cont_head.out, hidden(model.cont_head.trunk, z))[0]))
            missed = chance - (1.0 - rows["is_terminal"][b, step])
            error = ((z - naive_encode(model, rows["observations"][b, step])) ** 2).mean()
            reward = (np.sign(mean) * np.expm1(abs(mean)) - rows["rewards"][b, step]) ** 2
            for name, number in {f"prediction_error_{step}": error, f"reward_error_{step}": reward}.items():
                found.setdefault(name, []).append(number)
            for name, number in {"continue_bias": missed, "continue_brier": missed**2}.items():
                found.setdefault(name, []).append(number)
    return {name: sum(numbers) / len(numbers) for name, numbers in found.items()}


def test_errors_equal_loops():
    model, batch = scrambled(small_model()), sequences()
    found = values(errors_of(latent_forecast(model, batch, context=5, horizon=5)))
    assert found.pop("continue_calibration") >= abs(found["continue_bias"])
    assert set(found) == {f"{name}_error_{step}" for name in ("prediction", "reward") for step in (1, 3, 5)} | {
        "continue_bias",
        "continue_brier",
    }
    expected = naive_errors(model, batch, 5)
    assert found == pytest.approx({name: expected[name] for name in found}, rel=1e-3, abs=1e-6)


def test_without_a_head_nothing_is_said_of_the_end_and_states_are_drawn():
    metrics = evaluate_predictions(small_model(cont=False), sequences(), phase(), latent_forecast)
    assert not any(name.startswith("continue") for name in metrics)
    assert isinstance(metrics["open_loop_latent"], Picture)
    assert "prediction_error_6" in metrics  # as far as the rows go
