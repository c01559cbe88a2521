"""Runs the trials of `paceline verify` one after another, compares them step by step and rank by rank."""

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paceline.compare.contents import Contents
from paceline.compare.sections import read_contents
from paceline.compare.stored import StoredTensor
from paceline.compare.tensors import Comparison, compare_tensors
from paceline.core.config import Config
from paceline.core.errors import ExitCode, PacelineError
from paceline.core.load import write_config
from paceline.core.messages import say
from paceline.core.setting_types import Interval
from paceline.core.stopping import KILL_VARIABLE
from paceline.core.units import duration
from paceline.launching.child import inherited, interrupted_by_sigterm, run_child
from paceline.records.folder import RunFolder, checkpoint_name, find_run
from paceline.records.reader import read_environments
from paceline.verify.trials import FirstDifference, Trial, TrialResult, judge_trial, reference_of
from paceline.verify.verify_text import result_values

PREFIX = "verify: "


class VerifyError(PacelineError):
    """A trial failed, so there is no result."""

    exit_code = ExitCode.BAD_INPUT


@dataclass(frozen=True, slots=True)
class TrialRunner:
    """Runs trials one after another, each in its own run folder."""

    config: Config
    folder: Path
    tolerance: float | None
    """Largest relative difference that counts as equal; None for bit by bit."""

    def run_and_clear(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """Run all trials, and keep on disk only the different ones and the reference."""
        try:
            with interrupted_by_sigterm():
                results = self.run(trials)
        except KeyboardInterrupt:
            self.clear()
            raise
        except Exception:
            self.clear(keep_logs=True)
            raise
        self.clear(keep=[trials[0], *(result.trial for result in results if result.fails)])
        return results

    def run(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """Run all trials and compare each with the first; equal ones are removed at once."""
        reference = trials[0]
        differing = self.train(reference)
        if differing is not None:  # without a reference there is nothing to compare
            return [TrialResult(trial=reference, num_steps=differing.step, worst=0.0, first=differing)]
        by_design, worlds = self._by_design(reference), [trial.world_size for trial in trials if trial.kill is None]
        results = []
        for planned in trials[1:]:
            start = time.monotonic()
            trial, compared_with = reference_of(planned, worlds, by_design)
            differing = self.train(trial)
            result = (
                self.compare(compared_with, trial)
                if differing is None
                else TrialResult(trial=trial, num_steps=differing.step, worst=_size(differing), first=differing)
            )
            if by_design and differing is None and compared_with.world_size != trial.world_size:
                result = replace(result, by_design=by_design)
            results.append(result)
            outcome = "the same" if result.first is None else f"different at step {result.first.step}"
            say(f"{trial}: {outcome} ({duration(time.monotonic() - start)})", prefix=PREFIX)
            if result.first is None and (trial.kill is not None or not by_design):
                shutil.rmtree(self.folder / trial.name)
        return results

    def _by_design(self, trial: Trial) -> tuple[str, ...]:
        """Return what depends on the number of ranks by design in these settings, as the run recorded it."""
        environments = read_environments(find_run(self.folder / trial.name, self.folder))
        return tuple(environments[-1].get("rank_dependent", ())) if environments else ()

    def train(self, trial: Trial) -> FirstDifference | None:
        """Train one trial; return the first difference between its ranks, if there is one."""
        say(f"{trial}: training", prefix=PREFIX)
        if trial.kill is None:
            return self._launch(trial, nproc=trial.world_size)
        kill = trial.kill
        kill_variable = {KILL_VARIABLE: f"{kill.rank}:{kill.step}"}
        differing = self._launch(trial, nproc=trial.world_size, save_every=kill.save_every, environ=kill_variable)
        if differing is not None:
            return differing
        return self._launch(trial, nproc=kill.resume_size, resume=True)

    def _launch(
        self,
        trial: Trial,
        *,
        nproc: int,
        save_every: int = 1,
        resume: bool = False,
        environ: dict[str, str] | None = None,
    ) -> FirstDifference | None:
        home = self.folder / trial.name
        if not resume:  # left by an earlier call with the same --kill-seed
            shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True, exist_ok=True)
        file, log = home / "settings.toml", home / "log.txt"
        write_config(self._settings(trial, save_every), file)
        args = ["train", "--config", str(file), "--nproc", str(nproc), *(["--resume", str(home)] if resume else [])]
        code, _ = run_child(args, inherited(os.environ) | (environ or {}), log)
        differing = self._ranks_apart(home)
        if differing is not None:
            return differing
        if code != 0 and environ is None:
            raise VerifyError(f"{trial}: training failed, see {log}\n{_tail(log)}")
        if code == 0 and environ is not None:
            raise VerifyError(f"{trial}: no rank was killed, see {log}")
        return None

    def _settings(self, trial: Trial, save_every: int) -> Config:
        steps = self.config.steps or 0
        return replace(
            self.config,
            runs_dir=self.folder,
            name=trial.name,
            track=(),
            patience=None,
            keep=steps + 1,
            save_every=Interval(save_every, "step"),
            check_replicas=save_every,
        )

    def _ranks_apart(self, home: Path) -> FirstDifference | None:
        try:
            found = read_rank_difference(find_run(home, self.folder))
        except PacelineError:  # it ended before there was a run folder
            return None
        if found is None:
            return None
        return FirstDifference(step=found.step, part="rank's", entry=found.difference, ranks=found.sides)

    def compare(self, reference: Trial, trial: Trial) -> TrialResult:
        """Compare all steps that both trials have saved."""
        runs = [find_run(self.folder / each.name, self.folder) for each in (reference, trial)]
        saved = [{*run.saved_steps()} for run in runs]
        steps = sorted(saved[0] & saved[1])
        if not steps or steps[-1] != self.config.steps:
            raise VerifyError(f"{trial}: the last step was not saved, see {self.folder / trial.name / 'log.txt'}")
        return judge_trial(
            trial, steps, lambda step: (_read(runs[0], step), _read(runs[1], step)), tolerance=self.tolerance
        )

    def advice(self, reference: Trial, results: Sequence[TrialResult]) -> list[str]:
        """Return the command that shows all differences of each trial that fails."""
        lines = []
        for result in results:
            if result.first is None or not result.fails:
                continue
            if result.first.ranks is None:
                folders = f"{self.folder / reference.name} {self.folder / result.trial.name}"
                name = checkpoint_name(result.first.step)
                lines.append(f"to see all differences: paceline compare {folders} --checkpoint {name}")
            else:
                ranks = find_run(self.folder / result.trial.name, self.folder).rank(0).parent
                lines.append(f"the tensors of each rank are in {ranks}")
        return lines

    def values(self, results: Sequence[TrialResult], kill_seed: int) -> dict[str, Any]:
        """Return the results as plain values for JSON."""
        return {
            "exact": self.config.exact,
            "steps": self.config.steps,
            "kill_seed": kill_seed,
            "tolerance": self.tolerance,
            "agrees": not any(result.fails for result in results),
            "trials": [result_values(result) for result in results],
            "kept": str(self.folder) if self.folder.exists() else None,
        }

    def clear(self, keep: Sequence[Trial] = (), *, keep_logs: bool = False) -> None:
        """Remove equal trials; if nothing differs, remove everything."""
        kept = [trial.name for trial in keep]
        if len(kept) > 1:
            for path in self.folder.iterdir():
                if path.name not in kept:
                    shutil.rmtree(path)
        elif keep_logs:
            for path in self.folder.glob("*/[0-9][0-9][0-9]"):
                shutil.rmtree(path)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):
                self.folder.parent.rmdir()  # unless it has other files


def _read(run: RunFolder, step: int) -> Contents:
    return read_contents(run.path, runs_dir=run.path, checkpoint=checkpoint_name(step))


def _size(difference: FirstDifference) -> float:
    return 0.0 if difference.entry.largest is None else difference.entry.largest.relative


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "\n".join(f"  {line}" for line in lines[-6:])


@dataclass(frozen=True, kw_only=True, slots=True)
class RankDifference:
    """The first tensor in which the ranks of a run differ."""

    step: int
    name: str
    sides: str
    """Which ranks differ from which: "ranks 0,2,3 against rank 1"."""
    difference: Comparison
    """Between the first ranks of two sides."""


def read_rank_difference(folder: RunFolder) -> RankDifference | None:
    """Return the first difference between the ranks of a run; None if there is none."""
    if not folder.rank_tensors(0).is_file():
        return None
    lead = torch.load(folder.rank_tensors(0), weights_only=True)
    name, sides = next(iter(lead["sides"].items()))
    files = [torch.load(folder.rank_tensors(rank), weights_only=True) for rank in lead["between"][name]]
    first, second = (StoredTensor(held["model"][name]) for held in files)
    return RankDifference(step=lead["step"], name=name, sides=sides, difference=compare_tensors(name, first, second))
