"""World Models: golden losses, who acts when, generations in environments and dreams, exact resume, learning."""

import copy
import math
from functools import partial

import pytest
import torch

from rl_lab.buffers.rollout import RolloutBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.components.controller import Controller
from rl_lab.components.layers import LayerStyle
from rl_lab.components.mdn_rnn import MDNRNN, MemoryState
from rl_lab.components.vae import VAE
from rl_lab.components.world_decoder import WorldDecoder
from rl_lab.components.world_encoder import WorldEncoder
from rl_lab.core import (
    ACTION_MASK,
    Box,
    ConfigError,
    Discrete,
    EnvSpec,
    HookCall,
    LabError,
    Named,
    Optimizers,
    Phase,
    RngStreams,
    WorkflowContext,
    seed_everything,
)
from rl_lab.environments.identity import Identity
from rl_lab.ops.cma_es import SearchState, start_search, updated_search
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.workflows.world_models import BELIEF, TRIAL, WorldModels
from tests.workflows.off_policy import resumes_in_phases, run_packaged, run_tiny, score
from tests.workflows.parts import make_collector

torch.set_num_threads(1)
STYLE = LayerStyle(activation="relu", norm="none", init="glorot")
SPEC = EnvSpec("fixed", Box((3,)), Box((2,), low=-2.0, high=2.0))
CHOICE = EnvSpec("choice", {"x": Box((3,)), ACTION_MASK: Box((4,), dtype=torch.bool)}, Discrete(4))
CPU = torch.device("cpu")


def phase(*hooks, buffer="replay"):
    """Return a phase of these hooks."""
    kind = "online" if "collect" in hooks else "offline"
    calls = tuple(HookCall(name, is_update=name != "collect") for name in hooks)
    return Phase("now", kind, calls, "cycles", 1, buffer=buffer)


RANDOM, TRYING = phase("collect"), phase("collect", "update_controller", buffer="trials")
LEARNING, DREAMING = phase("update_vae", "update_memory"), phase("update_controller")


def make_parts(latent_dim=2, hidden_dim=4, hidden_dims=(), **vae):
    vision = {"units": 8, "num_layers": 1, "style": STYLE, "symlog": False}
    options = {"kl_floor": 0.0, **vae}
    return {
        "vae": VAE(WorldEncoder(**vision), WorldDecoder(**vision), latent_dim, **options),
        "memory": MDNRNN(hidden_dim, 2),
        "controller": Controller(hidden_dims),
    }


def make_workflow(spec=SPEC, parts=None, *, num_envs=4, seed=0, lr=1e-2, buffers=None, config=None, **options):
    """Return an initialised workflow; the same seed gives the same parameters."""
    seed_everything(seed)
    workflow = WorldModels(**{"population": 4, "num_rollouts": 2, "horizon": 5, "vae_batch": 8, **options})
    adam = partial(torch.optim.Adam, lr=lr, fused=True)
    workflow.initialize(
        WorkflowContext(
            config=config or {},
            device=CPU,
            spec=spec,
            num_envs=num_envs,
            components=Named("component", parts or make_parts()),
            controllers=Named("controller", {}),
            optimizers=Optimizers({"vae": adam, "memory": adam}),
            buffers=Named("buffer", buffers or {}),
            rng=RngStreams(seed),
        )
    )
    return workflow


# Learning.


def fixed_batch(size=3, steps=5):
    """Return sequences that owe nothing to any random stream; an episode ends within, by the task's end."""
    grid = torch.arange(size * steps, dtype=torch.float32).view(size, steps)
    is_first = torch.zeros(size, steps, dtype=torch.bool)
    is_first[0, 0] = is_first[1, 3] = True
    is_terminal = torch.zeros(size, steps, dtype=torch.bool)
    is_terminal[1, 2] = True
    latents = torch.stack([grid.mul(0.3).sin(), grid.mul(0.4).cos()], -1)
    return {
        "observations": torch.stack([grid.mul(0.37).sin(), grid.mul(0.21).cos(), grid.mul(0.11)], -1),
        "actions": torch.stack([grid.mul(0.9).sin(), grid.mul(0.5).cos()], -1) * 2,
        "rewards": grid.mul(0.3).cos(),
        "is_first": is_first,
        "is_terminal": is_terminal,
        BELIEF: {"mean": latents, "log_var": latents - 2.0},
    }


def fixed_noise(like):
    return torch.arange(like.numel(), dtype=like.dtype).mul(1.3).sin().view_as(like)


def with_fixed_parameters(workflow):
    for parameter in workflow.parameters():
        count = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
        parameter.data.copy_(count.mul(0.7).sin() * 0.4)
    return workflow


# What follows is the algorithm once more: one observation, sequence and step after the other, in float64.


def affine(layer, x):
    return x @ layer.weight.T + layer.bias


class Naive:
    """The updates of V and M from the paper, by loops, autograd and plain Adam; no gradient is cut."""

    def __init__(self, workflow, lr):
        self.vae, self.memory = copy.deepcopy(workflow.vae).double(), copy.deepcopy(workflow.memory).double()
        self.adams = {part: torch.optim.Adam(part.parameters(), lr=lr) for part in (self.vae, self.memory)}

    def descend(self, part, terms):
        loss = sum(terms.values())
        self.adams[part].zero_grad()
        loss.backward()
        self.adams[part].step()
        return [float(number.detach()) for number in (loss, *terms.values())]

    def update_vae(self, batch, size):
        rows = batch["observations"].double().flatten(0, 1)
        chosen = [rows[index * len(rows) // size] for index in range(size)]
        noise, vae, seen, kls = fixed_noise(torch.zeros(size, 2).double()), self.vae, [], []
        for row, draw in zip(chosen, noise, strict=True):
            mean, log_var = affine(vae.head, affine(vae.encoder.vectors[0], row).clamp(min=0.0)).chunk(2)
            z = mean + (0.5 * log_var).exp() * draw
            error = affine(vae.decoder.vectors[1], affine(vae.decoder.vectors[0][0], z).clamp(min=0.0)) - row
            seen.append(0.5 * (error**2).sum())
            kls.append(0.5 * (mean**2 + log_var.exp() - 1.0 - log_var).sum())
        return self.descend(self.vae, {"seen": sum(seen) / size, "kl": sum(kls) / size})

    def update_memory(self, batch):
        size, steps = batch["rewards"].shape
        belief = {key: value.double() for key, value in batch[BELIEF].items()}
        noise = fixed_noise(torch.zeros(steps, size, 2).double())
        found = {"latent": [], "reward": [], "end": []}
        for b in range(size):
            z = belief["mean"][b] + (0.5 * belief["log_var"][b]).exp() * noise[:, b]
            hidden = cell = torch.zeros(4).double()
            for t in range(steps - 1):
                if batch["is_first"][b, t]:
                    hidden = cell = torch.zeros(4).double()
                given = affine(self.memory.input, torch.cat([z[t], batch["actions"][b, t + 1].double() / 2.0]))
                parts = (given + hidden @ self.memory.step.gates.weight.T).chunk(4)
                write, forget, read = (1.0 / (1.0 + (-parts[k]).exp()) for k in (0, 1, 3))
                cell = forget * cell + write * parts[2].tanh()
                hidden = read * cell.tanh()
                if not batch["is_first"][b, t + 1]:
                    for name, loss in self.losses(hidden, z[t + 1], batch, (b, t + 1)).items():
                        found[name].append(loss)
        return self.descend(self.memory, {name: sum(losses) / len(losses) for name, losses in found.items()})

    def losses(self, hidden, z, batch, place):
        said = affine(self.memory.out, hidden)
        logits, means, log_stds = said[:-2].view(3, 2, 2)  # numbers of a latent, mixtures
        shares = logits.exp() / logits.exp().sum(-1, keepdim=True)
        normals = (-0.5 * ((z[:, None] - means) / log_stds.exp()) ** 2).exp() / (
            log_stds.exp() * math.sqrt(2 * math.pi)
        )
        ends = 1.0 / (1.0 + (-said[-1]).exp())
        return {
            "latent": -(shares * normals).sum(-1).log().mean(),
            "reward": 0.5 * (said[-2] - batch["rewards"][place]) ** 2,
            "end": -(ends if batch["is_terminal"][place] else 1.0 - ends).log(),
        }


# Of three updates on `fixed_batch`, as `Naive` has them.
GOLDEN_VAE = [[1.040261, 0.710441, 0.329821], [0.946493, 0.679304, 0.267189], [0.867704, 0.655176, 0.212527]]
GOLDEN_MEMORY = [
    [2.374198, 1.225401, 0.359146, 0.78965],
    [2.342833, 1.211816, 0.34946, 0.781557],
    [2.311622, 1.198194, 0.33963, 0.773797],
]


def test_golden_losses(monkeypatch):
    monkeypatch.setattr("torch.randn_like", fixed_noise)
    workflow = with_fixed_parameters(make_workflow(memory_grad_norm=None))
    naive = Naive(workflow, 1e-2)
    for expected in GOLDEN_VAE:
        found = workflow.update_vae(fixed_batch(), phase=LEARNING)
        found = [float(found[name]) for name in ("vae_loss", "decoder_vector_loss", "kl_loss")]
        assert found == pytest.approx(expected, rel=1e-5)
        assert naive.update_vae(fixed_batch(), 8) == pytest.approx(expected, rel=1e-4)
    for expected in GOLDEN_MEMORY:
        found = workflow.update_memory(fixed_batch(), phase=LEARNING)
        found = [float(found[name]) for name in ("memory_loss", "latent_loss", "reward_loss", "end_loss")]
        assert found == pytest.approx(expected, rel=1e-5)
        assert naive.update_memory(fixed_batch()) == pytest.approx(expected, rel=1e-4)


def test_gradients_are_cut():
    norms = []
    for longest in (None, 1e-12):
        workflow = make_workflow(memory_grad_norm=longest, lr=1.0)
        before = [parameter.detach().clone() for parameter in workflow.memory.parameters()]
        norms.append(float(workflow.update_memory(fixed_batch(), phase=LEARNING)["memory_grad_norm"]))
        pairs = zip(before, workflow.memory.parameters(), strict=True)
        farthest = max(float((old - new.detach()).abs().max()) for old, new in pairs)
        assert farthest > 0.9 if longest is None else farthest < 1e-3  # Adam makes 1e-12 / 1e-8 of the short ones
    assert norms[0] == norms[1] > 0.01


# Acting.


def act(workflow, obs, carry=None, is_first=None, *, explore=True, step=10**9):
    count = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
    carry = workflow.initial_carry(count) if carry is None else carry
    first = torch.ones(count, dtype=torch.bool) if is_first is None else is_first
    with torch.inference_mode():
        return workflow.act(obs, carry, is_first=first, explore=explore, step=step)


def expected_action(workflow, parameters, obs, memory):
    """Return what one controller does: the means of latents and the hidden state, once more."""
    latent = workflow.vae(obs).mean
    return workflow.controller(parameters[None], torch.cat([latent, memory.hidden], -1)[None])[0]


@torch.no_grad()
def test_in_a_phase_of_trials_every_environment_tries_a_candidate():
    workflow = make_workflow(num_envs=6, sample_latents=False)
    workflow.collect_step(0, phase=TRYING)
    obs, candidates = torch.randn(6, 3), workflow.population.candidates
    actions, extras, carry = act(workflow, obs)
    assert extras[TRIAL].tolist() == [0, 1, 2, 3, 4, 5]  # candidates 0 to 3, and again 0 and 1
    nothing = workflow.memory.initial(1, CPU)
    for env in range(6):
        expected = expected_action(workflow, candidates[env % 4], obs[env : env + 1], nothing)
        torch.testing.assert_close(actions[env : env + 1], 2.0 * expected)
        torch.testing.assert_close(carry["action"][env : env + 1], expected)
    torch.testing.assert_close(extras[BELIEF]["mean"], workflow.vae(obs).mean)
    torch.testing.assert_close(extras[BELIEF]["log_var"], workflow.vae(obs).log_var)
    # The next step: two trials are left for three new episodes; memories of the others have read what they did.
    later, is_first = torch.randn(6, 3), torch.tensor([True, False, True, True, False, False])
    actions, extras, _ = act(workflow, later, carry, is_first)
    assert extras[TRIAL].tolist() == [6, 1, 7, 8, 4, 5]
    read = workflow.memory.advance(nothing, carry["latent"][1:2], carry["action"][1:2])
    whose = {0: (candidates[2], nothing), 1: (candidates[1], read), 3: (workflow.population.favourite, nothing)}
    for env, (parameters, memory) in whose.items():
        expected = expected_action(workflow, parameters, later[env : env + 1], memory)
        torch.testing.assert_close(actions[env : env + 1], 2.0 * expected)


@torch.no_grad()
def test_elsewhere_the_best_guess_acts_and_nothing_is_tried():
    workflow, obs = make_workflow(sample_latents=False, random_steps=10), torch.randn(4, 3)
    workflow.population.learn(torch.arange(4.0))
    expected = 2.0 * expected_action(workflow, workflow.population.favourite, obs, workflow.memory.initial(4, CPU))
    workflow.collect_step(0, phase=RANDOM)
    torch.testing.assert_close(act(workflow, obs, step=10)[0], expected)  # after the random steps
    workflow.collect_step(0, phase=TRYING)
    for options in ({"explore": False}, {"explore": True}):
        workflow.eval()
        actions, extras, _ = act(workflow, obs, **options)
        torch.testing.assert_close(actions, expected)
        assert extras[TRIAL].tolist() == [8] * 4
    workflow.train()
    assert act(workflow, obs)[1][TRIAL].tolist() == [0, 1, 2, 3]  # evaluation has taken none


def test_random_actions_last():
    workflow, obs = make_workflow(random_steps=10, random_repeat=4, num_envs=3000), torch.zeros(3000, 3)
    workflow.vae.forward = None  # nobody looks
    workflow.collect_step(0, phase=RANDOM)
    first, extras, carry = act(workflow, obs, step=9)
    assert float(first.var()) == pytest.approx(4 / 3, rel=0.05)  # of a uniform draw from [-2, 2]
    assert not any(leaf.any() for leaf in extras[BELIEF].values())
    second, _, _ = act(workflow, obs, carry, torch.zeros(3000, dtype=torch.bool), step=9)
    assert float((first != second).any(-1).float().mean()) == pytest.approx(1 / 4, abs=0.03)


def test_choices_are_those_that_are_allowed():
    workflow = make_workflow(CHOICE, num_envs=500, random_steps=10, random_repeat=5)
    for now, at in ((RANDOM, 0), (TRYING, 10**9), (RANDOM, 10**9)):
        workflow.collect_step(0, phase=now)
        carry = None
        for is_first in (torch.ones(500, dtype=torch.bool), torch.zeros(500, dtype=torch.bool)):
            mask = torch.rand(500, 4) < 0.5
            mask[:, 1] = True
            obs = {"x": torch.randn(500, 3), ACTION_MASK: mask}
            actions, _, carry = act(workflow, obs, carry, is_first, step=at)
            assert bool(mask.gather(1, actions[:, None]).all())
            assert torch.equal(carry["action"].argmax(-1), actions)


def test_samples_of_latents_are_read_and_carried_on():
    workflow, obs = make_workflow(num_envs=2000), torch.ones(2000, 3)
    _, extras, carry = act(workflow, obs, explore=False)
    spread = (0.5 * extras[BELIEF]["log_var"][0]).exp()
    torch.testing.assert_close(carry["latent"].std(0), spread, atol=0.0, rtol=0.06)


def test_the_memory_reads_what_was_taken():
    workflow, obs = make_workflow(), torch.randn(4, 3)
    _, _, carry = act(workflow, obs)
    taken = workflow.took(carry, torch.full((4, 2), 1.0))
    assert torch.equal(taken["action"], torch.full((4, 2), 0.5))
    assert torch.equal(taken["latent"], carry["latent"])


def test_v_asks_for_as_many_rows_as_it_reads():
    workflow = make_workflow()
    assert [workflow.num_rows(name) for name in ("update_vae", "update_memory", "update_controller")] == [8, None, None]


# Generations.


class Counting:
    """Episodes of fixed lengths whose returns say which candidate acted, as a rollout would hold them."""

    def __init__(self, workflow, num_envs, length):
        self.workflow, self.length, self.num_envs = workflow, length, num_envs
        self.elapsed = torch.arange(num_envs) % length  # they are out of step
        self.is_first, self.carry = torch.zeros(num_envs, dtype=torch.bool), workflow.initial_carry(num_envs)

    def rollout(self, steps, worth):
        self.workflow.collect_step(0, phase=TRYING)
        rows = []
        for _ in range(steps):
            obs = torch.randn(self.num_envs, 3)
            _, extras, self.carry = act(self.workflow, obs, self.carry, self.is_first)
            self.elapsed = self.elapsed + 1
            self.is_first = self.elapsed == self.length
            self.elapsed = self.elapsed * ~self.is_first
            trial = extras[TRIAL]
            rewards = torch.where(trial < 8, worth[trial % 4], 1000.0) / self.length
            rows.append((rewards, self.is_first, torch.zeros_like(self.is_first), trial))
        names = ("rewards", "terminated", "truncated", TRIAL)
        return {name: torch.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def test_a_generation_ends_when_all_its_trials_have():
    """Eight trials of five steps in three environments whose first episodes are nobody's."""
    workflow, worth = make_workflow(num_envs=3), torch.tensor([3.0, -1.0, 7.0, 2.0])
    env = Counting(workflow, 3, 5)
    candidates, found = workflow.population.candidates.clone(), []
    expected = updated_search(start_search(torch.zeros(candidates.shape[1]).double(), 0.1), candidates, -worth)
    for _ in range(10):
        found.append(workflow.update_controller(env.rollout(2, worth), phase=TRYING))
    assert [metrics is None for metrics in found] == [True] * 9 + [False]  # 20 steps: a round of three takes five
    metrics = {name: float(number) for name, number in found[9].items()}
    returns = {"return": 2.75, "return_best": 7.0, "return_worst": -1.0}
    assert metrics == pytest.approx(returns | {"generation": 1.0, "sigma": float(expected.sigma)})
    torch.testing.assert_close(workflow.population.favourite, expected.mean.float())
    assert not torch.equal(candidates, workflow.population.candidates)


@pytest.mark.parametrize("update", ["update_vae", "update_memory"])
def test_what_was_tried_with_another_vision_or_memory_does_not_count(update):
    """A round ended within a generation: half of its returns would be of features that are no more."""
    workflow, worth = make_workflow(num_envs=3), torch.tensor([3.0, -1.0, 7.0, 2.0])
    env = Counting(workflow, 3, 5)
    for _ in range(6):  # 12 steps: two rounds of three trials, of which the first is nobody's
        assert workflow.update_controller(env.rollout(2, worth), phase=TRYING) is None
    assert int(workflow.trials.get_state()["is_done"].sum()) >= 2
    getattr(workflow, update)(fixed_batch(), phase=TRYING)
    assert not workflow.trials.get_state()["is_done"].any()
    worth, found = -worth, []
    while not found or found[-1] is None:
        found.append(workflow.update_controller(env.rollout(2, worth), phase=TRYING))
    assert (float(found[-1]["return"]), float(found[-1]["return_best"])) == (-2.75, 1.0)


@torch.no_grad()
def test_dreams_go_on_from_the_ends_of_sequences(monkeypatch):
    """Candidates are judged from where the memory is after the last row, and a new episode has no memory."""
    monkeypatch.setattr("torch.randn_like", torch.zeros_like)
    workflow, batch = make_workflow(temperature=0.5), fixed_batch()
    batch["is_first"][2, 4] = True
    batch["is_terminal"][0, 4] = True
    given = {}

    def returns(parameters, place, is_over, horizon):
        given.update(parameters=parameters, place=place, is_over=is_over, horizon=horizon)
        return torch.arange(12.0).view(4, 3)

    workflow.dreams.returns = returns
    workflow.trials.assign(torch.ones(4, dtype=torch.bool))  # of candidates that will be gone
    metrics = workflow.update_controller(batch, phase=DREAMING)
    assert (float(metrics["dream_return"]), float(metrics["dream_return_best"])) == (5.5, 10.0)
    assert given["horizon"] == 5
    assert workflow.trials.current.tolist() == [8] * 4
    assert given["is_over"].tolist() == [True, False, False]
    latents = batch[BELIEF]["mean"]
    torch.testing.assert_close(given["place"].latents, latents[:, -1])
    for b in range(3):
        memory = workflow.memory.initial(1, CPU)
        for t in range(4):
            if batch["is_first"][b, t]:
                memory = workflow.memory.initial(1, CPU)
            memory = workflow.memory.advance(memory, latents[b, t][None], batch["actions"][b, t + 1][None] / 2.0)
        if b == 2:
            memory = workflow.memory.initial(1, CPU)
        torch.testing.assert_close(MemoryState(*(leaf[b : b + 1] for leaf in given["place"].memory)), memory)


def test_encoding_stores_what_v_says_of_every_row():
    env = Identity(4, kind="continuous", sizes=(1, 1))
    buffers = {"replay": SequenceBuffer(1000, 3, 4, num_envs=4, refreshed=(BELIEF,))}
    workflow = make_workflow(env.spec, buffers=buffers, random_steps=10**6)
    workflow.collect_step(0, phase=RANDOM)
    trajectory = make_collector(env).collect(workflow, 25, env_steps=0, should_stop=lambda: False).trajectory
    buffers["replay"].add(trajectory)
    assert float(workflow.encode(phase=phase("encode"))["encoded_rows"]) == 108.0  # 4 x (25 + 2 ends), whole batches
    for batch in buffers["replay"].sweep():
        belief = workflow.vae(batch["observations"])
        torch.testing.assert_close(batch[BELIEF], belief._asdict())
    with pytest.raises(LabError, match="phase 'now': encode finds nothing in buffer 'replay'"):
        make_workflow(buffers={"replay": SequenceBuffer(100, 3, 4)}).encode(phase=phase("encode"))


# Whole runs.


def train(workflow, env, buffers, *, seed=0, random=1000, updates=100, generations=15):
    """Go through all phases; return the last metrics of the search."""
    collector = make_collector(env, seed)

    def collect(now, steps):
        workflow.collect_step(0, phase=now)
        taken = collector.collect(workflow, steps, env_steps=0 if now is RANDOM else 10**9, should_stop=lambda: False)
        buffers[now.buffer].add(taken.trajectory)

    collect(RANDOM, random // env.num_envs)
    for hook in ("update_vae", "encode", "update_memory"):
        for _ in range(1 if hook == "encode" else updates):
            batch = [] if hook == "encode" else [buffers["replay"].sample()]
            vars(WorldModels)[hook](workflow, *batch, phase=phase(hook))
    metrics = {}
    while float(workflow.population.generation) < generations:
        collect(TRYING, 10)
        metrics = workflow.update_controller(buffers["trials"].sample(), phase=TRYING) or metrics
    return metrics


def make_buffers(env, seed=0):
    replay = SequenceBuffer(5000, 16, 6, num_envs=env.num_envs, refreshed=(BELIEF,), seed=seed)
    return {"replay": replay, "trials": RolloutBuffer()}


def test_the_same_seed_gives_the_same_run():
    runs = []
    for seed in (3, 3, 4):
        env = Identity(4, kind="continuous", sizes=(1,))
        buffers = make_buffers(env, seed)
        workflow = make_workflow(env.spec, seed=seed, buffers=buffers, random_steps=100)
        train(workflow, env, buffers, seed=seed, random=100, updates=3, generations=2)
        runs.append(torch.cat([leaf.flatten() for leaf in workflow.state_dict().values()]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize(("kind", "hidden_dims"), [("continuous", ()), ("discrete", (4,))])
def test_identity_is_learned(kind, hidden_dims):
    """A linear or a small controller finds out to do what it sees, through V and beside M."""
    task = {"kind": kind, "sizes": (1,) if kind == "continuous" else (2,)}
    env = Identity(16, **task)
    buffers, parts = make_buffers(env), make_parts(2, 4, hidden_dims, decoder_scale=100.0)
    options = {"population": 16, "num_rollouts": 1, "sigma": 1.0, "vae_batch": 64, "sample_latents": False}
    workflow = make_workflow(env.spec, parts, num_envs=16, buffers=buffers, random_steps=10**6, **options)
    train(workflow, env, buffers, updates=60, generations=12)
    assert score(workflow, Identity(16, **task)) > 0.9  # at random: 1/3 and 1/2


PHASES = {
    "collect": "duration_steps:32,hooks:[collect]",
    "vae": "duration_updates:3,hooks:[update_vae]",
    "encode": "duration_cycles:1,hooks:[encode]",
    "memory": "duration_updates:3,hooks:[update_memory]",
    "look": "duration_cycles:1,hooks:[evaluate_world_model,record_dream]",
    "controller": "duration_steps:96,hooks:[{collect:4},update_controller]",
    "dream": "duration_updates:3,hooks:[update_controller]",
}
LISTED = ",".join(
    f"{{name:{name},buffer:{'trials' if name == 'controller' else 'replay'},{rest}}}" for name, rest in PHASES.items()
)
ALL = ["+experiment=world_models_cartpole", "environment.num_envs=2", f"training.phases=[{LISTED}]"]
STOPS = {"vae": 17, "memory": 4, "controller": 15, "dream": 16}  # actions of each stretch, up to its phase


def test_resume_is_exact_in_every_phase(tmp_path):
    """A run that is stopped within each phase and goes on in a new process ends as one that is not."""
    assert resumes_in_phases(ALL, tmp_path, STOPS, has_part_of_a_generation) == []
    run = RunDirectory.open(next(path for path in tmp_path.iterdir() if path.name.startswith("parts")))
    names = {path.name.rsplit("_", 1)[0] for path in (run.media / "eval").glob("*.png")}
    assert names == {"open_loop_vector", "dream_vector"}


def test_a_phase_lasts_as_many_generations_as_it_says(tmp_path):
    """However many rollouts a generation takes: those that do not end it are no updates."""
    phases = LISTED.replace("duration_steps:96,hooks:[{collect:4}", "duration_updates:2,hooks:[{collect:4}")
    stretch = phases[: phases.index(",{name:dream")]
    short = ["environment.max_episode_steps=6", "algorithm.population=2", "algorithm.num_rollouts=1"]
    state = run_tiny([*ALL[:2], *short, f"training.phases=[{stretch}]"], RunDirectory.create(tmp_path, "run", 1))
    assert int(state["workflow"]["population.generation"]) == 2
    assert state["counters"]["updates"] == 3 + 3 + 1 + 2  # vae, memory, encode, generations


def has_part_of_a_generation(name, state):
    """Candidate returns so far, trials under way with their rewards, and the search itself: all of it arrays."""
    if name != "controller":
        return
    trials = state["workflow_state"]["trials"]
    assert 0 < int(trials["is_done"].sum()) < 4
    assert float(trials["returns"].sum()) >= 8.0  # a pole takes so long to fall
    assert bool((trials["current"] < 4).any())
    assert bool((trials["running"] > 0.0).any())
    names = {name.removeprefix("population.") for name in state["workflow"] if name.startswith("population.")}
    assert names == {*SearchState._fields, "candidates"}


def test_a_pole_is_balanced_after_all_phases(tmp_path):
    """Three seconds: random steps, V, encoding, M, the search and a dream, with episodes of 200 steps."""
    small = ["environment.num_envs=64", "environment.max_episode_steps=200", "algorithm.random_steps=10_000"]
    small += ["training.phases.1.duration_updates=500", "training.phases.3.duration_updates=200"]
    small += ["training.phases.5.workflow_hooks=[{collect: 50}, update_controller]"]
    found = run_packaged("world_models_cartpole", tmp_path, *small, "training.total_timesteps=200_000")
    assert found >= 195.0  # solved, for gymnasium's CartPole-v0; at random: 22


@pytest.mark.learning
@pytest.mark.parametrize("name", ["world_models_cartpole", "world_models_cartpole_dream"])
def test_the_packaged_cartpole_is_balanced(name, tmp_path):
    assert run_packaged(name, tmp_path) >= 475.0  # solved, for gymnasium; at random: 22


# Bad input.


@pytest.mark.parametrize("name", ["vae", "memory", "controller"])
def test_other_parts_are_one_line(name):
    with pytest.raises(ConfigError, match=rf"components\.{name}: needs a (VAE|MDNRNN|Controller)"):
        make_workflow(parts=make_parts() | {name: torch.nn.Linear(1, 1)})


COLLECT, ENCODE = {"name": "a", "buffer": "replay", "workflow_hooks": ["collect"]}, {"name": "e", "buffer": "replay"}


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        (
            [{"name": "e", "workflow_hooks": ["encode"]}],
            r"phase 'e': encode needs to know its buffer \(choices: replay",
        ),
        (
            [{"name": "c", "buffer": "replay", "hooks": [{"collect": 5}, "update_controller"]}],
            "phase 'c': update_controller beside collect needs a rollout, not 'replay'",
        ),
        (
            [COLLECT, {"name": "m", "buffer": "replay", "hooks": [{"update_memory": 4}]}],
            "phase 'm': update_memory reads latents, which `encode` must store before it",
        ),
        (
            [COLLECT, ENCODE | {"hooks": ["encode", "update_vae"]}, {"name": "d", "hooks": ["update_controller"]}],
            "phase 'd': update_controller reads latents, which `encode` must store before it",
        ),
    ],
)
def test_phases_that_cannot_work_are_one_line(phases, message):
    buffers = {"replay": SequenceBuffer(100, 3, 4), "trials": RolloutBuffer()}
    with pytest.raises(ConfigError, match=message):
        make_workflow(buffers=buffers, config={"training": {"phases": phases}})
