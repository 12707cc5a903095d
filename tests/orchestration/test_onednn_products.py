"""Matrix products of compiled functions: whose they are, and that they are the same products."""

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from rl_lab.core import CheckpointError
from rl_lab.orchestration import static_step
from rl_lab.orchestration.static_step import StaticSteps, choose_products

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
CALL = "torch.ops.rl_lab.product.default("
TOLERANCE = 2e-4  # of sums of 256 products of normal numbers in float32


@pytest.fixture
def steps():
    compiled = StaticSteps("compiled")
    compiled.set_state({"execution": "compiled", "fuses": None, "products": "onednn"})
    return compiled


def calls_of(function, *args):
    """Return what the compiled function returns, and how many products its code asks oneDNN for."""
    with torch._inductor.config.patch(fx_graph_cache=False):
        result, code = run_and_get_code(function, *args)
    return result, sum(text.count(CALL) for text in code)


@pytest.mark.parametrize(
    ("vendor", "width", "has_mkl", "expected"),
    [
        ("AuthenticAMD", "AVX512", True, "onednn"),
        ("AuthenticAMD", "AVX2", True, "torch"),
        ("AuthenticAMD", "AVX512", False, "torch"),
        ("GenuineIntel", "AVX512", True, "torch"),
        (None, "AVX512", True, "torch"),
    ],
)
def test_the_choice(vendor, width, has_mkl, expected, tmp_path, monkeypatch):
    if vendor is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    monkeypatch.setattr(static_step, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: width)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert choose_products() == expected


def test_a_checkpoint_keeps_its_library(monkeypatch):
    monkeypatch.setattr(static_step, "choose_products", lambda: "onednn")
    before, after = StaticSteps("eager"), StaticSteps("eager")
    assert before.get_state()["products"] == "onednn"
    after.set_state({"execution": "eager", "fuses": None, "products": "torch"})
    assert after.get_state()["products"] == "torch"
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(CheckpointError, match="matrix products of oneDNN, which this torch lacks"):
        after.set_state(before.get_state())
    assert after.get_state()["products"] == "torch"


@needs_onednn
@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda a, b: a @ b, [(128, 256), (256, 64)], 1),
        (lambda a, b: a.t() @ b, [(256, 128), (256, 64)], 1),
        (lambda a, b: a @ b.t(), [(128, 256), (64, 256)], 1),
        (lambda a, b: a.t() @ b.t(), [(256, 128), (64, 256)], 1),
        (torch.nn.functional.linear, [(128, 256), (64, 256), (64,)], 1),
        (lambda a, b: a @ b, [(3, 128, 256), (3, 256, 64)], 3),
        (lambda a, b: a.mT @ b, [(3, 256, 128), (3, 256, 64)], 3),
        (lambda a, b: a @ b.mT, [(3, 128, 256), (3, 64, 256)], 3),
        (torch.baddbmm, [(3, 1, 64), (3, 128, 256), (3, 256, 64)], 3),
        (lambda a, b: (a @ b, torch.addmm(a[:, :64], a, b, beta=2)), [(128, 256), (256, 64)], 1),
        (lambda a, b: a @ b, [(64, 64), (64, 64)], 0),
        (lambda a, b: a @ b, [(128, 4), (4, 256)], 0),
    ],
)
def test_products_are_those_of_float64(steps, function, shapes, expected):
    args = [torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) for shape in shapes]
    result, count = calls_of(steps(function), *args)
    assert count == expected
    exact = function(*[one.double() for one in args])
    torch.testing.assert_close(result, exact, atol=TOLERANCE, rtol=0.0, check_dtype=False)


@needs_onednn
def test_other_numbers_than_float32_stay_with_torch(steps):
    args = [torch.randn(256, 256, dtype=torch.float64) for _ in range(2)]
    result, count = calls_of(steps(lambda a, b: a @ b), *args)
    assert count == 0
    assert torch.equal(result, args[0] @ args[1])


@needs_onednn
def test_gradients_go_through_them_and_repeat_to_the_bit(steps):
    layer = torch.nn.Linear(256, 256)
    batch = torch.randn(256, 256)

    def learn(x):
        loss = layer(x).square().mean()
        return torch.autograd.grad(loss, list(layer.parameters()))

    learn_fast = steps(learn)
    (weight, bias), count = calls_of(learn_fast, batch)
    assert count == 2  # forward, and the gradient of the weights
    for got, expected in zip((weight, bias), learn(batch), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-4)
    again = learn_fast(batch)
    assert torch.equal(again[0], weight)
    assert torch.equal(again[1], bias)
