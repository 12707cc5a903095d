from hypothesis import given
from hypothesis import strategies as st

from rl_lab.core import Every, Once, Ratio


@given(st.integers(1, 20), st.lists(st.integers(0, 30), max_size=40))
def test_every_fires_once_per_passed_multiple_and_never_at_zero(interval, jumps):
    clock, counter, last_fired = Every(interval), 0, 0
    for jump in jumps:
        counter += jump
        passed = any(n % interval == 0 for n in range(last_fired + 1, counter + 1))
        assert clock.until_due(counter) == (0 if passed else interval - counter % interval)
        assert clock.is_due(counter) == passed
        assert clock(counter) == passed
        assert not clock(counter)
        last_fired = counter


@given(st.sampled_from([0.1, 0.25, 1, 3.5]), st.lists(st.integers(0, 30), max_size=40))
def test_ratio_pays_exactly(ratio, steps):
    clock = Ratio(ratio)
    total = sum(clock(count) for count in steps)
    assert total == sum(steps) * round(ratio * 100) // 100


def test_once():
    clock = Once()
    assert [clock(), clock(), clock()] == [True, False, False]
