"""The trials of `paceline verify`: trained one after another as a user would, compared step by step, cleared away."""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.analysis.contents import Contents
from paceline.analysis.trials import Difference, Finding, Trial, judge
from paceline.core.config import Config
from paceline.core.errors import ExitCode, PacelineError
from paceline.core.interval import Interval
from paceline.core.load import write_config
from paceline.core.units import duration
from paceline.launching.child import inherited, run_child
from paceline.records.folder import RunFolder, find_run

BY_DESIGN = (
    "With --exact order, batch norm over each rank's own images (--batch-norm local) and dropout depend on the number "
    "of ranks by design; --exact bitwise does not."
)


class VerifyError(PacelineError):
    """A trial did not come to its end, so nothing is known."""

    exit_code = ExitCode.BAD_INPUT


@dataclass(frozen=True, slots=True)
class Bench:
    """Where trials are run, one after another, each in a run folder of its own."""

    config: Config
    folder: Path

    def run(self, trials: Sequence[Trial], tolerance: float | None) -> list[Finding]:
        """Run all trials and compare each with the first; what is the same is removed at once."""
        reference = trials[0]
        differing = self.train(reference)
        if differing is not None:  # then there is nothing to compare the others with
            return [Finding(trial=reference, num_steps=differing.step, worst=0.0, first=differing)]
        findings = []
        for trial in trials[1:]:
            start = time.monotonic()
            differing = self.train(trial)
            finding = (
                self.compare(reference, trial, tolerance)
                if differing is None
                else Finding(trial=trial, num_steps=differing.step, worst=_size(differing), first=differing)
            )
            findings.append(finding)
            outcome = "the same" if finding.first is None else f"different at step {finding.first.step}"
            tell(f"{trial}: {outcome} ({duration(time.monotonic() - start)})")
            if finding.first is None:
                shutil.rmtree(self.folder / trial.name)
        return findings

    def train(self, trial: Trial) -> Difference | None:
        """Train as the trial says; what is returned tells that its ranks did not stay the same."""
        from paceline.engine.kill import VARIABLE

        tell(f"{trial}: training")
        if trial.kill is None:
            return self._launch(trial, nproc=trial.world_size)
        kill = trial.kill
        doomed = {VARIABLE: f"{kill.rank}:{kill.step}"}
        differing = self._launch(trial, nproc=trial.world_size, save_every=kill.save_every, environ=doomed)
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
    ) -> Difference | None:
        home = self.folder / trial.name
        if not resume:  # the same --kill-seed again finds what it left before
            shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True, exist_ok=True)
        file, log = home / "settings.toml", home / "log.txt"
        write_config(self._settings(trial, save_every), file)
        words = ["train", "--config", str(file), "--nproc", str(nproc), *(["--resume", str(home)] if resume else [])]
        code, _ = run_child(words, inherited(os.environ) | (environ or {}), log)
        differing = self._ranks_apart(home)
        if differing is not None:
            return differing
        if code != 0 and environ is None:
            raise VerifyError(f"{trial}: training failed, see {log}\n{_tail(log)}")
        if code == 0 and environ is not None:
            raise VerifyError(f"{trial}: nobody was killed, see {log}")
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

    def _ranks_apart(self, home: Path) -> Difference | None:
        from paceline.engine.evidence import read_evidence

        try:
            evidence = read_evidence(find_run(home, self.folder))
        except PacelineError:  # it ended before there was a run
            return None
        if evidence is None:
            return None
        return Difference(step=evidence.step, part="rank's", entry=evidence.difference, ranks=evidence.sides)

    def compare(self, reference: Trial, trial: Trial, tolerance: float | None) -> Finding:
        """Compare all steps that both have saved."""
        runs = [find_run(self.folder / each.name, self.folder) for each in (reference, trial)]
        saved = [{int(path.stem.removeprefix("step-")) for path in run.checkpoints.glob("step-*.pt")} for run in runs]
        steps = sorted(saved[0] & saved[1])
        if not steps or steps[-1] != self.config.steps:
            raise VerifyError(f"{trial}: the last step was not saved, see {self.folder / trial.name / 'log.txt'}")
        return judge(trial, steps, lambda step: (_read(runs[0], step), _read(runs[1], step)), tolerance=tolerance)

    def advice(self, reference: Trial, findings: Sequence[Finding]) -> list[str]:
        """Return what to type to see more, and what is known about such differences."""
        lines = []
        for finding in findings:
            if finding.first is None:
                continue
            if finding.first.ranks is None:
                places = f"{self.folder / reference.name} {self.folder / finding.trial.name}"
                lines.append(f"see all: paceline compare {places} --checkpoint step-{finding.first.step:08d}.pt")
            else:
                lines.append(f"see all: {self.folder / finding.trial.name}/001/ranks holds what each rank had")
        apart = [finding for finding in findings if finding.first is not None and finding.first.ranks is None]
        if apart and self.config.exact == "order":
            lines.append(BY_DESIGN)
        return lines

    def clear(self, keep: Sequence[Trial] = (), *, keep_logs: bool = False) -> None:
        """Remove what is the same; where nothing differs, everything."""
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
                self.folder.parent.rmdir()  # unless there is something else


def _read(run: RunFolder, step: int) -> Contents:
    from paceline.engine.contents import read_contents

    return read_contents(run.path, runs_dir=run.path, checkpoint=f"step-{step:08d}.pt")


def _size(difference: Difference) -> float:
    return 0.0 if difference.entry.largest is None else difference.entry.largest.relative


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "\n".join(f"  {line}" for line in lines[-6:])


def tell(text: str) -> None:
    """Say how far it has come, beside the answer."""
    print(f"verify: {text}", file=sys.stderr, flush=True)
