"""The rounds of a benchmark: every contender once per round, in another order each time, every result kept at once."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from paceline.analysis.measure import measure
from paceline.commands.launch import refuse_ranks
from paceline.core.config import Config
from paceline.core.errors import PacelineError, SettingError
from paceline.core.load import write_config
from paceline.core.start import Start
from paceline.core.units import plural, rate
from paceline.launching.child import inherited, interrupted_by_sigterm, run_child
from paceline.launching.contenders import crowded, fair_threads, prepare
from paceline.records.bench import Bench, BenchFolder, Contender, create_bench, write_bench
from paceline.records.folder import RunFolder, list_runs_below
from paceline.records.reader import read_environments, read_metrics

DEFAULT_STEPS = 60
Say = Callable[[str], None]


class Contest:
    """A benchmark under way. Only node 0 keeps results; other nodes take part in the runs that need them."""

    def __init__(
        self, config: Config, start: Start, contenders: list[Contender], *, repeats: int, cut: int | None
    ) -> None:
        refuse_ranks("bench", start)
        steps = config.steps or DEFAULT_STEPS
        cut = max(1, steps // 4) if cut is None else cut
        _check_length(steps, cut, repeats)
        self.start = start
        self.is_lead = not start.node_rank
        self.folder = create_bench(config.runs_dir, config.run_name) if self.is_lead else None
        self._scratch = Path(tempfile.mkdtemp(prefix="paceline-bench-"))
        home = BenchFolder(self._scratch) if self.folder is None else self.folder
        self._log, runs_dir = home.log, home.runs
        self._threads = fair_threads(config, contenders, os.environ)
        self._config = replace(config.resolved(), steps=steps, log_every=cut, runs_dir=runs_dir)
        self.bench = Bench(
            started=time.time(),
            settings=replace(config.resolved(), steps=steps, threads=self._threads).as_dict(),
            steps=steps,
            cut=cut,
            repeats=repeats,
            contenders=contenders,
        )

    def run(self, say: Say) -> bool:
        """Run all rounds and tell whether someone stopped them."""
        say(self._plan())
        caution = crowded(self.bench.contenders, self._threads)
        if caution is not None:
            say(f"caution: {caution}")
        try:
            with interrupted_by_sigterm():
                self._keep()
                self._rounds(say)
        except KeyboardInterrupt:
            say(f"stopped after {plural(len(self.bench.samples), 'run')}; what was measured is kept")
            return True
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
        return False

    def _plan(self) -> str:
        """Say what is about to happen."""
        names = ", ".join(one.label for one in self.bench.contenders)
        each = "" if self._threads is None else f", {plural(self._threads, 'thread')} a device"
        return f"{plural(self.bench.repeats, 'round')} of {names}; {self.bench.steps} steps each{each}"

    def _rounds(self, say: Say) -> None:
        count, number = len(self.bench.contenders), 0
        for round_number in range(self.bench.repeats):
            for place in range(count):
                index = (place + round_number) % count
                contender = self.bench.contenders[index]
                number += 1
                if contender.label in self.bench.failures or (contender.nodes == 1 and not self.is_lead):
                    continue
                told = self._turn(index, round_number, number)
                say(f"[{number}/{count * self.bench.repeats}] round {round_number + 1}: {contender.label}  {told}")

    def _turn(self, index: int, round_number: int, number: int) -> str:
        """Run one contender once, keep what it measured, and say it."""
        contender = self.bench.contenders[index]
        config = self._config if round_number == 0 else replace(self._config, profile=False)  # once is enough
        turn = prepare(config, self.start, contender, threads=self._threads, number=number)
        file = self._scratch / "config.toml"
        write_config(turn.config, file)
        words = ["train", "--config", str(file), *turn.words]
        code, said = run_child(words, inherited(os.environ), self._log)
        if code != 0:  # every node sees that it failed, so all go on without it
            return self._out(contender, _reason(said))
        if self.folder is None:
            return "took part"
        run = max(list_runs_below(self.folder.runs / contender.folder_name), key=lambda run: run.path)
        shutil.rmtree(run.checkpoints, ignore_errors=True)  # a benchmark is about time, and they are large
        try:
            where = str(run.path.relative_to(self.folder.path))
            sample = measure(
                read_metrics(run), cut=self.bench.cut, contender=index, round_number=round_number, run=where
            )
        except PacelineError as problem:
            return self._out(contender, problem.message)
        self.bench.samples.append(sample)
        self._learn(run)
        self._keep()
        return f"{rate(sample.images_per_s)} images/s  {rate(1000 * sample.step_s)} ms/step"

    def _out(self, contender: Contender, reason: str) -> str:
        """Go on without a contender."""
        self.bench.failures[contender.label] = reason
        self._keep()
        return f"failed and is out: {reason}"

    def _learn(self, run: RunFolder) -> None:
        """Take over from the first run what only a run knows."""
        if not self.bench.environment:
            environment = read_environments(run)[0]
            self.bench.environment.update(environment)
            self.bench = replace(self.bench, train_images=environment.get("train_images", 0))

    def _keep(self) -> None:
        if self.folder is not None:
            write_bench(self.folder, self.bench)


def _reason(said: str) -> str:
    """Return the first thing that a failed run complained of."""
    lines = [line.removeprefix("paceline: ") for line in said.splitlines() if line.startswith("paceline: ")]
    return lines[0] if lines else "the run ended without a word; see log.txt"


def _check_length(steps: int, cut: int, repeats: int) -> None:
    if not 0 < cut < steps:
        raise SettingError("cut", f"is {cut}, but must be at least 1 and below the {steps} steps of a run")
    if repeats < 1:
        raise SettingError("repeats", f"is {repeats}, but must be at least 1")
