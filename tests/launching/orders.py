"""Orders as `lab launch` would make them, without composing anything."""

from pathlib import Path

from rl_lab.launching.order import Order

PROJECT = Path("/home/me/project")
TRAIN = ("train", "--run-dir", "experiments/mine", "--", "+experiment=sac_pendulum", "experiment.tags=[a b,'c']")
SWEEP = ("sweep", "--dir", "experiments/mine", "--", "sweeps/a.yaml")


def order(*tasks, words=None, resumed=None, project=PROJECT):
    tasks = tasks or (TRAIN,)
    return Order("mine", words or tasks[0], tasks, "experiments/mine", project, project / "launches/mine", resumed)


def seeds(count):
    """Return the order of one run per seed."""
    tasks = [
        ("train", "--run-dir", f"experiments/mine/seed_{seed}", "--", "+experiment=x", f"experiment.seed={seed}")
        for seed in range(1, count + 1)
    ]
    return order(*tasks, words=("train", "--seed", "1,2", "--", "+experiment=x", "experiment.root=experiments"))
