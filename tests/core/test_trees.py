import torch

from rl_lab.core import tree_cat, tree_leaves, tree_map, tree_stack, tree_where

TREE = {"a": torch.tensor([1.0, 2.0]), "b": (torch.tensor([[3.0], [4.0]]), None), "c": [torch.tensor([5, 6])]}


def test_map_keeps_the_shape_of_the_tree():
    doubled = tree_map(lambda a, b: a + b, TREE, TREE)
    assert doubled["a"].tolist() == [2, 4]
    assert isinstance(doubled["b"], tuple)
    assert doubled["b"][1] is None
    assert doubled["c"][0].tolist() == [10, 12]


def test_stack_and_cat():
    stacked = tree_stack([TREE, TREE, TREE])
    assert stacked["b"][0].shape == (3, 2, 1)
    assert tree_cat([stacked, stacked])["a"].shape == (6, 2)
    assert tree_cat([stacked])["a"] is stacked["a"]


def test_where_picks_rows():
    zeros = tree_map(torch.zeros_like, TREE)
    picked = tree_where(torch.tensor([True, False]), TREE, zeros)
    assert picked["a"].tolist() == [1, 0]
    assert picked["b"][0].tolist() == [[3], [0]]


def test_leaves_have_paths():
    assert [path for path, _ in tree_leaves(TREE)] == ["a", "b.0", "b.1", "c.0"]
