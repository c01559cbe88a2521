"""DataParallel on CPU: one process divides the batch among threads, as nn.DataParallel does among devices."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor, nn
from torch._ops import OpOverload
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.core.errors import ModelError
from paceline.core.keys import mix

T = TypeVar("T")


class ThreadedParallel(nn.Module):
    """Runs chunks of a batch through replicas of a model in threads, forward and backward.

    As in nn.DataParallel the batch is split by torch.chunk, outputs are in the order of the batch, gradients are
    summed over replicas (in order, so a run repeats bit for bit), and buffers that a forward pass changes persist from
    the first replica only. The model takes one tensor and returns one.

    Torch's CPU generator is shared by all threads, so draws would depend on their order. Each forward pass in
    training therefore takes one number from it in the calling thread, and gives each replica a generator seeded by
    (number, replica), which every random operation of that thread uses. Seeding torch before a step fixes them all.

    The intra-op threads of the caller are divided evenly among the workers. MKL has one setting per process.
    """

    def __init__(self, module: nn.Module, num_replicas: int) -> None:
        super().__init__()
        self.module = module
        # In a plain list, so that neither parameters nor keys appear twice. The first replica is the model itself.
        self.replicas = [module, *(copy.deepcopy(module) for _ in range(num_replicas - 1))]
        share = max(1, torch.get_num_threads() // num_replicas)
        self.workers = ThreadPoolExecutor(
            num_replicas, thread_name_prefix="replica", initializer=torch.set_num_threads, initargs=(share,)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs for a batch, computed in threads."""
        chunks = images.chunk(len(self.replicas))
        if len(chunks) == 1:
            return self.module(images)
        for replica in self.replicas[1 : len(chunks)]:
            follow_original(replica, self.module)
        call = Call(
            replicas=self.replicas[: len(chunks)],
            run_all=self.run_all,
            seed=int(torch.randint(2**62, ())) if self.training else 0,
            with_grad=torch.is_grad_enabled(),
            autocast_dtype=torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None,
        )
        result = _Threaded.apply(call, images, *self.module.parameters())
        assert isinstance(result, Tensor)
        return result

    def run_all(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run tasks in threads and return their results in order; the first failure in order is raised."""
        futures = [self.workers.submit(task) for task in tasks]
        wait(futures)
        return [future.result() for future in futures]

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the state of the wrapped model, under its own names."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load the state of the model inside, under its own names."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)


@torch.no_grad()
def follow_original(replica: nn.Module, original: nn.Module) -> None:
    """Update a replica: parameters share memory, buffers and modes are copied."""
    for ours, theirs in zip(replica.parameters(), original.parameters(), strict=True):
        ours.requires_grad_(theirs.requires_grad)
        if ours.data_ptr() != theirs.data_ptr() or ours.stride() != theirs.stride():
            ours.data = theirs.data
    for ours, theirs in zip(replica.buffers(), original.buffers(), strict=True):
        ours.copy_(theirs)
    for ours, theirs in zip(replica.modules(), original.modules(), strict=True):
        ours.training = theirs.training


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One forward pass: the replicas that take part, how to run them, and what their threads must know."""

    replicas: list[nn.Module]
    run_all: Callable[[Sequence[Callable[[], Any]]], list[Any]]
    seed: int
    with_grad: bool
    autocast_dtype: torch.dtype | None

    @contextmanager
    def thread_context(self, index: int) -> Iterator[None]:
        """Give a worker thread what only the calling thread has: gradient mode, autocast, and randomness."""
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.with_grad))
            if self.autocast_dtype is not None:
                # Threads share the cache of casts, and a weight is cast once anyway.
                stack.enter_context(torch.autocast("cpu", self.autocast_dtype, cache_enabled=False))
            if self.replicas[index].training:
                stack.enter_context(OwnRandomness(mix(self.seed, index)))
            yield

    def forward_one(self, index: int, chunk: Tensor) -> Tensor:
        """Return the output of a replica, with its graph if gradients are wanted."""
        with self.thread_context(index):
            output = self.replicas[index](chunk)
        if not isinstance(output, Tensor) or output.dim() == 0:
            kind = "a number" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise ModelError(f"the model returns {kind}, which threads cannot put together", hint="use --mode ddp")
        return output


class _Threaded(torch.autograd.Function):
    """All replicas as one autograd function: each has its own graph, and its thread runs the backward pass."""

    @staticmethod
    def forward(ctx: Any, call: Call, images: Tensor, *parameters: Tensor) -> Tensor:
        wants_grad = call.with_grad and ctx.needs_input_grad[1]
        chunks = [chunk.detach().requires_grad_(wants_grad) for chunk in images.chunk(len(call.replicas))]
        outputs = call.run_all([partial(call.forward_one, *numbered) for numbered in enumerate(chunks)])
        ctx.call, ctx.chunks, ctx.outputs = call, chunks, outputs
        return torch.cat([output.detach() for output in outputs])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] - made by the decorator
        call, chunks, outputs = ctx.call, ctx.chunks, ctx.outputs
        grads = grad_outputs[0].split([len(output) for output in outputs])
        wanted = ctx.needs_input_grad[2:]

        def backward_one(index: int) -> list[Tensor | None]:
            parameters = [parameter for parameter in call.replicas[index].parameters() if parameter.requires_grad]
            inputs = [chunks[index], *parameters] if ctx.needs_input_grad[1] else parameters
            return list(torch.autograd.grad(outputs[index], inputs, grads[index], allow_unused=True))

        found = call.run_all([partial(backward_one, index) for index in range(len(outputs))])
        of_images = torch.cat([own.pop(0) for own in found]) if ctx.needs_input_grad[1] else None
        sums = iter([_sum(own) for own in zip(*found, strict=True)])
        return None, of_images, *(next(sums) if is_wanted else None for is_wanted in wanted)


class OwnRandomness(TorchDispatchMode):
    """Lets every random operation of a thread draw from that thread's generator, and refuses one that cannot."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = Generator().manual_seed(seed >> 1)

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        return seeded_form(func)(*args, **kwargs | {"generator": self.generator})


@cache
def seeded_form(func: OpOverload) -> OpOverload:
    """Return the form of a random operation that takes a generator."""
    name = func._schema.overload_name  # noqa: SLF001 - torch offers no other way to read a signature
    seeded = getattr(func.overloadpacket, f"{name}_generator" if name else "generator", None)
    for form in (func, seeded):
        if form is not None and "generator" in [argument.name for argument in form._schema.arguments]:  # noqa: SLF001
            return form
    raise ModelError(f"the model draws random numbers by {func}, which takes no generator", hint="use --mode ddp")


def _sum(grads: Sequence[Tensor | None]) -> Tensor | None:
    present = [grad for grad in grads if grad is not None]
    return reduce(torch.add, present) if present else None
