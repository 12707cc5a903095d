"""A policy under the eyes of an operator, who takes over when it must and says what was a success.

Who acted is flagged at every step: `infos["is_intervention"]` and `infos["operator"]` (0: the policy, else the number
of a name, see `operator_id`); of a person, `infos["operator_time"]` has the time of day. What the operator said of an
episode is in `infos["verdict"]` of its last step (1 success, -1 failure, 0 elsewhere). So buffers and datasets keep all
of it, and a filter (`require_info: verdict`) can go by the word of the operator.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.environment import Actions, Observation
from rl_lab.core.metrics import Mean
from rl_lab.core.operator import OPERATOR_TIME, POLICY, UNDECIDED, Bystander, NotReady, Operator, Orders
from rl_lab.core.phase import Phase
from rl_lab.core.trees import tree_map, tree_where
from rl_lab.core.workflow import Carry, CollectResult, Extras, Workflow
from rl_lab.orchestration.interventions import Interventions
from rl_lab.orchestration.serving import ServedPolicy
from rl_lab.orchestration.teacher import SHARE, Mixture, read_share

IS_INTERVENTION, VERDICT = "is_intervention", "verdict"
OPERATOR = "operator"  # who acted: 0 is the policy
DAY_S = 86_400.0  # a float32 tells 8 ms of a day, and only minutes since 1970


class Supervision:
    """Policy and operator as one policy. Where a teacher acts (`teacher_share` above 0) the operator only looks on.

    Args:
        workflow: What learns.
        operator: Who watches.
        journal: Where it is written down who acted when.
        mixture: The workflow beside its teacher, if it has one.
    """

    def __init__(
        self, workflow: Workflow, operator: Operator, journal: Interventions, mixture: Mixture | None = None
    ) -> None:
        self._workflow, self._mixture, self._operator = workflow, mixture, operator
        self._policy, self._served = mixture or workflow, workflow if isinstance(workflow, ServedPolicy) else None
        self._journal, self._first_step, self._is_watching = journal, 0, True
        operator.report_to(journal.say)

    def during(self, phase: Phase, env_steps: int) -> Supervision:
        """Follow a phase from here on."""
        if self._mixture is not None:
            self._mixture.during(phase, env_steps)
        self._first_step = env_steps
        self._is_watching = SHARE not in phase.options or max(read_share(phase)) == 0.0
        return self

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the carries of both."""
        return {"policy": self._policy.initial_carry(num_envs), "operator": self._operator.initial_carry(num_envs)}

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Let the policy decide and the operator overrule it; the policy is told.

        Raises NotReady, before anything has changed, when the operator wants to wait or the learner decides too late.
        """
        if self._is_watching and not self._operator.is_ready():
            raise NotReady
        led = self._led(obs, carry, is_first)
        proposed, extras, after = self._policy.act(obs, carry["policy"], is_first=is_first, explore=explore, step=step)
        if not self._is_watching:
            return proposed, {**extras, **self._flags(torch.zeros_like(is_first))}, {**carry, "policy": after}
        orders, remembered = led or self._operator.watch(obs, proposed, carry["operator"], is_first=is_first)
        taken = tree_where(orders.is_acting, orders.actions, proposed)
        carry = {"policy": self._policy.took(after, taken), "operator": remembered}
        return taken, {**extras, **self._flags(orders.is_acting)}, carry

    def _led(self, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Orders, Carry] | None:
        """Return what an operator does without the policy, where that is with the learner and may be late."""
        if self._served is None:
            return None
        operator = self._operator if self._is_watching else Bystander(is_live=self._operator.is_live)
        led = operator.lead(obs, carry["operator"], is_first=is_first)
        self._served.beside(is_led=led is not None, is_wanted=operator.wants_control)
        return led

    def _flags(self, is_acting: Tensor) -> Extras:
        name = self._operator.name
        who = self._journal.id_of(name) if name and self._is_watching else POLICY
        flags = {IS_INTERVENTION: is_acting, OPERATOR: is_acting.float() * who}
        if self._operator.is_live:
            flags[OPERATOR_TIME] = torch.full_like(flags[OPERATOR], time.time(), dtype=torch.float64)
        return flags

    def recorded(self, result: CollectResult) -> CollectResult:
        """Return what may be learned from: what was done, who did it and what came of it in the operator's words."""
        assert result.trajectory is not None
        done, verdicts = result.trajectory["actions"], self._verdicts(result.trajectory)
        if self._mixture is not None:
            result = self._mixture.recorded(result)
        rows = dict(result.trajectory or {})
        is_intervention, operators, times = (rows.pop(k, None) for k in (IS_INTERVENTION, OPERATOR, OPERATOR_TIME))
        self._journal.record(operators, self._first_step, None if times is None else times[:, 0].tolist())
        if self._is_watching:
            rows["actions"] = done
        flags = {IS_INTERVENTION: is_intervention.float(), OPERATOR: operators, VERDICT: verdicts}
        if times is not None:
            flags[OPERATOR_TIME] = (times % DAY_S).float()
        rows["infos"] = {**rows.get("infos", {}), **flags}
        metrics = {"interventions": Mean(is_intervention.float().sum(), float(is_intervention.numel()))}
        seen = result.seen
        if seen is not None and self._is_watching:
            seen = seen._replace(operator=self._operator.name or None)
        return replace(result, trajectory=rows, metrics={**result.metrics, **metrics}, seen=seen)

    def unattended(self) -> Supervision:
        """Return the same without the one who watches, to see what is recorded of a step."""
        nobody = Bystander(is_live=self._operator.is_live)
        return Supervision(self._workflow, nobody, Interventions(lambda *_, **__: None, lambda _: None), self._mixture)

    def close(self) -> None:
        """Let the operator leave."""
        self._operator.close()

    def get_state(self) -> dict[str, Any]:
        """Return who the teacher is and who acts; what the operator remembers is in the carry."""
        teacher = {} if self._mixture is None else self._mixture.get_state()
        return {**teacher, "interventions": self._journal.get_state()}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse to go on beside another teacher; go on with who acts."""
        if self._mixture is not None:
            self._mixture.check_state(state)
        if "interventions" in state:  # early checkpoints did not tell
            self._journal.set_state(state["interventions"])

    def _verdicts(self, rows: Mapping[str, Any]) -> Tensor:
        """Return what is said of the steps that end an episode, [T, N]."""
        ended: Tensor = rows["terminated"] | rows["truncated"]
        verdicts = torch.full(ended.shape, UNDECIDED, device=ended.device)
        if ended.any():
            final = tree_map(lambda leaf: leaf[ended], rows["final_observations"])
            verdicts[ended] = self._operator.judge(final, rows["rewards"][ended])
        return verdicts


Companions = Mixture | Supervision  # who may act beside the workflow while data is collected
