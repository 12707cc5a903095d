import json

import pytest
import torch

from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.schema import DTYPES, Schema
from tests.distributed.transport.steps import SCHEMA, number_of, step


def test_a_step_is_its_arrays_bytes_the_widest_first():
    schema = Schema({"b": torch.zeros(2, dtype=torch.uint8), "a": torch.zeros(1, dtype=torch.float64)})
    made = schema.encode({"b": torch.tensor([1, 2], dtype=torch.uint8), "a": torch.tensor([1.0], dtype=torch.float64)})
    assert made == bytes.fromhex("000000000000f03f") + b"\1\2"


def test_every_type_and_kind_of_tree_comes_back():
    generator = torch.Generator().manual_seed(0)
    tree = {name: torch.randint(0, 2, (3, 2), generator=generator).to(dtype) for name, dtype in DTYPES.items()}
    tree |= {"nested": ({"empty": torch.zeros(0, 4), "scalar": torch.tensor(1.5)}, None)}
    found = Schema(tree).decode(Schema(tree).encode(tree))
    assert all(torch.equal(found[name], tree[name]) and found[name].dtype == tree[name].dtype for name in DTYPES)
    assert found["nested"][0]["empty"].shape == (0, 4)
    assert found["nested"][0]["scalar"] == 1.5
    assert found["nested"][1] is None


def test_views_and_gradients_are_sent_as_their_numbers():
    schema = Schema({"x": torch.zeros(2, 3)})
    strided = torch.arange(6.0, requires_grad=True).reshape(3, 2).T
    assert torch.equal(schema.decode(schema.encode({"x": strided}))["x"], strided)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": torch.zeros(2, 2)}, r"actions of a step is float32 \[2, 2\] instead of actions: int64 \[2, 2\]"),
        ({"rewards": torch.zeros(3)}, r"rewards of a step is float32 \[3\] instead of rewards: float32 \[2\]"),
        ({"rewards": [0.0, 1.0]}, "6 arrays instead of 5"),
        ({"rewards": 1.0}, "rewards of a step is float instead"),
    ],
)
def test_a_step_of_another_kind_is_refused_by_name(change, message):
    with pytest.raises(TransportError, match=message):
        SCHEMA.encode(step(1) | change)


def test_only_allowed_types_are_in_a_schema():
    for leaf in (torch.zeros(2, dtype=torch.complex64), "text", 3):
        with pytest.raises(TransportError, match="only tensors of bool, uint8"):
            Schema({"x": leaf})


def test_bytes_that_are_no_step_are_refused():
    data = SCHEMA.encode(step(1))
    for wrong in (b"", data[:-1], data + b"\0"):
        with pytest.raises(TransportError, match="bytes instead of"):
            SCHEMA.decode(wrong)
    with pytest.raises(TransportError, match="neither true nor false"):
        SCHEMA.decode(data[:-1] + b"\2")
    assert number_of(SCHEMA.decode(data)) == 1


def test_a_difference_names_the_arrays():
    other = Schema(step(0) | {"rewards": torch.zeros(3), "extra": torch.zeros(1)})
    assert SCHEMA.difference(other.text) == (
        "extra is float32 [1] there and missing here; rewards is float32 [3] there and float32 [2] here"
    )
    assert other.sha256 != SCHEMA.sha256 == Schema(step(5)).sha256


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[1]", '{"a": 1}', '[["a", "object", []]]', '[["a", "bool", "x"]]', "[" * 5000, "9" * 70_000,
     json.dumps([["a", "bool", [1e400]]])],
)  # fmt: skip
def test_a_hostile_schema_is_refused(text):
    with pytest.raises(TransportError, match="cannot be read"):
        SCHEMA.difference(text)
