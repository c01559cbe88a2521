"""torchrun with our rendezvous: its ranks start again when nodes leave or join, and nobody waits for a lost node."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed import run
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.launcher import api

from paceline.core.errors import LostRankError, RanksError
from paceline.core.units import escape_controls
from paceline.launching.outcomes import REPORTS_VARIABLE, STDERR, forget_stops, read_reports, report_failure
from paceline.parallel.detect import ROUND_VARIABLE
from paceline.parallel.node_rendezvous import BACKEND, NodeRendezvous, node_rendezvous
from paceline.parallel.node_rounds import NodePlan

SECONDS_TO_LEAVE = 30.0
"""Ranks of a run end together: a node that takes longer is lost."""
SECONDS_TO_READ = 2.0
"""Time for other nodes to learn that the job has ended, before the store ends with this process."""


LocalAgent: Any = LocalElasticAgent  # its methods are decorated, without types


class ElasticAgent(LocalAgent):
    """The agent of one node."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, exit_barrier_timeout=SECONDS_TO_LEAVE, **options)
        handler = self._worker_group.spec.rdzv_handler
        assert isinstance(handler, NodeRendezvous)
        self._nodes = handler
        self._reports = Path(os.environ[REPORTS_VARIABLE])

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        if result.state is WorkerState.SUCCEEDED and self._nodes.plan.is_elastic and self._node_left():
            self._nodes.leave_round()
            return RunResult(state=WorkerState.HEALTHY)
        return result

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        if self._nodes.has_lost_node:  # its ranks wait for those of the lost node, and cannot save
            death_sig = signal.SIGKILL
        super()._shutdown(death_sig, timeout)

    def _exit_barrier(self) -> None:
        if not self._stops():
            super()._exit_barrier()

    def _stops(self) -> list[int]:
        """Return the signals that made ranks of this node save and stop."""
        return [report.exit_code - 128 for report in read_reports(self._reports) if report.exit_code > 128]

    def _node_left(self) -> bool:
        """Tell whether ranks stopped because nodes change; SIGUSR1 asks for the whole job to be queued again."""
        stops = self._stops()
        return bool(stops) and signal.SIGUSR1 not in stops


def run_agent(plan: NodePlan, args: Sequence[str]) -> NoReturn:
    """Run torchrun with our rendezvous, and exit with its exit code."""
    created: list[NodeRendezvous] = []

    def create(_: object) -> NodeRendezvous:
        created.append(node_rendezvous(plan, _begin_round))
        return created[-1]

    rendezvous_handler_registry.register(BACKEND, create)
    api.LocalElasticAgent = ElasticAgent
    try:
        run.main([*args])
    except LostRankError as problem:
        if not any(report.exit_code > 128 for report in read_reports(Path(os.environ[REPORTS_VARIABLE]))):
            report_failure(problem, os.environ)
            sys.exit(problem.exit_code)
    except RanksError as problem:
        report_failure(problem, os.environ)
        sys.exit(problem.exit_code)
    except SignalException:
        if created and created[0].served is not None and plan.is_elastic:
            created[0].set_closed()  # without the store, the other nodes cannot continue
            time.sleep(SECONDS_TO_READ)
        raise
    sys.exit(0)


def _begin_round(number: int, change: str | None) -> None:
    """Give the ranks that start now the number of their round, and tell the user why they start again."""
    os.environ[ROUND_VARIABLE] = str(number)
    forget_stops(Path(os.environ[REPORTS_VARIABLE]))
    if change is not None:
        with suppress(OSError, KeyError), Path(os.environ[STDERR]).open("a", encoding="utf-8") as terminal:
            terminal.write(escape_controls(f"paceline: {change}\n"))
