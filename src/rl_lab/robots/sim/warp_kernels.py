"""What the warp backend does to its arrays besides physics."""

# mypy: disable-error-code="index,attr-defined"
# (kernels are compiled by warp: its array types are not what Python's type checker takes them for)

import warp as wp

HUGE = wp.constant(1e10)  # what MuJoCo itself calls a bad number


@wp.kernel
def keep_rows(source: wp.array2d[float], is_bad: wp.array[int], kept: wp.array2d[float]) -> None:
    """Copy the rows of worlds that are still finite."""
    world, column = wp.tid()
    if is_bad[world] == 0:
        kept[world, column] = source[world, column]


@wp.kernel
def watch(
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    overflow: wp.array[int],
    harmful: int,
    is_bad: wp.array[int],
    lost: wp.array[int],
) -> None:
    """Note the worlds that are not finite or lost contacts."""
    world = wp.tid()
    for i in range(qpos.shape[1]):
        if not (wp.abs(qpos[world, i]) < HUGE):
            is_bad[world] = 1
    for i in range(qvel.shape[1]):
        if not (wp.abs(qvel[world, i]) < HUGE):
            is_bad[world] = 1
    lost[world] = lost[world] | (overflow[world] & harmful)


@wp.kernel
def restore_columns(columns: wp.array[int], kept: wp.array2d[float], target: wp.array2d[float]) -> None:
    """Copy some columns back."""
    world, i = wp.tid()
    target[world, columns[i]] = kept[world, columns[i]]
