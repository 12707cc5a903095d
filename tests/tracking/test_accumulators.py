import math

import pytest
import torch

from rl_lab.core import Mean
from rl_lab.tracking.accumulators import Accumulators


def test_means_by_hand():
    sums = Accumulators()
    assert not sums
    sums.add("train", {"loss": torch.tensor(1.0), "lr": 0.5, "kl": Mean(torch.tensor(6.0), torch.tensor(2))})
    sums.add("train", {"loss": torch.tensor(4.0), "lr": 1, "kl": Mean(3.0, 1.0)})
    sums.add("collect", {"return": Mean(0.0, 0.0), "late": Mean(torch.tensor(0.0), torch.tensor(0))})
    assert sums
    # (1 + 4) / 2, (0.5 + 1) / 2, (6 + 3) / (2 + 1); what has no weight is left out
    assert sums.means() == {"train/kl": 3.0, "train/loss": 2.5, "train/lr": 0.75}
    assert not sums
    assert sums.means() == {}


def test_many_small_values_are_summed_in_double():
    sums, naive = Accumulators(), 0.0
    for value in torch.rand(2000, generator=torch.Generator().manual_seed(0)):
        sums.add("g", {"x": value})
        naive += value.item()
    assert sums.means()["g/x"] == naive / 2000


def test_kinds_may_change_from_call_to_call():
    sums = Accumulators()
    sums.add("g", {"x": 1.0})
    sums.add("g", {"x": torch.tensor([2])})
    sums.add("g", {"x": 3.0})
    sums.add("g", {"x": torch.tensor(True)})
    assert sums.means() == {"g/x": 1.75}


def test_caller_may_be_in_any_mode_and_its_tensors_are_not_touched():
    sums, value = Accumulators(), torch.ones((), dtype=torch.float64, requires_grad=True)
    with torch.inference_mode():
        made = torch.tensor(2.0)
        sums.add("g", {"x": made})
    sums.add("g", {"x": made})
    sums.add("g", {"x": value})
    sums.add("g", {"x": value})
    assert value.item() == 1.0
    assert sums.means() == {"g/x": 1.5}


def test_nan_and_infinity_stay():
    sums = Accumulators()
    sums.add("g", {"a": math.nan, "b": torch.tensor(math.inf)})
    means = sums.means()
    assert math.isnan(means["g/a"])
    assert means["g/b"] == math.inf


def test_only_single_numbers():
    with pytest.raises(ValueError, match=r"'train/loss' has shape \(3,\)"):
        Accumulators().add("train", {"loss": torch.zeros(3)})


def test_state_is_a_copy_and_exact():
    sums = Accumulators()
    sums.add("g", {"x": torch.tensor(0.1), "y": 0.2})
    state = sums.get_state()
    sums.add("g", {"x": torch.tensor(0.7), "y": 0.7})
    again = Accumulators()
    again.set_state(state)
    again.add("g", {"x": torch.tensor(0.7), "y": 0.7})
    assert again.means() == sums.means()
    assert state["g/x"][0].item() == torch.tensor(0.1).double().item()


def test_sums_move_to_the_device_of_the_next_value():
    """The meta device stands for an accelerator: a value on it joins a sum restored on the CPU."""
    sums = Accumulators()
    sums.set_state({"g/x": (torch.tensor(1.0, dtype=torch.float64), 1.0)})
    sums.add("g", {"x": torch.zeros((), device="meta")})
    total, weight = sums._sums["g/x"]
    assert (total.device.type, total.dtype, weight) == ("meta", torch.float32, 2.0)


def test_means_so_far_change_nothing():
    sums, looked_at = Accumulators(), Accumulators()
    for step in range(3):
        for each in (sums, looked_at):
            each.add("train", {"b": torch.tensor(0.1 * step), "a": Mean(3.0, 2.0), "none": Mean(0.0, 0.0)})
        assert looked_at.so_far() == {"train/b": pytest.approx(0.05 * step), "train/a": 1.5}
        assert list(looked_at.so_far()) == ["train/b", "train/a"]  # as they came in
    assert looked_at.get_state() == sums.get_state()
    assert looked_at.means() == sums.means()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_means_so_far_change_nothing_on_a_gpu():
    sums, looked_at = Accumulators(), Accumulators()
    values = torch.rand(50, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    for step, value in enumerate(values):
        for each in (sums, looked_at):
            each.add("train", {"x": value, "y": Mean(value, torch.ones((), device="cuda"))})
        if step % 7 == 0:
            looked_at.so_far()
    assert looked_at.means() == sums.means()
