"""The rounds of a benchmark: every variant once per round, in another order each time; results are saved at once."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.bench.bench_folder import Bench, BenchFolder, Measurement, Variant, create_bench, write_bench
from paceline.bench.variants import child_run, fair_threads, oversubscribed
from paceline.core.config import Config
from paceline.core.errors import PacelineError, RunError, SettingError
from paceline.core.load import write_config
from paceline.core.start import Start
from paceline.core.units import plural, rate
from paceline.launching.child import inherited, interrupted_by_sigterm, run_child
from paceline.launching.launch import refuse_ranks
from paceline.records.folder import RunFolder, list_runs_below
from paceline.records.reader import read_environments, read_metrics

DEFAULT_STEPS = 60
Say = Callable[[str], None]


def measure(records: Iterable[dict[str, Any]], *, cut: int, variant: int, round_number: int, run: str) -> Measurement:
    """Return the speed and the losses after the first `cut` steps; a record must end with the last of them."""
    samples, seconds, loss_sum, test = 0, 0.0, 0.0, {}
    last = cut
    for record in records:
        if record["kind"] == "step" and record["step"] > cut:
            samples += record["samples"]
            seconds += record["samples"] / record["samples_per_s"]
            loss_sum += record["loss"] * record["samples"]
            last = record["step"]
        if record["kind"] == "eval" and record["split"] == "test":
            test = {"test_loss": record["loss"], "test_top1": record.get("top1"), "test_samples": record["samples"]}
    if not samples:
        raise RunError(f"{run} has no record after step {cut}", hint="measure more steps: raise --steps")
    return Measurement(
        variant=variant,
        round=round_number,
        samples_per_s=samples / seconds,
        step_s=seconds / (last - cut),
        train_loss=loss_sum / samples,
        run=run,
        **test,
    )


class BenchRun:
    """A running benchmark. Only node 0 saves results; other nodes take part in the runs that need them."""

    def __init__(self, config: Config, start: Start, variants: list[Variant], *, repeats: int, cut: int | None) -> None:
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
        self._threads = fair_threads(config, variants, os.environ)
        self._config = replace(config.resolved(), steps=steps, log_every=cut, runs_dir=runs_dir)
        self.bench = Bench(
            started=time.time(),
            settings=replace(config.resolved(), steps=steps, threads=self._threads).as_dict(),
            steps=steps,
            cut=cut,
            repeats=repeats,
            variants=variants,
        )

    def run(self, say: Say) -> bool:
        """Run all rounds; return whether they were stopped."""
        say(self._plan())
        caution = oversubscribed(self.bench.variants, self._threads)
        if caution is not None:
            say(f"warning: {caution}")
        try:
            with interrupted_by_sigterm():
                self._keep()
                self._rounds(say)
        except KeyboardInterrupt:
            say(f"stopped after {plural(len(self.bench.measurements), 'run')}; the results so far are saved")
            return True
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
        return False

    def _plan(self) -> str:
        """Describe the benchmark in a line."""
        names = ", ".join(one.label for one in self.bench.variants)
        each = "" if self._threads is None else f", {plural(self._threads, 'thread')} per device"
        return f"{plural(self.bench.repeats, 'round')} of {names}; {self.bench.steps} steps each{each}"

    def _rounds(self, say: Say) -> None:
        count, number = len(self.bench.variants), 0
        for round_number in range(self.bench.repeats):
            for place in range(count):
                index = (place + round_number) % count
                variant = self.bench.variants[index]
                number += 1
                if variant.label in self.bench.failures or (variant.nodes == 1 and not self.is_lead):
                    continue
                outcome = self._run_once(index, round_number, number)
                say(f"[{number}/{count * self.bench.repeats}] round {round_number + 1}: {variant.label}  {outcome}")

    def _run_once(self, index: int, round_number: int, number: int) -> str:
        """Run one variant once, save its measurements, and return them as text."""
        variant = self.bench.variants[index]
        # a profile is measured only once
        config = self._config if round_number == 0 else replace(self._config, profile=False)
        child = child_run(config, self.start, variant, threads=self._threads, number=number)
        file = self._scratch / "settings.toml"
        write_config(child.config, file)
        args = ["train", "--config", str(file), *child.args]
        code, said = run_child(args, inherited(os.environ), self._log)
        if code != 0:  # every node sees that it failed, so all continue without it
            return self._out(variant, _reason(said))
        if self.folder is None:
            return "took part"
        run = max(list_runs_below(self.folder.runs / variant.folder_name), key=lambda run: run.path)
        shutil.rmtree(run.checkpoints, ignore_errors=True)  # not needed for a benchmark, and large
        try:
            where = str(run.path.relative_to(self.folder.path))
            measurement = measure(
                read_metrics(run), cut=self.bench.cut, variant=index, round_number=round_number, run=where
            )
        except PacelineError as problem:
            return self._out(variant, problem.message)
        self.bench.measurements.append(measurement)
        self._take_environment(run)
        self._keep()
        return f"{rate(measurement.samples_per_s)} samples/s  {rate(1000 * measurement.step_s)} ms/step"

    def _out(self, variant: Variant, reason: str) -> str:
        """Continue without a variant."""
        self.bench.failures[variant.label] = reason
        self._keep()
        return f"failed, left out: {reason}"

    def _take_environment(self, run: RunFolder) -> None:
        """Copy facts from the first run that are known only after a run."""
        if not self.bench.environment:
            environment = read_environments(run)[0]
            self.bench.environment.update(environment)
            self.bench = replace(self.bench, train_samples=environment.get("train_samples", 0))

    def _keep(self) -> None:
        if self.folder is not None:
            write_bench(self.folder, self.bench)


def _reason(said: str) -> str:
    """Return the first error message of a failed run."""
    lines = [line.removeprefix("paceline: ") for line in said.splitlines() if line.startswith("paceline: ")]
    return lines[0] if lines else "the run exited without an error report; see log.txt"


def _check_length(steps: int, cut: int, repeats: int) -> None:
    if not 0 < cut < steps:
        raise SettingError("cut", f"is {cut}, but must be at least 1 and below the {steps} steps of a run")
    if repeats < 1:
        raise SettingError("repeats", f"is {repeats}, but must be at least 1")
