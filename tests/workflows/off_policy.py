"""What the tests of off-policy workflows share: a context, a fixed batch, a training loop, an exact resume."""

from contextlib import closing
from functools import partial

import torch

from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.mlp import MLP
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble, build
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import (
    Box,
    HookCall,
    Named,
    Optimizers,
    Phase,
    RngStreams,
    Update,
    WorkflowContext,
    flat_dim,
    seed_everything,
)
from rl_lab.core.context import as_it_is
from rl_lab.core.ranks import ALONE
from rl_lab.orchestration.evaluator import Evaluator
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.fingerprint import tree_hash
from rl_lab.tracking.run_directory import RunDirectory
from tests.workflows.parts import collect, make_collector

CPU = torch.device("cpu")


def phase(progress=0.0, **options):
    calls = (HookCall("collect"), HookCall("update_agent", is_update=True))
    return Phase("train", "online", calls, "steps", 1, progress=progress, options=options)


def networks(spec, hidden=(16,), num_members=2, **critic):
    """Return the trunks of an actor and of critics for this spec."""
    dim = flat_dim(spec.observation)
    seen = dim + (flat_dim(spec.action) if isinstance(spec.action, Box) else 0)
    return {
        "actor": MLP(dim, hidden, "relu"),
        "critic": EnsembleMLP(seen, hidden, num_members, **critic),
    }


def start(
    workflow,
    spec,
    components,
    *,
    num_envs=4,
    lr=1e-3,
    names=("critic", "actor", "alpha"),
    seed=0,
    static=None,
    factory=None,
    ranks=ALONE,
    device=CPU,
):
    """Initialise a workflow; `components` is a function, so that the seed decides their weights too."""
    seed_everything(seed)
    factories = dict.fromkeys(names, factory or partial(torch.optim.Adam, lr=lr, fused=device == CPU))
    workflow.initialize(
        WorkflowContext(
            config={},
            device=device,
            spec=spec,
            num_envs=num_envs,
            components=Named("component", components()),
            controllers=Named("controller", {}),
            optimizers=Optimizers(factories),
            buffers=Named("buffer", {}),
            rng=RngStreams(seed),
            static=static or as_it_is,
            ranks=ranks,
        )
    )
    return workflow


def random_batch(spec, size=32, seed=0, gamma=0.99):
    """Return a batch of transitions of made-up numbers, a quarter of them terminal."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    dim = flat_dim(spec.observation)
    if isinstance(spec.action, Box):
        actions = torch.rand(size, *spec.action.shape, generator=generator)
        actions = spec.action.low + (spec.action.high - spec.action.low) * actions
    else:
        actions = torch.randint(spec.action.n, (size,), generator=generator)
    terminated = torch.rand(size, generator=generator) < 0.25
    return {
        "observations": draw(size, dim),
        "next_observations": draw(size, dim),
        "actions": actions,
        "rewards": draw(size),
        "terminated": terminated,
        "truncated": torch.zeros(size, dtype=torch.bool),
        "discounts": gamma * (~terminated).float(),
    }


def train(workflow, env, *, env_steps, buffer=None, updates_per_step=1.0, start_at=64, seed=0):
    """Collect and update in turn, as an off-policy phase does; return the last metrics."""
    buffer = buffer or ReplayBuffer(100_000, 64, num_envs=env.num_envs, spec=env.spec, seed=seed)
    collector, owed, metrics = make_collector(env, seed), 0.0, {}
    for _ in range(env_steps // env.num_envs):
        buffer.add(collect(collector, workflow, 1))
        if buffer.size < start_at:
            continue
        owed += updates_per_step * env.num_envs
        while owed >= 1.0:
            owed -= 1.0
            metrics = workflow.update_agent(buffer.sample(), phase=phase())
            if isinstance(metrics, Update):
                buffer.write_back(metrics.write_back)
                metrics = metrics.metrics
    return metrics


def score(workflow, env, episodes=16, seed=0, explore=False):
    """Return the mean reward per step of whole episodes."""
    result = Evaluator(env, episodes, RngStreams(seed), explore=explore).evaluate(workflow, step=10**9)
    return result["return"] / result["length"]


def parts_of(overrides):
    return assemble(compose([*overrides, "budget=tiny", "+logging=quiet"]), Targets(AllowList()))


def run_tiny(overrides, run, *, state=None, stop_at=None):
    """Run a packaged experiment, from `state` and up to `stop_at` actions; return the checkpoint it then writes."""
    parts = parts_of(overrides)
    with closing(parts.env):
        orchestrator = build(parts, run)
        with closing(orchestrator.evaluator.env):
            if state is not None:
                orchestrator.restore(state)
            orchestrator.tracker.open(128, orchestrator.counters)
            done = 0
            while (action := orchestrator.scheduler.next_action()) is not None and done != stop_at:
                orchestrator._perform(action)
                done += 1
            orchestrator.save(is_final=True)
            orchestrator.tracker.close()
    return CheckpointStore(run.checkpoints).load_newest().state


RESUMED = ("workflow", "workflow_state", "optimizers", "buffers", "collector", "rng", "counters", "scheduler")


def resumes_exactly(overrides, folder, *, stop_at):
    """Return whether a run that is stopped after `stop_at` actions and goes on anew ends as if it had not been."""
    whole = run_tiny(overrides, RunDirectory.create(folder, "whole", 1))
    run = RunDirectory.create(folder, "halves", 1)
    state = run_tiny(overrides, run, stop_at=stop_at)
    resumed = run_tiny(overrides, run, state=state)
    return all(tree_hash(whole[key]) == tree_hash(resumed[key]) for key in RESUMED)


def phase_of(state):
    """Return the phase that a checkpoint is in."""
    return state["scheduler"]["phases"][state["scheduler"]["cursor"]["phase"]]


def resumes_in_phases(overrides, folder, stops, look=lambda name, state: None):
    """Return what differs when a run is stopped within each phase, after so many actions of each stretch.

    `look` is shown the checkpoint of each stop.
    """
    whole, run = (RunDirectory.create(folder, name, 1) for name in ("whole", "parts"))
    expected, state = run_tiny(overrides, whole), None
    for name, actions in stops.items():
        state = run_tiny(overrides, run, state=state, stop_at=actions)
        assert phase_of(state) == name
        look(name, state)
    state = run_tiny(overrides, run, state=state)
    differing = [key for key in RESUMED if tree_hash(expected[key]) != tree_hash(state[key])]
    return differing + (["metrics"] if run.metrics_file.read_bytes() != whole.metrics_file.read_bytes() else [])


def run_packaged(name, folder, *overrides):
    """Run a packaged experiment to its end and return the mean return of an evaluation."""
    chosen = [f"+experiment={name}", "training.eval_frequency=null", "+logging=quiet", *overrides]
    parts = assemble(compose(chosen), Targets(AllowList()))
    with closing(parts.env):
        orchestrator = build(parts, RunDirectory.create(folder, name, 1))
        with closing(orchestrator.evaluator.env):
            orchestrator.run()
            return orchestrator.evaluator.evaluate(parts.workflow, step=10**9)["return"]
