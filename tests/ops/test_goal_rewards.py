import torch

from rl_lab.ops.goal_rewards import DenseDistance, SparseDistance, distance

ACHIEVED = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.3, 0.4], [1.0, 1.0]])
DESIRED = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.75]])


def test_distances_are_euclidean():
    torch.testing.assert_close(distance(ACHIEVED, DESIRED), torch.tensor([0.0, 5.0, 0.5, 0.75]))


def test_sparse_rewards_change_at_the_threshold():
    assert SparseDistance(0.75)(ACHIEVED, DESIRED).tolist() == [0.0, -1.0, 0.0, 0.0]
    assert SparseDistance(0.6, reached=1.0, missed=0.0)(ACHIEVED, DESIRED).tolist() == [1.0, 0.0, 1.0, 0.0]
    assert SparseDistance(0.1)(ACHIEVED, DESIRED).dtype == torch.float32


def test_dense_rewards_fall_with_the_distance():
    torch.testing.assert_close(DenseDistance()(ACHIEVED, DESIRED), torch.tensor([0.0, -5.0, -0.5, -0.75]))
    torch.testing.assert_close(DenseDistance(2.0)(ACHIEVED, DESIRED), torch.tensor([0.0, -10.0, -1.0, -1.5]))
