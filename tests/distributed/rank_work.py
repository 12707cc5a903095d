"""What two ranks do in processes of their own, and what one process does with the data of both."""

import os
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from rl_lab.components.discriminator import Discriminator
from rl_lab.components.mlp import MLP
from rl_lab.components.normalizer import RewardScaler, RunningNormalizer, normalized_over
from rl_lab.components.q_ensemble import ValueScale
from rl_lab.components.return_scale import ReturnScale
from rl_lab.components.rnd import RND
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import Box, Discrete, EnvSpec, Phase, tree_map
from rl_lab.core.ranks import ALONE
from rl_lab.distributed.process_group import process_group
from rl_lab.environments.pendulum import Pendulum
from rl_lab.orchestration.hand_off import whole_weights
from rl_lab.workflows.dqn import DQN
from rl_lab.workflows.ppo import PPO
from rl_lab.workflows.ppo_amp import PPOAMP
from rl_lab.workflows.rlpd import RLPD
from rl_lab.workflows.sac import SAC
from rl_lab.workflows.td3 import TD3
from tests.lab_process import run_lab
from tests.workflows.off_policy import networks, random_batch, start
from tests.workflows.off_policy import phase as off_policy_phase
from tests.workflows.parts import collect, make_collector, make_ppo, phase

SIZE, NUM_ENVS, STEPS, ROWS, UPDATES = 2, 6, 16, 32, 3
STEERED = {"learning_rate_schedule": "kl_adaptive", "target_kl": 0.02, "desired_kl": 1e-4}
NORMALISED = {"normalize_observations": True, "normalize_rewards": True, "max_grad_norm": 0.1}
PPOS = {
    "paired": {"num_minibatches": 1, **STEERED, **NORMALISED},
    "minibatches": {"num_minibatches": 3, "entropy_coef": 0.01},
    "whole_batch": {"num_minibatches": 3, "normalize_advantages": "batch", **STEERED},
    "flat": {"num_minibatches": 1, **NORMALISED},  # with an extension, so that autograd is needed
}
CONTINUOUS = EnvSpec("made-up", Box((3,)), Box((2,), low=-2.0, high=2.0))
CHOICES = EnvSpec("made-up", Box((3,)), Discrete(4))
OFF_POLICY = {
    "rlpd": (RLPD, CONTINUOUS, {"normalize_observations": True, "subset_size": None}),
    "sac": (SAC, CONTINUOUS, {"normalize_observations": True, "max_grad_norm": 0.5}),
    "sac_discrete": (SAC, CHOICES, {}),
    "sac_weighted": (SAC, CHOICES, {}),
    "td3": (TD3, CONTINUOUS, {"policy_delay": 2}),
    "dqn_weighted": (DQN, CHOICES, {"max_grad_norm": 0.5}),
}


# Adam with a small eps blows up rounding errors of gradients that are almost 0; what is learned is to be seen
def calm(*names, **options):
    values = {"eps": 0.1, "lr": 0.05, **options}
    return [f"++optimizers.{name}.{key}={value}" for name in names for key, value in values.items()]


CALM = calm("policy")
AT_ONCE = "algorithm.warmup_updates=0"
FILED = [  # demonstrations that lie in files
    "environment=multigoal",
    "buffers.demonstrations.path=packaged/two_roads",
    "training.teacher=null",
    "training.phases=[{name: imitate, buffer: demonstrations, duration_updates: 4, workflow_hooks: [update_policy]}]",
]
SFT = [  # of a VLA
    "+experiment=sft_insertion",
    "buffer@buffers.demonstrations=demonstrations",
    "~buffers.demonstrations.task",
    *FILED,
]
HIORS = [
    "+experiment=hiors_insertion",
    "algorithm.prediction_horizon=4",
    "algorithm.action_horizon=2",
    "+buffer@buffers.demonstrations=demonstrations",
    "~buffers.accepted",
    "training.operator=null",
    *FILED,
]
SHARDED = ["algorithm.shard_weights=true", "algorithm.average_power=null"]
PACKAGED = {
    "dreamer": (["+experiment=dreamer_cartpole", *calm("world_model", "actor", "critic", warmup=0)], "update_agent"),
    "tdmpc": (["+experiment=tdmpc2_pendulum_tensor", "components.critic.dropout=0"], "update_agent"),
    "diffusion": (["+experiment=diffusion_two_roads", *CALM, AT_ONCE], "update_policy"),
    "diffusion_masked": (
        ["+experiment=diffusion_two_roads", *CALM, AT_ONCE, "algorithm.mask_padding=true"],
        "update_policy",
    ),
    "cloning": (["+experiment=bc_pusht", *CALM], "update_policy"),
    "rejection": ([*HIORS, *CALM, AT_ONCE], "update_policy"),
    "tuning": ([*SFT, *CALM, AT_ONCE, "algorithm.accumulation=2"], "update_policy"),
    "sharded": ([*SFT, *CALM, AT_ONCE, "algorithm.accumulation=2", *SHARDED], "update_policy"),
}


class WithShuffles(PPO):
    """One process that forms the minibatches which ranks with these seeds form together."""

    def _minibatches(self, rollout):
        own = STEPS * NUM_ENVS
        size = -(-own // self.num_minibatches)
        orders = [torch.randperm(own, generator=generator) for generator in self.generators]
        rows = [order // NUM_ENVS * SIZE * NUM_ENVS + order % NUM_ENVS + r * NUM_ENVS for r, order in enumerate(orders)]
        for begin in range(0, own, size):
            chosen = self.networks.native(torch.cat([each[begin : begin + size] for each in rows]))
            minibatch = tree_map(lambda x, chosen=chosen: x[chosen], rollout)
            if self.normalize_advantages == "minibatch":
                minibatch["advantages"] = normalized_over(ALONE, minibatch["advantages"])
            yield minibatch


def generators():
    return [torch.Generator().manual_seed(100 + rank) for rank in range(SIZE)]


@contextmanager
def noise_of_ranks():
    """Let one process draw for a batch what the ranks draw for their parts of it."""
    original, streams = torch.randn_like, generators()

    def drawn(x):
        parts = zip(x.chunk(SIZE), streams, strict=True)
        return torch.cat([torch.randn(part.shape, generator=stream) for part, stream in parts])

    torch.randn_like = drawn
    try:
        yield
    finally:
        torch.randn_like = original


def rollouts():
    """Return rollouts of a fixed policy in all environments."""
    collector = make_collector(Pendulum(SIZE * NUM_ENVS, max_episode_steps=11))
    policy = make_ppo(collector.env.spec, num_envs=SIZE * NUM_ENVS, seed=5)
    return collector.env.spec, [collect(collector, policy, STEPS) for _ in range(UPDATES)]


def train_ppo(name, ranks=ALONE):
    """Return what the updates on the rollouts lead to: of a rank's columns, or of all."""
    spec, batches = rollouts()
    own = SIZE * NUM_ENVS // ranks.size
    options = {"num_envs": own, "num_epochs": 3, "lr": 3e-3, **PPOS[name]}
    extensions = {"rnd": RND(num_minibatches=1)} if name == "flat" else {}
    kind = WithShuffles if ranks.size == 1 and name != "flat" else PPO
    workflow = make_ppo(spec, workflow_class=kind, extensions=extensions, ranks=ranks, **options)
    workflow.generators = generators()
    torch.manual_seed(100 + ranks.rank)
    part = slice(ranks.rank * own, (ranks.rank + 1) * own)
    metrics = [workflow.update_policy(tree_map(lambda x: x[:, part], b), phase=phase()) for b in batches]
    return {**workflow.state_dict(), "grad_norm": metrics[-1]["grad_norm"], "rate": metrics[-1]["learning_rate"]}


class Motions:
    """Reference steps, of which a rank sees its part."""

    def __init__(self, ranks):
        generator = torch.Generator().manual_seed(9)
        self.ranks, self.batches = ranks, [torch.randn(2, SIZE * ROWS, 3, generator=generator) for _ in range(UPDATES)]

    def sample(self):
        here, there = self.batches.pop(0).chunk(self.ranks.size, 1)[self.ranks.rank]
        return {"observations": here, "next_observations": there}


@contextmanager
def draws_of_ranks(ranks):
    """Let one process draw from its replay what the ranks draw from theirs, whose columns it has side by side."""
    original, streams = torch.randint, generators()

    def drawn(high, shape, device=None):
        if ranks.size > 1:
            return original(high, shape, generator=streams[ranks.rank])
        own = [original(high // SIZE, (shape[0] // SIZE,), generator=stream) for stream in streams]
        return torch.cat(
            [row // NUM_ENVS * SIZE * NUM_ENVS + row % NUM_ENVS + r * NUM_ENVS for r, row in enumerate(own)]
        )

    torch.randint = drawn
    try:
        yield
    finally:
        torch.randint = original


def train_motion_prior(ranks=ALONE):
    """Return what policy and discriminator learn: of a rank's columns and motions, or of all."""
    spec, batches = rollouts()
    own = SIZE * NUM_ENVS // ranks.size
    judge = Discriminator(key=None, style_scale=0.5, hidden_dims=[16], learning_rate=3e-3, trunk_decay=0.01)
    workflow = make_ppo(
        spec,
        workflow_class=PPOAMP,
        extensions={"discriminator": judge},
        buffers={"motions": Motions(ranks)},
        ranks=ranks,
        **{"num_envs": own, "num_epochs": 3, "lr": 3e-3, **PPOS["flat"]},
    )
    before = parameters_to_vector(judge.parameters())
    torch.manual_seed(100 + ranks.rank)
    part = slice(ranks.rank * own, (ranks.rank + 1) * own)
    with draws_of_ranks(ranks):
        for batch in batches:
            workflow.update_policy(tree_map(lambda x: x[:, part], batch), phase=phase())
            workflow.update_discriminator(phase=phase())
    assert (parameters_to_vector(judge.parameters()) - before).abs().max() > 5e-3
    return dict(workflow.state_dict())


def train_off_policy(name, ranks=ALONE):
    """Return what updates on batches lead to: of a rank's rows, or of all."""
    kind, spec, options = OFF_POLICY[name]
    made = networks if kind is not DQN else lambda spec: {"critic": MLP(3, (16,), "relu")}
    workflow = start(kind(**options), spec, lambda: made(spec), ranks=ranks, names=())
    torch.manual_seed(100 + ranks.rank)
    with noise_of_ranks() if ranks.size == 1 else nullcontext():
        for seed in range(UPDATES):
            batch = random_batch(spec, SIZE * ROWS, seed)
            if name.endswith("weighted"):  # the first rank has twice as many rows that count
                batch["weights"] = torch.linspace(0.1, 1.0, SIZE * ROWS)
                batch["weights"][ROWS : ROWS + ROWS // 2] = 0.0
            part = tree_map(lambda x: x.chunk(ranks.size)[ranks.rank], batch)
            workflow.update_agent(part, phase=off_policy_phase())
    return dict(workflow.state_dict())


@contextmanager
def constant_noise():
    """Let whoever draws get the same numbers, however many rows are drawn for."""
    names = ("rand", "randn", "rand_like", "randn_like", "randint")
    originals = {name: getattr(torch, name) for name in names}
    torch.rand = lambda *shape, device=None: torch.full(
        torch.Size(*shape) if isinstance(shape[0], tuple) else shape, 0.4
    )
    torch.randn = torch.rand
    torch.rand_like = torch.randn_like = lambda x: torch.full_like(x, 0.4)
    torch.randint = lambda *_, device=None: torch.full(_[-1], 1)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)


def train_packaged(name, ranks=ALONE):
    """Return what updates of a packaged experiment lead to: on a rank's part of batches that all have, or on all."""
    overrides, hook = PACKAGED[name]
    composed = compose([*overrides, "budget=tiny", "logging=quiet", "experiment.device=cpu"])
    source = assemble(composed, Targets(AllowList()))
    (buffer,) = source.context.buffers.values()
    if not buffer.brings_data:
        buffer.add(collect(make_collector(source.env), source.workflow, 48))
    batches = [buffer.sample() for _ in range(2)]
    parts = assemble(composed, Targets(AllowList()), ranks=ranks)
    now = Phase("train", "online", (), "steps", 1, buffer=next(iter(parts.context.buffers)))
    before = {key: weight.clone() for key, weight in whole_weights(parts.workflow).items()}
    with constant_noise():
        for batch in batches:
            scores = {"scores": torch.linspace(0.1, 1.0, len(batch["actions"]))} if name == "rejection" else {}
            part = tree_map(lambda x: x.chunk(ranks.size)[ranks.rank], {**batch, **scores})
            getattr(parts.workflow, hook)(part, phase=now)
    after = whole_weights(parts.workflow)
    moved = max(float((after[key].float() - weight.float()).abs().max()) for key, weight in before.items())
    assert moved > 5e-4, f"{name}: {moved} is too little to compare"
    if (shards := parts.workflow.shards) is not None:
        assert sum(own.numel() for own in shards.parameters) < 0.51 * sum(map(Tensor.numel, after.values()))
    return after


def train_legged(ranks=ALONE):
    """Return what an update on steps of walking robots leads to: of a rank's robots, or of all."""
    small = ["environment.num_envs=6", "environment.episode_s=0.2", "environment.simulation.num_threads=1"]
    names = ["+experiment=quadruped_flat_ppo", "algorithm.num_minibatches=1", *small, *calm("policy", lr=1e-3)]
    composed = compose([*names, "logging=quiet", "experiment.device=cpu", "experiment.compile=eager"])
    source = assemble(composed, Targets(AllowList()))
    batches = [collect(make_collector(source.env), source.workflow, 24) for _ in range(2)]
    parts = assemble(composed, Targets(AllowList()), ranks=ranks)
    before = parameters_to_vector(parts.workflow.parameters())
    now = Phase("train", "online", (), "steps", 1, buffer="rollout")
    for batch in batches:
        part = tree_map(lambda x: x.chunk(ranks.size, 1)[ranks.rank], batch)
        parts.workflow.update_policy(part, phase=now)
    assert (parameters_to_vector(parts.workflow.parameters()) - before).abs().max() > 5e-4
    return dict(parts.workflow.state_dict())


def normalise(ranks=ALONE):
    """Return statistics of a stream in unequal batches: of a rank's share, or of all."""
    torch.manual_seed(3)
    normalizer, scaler = RunningNormalizer((4,), ranks=ranks), RewardScaler(8 // ranks.size, 0.9, ranks=ranks)
    for rows in (6, 40, 2):
        samples = torch.randn(rows, 4).double() * torch.tensor([1.0, 10.0, 0.1, 3.0]) + torch.arange(4) * 5
        normalizer.update(samples.float().chunk(ranks.size)[ranks.rank])
        rewards, dones = torch.randn(rows, 8), torch.rand(rows, 8) < 0.2
        scaler.update(*(x.chunk(ranks.size, 1)[ranks.rank] for x in (rewards, dones)))
    scale, spread, values = ReturnScale(rate=0.5), ValueScale(rate=0.5), 9.0 * torch.randn(50)
    scale.ranks = spread.ranks = ranks
    own = values.chunk(ranks.size)[ranks.rank]
    found = {"offset": scale(own)[0], "scale": scale(own)[1], "spread": spread(own)}
    counts = {"reward_var": scaler.statistics.var, "reward_count": scaler.statistics.count}
    return {**normalizer.state_dict(), **counts, **found}


def speak(ranks):
    """Return what the ranks say to each other."""
    shared = [torch.full((2,), float(ranks.rank)), torch.tensor(ranks.rank)]
    ranks.share_(shared)
    return {
        "mean": ranks.mean_(torch.tensor([1.0, 2.0]) * (ranks.rank + 1)),
        "means": list(ranks.means((torch.ones(2, 2) * ranks.rank, torch.tensor(4.0 * ranks.rank)))),
        "cat": ranks.cat(torch.tensor([[ranks.rank, 7]])),
        "shared": shared,
        "numbers": ranks.numbers(ranks.rank, -5),
        "gather": ranks.gather({"name": "ö" * ranks.rank, "number": 0.1}),
        "first": ranks.first(f"rank {ranks.rank}"),
    }


def learn(ranks=ALONE):
    """Return everything that is compared between two ranks and one process."""
    torch.set_num_threads(1)
    found = {name: train_ppo(name, ranks) for name in PPOS}
    found |= {name: train_off_policy(name, ranks) for name in OFF_POLICY}
    found |= {name: train_packaged(name, ranks) for name in PACKAGED}
    return found | {
        "motion_prior": train_motion_prior(ranks),
        "legged": train_legged(ranks),
        "normaliser": normalise(ranks),
    }


def become(rank, port, size=SIZE):
    """Be a rank that a launcher has started."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def work(rank, port, folder):
    """Do it all as a rank and leave the results in a file."""
    become(rank, port)
    with Path(folder, f"output_{rank}.txt").open("w") as output:
        sys.stdout = sys.stderr = output
        with process_group(torch.device("cpu")) as ranks:
            torch.save({"said": speak(ranks), **learn(ranks)}, Path(folder, f"rank_{rank}.pt"))


def lab(rank, port, arguments, folder, size=SIZE):
    """Run a `lab` command as a rank; its output is in the folder."""
    become(rank, port, size)
    run_lab(arguments, folder, f"output_{rank}.txt")
