"""Sums the gradients of some parameters over ranks, during the backward pass where possible.

Unlike DDP it wraps no module: a loop of the user may call any method of a model, any number of times in a pass.
"""

from collections.abc import Mapping
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.parallel.gradient_buckets import group_gradients
from paceline.parallel.team import Team


class GradientSum:
    """The gradients of some parameters, summed over all ranks.

        total.begin()
        for each micro-batch of this rank:
            if it is the last: total.arm()
            forward, backward
        alike = total.finish(own_calls)

    Afterwards every rank has the sum. A parameter that no rank has used keeps no gradient, as on one rank.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], team: Team) -> None:
        self._team = team
        self._parameters = list(parameters.values())[::-1]  # the backward pass starts at the last layer
        self._buckets = group_gradients(
            self._parameters, lambda each: (each.dtype, each.device), lambda each: each.nbytes
        )
        self._calls = 0
        """Calls of backward per micro-batch in the last step; sums start early only where it was one."""
        self._armed = False
        self._arrived: set[int] = set()
        self._sent: list[tuple[Tensor, dist.Work | None]] = []
        if team.world.size > 1:
            arrived = WeakMethod(self._on_gradient)

            def pass_on(parameter: Tensor) -> None:  # holds no reference to the sum, which may be gone by then
                method = arrived()
                if method is not None:
                    method(parameter)

            for parameter in self._parameters:
                parameter.register_post_accumulate_grad_hook(pass_on)

    def begin(self) -> None:
        """Start a step."""
        self._armed, self._arrived, self._sent = False, set(), []
        self._used = [False] * len(self._parameters)

    def arm(self) -> None:
        """Start sums as soon as the next backward pass has their gradients: it is the last of this rank."""
        self._armed = self._team.world.size > 1 and self._calls == 1

    def finish(self, own_calls: int | None) -> bool:
        """Wait for the sums, and set the gradients. Collective: every rank must call it.

        `own_calls` is the number of calls in each micro-batch; None on a rank without any. Return whether all ranks
        with micro-batches made the same number.
        """
        if self._team.world.size == 1:
            return True
        could_arm = self._calls == 1
        self._armed = False
        while len(self._sent) < len(self._buckets):
            self._send(len(self._sent))
        calls, square = own_calls or 0, (own_calls or 0) ** 2
        numbers = torch.tensor([calls, square, own_calls is not None, *self._used])
        work = self._team.start_sum(numbers)
        if work is not None:
            work.wait()
        total, squares, num_ranks, *used = numbers.tolist()
        self._calls = total // max(1, num_ranks)
        self._receive(used)
        alike = num_ranks * squares == total**2
        if could_arm and self._calls > 1 and alike:
            self._add_late(used)
        return alike

    def _on_gradient(self, parameter: Tensor) -> None:
        if not self._armed:
            return
        self._arrived.add(id(parameter))
        while len(self._sent) < len(self._buckets) and all(
            id(each) in self._arrived for each in self._buckets[len(self._sent)]
        ):
            self._send(len(self._sent))
        if len(self._sent) == len(self._buckets):
            self._armed = False

    def _send(self, number: int) -> None:
        bucket = self._buckets[number]
        start = sum(len(each) for each in self._buckets[:number])
        for place, parameter in enumerate(bucket):
            self._used[start + place] |= parameter.grad is not None
        flat = torch.cat([_flat(parameter) for parameter in bucket])
        for parameter in bucket:
            parameter.grad = None
        self._sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def _receive(self, used: list[int]) -> None:
        position = 0
        late = [parameter.grad for parameter in self._parameters]
        for bucket, (flat, work) in zip(self._buckets, self._sent, strict=True):
            if work is not None:
                work.wait()
            parts = flat.split([parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                own = part.view(parameter.shape)
                if not parameter.is_contiguous():  # a fused optimizer reads both in the order of memory
                    own = torch.empty_like(parameter, requires_grad=False).copy_(own)
                parameter.grad = own if used[position] else None
                position += 1
        self._late = late

    def _add_late(self, used: list[int]) -> None:
        """Add the gradients of further calls in the last micro-batch, after the sums had started. Collective."""
        sums = [parameter.grad for parameter in self._parameters]
        for parameter, gradient in zip(self._parameters, self._late, strict=True):
            parameter.grad = gradient
        self._sent = []
        for number in range(len(self._buckets)):
            self._send(number)
        self._receive([1] * len(used))
        for parameter, earlier, is_used in zip(self._parameters, sums, used, strict=True):
            if not is_used:
                parameter.grad = None
            elif earlier is not None and parameter.grad is not None:
                parameter.grad += earlier


def _flat(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    return torch.zeros_like(parameter).flatten() if gradient is None else gradient.detach().flatten()
