"""World Models (Ha and Schmidhuber, 2018, https://arxiv.org/abs/1803.10122): see, remember, and then evolve what acts.

Three parts learn one after another, each a phase: a VAE says in a few numbers what is seen (V), an LSTM with mixtures
expects what these will be next (M), and a small controller reads both (C). CMA-ES searches its weights by whole
episodes: in a phase that collects, every environment tries a candidate; in one that does not, candidates act in dreams.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from rl_lab.components.controller import Controller
from rl_lab.components.decisions import Decisions
from rl_lab.components.dream_pictures import Model, dream_pictures, forecast
from rl_lab.components.dreams import Dreams, Place
from rl_lab.components.latent_phases import BELIEF, DREAM_STEPS, reject_phases
from rl_lab.components.learner import Learner, trained
from rl_lab.components.mdn_rnn import MDNRNN, MemoryState
from rl_lab.components.model_actions import ModelActions
from rl_lab.components.observation import action_mask
from rl_lab.components.population import Population, Trials
from rl_lab.components.prediction import evaluate_predictions
from rl_lab.components.vae import VAE, Belief
from rl_lab.core import (
    Actions,
    Batch,
    Carry,
    CollectResult,
    Extras,
    LabError,
    Metrics,
    Observation,
    Phase,
    Workflow,
    WorkflowContext,
    hook,
    tree_map,
)
from rl_lab.core.ranges import Count, Natural, Positive

Behaviour = Literal["random", "try", "mean"]
TRIAL = "trial"  # what act records beside BELIEF: whose trial a step is
FILM_STEPS = 50  # of a dream, unless the phase says otherwise
ROWS = ("actions", "rewards", "is_first", "is_terminal", BELIEF)  # of sequences, without what was seen


class WorldModels(Workflow):
    """World Models for any actions; components: vae (VAE), memory (MDNRNN), controller (Controller).

    Args:
        random_steps: Env steps with random actions at the start; for V and M to learn from.
        random_repeat: Env steps that a random action lasts on average.
        vae_batch: Observations that an update of V reads.
        vae_grad_norm: Longest gradient of V; null leaves it free.
        memory_grad_norm: Longest gradient of M; null leaves it free.
        population: Candidates of a generation, 2 or more.
        num_rollouts: Episodes that each candidate is judged by.
        sigma: First standard deviation of the controller's weights.
        horizon: Env steps of a dream that candidates are judged by.
        temperature: Of dreams: above 1 they are less certain than M is.
        sample_latents: Whether the controller reads samples of V (as published) instead of their means.
    """

    def __init__(
        self,
        *,
        random_steps: Natural = 0,
        random_repeat: Count = 1,
        vae_batch: Count = 100,
        vae_grad_norm: Positive | None = None,
        memory_grad_norm: Positive | None = 1.0,
        population: Annotated[int, Ge(2)] = 64,
        num_rollouts: Count = 16,
        sigma: Positive = 0.1,
        horizon: Count = 1_000,
        temperature: Annotated[float, Interval(gt=0, le=10)] = 1.0,
        sample_latents: bool = True,
    ) -> None:
        super().__init__()
        self.random_steps, self.random_repeat, self.vae_batch = random_steps, random_repeat, vae_batch
        self.vae_grad_norm, self.memory_grad_norm = vae_grad_norm, memory_grad_norm
        self.population_size, self.num_rollouts, self.sigma = population, num_rollouts, sigma
        self.horizon, self.temperature, self.sample_latents = horizon, temperature, sample_latents

    def initialize(self, context: WorkflowContext) -> None:
        """Make the layers and the optimisers `vae` and `memory`, and draw the first generation."""
        self.vae, self.memory = context.component("vae", VAE), context.component("memory", MDNRNN)
        self.controller = context.component("controller", Controller)
        reject_phases(context)
        self.code, self._device = ModelActions(context.spec, "WorldModels"), context.device
        self.vae.bind(context.spec.observation, context.fuse)
        self.memory.bind(self.vae.latent_dim, self.code.dim, context.fuse)
        self.controller.bind(self.vae.latent_dim + self.memory.hidden_dim, self.code)
        self.population = Population(self.controller.num_parameters, self.population_size, self.sigma)
        self.to(self._device)
        self.trials = Trials(self.population_size, self.num_rollouts, context.num_envs, self._device)
        self.dreams = Dreams(self.memory, self.controller, context.fuse, temperature=self.temperature)
        self._vaes = Learner(context, "vae", trained(self.vae), lr=1e-4, max_grad_norm=self.vae_grad_norm)
        self._memories = Learner(context, "memory", trained(self.memory), lr=1e-3, max_grad_norm=self.memory_grad_norm)
        self._experience, self._is_trying = context.buffers, False
        self._update_vae, self._update_memory = context.static(self._learn_vae), context.static(self._learn_memory)
        self._encode, self._credit = context.static(self._encoded), context.static(self.trials.credit)
        self._dream, self._decisions = context.static(self._dreamt), Decisions(self._decide, context)

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the memory before an episode, the latent and the action that it reads next, and what act records."""
        latent = torch.zeros(num_envs, self.vae.latent_dim, device=self._device)
        return {
            **self.memory.initial(num_envs, self._device)._asdict(),
            "latent": latent,
            "action": torch.zeros(num_envs, self.code.dim, device=self._device),
            BELIEF: Belief(latent.clone(), latent.clone())._asdict(),
            TRIAL: torch.full((num_envs,), self.trials.count, device=self._device),
        }

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult | None:
        """Take note of who acts in this phase; the Collector does the rest."""
        self._is_trying = any(call.name == "update_controller" for call in phase.hooks)
        if not self._is_trying:
            self.trials.abandon()
        return None

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Let every environment try a candidate; elsewhere draw at random at first, and then act by the best guess."""
        behaviour: Behaviour = "mean"
        if explore and self.training:
            behaviour = "try" if self._is_trying else "random" if step < self.random_steps else "mean"
        actions, carry = self._decisions(behaviour, obs, carry, is_first)
        return actions, {key: carry[key] for key in (BELIEF, TRIAL)}, carry

    def took(self, carry: Carry, actions: Actions) -> Carry:
        """Remember the actions that were taken: the memory reads them next."""
        return carry | {"action": self.code.read(actions)}

    def _decide(self, behaviour: Behaviour, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Actions, Carry]:
        """Return actions and the next carry."""
        after, mask = self.initial_carry(len(is_first)), action_mask(obs)
        if behaviour == "random":
            action = self._random_action(carry["action"], mask, is_first)
            return self.code.to_environment(action), after | {"action": action}
        memory = self.memory.advance(MemoryState(carry["hidden"], carry["cell"]), carry["latent"], carry["action"])
        memory = MemoryState(*(leaf * ~is_first.unsqueeze(-1) for leaf in memory))
        belief = self.vae(obs)
        latent = belief.sample() if self.sample_latents else belief.mean
        features = torch.cat([latent, memory.hidden], -1)
        if behaviour == "try":  # each row by a controller of its own
            after[TRIAL] = self.trials.assign(is_first)
            mask = None if mask is None else mask.unsqueeze(1)
            action = self.controller(self._tried(after[TRIAL]), features.unsqueeze(1), mask).squeeze(1)
        else:
            mask = None if mask is None else mask.unsqueeze(0)
            action = self.controller(self.population.favourite[None], features[None], mask).squeeze(0)
        after |= {**memory._asdict(), "latent": latent, "action": action, BELIEF: belief._asdict()}
        return self.code.to_environment(action), after

    def _random_action(self, before: Tensor, mask: Tensor | None, is_first: Tensor) -> Tensor:
        """Return actions [N, A]: now and then new ones, else those before as far as they are still allowed."""
        is_new = is_first | (torch.rand(len(is_first), device=self._device) * self.random_repeat < 1.0)
        if mask is not None:
            is_new = is_new | (self.code.split(before)[1].bool() & ~mask).any(-1)
        return torch.where(is_new.unsqueeze(-1), self.code.random(len(is_first), self._device, mask), before)

    def _tried(self, trials: Tensor) -> Tensor:
        """Return the parameters [N, D] of the candidates on trial; environments without a trial have the best guess."""
        candidates = self.population.candidates[trials % self.population_size]
        return torch.where((trials < self.trials.count).unsqueeze(-1), candidates, self.population.favourite)

    def num_rows(self, hook: str) -> int | None:
        """Return how many observations V reads; M reads sequences."""
        return self.vae_batch if hook == "update_vae" else None

    @hook
    def update_vae(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Descend the loss of V on observations: as many rows, or some of a batch."""
        lead = batch["rewards"].shape
        rows = torch.arange(self.vae_batch, device=self._device) * lead.numel() // self.vae_batch
        self.trials.restart()  # what was tried read other latents
        return self._update_vae(tree_map(lambda x: x.flatten(0, len(lead) - 1)[rows], batch["observations"]))

    def _learn_vae(self, obs: Observation) -> dict[str, Tensor]:
        loss, terms = self.vae.losses(obs)
        norm = self._vaes.descend(loss)
        return {"vae_loss": loss.detach(), **terms, "vae_grad_norm": norm}

    @hook(batch=False)
    def encode(self, *, phase: Phase) -> Metrics:
        """Store what V says of every row of the phase's buffer: M learns from that, and V need not look again."""
        buffer, rows = self._experience[phase.buffer or ""], 0
        for batch in buffer.sweep():
            buffer.write_back({BELIEF: self._encode(batch["observations"])})
            rows += batch["rewards"].numel()
        if rows == 0:
            raise LabError(f"phase {phase.name!r}: encode finds nothing in buffer {phase.buffer!r}")
        return {"encoded_rows": float(rows)}

    @torch.no_grad()
    def _encoded(self, obs: Observation) -> Any:
        return self.vae(obs)._asdict()

    @hook
    def update_memory(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Descend the loss of M on the stored latents of a batch of sequences."""
        self.trials.restart()  # what was tried read another memory
        return self._update_memory(_rows(batch))

    def _learn_memory(self, rows: Batch) -> dict[str, Tensor]:
        rows = self._in_time(rows)
        targets = (rows[key] for key in ("rewards", "is_terminal", "is_first"))
        loss, terms = self.memory.losses(rows["latents"], rows["actions"], *targets)
        norm = self._memories.descend(loss)
        return {"memory_loss": loss.detach(), **terms, "memory_grad_norm": norm}

    @hook(group="controller")
    def update_controller(self, batch: Batch, *, phase: Phase) -> Metrics | None:
        """Judge candidates, by what they have done in the environments or by dreams, and search on when all are."""
        if phase.type == "online":
            self._credit(batch["rewards"], batch["terminated"] | batch["truncated"], batch[TRIAL])
            if not bool(self.trials.is_complete):
                return None  # the generation goes on
            name, returns = "return", self.trials.mean_returns()
        else:
            name, returns = "dream_return", self._dream(_rows(batch))
        self.population.learn(returns)
        self.trials.restart()
        metrics = {name: returns.mean(), f"{name}_best": returns.max(), f"{name}_worst": returns.min()}
        return metrics | {"sigma": self.population.sigma.float(), "generation": self.population.generation.float()}

    @torch.no_grad()
    def _dreamt(self, rows: Batch) -> Tensor:
        """Return the mean return [population] of candidates in dreams that go on from the ends of sequences."""
        place, is_over = self._place(self._in_time(rows))
        return self.dreams.returns(self.population.candidates, place, is_over, self.horizon).mean(1)

    @hook(group="eval", is_update=False)
    def evaluate_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Report how well what follows the first rows of sequences is predicted from their actions alone."""
        return evaluate_predictions(Model(self.vae, self.memory, self.code.read), batch, phase, forecast)

    @hook(group="eval", is_update=False)
    def record_dream(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Film what the best guess does in dreams, for `dream_steps` of the phase."""
        place, _ = self._place(self._in_time(_rows(batch)))
        steps = self.dreams.steps(self.population.favourite[None], place, phase.get(DREAM_STEPS, FILM_STEPS))
        return dream_pictures(self.vae, torch.stack([place.latents, *(now.latents for now, _, _ in steps)]))

    def _place(self, rows: Batch) -> tuple[Place, Tensor]:
        """Return where the last of rows [T, B, ...] are, and whether their episodes are over."""
        latents, is_first = rows["latents"], rows["is_first"]
        memory = self.memory.observe(latents[:-1], rows["actions"][1:], is_first[:-1])
        memory = MemoryState(*(leaf[-1] * ~is_first[-1].unsqueeze(-1) for leaf in memory))
        return Place(memory, latents[-1]), rows["is_terminal"][-1]

    def _in_time(self, rows: Batch) -> dict[str, Any]:
        """Return time-major rows with actions as M reads them, and with latents that are drawn anew."""
        rows = tree_map(lambda leaf: leaf.transpose(0, 1), dict(rows))
        return {**rows, "actions": self.code.read(rows["actions"]), "latents": Belief(**rows[BELIEF]).sample()}

    def get_state(self) -> dict[str, Any]:
        """Return how far the generation is."""
        return {"trials": self.trials.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.trials.set_state(state["trials"])


def _rows(batch: Batch) -> Batch:
    """Return what M reads of a batch of sequences."""
    return {key: batch[key] for key in ROWS}
