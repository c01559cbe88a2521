"""Memory of the simulated device: which streams use a block, when it is freed, and which host memory is page-locked."""

import threading
import weakref
from collections import defaultdict

import torch

from tests.sim.entries import LOG, paceline_line

MAIN, CALLBACKS = 0, 7
"""The stream that computes, and the one on which a CUDA future runs its callbacks."""


class Streams:
    """The current stream of each thread, and how far each stream has waited for each other."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._moment = 0
        self._waited: defaultdict[tuple[int, int], int] = defaultdict(int)

    @property
    def current(self) -> int:
        return getattr(self._local, "stream", MAIN)

    @current.setter
    def current(self, stream: int) -> None:
        self._local.stream = stream

    def now(self) -> int:
        """Return the next moment."""
        self._moment += 1
        return self._moment

    def wait(self, stream: int, other: int) -> None:
        """Let a stream wait for all work of another."""
        self._waited[stream, other] = self.now()

    def wait_for_all(self, stream: int) -> None:
        """Let a stream wait for every other, as autograd does at the end of a backward pass."""
        for other in {MAIN, CALLBACKS} | {pair[1] for pair in self._waited}:
            self.wait(stream, other)

    def has_waited(self, stream: int, other: int, moment: int) -> bool:
        """Tell whether a stream has waited for the work of another since a moment."""
        return self._waited[stream, other] > moment


STREAMS = Streams()


class Block:
    """One allocation. It belongs to the stream that allocated it: when freed, that stream may reuse it at once."""

    def __init__(self) -> None:
        self.home = STREAMS.current
        self._uses: dict[int, tuple[int, str]] = {}

    def use(self) -> None:
        """Note a use on the current stream, if it is not the block's own."""
        stream = STREAMS.current
        if stream != self.home:
            self._uses[stream] = (STREAMS.now(), paceline_line())

    def protect(self, stream: int) -> None:
        """Keep the memory until a stream has passed its last use, as record_stream does."""
        self._uses.pop(stream, None)

    def __del__(self) -> None:
        for stream, (moment, line) in self._uses.items():
            if not STREAMS.has_waited(self.home, stream, moment):
                LOG.add("lifetime", f"freed while stream {stream} may still use it", line)


PAGE_LOCKED: dict[int, weakref.ref[torch.Tensor]] = {}
"""Page-locked tensors by the address of their storage."""


def pin_memory(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    """Return a copy in page-locked memory: in the place of torch.Tensor.pin_memory."""
    copied = tensor.clone(memory_format=torch.preserve_format)
    PAGE_LOCKED[copied.untyped_storage().data_ptr()] = weakref.ref(copied)
    return copied


def is_pinned(tensor: torch.Tensor, *_: object) -> bool:
    """Tell whether a host tensor is page-locked."""
    owner = PAGE_LOCKED.get(tensor.untyped_storage().data_ptr())
    return owner is not None and owner() is not None
