"""The gradient of a step from its shards: the same bits for every assignment of shards to ranks."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.core.config import Config
from paceline.core.errors import ModelError
from paceline.parallel.exact.bucket import Bucket, ShardedBucket, Slot
from paceline.parallel.gradient_buckets import group_gradients
from paceline.parallel.module_state import ModuleState, as_real, weights_changed
from paceline.parallel.sharded import is_sharded
from paceline.parallel.team import Team

STATE = "(state)"
"""The name of the slot for changes of buffers."""
WIDE, NUM_WIDE = "(wide)", 16
"""Steps with wide sums that are left, by its name in a checkpoint: at the start, and after an overflow."""


class Reducer:
    """Sums gradients and changes of the module's state over all shards of all ranks, in fixed point.

        while not reducer.is_exact:
            with reducer.step():
                for each shard of this rank:
                    with reducer.micro_batch(weight):  forward, backward

    Afterwards every rank has the sum in its parameters, or in its rows of them. Sums over ranks start during the
    backward pass of the rank's last shard. Where a gradient grew out of its range, the step must be computed again.
    """

    def __init__(  # noqa: PLR0913 - the model, its state, and how it is summed
        self,
        model: nn.Module,
        config: Config,
        team: Team,
        slots: Mapping[str, Slot],
        state: ModuleState,
        *,
        overlaps: bool = True,
    ) -> None:
        """`slots` describes the model's parameters as they are where they are not sharded.

        Unless sums overlap with the backward pass of the last shard, a shard may have several backward passes.
        """
        self._team, self._state, self._overlaps = team, state, overlaps
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.is_sharded = any(is_sharded(value) for value in self._parameters.values())
        self.is_exact = False
        """Whether the last step needs no repetition."""
        self._state_memory = torch.zeros(state.size, device=team.device)
        # The backward pass runs from the last layer to the first; changes of the state are known at its end.
        own = [slots[name] for name in reversed(self._parameters)]
        last = [Slot.of(STATE, self._state_memory)] if state.size else []
        together = own if self.is_sharded else own + last
        groups = group_gradients(together, lambda slot: slot.number_type, lambda slot: slot.num_bytes, config.bucket_mb)
        kinds = [(ShardedBucket if self.is_sharded else Bucket, group) for group in groups]
        kinds += [(Bucket, last)] if self.is_sharded and last else []
        self._buckets = [kind(group, team.device, num_terms=config.fixed_shards or 1) for kind, group in kinds]
        self._bucket_of = {slot.name: number for number, bucket in enumerate(self._buckets) for slot in bucket.slots}
        self._gradients: dict[str, Tensor] = {}
        self._num_added = self._num_left = 0
        self._weight, self._watches, self._num_wide = 0.0, False, NUM_WIDE
        if self.is_sharded:
            self._watch_unsharded(model)
        elif team.world.size > 1 and overlaps:
            for name, parameter in self._parameters.items():
                self._watch(name, parameter)

    @contextmanager
    def step(self, num_own: int) -> Iterator["Reducer"]:
        """Compute a step with `num_own` micro-batches on this rank. Collective: every rank must call it."""
        self._num_left, self._num_added, self._weight = num_own, 0, 0.0
        self._state.begin()
        for bucket in self._buckets:
            bucket.begin(wide=bool(self._num_wide))
        versions = {name: value._version for name, value in self._parameters.items()}  # noqa: SLF001 - changes in place
        yield self
        for name, value in self._parameters.items():
            if value._version != versions[name] and not self.is_sharded:  # noqa: SLF001 - fsdp changes its shards itself
                raise weights_changed(name)
        self._add_left()  # a rank without a shard takes part, too
        self._finish()

    @contextmanager
    def micro_batch(self, weight: float) -> Iterator[None]:
        """Compute this rank's next shard; `weight` is its fraction of the batch, 0 if it must not count."""
        self._state.reset()
        self._num_left, self._num_added, self._weight = self._num_left - 1, 0, weight
        is_last = self._num_left == 0 and self._team.world.size > 1
        self._watches = self.is_sharded or (is_last and self._overlaps)
        yield
        self._watches = False
        for name, parameter in self._parameters.items():
            if parameter.grad is not None and not self.is_sharded:
                self._gradients[name], parameter.grad = parameter.grad, None
        if self._state.size and weight:
            self._gradients[STATE] = self._state.change(weight).to(self._state_memory)
        self._add_left()

    def _add_left(self) -> None:
        """Let all buckets take the gradients of a shard that have not done so during its backward pass."""
        while self._num_added < len(self._buckets):
            self._add_next()

    def _add_next(self) -> None:
        bucket = self._buckets[self._num_added]
        given = {slot.name: self._gradients.pop(slot.name) for slot in bucket.slots if slot.name in self._gradients}
        bucket.add(given if self._weight else {}, is_last=self._num_left == 0)
        self._num_added += 1

    def _watch(self, name: str, parameter: Tensor) -> None:
        arrived = WeakMethod(self._arrived)  # hooks outlive the reducer, whose memory must be freed

        def pass_on(given: Tensor) -> None:
            if (method := arrived()) is not None:
                method(name, given)

        parameter.register_post_accumulate_grad_hook(pass_on)

    def _watch_unsharded(self, model: nn.Module) -> None:
        """Watch the whole parameters, which take the place of shards at the start of the forward pass of their unit."""
        left = set(self._parameters)

        def watch_own(module: nn.Module, _inputs: object, *, prefix: str) -> None:
            # Also those of inner modules: some are never called, such as a ParameterList.
            for name, parameter in module.named_parameters(prefix) if left else ():
                if name in left and not is_sharded(parameter):
                    left.discard(name)
                    self._watch(name, parameter)

        for name, module in model.named_modules():
            module.register_forward_pre_hook(partial(watch_own, prefix=name))

    def _arrived(self, name: str, parameter: Tensor) -> None:
        """Take a gradient, and let every complete bucket add its own, in order."""
        if not self._watches:
            return
        if name in self._gradients or self._bucket_of[name] < self._num_added:
            raise ModelError(
                "a parameter got a second gradient in one backward pass, as reentrant checkpointing does",
                hint="use checkpoint(…, use_reentrant=False), or --exact order",
            )
        assert parameter.grad is not None
        self._gradients[name], parameter.grad = parameter.grad, None
        while self._num_added < len(self._buckets) and all(
            slot.name in self._gradients for slot in self._buckets[self._num_added].slots
        ):
            self._add_next()

    def _finish(self) -> None:
        """Wait for all sums, and set the gradients if they are exact. Collective: every rank must call it."""
        seen = torch.cat([bucket.fixed.seen() for bucket in self._buckets])
        if self._team.world.size > 1:
            dist.all_reduce(seen, op=dist.ReduceOp.MAX)
        parts = seen.split([len(bucket.fixed.magnitudes) for bucket in self._buckets])
        by_bucket = list(zip(self._buckets, parts, strict=True))
        self.is_exact = bool(torch.stack([bucket.fixed.fits(part) for bucket, part in by_bucket]).all())
        for bucket, part in by_bucket:
            bucket.wait()
            if self.is_exact:
                bucket.give(self._parameters | {STATE: self._state_memory}, part)
            bucket.fixed.learn(part)
            if not self.is_exact or self._num_wide == 1:
                bucket.fill_empty()
        self._num_wide = max(0, self._num_wide - 1) if self.is_exact else NUM_WIDE
        self._state.reset()
        if self.is_exact and self._state.size:
            assert self._state_memory.grad is not None
            self._state.apply(self._state_memory.grad.double())

    @torch.no_grad()
    def clip(self, limit: float, parameters: Mapping[str, nn.Parameter] | None = None) -> None:
        """Scale the gradient, or that of some parameters, to at most this norm. Collective.

        The bits of the norm do not depend on the sharding.
        """
        clipped = self._parameters if parameters is None else parameters
        gradients = [parameter.grad for parameter in clipped.values() if parameter.grad is not None]
        gradients = [as_real(each.to_local() if is_sharded(each) else each) for each in gradients]
        none = torch.zeros((), dtype=torch.float64, device=self._team.device)  # what a rank without rows contributes
        largest = torch.stack([none, *(each.abs().amax().double() for each in gradients if each.numel())]).amax()
        if self.is_sharded:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        # Multiples of a unit that is large enough are added in fp64 without rounding, in any order.
        size = sum(parameter.numel() for parameter in clipped.values())
        unit = torch.frexp(largest).exponent.double() * 2 + math.ceil(math.log2(size)) - 51
        rounder = 1.5 * torch.exp2(unit + 52)
        squares = [none, *(((each.double().square() + rounder) - rounder).sum() for each in gradients)]
        total = torch.stack(squares).sum()
        if self.is_sharded:
            dist.all_reduce(total)
        factor = (limit / (total.sqrt() + 1e-6)).clamp(max=1.0).float()
        for gradient in gradients:
            gradient.mul_(factor)

    def _magnitudes(self) -> dict[str, Tensor]:
        return {slot.name: bucket.fixed.magnitudes[slot.blocks] for bucket in self._buckets for slot in bucket.slots}

    def capture(self) -> dict[str, Tensor]:
        """Return the magnitudes that the scale of the next step follows from, by name."""
        return {name: part.cpu() for name, part in self._magnitudes().items()} | {WIDE: torch.tensor(self._num_wide)}

    def restore(self, magnitudes: Mapping[str, Tensor]) -> None:
        """Set the magnitudes from those of a checkpoint."""
        self._num_wide = int(magnitudes[WIDE])
        for name, part in self._magnitudes().items():
            if name in magnitudes:
                part.copy_(magnitudes[name])
