"""Installs the evidence of an audit in a process that has imported torch."""

import datetime
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from paceline_attach.listener import listeners

from . import calls, clocks, collectives, early, loaders, random_state
from .calls import Calls
from .clocks import Clocks
from .collectives import Collectives
from .rank_end import Limits, note_exceptions
from .samples import Samples
from .settings import ON_CPU, SECONDS_OF_COLLECTIVES
from .steps import Steps


def install() -> None:
    """Listen with everything that gathers evidence; the limits come last, because they may end the process."""
    if ON_CPU:
        from . import on_cpu

        on_cpu.install()
    torch.compile = _not_compiled
    _limit_collectives()
    note_exceptions()
    of_samples = Samples()
    of_steps = Steps(of_samples)
    of_collectives = Collectives(of_steps)
    of_calls, of_clocks = Calls(of_steps), Clocks()
    listeners.extend([of_collectives, of_steps, of_samples, of_calls, of_clocks, Limits()])
    random_state.follow()
    loaders.follow(of_samples)
    collectives.follow(of_collectives)
    clocks.follow(of_clocks)  # before the next, which looks at its caller
    calls.follow(of_calls)
    early.trace_lines()


def _not_compiled(model: Any = None, **_options: Any) -> Any:
    """Stand in for torch.compile, whose minutes an audit does not need."""
    return (lambda function: function) if model is None else model


def _limit_collectives() -> None:
    """Let a collective fail after a minute where the script would hang for half an hour."""
    original = c10d.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        if len(args) < 3:
            kwargs["timeout"] = datetime.timedelta(seconds=SECONDS_OF_COLLECTIVES)
        return original(*args, **kwargs)

    c10d.init_process_group = dist.init_process_group = init_process_group
