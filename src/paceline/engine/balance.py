"""Balances shards over ranks of unequal speed: re-decides during a run which rank computes how many."""

from paceline.core.batch_plan import BatchPlan
from paceline.core.units import plural
from paceline.engine.clock import BACKWARD, COPY, DATA, FORWARD, Clock
from paceline.engine.recorder import Recorder
from paceline.parallel.team import Team

FIRST, EVERY = 8, 64
"""Steps before the first decision, and between later ones."""


class Balance:
    """The assignment of shards to ranks. It changes the time of a step, and no bit of its result."""

    def __init__(self, plan: BatchPlan, team: Team, clock: Clock, recorder: Recorder) -> None:
        self.plan = plan
        self._team, self._clock, self._recorder = team, clock, recorder
        self._step: int | None = None
        self._seconds = 0.0

    def decide(self, step: int) -> int:
        """Assign the shards by the time per shard since the last call, and return the step of the next decision.

        Collective: every rank must call it.
        """
        before, self._seconds = self._seconds, self._busy_seconds()
        first, self._step = self._step, step
        if first is None:
            return step + FIRST
        own = len(self.plan.micro_batch_indices(self._team.world.rank))
        per_shard = self._team.gather(self._per_shard(self._seconds - before, (step - first) * own))
        plan = self.plan.balanced(per_shard)
        if plan != self.plan:
            self.plan = plan
            shares = ", ".join(str(len(plan.micro_batch_indices(rank))) for rank in range(plan.world_size))
            ranks = plural(plan.world_size, "rank")
            self._recorder.say(f"balance: from step {step + 1} on, the {ranks} compute {shares} shards")
        return step + EVERY

    def _busy_seconds(self) -> float:
        """Return the time that this rank has spent on its own shards, not on waiting for others."""
        totals = self._clock.totals()
        return sum(totals[phase] for phase in (DATA, COPY, FORWARD, BACKWARD))

    def _per_shard(self, seconds: float, num_shards: int) -> float:
        return seconds / num_shards
