"""Episodes of every kind of array, and how to compare two."""

import numpy as np

from rl_lab.buffers.datasets.format import Episode, named


def make_episode(number=0, steps=5, *, truncated=False, plain=False, task="push the block"):
    """Return an episode whose numbers tell which one it is and at which step they were seen."""
    rng = np.random.default_rng(number)
    slope = np.add.outer(10 * np.arange(3), np.add.outer(np.arange(16), np.arange(16)))  # [C, H, W]
    observations = {
        "state": rng.normal(size=(steps + 1, 4)).astype(np.float32),
        "one": rng.normal(size=(steps + 1, 1)).astype(np.float32),
        "grid": rng.normal(size=(steps + 1, 2, 3)),
        "flags": rng.random((steps + 1, 2, 2, 2)) < 0.5,
        "cube": rng.integers(0, 255, (steps + 1, 2, 3, 1, 2), dtype=np.uint8),
        "camera": np.stack([slope + 20 * number + 6 * t for t in range(steps + 1)]).astype(np.uint8),
    }
    if plain:
        observations = observations["state"]
    return Episode(
        observations=each(observations, lambda array: array[:-1]),
        actions=rng.normal(size=(steps, 2)).astype(np.float32),
        rewards=rng.normal(size=steps).astype(np.float32),
        terminated=not truncated,
        truncated=truncated,
        final_observation=each(observations, lambda array: array[-1]),
        infos={"is_intervention": rng.random(steps) < 0.5, "force": rng.normal(size=(steps, 3))},
        task=task,
    )


def each(tree, function):
    return {key: function(array) for key, array in tree.items()} if isinstance(tree, dict) else function(tree)


def assert_same_episode(found, wanted, *, final=True, lossy=()):
    """Compare everything bit for bit, types included; pictures named in `lossy` up to the noise of a codec."""
    assert found.fields() == wanted.fields()
    for name, array in wanted.arrays().items():
        if name in lossy:
            assert np.abs(found.arrays()[name].astype(int) - array).mean((1, 2, 3)).max() <= 1.5, name  # next frame: 6
        else:
            np.testing.assert_array_equal(found.arrays()[name], array, err_msg=name)
    ends = [(e.terminated, e.truncated, e.task) for e in (found, wanted)]
    assert ends[0] == ends[1]
    assert found.has_final_observation == final
    if final:
        for name, array in named(wanted.final_observation).items():
            np.testing.assert_array_equal(named(found.final_observation)[name], array)
