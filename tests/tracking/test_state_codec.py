import json
import math
from collections import OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_lab.tracking.state_codec import decode, encode
from rl_lab.tracking.tensor_file import read_tensors, write_tensors
from tracking.trees import assert_same

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8, torch.int16),
    *(torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


def through_files(tree, folder):
    tensors, structure = encode(tree)
    write_tensors(folder / "t.safetensors", tensors)
    return decode(json.loads(json.dumps(structure, allow_nan=False)), read_tensors(folder / "t.safetensors"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_tensor_type_comes_back_to_the_bit(dtype, tmp_path):
    values = torch.tensor([[0, 1, 2], [3, 1, 0]], dtype=torch.float32).to(dtype)
    tree = {"matrix": values, "scalar": values[1, 0], "empty": values[:, :0], "column": values.t()[1:]}
    assert_same(tree, through_files(tree, tmp_path))


def test_scalars_and_containers_keep_type_and_order(tmp_path):
    tree = {
        "z": [1, (2, [], ()), {}],
        "a": {"big": -(2**200), "word": 2**128 - 1, "edge": [2**63 - 1, -(2**63), 2**63], "huge": 7**9000},
        "floats": [0.1, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.0],
        "other": (True, False, None, "", "ünï\ud800", "nan"),
        "__metadata__": torch.ones(1),
    }
    assert_same(tree, through_files(tree, tmp_path))


def test_dotted_keys_do_not_collide(tmp_path):
    tree = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, "a\ud800": torch.full((1,), 2.0)}
    assert_same(tree, through_files(tree, tmp_path))
    assert_same(torch.ones(2), through_files(torch.ones(2), tmp_path))


def test_aliased_and_special_tensors(tmp_path):
    base = torch.arange(6.0)
    with torch.inference_mode():
        made_in_inference = torch.ones(3) * 2
    tree = {"a": base, "same": base, "view": base[2:4], "expanded": torch.ones(1).expand(4), "i": made_in_inference}
    tree["grad"] = torch.nn.Parameter(torch.ones(2))
    tree["conj"] = torch.tensor([1 + 2j]).conj()
    back = through_files(tree, tmp_path)
    tree["grad"] = tree["grad"].detach()
    assert_same(tree, back)
    back["a"][0] = 99.0  # memory of its own
    assert back["same"][0] == 0.0
    assert back["view"].untyped_storage().nbytes() == 8


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.array(3.5),
        np.zeros((0, 4), np.int16),
        np.array([True, False]),
        np.array([1, 2], ">i4"),
        np.array(["ab", "c"]),
        np.array([b"x"]),
        np.array([1 + 2j]),
        np.array(["2026-01-01"], "datetime64[D]"),
        np.frombuffer(b"\x01\x02", np.uint8),  # read-only
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_numpy_arrays_come_back_as_writable_numpy(array, tmp_path):
    back = through_files({"x": array}, tmp_path)["x"]
    assert_same(array, back)
    assert back.flags.writeable
    assert back.flags.owndata


def test_mappings_become_dicts():
    tensors, structure = encode(torch.nn.Linear(2, 1).state_dict())
    back = decode(structure, tensors)
    assert type(back) is dict
    assert list(back) == ["weight", "bias"]


Point = namedtuple("Point", "x")


@pytest.mark.parametrize(
    ("leaf", "word"),
    [
        (np.float64(1), "numpy.float64"),
        (np.int64(1), "numpy.int64"),
        (np.bool_(True), "numpy.bool"),
        (Path("x"), "pathlib"),
        ({1, 2}, "set"),
        (b"x", "bytes"),
        (Point(1), "Point"),
        (torch.Size([1]), "torch.Size"),
        (torch.float32, "torch.dtype"),
        (object(), "object"),
        (np.array([object()]), "object"),
        (np.zeros(1, [("a", "i4")]), "numpy array"),
        (torch.zeros(2).to_sparse(), "sparse"),
        (torch.zeros(2, device="meta"), "meta"),
    ],
    ids=lambda v: str(v)[:20],
)
def test_other_leaves_are_refused_with_their_path(leaf, word):
    with pytest.raises(TypeError, match=rf"outer\.1\.inner.*{word}") as caught:
        encode({"outer": [0, {"inner": leaf}]})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", [1, None, ("a",), np.str_("x")])
def test_keys_must_be_strings(key):
    with pytest.raises(TypeError, match=r"'optimizers.state' has the key"):
        encode({"optimizers": OrderedDict(state={key: 1})})


@pytest.mark.parametrize(
    "structure",
    [
        ["unknown", 1],
        ["tensor", "missing"],
        ["array", "x", "|O", [1]],
        ["array", "x", "f4, (", [1]],
        ["array", "x", "<f4", [1000]],
        ["array", "x", "<f4", [1]],
        ["bytes", "x", "load", [1]],
        ["bytes", "x", "complex64", [5]],
        ["tuple", None],
        ["list"],
        ["dict", []],
        ["float", "1+"],
        {"a": 1},
    ],
)
def test_decode_refuses_what_it_never_wrote(structure):
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError, RuntimeError)):
        decode(structure, {"x": torch.zeros(8, dtype=torch.uint8)})


def test_the_file_is_what_the_official_library_reads(tmp_path):
    tensors = {"b": torch.arange(3, dtype=torch.uint8), "w": torch.randn(2, 3, dtype=torch.float64), "e": torch.ones(0)}
    sha256, size = write_tensors(tmp_path / "x.safetensors", tensors)
    content = (tmp_path / "x.safetensors").read_bytes()
    import hashlib

    assert (hashlib.sha256(content).hexdigest(), len(content)) == (sha256, size)
    back = safetensors.torch.load_file(tmp_path / "x.safetensors")
    assert_same(dict(sorted(tensors.items())), dict(sorted(back.items())))


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
TREES = st.recursive(
    LEAVES,
    lambda part: (
        st.lists(part, max_size=3)
        | st.dictionaries(st.text(max_size=3), part, max_size=3)
        | st.lists(part, max_size=3).map(tuple)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(TREES)
def test_any_tree_survives_json(tree):
    tensors, structure = encode(tree)
    assert_same(tree, decode(json.loads(json.dumps(structure, allow_nan=False)), tensors))
