"""Living gloo ranks for tests: importing torch takes two seconds, so ranks are started once and run many checks.

`python -m tests.ranks.pool FD` is one of them. It takes jobs from a connection and is gone when the other end is,
however pytest ended and even if it hangs in a collective: a thread of its own watches the connection.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
HANG_SECONDS = 150.0
GRACE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What one rank is asked to do: `function(team, *args)` as one of `world_size` ranks that meet at `store`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    rank: int
    world_size: int
    store: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An exception of a rank, with its traceback as text and the moment that it was raised."""

    error: Exception
    trace: str
    moment: float


class RemoteTraceback(Exception):  # noqa: N818 - not an error of its own: shown above the one that it explains
    """The traceback of a rank, as the cause of its exception here."""


class RanksHang(Exception):  # noqa: N818 - says what happened
    """Some ranks did not answer in time."""


class Rank:
    """One living process."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "tests.ranks.pool", str(theirs.fileno())]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )
        theirs.close()

    def kill(self) -> None:
        """End the process, and wait until it is gone."""
        self.connection.close()
        self.process.kill()
        self.process.wait()


class RankPool:
    """Ranks, started when first needed and killed at the end."""

    def __init__(self, hang_seconds: float = HANG_SECONDS) -> None:
        self.hang_seconds = hang_seconds
        self.living: list[Rank] = []
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self.num_calls = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.folder.cleanup()

    def kill(self) -> None:
        """End every process; the next call starts new ones."""
        while self.living:
            self.living.pop().kill()

    def of(self, world_size: int) -> "Ranks":
        """Return the first ranks of the pool as a world of its own."""
        return Ranks(self, world_size)

    def first(self, number: int) -> list[Rank]:
        """Return that many living ranks."""
        while len(self.living) < number:
            self.living.append(Rank())
        return self.living[:number]

    def replace(self, rank: Rank) -> None:
        """Start another rank in the place of one."""
        self.living[self.living.index(rank)] = Rank()
        rank.kill()

    def new_store(self) -> str:
        """Return the file at which the ranks of one call meet; each call has its own."""
        self.num_calls += 1
        return str(Path(self.folder.name) / f"store-{self.num_calls}")


class Ranks:
    """A number of ranks that run a function together, as a new process group each time."""

    def __init__(self, pool: RankPool, world_size: int) -> None:
        self.pool = pool
        self.world_size = world_size

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return the results of `function(team, *args)` in the order of ranks, or raise the first failure of one."""
        ranks, store = self.pool.first(self.world_size), self.pool.new_store()
        try:
            for number, rank in enumerate(ranks):
                job = Job(function=function, args=args, rank=number, world_size=self.world_size, store=store)
                rank.connection.send_bytes(pickle.dumps(job))
            answers = self.collect(ranks)
        except BaseException:
            self.pool.kill()
            raise
        failures = [(answer.moment, rank) for rank, answer in answers.items() if isinstance(answer, Failure)]
        if failures:
            self.fail(answers[min(failures)[1]], rank=min(failures)[1], num_answers=len(answers))
        return [answers[rank] for rank in range(self.world_size)]

    def run_until_death(self, victim: int, function: Callable[..., Any], *args: Any) -> None:
        """Run a function in which one rank is killed, and wait until the others have seen it. The dead is replaced.

        A survivor that hangs, as one may whose collective never ends, is replaced too.
        """
        ranks, store = self.pool.first(self.world_size), self.pool.new_store()
        try:
            for number, rank in enumerate(ranks):
                job = Job(function=function, args=args, rank=number, world_size=self.world_size, store=store)
                rank.connection.send_bytes(pickle.dumps(job))
            spoke = ranks[victim].connection.poll(self.pool.hang_seconds)
            if spoke:
                self.expect_end(ranks[victim], victim)
            ended = ranks[victim].process.wait(GRACE_SECONDS if spoke else 0)
        except BaseException:  # no rank that still works on this may meet the next test
            self.pool.kill()
            raise
        self.pool.replace(ranks[victim])
        for rank in ranks:
            if rank is not ranks[victim]:
                if rank.connection.poll(GRACE_SECONDS):
                    rank.connection.recv_bytes()
                else:
                    self.pool.replace(rank)
        if ended != -signal.SIGKILL:
            raise RuntimeError(f"rank {victim} was to be killed, but ended with {ended}")

    def expect_end(self, rank: Rank, number: int) -> None:
        """Raise what a rank that was to be killed reports instead of ending."""
        try:
            answer = pickle.loads(rank.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            return
        if isinstance(answer, Failure):
            self.fail(answer, rank=number, num_answers=1)
        raise RuntimeError(f"rank {number} was to be killed, but went on to the end")

    def collect(self, ranks: list[Rank]) -> dict[int, Any]:
        """Return the answers by rank. After a failure the others have a moment left: they may wait for the failed."""
        connections = [rank.connection for rank in ranks]
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + self.pool.hang_seconds
        while len(answers) < len(connections):
            waiting = [connection for rank, connection in enumerate(connections) if rank not in answers]
            ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            failed = any(isinstance(answer, Failure) for answer in answers.values())
            if not ready and failed:
                break
            if not ready:
                silent = [rank for rank in range(len(connections)) if rank not in answers]
                raise RanksHang(f"no answer from ranks {silent} in {self.pool.hang_seconds:g} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = connections.index(connection)
                answers[rank] = receive(ranks[rank], rank)
                if isinstance(answers[rank], Failure) and not failed:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        return answers

    def fail(self, failure: Failure, *, rank: int, num_answers: int) -> None:
        """Raise the exception of a rank here; ranks that still wait for it are replaced."""
        if num_answers < self.world_size:
            self.pool.kill()
        raise failure.error from RemoteTraceback(f"\n\non rank {rank} of {self.world_size}:\n{failure.trace}")


def receive(rank: Rank, number: int) -> Any:
    """Return a rank's answer; a rank that died is an error here."""
    try:
        return pickle.loads(rank.connection.recv_bytes())
    except (EOFError, ConnectionResetError):
        code = rank.process.wait(GRACE_SECONDS)
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        raise RuntimeError(f"rank {number} {how}") from None


def serve(connection: Connection) -> None:
    """Do the jobs that come, until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which ends us by closing the connection
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(connection, jobs), daemon=True).start()
    while True:
        connection.send_bytes(answer(jobs.get()))


def listen(connection: Connection, jobs: "queue.SimpleQueue[bytes]") -> None:
    """Pass on jobs; leave at once when the other end is gone, whatever the main thread is stuck in."""
    with suppress(EOFError, OSError):
        while True:
            jobs.put(connection.recv_bytes())
    os._exit(0)


def answer(message: bytes) -> bytes:
    """Do one job and return its result, or its failure.

    Pickled by hand: where torch is imported, a connection would send tensors through shared memory of the sender.
    """
    try:
        return pickle.dumps(work(pickle.loads(message)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the test must see it
        return pickle.dumps(failure(error))


def failure(error: Exception) -> Failure:
    """Return what the test is told about an exception."""
    return Failure(error=portable(error), trace=traceback.format_exc(), moment=time.monotonic())


def portable(error: Exception) -> Exception:
    """Return the exception if it survives a pipe, else its text."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - an exception may refuse to be pickled in any way
        return RuntimeError(f"{type(error).__name__}: {error}")


def work(job: Job) -> Any:
    """Join the other ranks, run the function, and leave them; also after a failure, so that none waits for us."""
    import torch
    import torch.distributed as dist

    from paceline.core.world import World
    from paceline.parallel.team import Team

    torch.manual_seed(0)
    world = World(
        rank=job.rank, size=job.world_size, local_rank=job.rank, local_size=job.world_size, launcher="the tests"
    )
    if job.world_size > 1:
        dist.init_process_group("gloo", init_method=f"file://{job.store}", rank=job.rank, world_size=job.world_size)
        dist.barrier()  # a rank that left while another still connects would make that one fail
    try:
        return job.function(Team(world, torch.device("cpu")), *job.args)
    except Exception as error:  # noqa: BLE001 - see above; taken here because leaving the group makes the others fail
        return failure(error)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    # Under its real name, so that what it unpickles is of the same classes.
    from tests.ranks.pool import serve as serve_as_imported

    serve_as_imported(Connection(int(sys.argv[1])))
