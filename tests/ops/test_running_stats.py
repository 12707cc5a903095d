import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_lab.ops.running_stats import Moments, batch_moments, merged_moments


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_merging_batches_equals_the_moments_of_all_samples(sizes, seed):
    data = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 5 + 100
    moments = Moments(torch.zeros(3).double(), torch.ones(3).double(), torch.zeros(()).double())
    for batch in data.split(sizes):
        moments = merged_moments(moments, batch_moments(batch, moments.num_samples))
    torch.testing.assert_close(moments.mean, data.mean(0))
    torch.testing.assert_close(moments.var, data.var(0, correction=0))
    assert moments.num_samples == sum(sizes)
