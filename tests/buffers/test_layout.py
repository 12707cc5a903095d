import itertools

import pytest
import torch

from rl_lab.buffers.storage.layout import Layout, expected_row
from rl_lab.core import Box, Discrete, EnvSpec, LabError, MultiDiscrete, tree_leaves, tree_map

TREE = {
    "flag": torch.tensor([[True, False, True]]),
    "nested": {"half": torch.arange(6, dtype=torch.float16).view(1, 3, 2), "word": torch.arange(3).view(1, 3)},
    "pair": (torch.arange(12, dtype=torch.uint8).view(1, 3, 2, 2), torch.rand(1, 3)),
    "absent": None,
}


def flat(tree):
    return [leaf for _, leaf in tree_leaves(tree) if leaf is not None]


def test_rows_come_back_as_views_of_the_words():
    layout = Layout.of(TREE)
    assert (
        layout.row_bytes == 8 + 4 + 2 * 2 + 4 + 1 + 3
    )  # one word, one float, two halves, four pixels, a flag, padding
    words = torch.zeros(1, 3, layout.words, dtype=torch.int64)
    layout.write(words, TREE)
    found = layout.read(words)
    assert found["absent"] is None
    for a, b in zip(flat(found), flat(TREE), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
        assert a.untyped_storage().data_ptr() == words.untyped_storage().data_ptr()
    one = layout.read(words[0, 1])
    assert one["nested"]["word"].item() == 1
    assert one["pair"][0].tolist() == [[4, 5], [6, 7]]


def test_types_that_numpy_lacks_are_written_all_the_same():
    tree = {**TREE, "brain": torch.arange(6, dtype=torch.bfloat16).view(1, 3, 2), "more": torch.rand(1, 3, 5)}
    layout = Layout.of(tree)
    words = torch.zeros(1, 3, layout.words, dtype=torch.int64)
    layout.write(words, tree)
    for a, b in zip(flat(layout.read(words)), flat(tree), strict=True):
        assert torch.equal(a, b)
    layout.write(words, {"brain": tree["brain"] + 1}, is_partial=True)
    for a, b in zip(flat(layout.read(words)), flat({**tree, "brain": tree["brain"] + 1}), strict=True):
        assert torch.equal(a, b)


def test_every_field_is_aligned_to_its_own_size():
    for field in Layout.of(TREE).fields:
        assert field.start * field.dtype.itemsize % field.dtype.itemsize == 0
    sizes = sorted((f.start * f.dtype.itemsize, f.numbers * f.dtype.itemsize) for f in Layout.of(TREE).fields)
    assert all(begin + size <= after for (begin, size), (after, _) in itertools.pairwise(sizes))


def test_a_part_of_the_rows_under_another_name():
    layout = Layout.of(TREE)
    words = torch.zeros(1, 3, layout.words, dtype=torch.int64)
    layout.write(words, TREE)
    picked = layout.pick({"nested": "other"}).read(words)
    assert picked.keys() == {"other"}
    assert torch.equal(picked["other"]["half"], TREE["nested"]["half"])


def test_it_survives_as_plain_values():
    layout = Layout.of(TREE)
    again = Layout.from_state(layout.get_state())
    assert again == layout
    assert hash(again) == hash(layout)
    assert again != Layout.of({"flag": TREE["flag"]})


def test_what_does_not_fit_is_named_and_nothing_is_written():
    layout = Layout.of(TREE)
    words = torch.zeros(1, 3, layout.words, dtype=torch.int64)
    flipped = {**TREE, "flag": ~TREE["flag"]}
    wrong_type = flipped | {"pair": (TREE["pair"][0], TREE["pair"][1].double())}
    wrong_shape = flipped | {"nested": {**TREE["nested"], "half": torch.zeros(1, 3, 5, dtype=torch.float16)}}
    for wrong, message in (
        (wrong_type, r"'pair.1' as torch.float64 \[1, 3\] instead of torch.float32 \[1, 3\]"),
        (wrong_shape, r"'nested.half' as torch.float16 \[1, 3, 5\] instead of torch.float16 \[1, 3, 2\]"),
        (flipped | {"new": TREE["flag"]}, "'new', which its first rows had not"),
        ({"flag": flipped["flag"]}, "was not given 'absent'"),
    ):
        with pytest.raises(LabError, match=message):
            layout.write(words, wrong)
        assert (words == 0).all()
    layout.write(words, {"flag": TREE["flag"]}, is_partial=True)
    assert torch.equal(layout.read(words)["flag"], TREE["flag"])


def test_an_expected_row_is_what_the_collector_records():
    spec = EnvSpec("x", {"camera": Box((3, 8, 8), torch.uint8), "mode": Discrete(3)}, MultiDiscrete((2, 3)))
    row = expected_row(spec)
    shapes = tree_map(lambda leaf: (tuple(leaf.shape), leaf.dtype), row)
    flag, obs = ((1, 1), torch.bool), {"camera": ((1, 1, 3, 8, 8), torch.uint8), "mode": ((1, 1), torch.int64)}
    assert shapes == {
        "observations": obs,
        "actions": ((1, 1, 2), torch.int64),
        "rewards": ((1, 1), torch.float32),
        "terminated": flag,
        "truncated": flag,
        "final_observations": obs,
        "is_first": flag,
    }
