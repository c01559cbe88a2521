"""Predictions against measurements on shaped links: one profile of two hosts at 100 Mbit/s, then other ranks and links.

As root: python -m benchmarks.predictions emulated|real. The configurations stand here before anything is measured;
--explore takes others, on which the simulator was developed.
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab.environment import child_environment
from lab.hosts import Hosts, why_not
from paceline.predict.profiled import profile_link
from paceline.records.folder import RunFolder
from paceline.records.profile import read_profile
from paceline.records.reader import read_metrics

EMULATED = Path(__file__).with_name("emulated.py")
WORKLOADS = {
    "emulated": (f"--model={EMULATED}:build", f"--data={EMULATED}:data", 4),
    "real": ("--model=resnet18", "--data=digits", 32),
}
"""Model, data and samples per rank."""
PROFILED = (2, 100)
"""Ranks and Mbit/s of the one profile."""
CONFIGURATIONS = {
    "emulated": [(2, 110), (2, 170), (2, 350), (2, 600), (2, 950), (3, 120), (3, 220), (3, 420), (3, 800),
                 (4, 120), (4, 240), (4, 450), (4, 700)],
    "real": [(2, 1000), (2, 200), (2, 500), (2, 300), (2, 700), (2, 400), (2, 100), (2, 900), (2, 600), (2, 250),
             (2, 800), (2, 150)],
}  # fmt: skip
EXPLORED = {
    "emulated": [(3, 350), (4, 150), (4, 500), (2, 850), (2, 130), (2, 300), (3, 150), (4, 300)],
    "real": [(2, 220), (2, 850), (2, 450), (2, 120)],
}
WARM_UP, STEPS = 3, 9
LONGEST = 240


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One configuration: what was predicted from the profile, and what training then took."""

    ranks: int
    mbit: int
    measured: float
    predicted: float
    low: float
    high: float
    rule: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def rule_error(self) -> float:
        return self.rule / self.measured - 1


class Lab:
    """Hosts of one rank each behind links of the same rate."""

    def __init__(self, hosts: Hosts, folder: Path, workload: str) -> None:
        self._hosts = hosts
        self._folder = folder
        self._model, self._data, self._samples = WORKLOADS[workload]

    def run(self, command: str, name: str, ranks: int, mbit: int, *args: str, accumulate: int = 1) -> RunFolder:
        """Run a command on the first `ranks` hosts and return its run folder."""
        for host in range(1, ranks + 1):
            self._hosts.limit(host, f"{mbit}mbit")
        rendezvous = ("--world-size", ranks, "--init-method=tcp://10.77.0.1:29500")
        batch = (f"--global-batch={ranks * self._samples * accumulate}", f"--accumulate={accumulate}")
        usual = (self._model, self._data, "--threads=1", "--device=cpu", *batch,
                 "--augment=none", f"--name={name}", f"--runs-dir={self._folder / 'runs'}")  # fmt: skip
        options = {"cwd": self._folder, "env": child_environment(OMP_NUM_THREADS="1")}
        started = [
            self._hosts.start(host, sys.executable, "-m", "paceline", command, *usual, *args, *rendezvous, "--rank",
                              host - 1, **options)
            for host in range(1, ranks + 1)
        ]  # fmt: skip
        for process in started:
            out, err = process.communicate(timeout=LONGEST)
            if process.returncode:
                raise SystemExit(f"{command} {name} failed:\n{out}\n{err}")
        return RunFolder(max((self._folder / "runs" / name).iterdir()))

    def sweep(self, ranks: int, mbit: int) -> Path:
        """Return the file with what doctor measured on the links of the first `ranks` hosts."""
        for host in range(1, ranks + 1):
            self._hosts.limit(host, f"{mbit}mbit")
        rendezvous = ("--world-size", ranks, "--init-method=tcp://10.77.0.1:29500", "--largest=8MiB")
        started = [
            self._hosts.start(host, sys.executable, "-m", "paceline", "doctor", "--json", "--device=cpu", *rendezvous,
                              "--rank", host - 1, cwd=self._folder, env=child_environment(OMP_NUM_THREADS="1"))
            for host in range(1, ranks + 1)
        ]  # fmt: skip
        answers = [process.communicate(timeout=LONGEST) for process in started]
        file = self._folder / "doctor.json"
        file.write_text(answers[0][0])
        return file

    def predict_swept(self, run: RunFolder, ranks: int, sweep: Path) -> dict:
        """Return what the command line says about ranks on a link that doctor measured."""
        return self._predict(run, ranks, f"--sweep={sweep}")

    def predict(self, run: RunFolder, ranks: int, mbit: int, *more: str) -> dict:
        """Return what the command line says about ranks on a link."""
        return self._predict(run, ranks, f"--link={mbit}mbit", *more)

    def _predict(self, run: RunFolder, ranks: int, *more: str) -> dict:
        args = ["predict", run.path, f"--ranks={ranks}", "--json", *more]
        answer = self._hosts.run(1, sys.executable, "-m", "paceline", *args, env=child_environment())
        if answer.returncode:
            raise SystemExit(answer.stderr)
        return json.loads(answer.stdout)

    def measure(self, ranks: int, mbit: int, *, accumulate: int = 1) -> float:
        """Return the median step of a real training, each of whose micro-batches has the samples of the profile."""
        steps = f"--steps={WARM_UP + STEPS}"
        args = ("--log-every=1", "--track=none", "--epochs=1000", "--eval-every=1000", "--save-every=1000", steps)
        run = self.run("train", f"train-{ranks}-{mbit}", ranks, mbit, *args, accumulate=accumulate)
        seconds = [record["seconds"] for record in read_metrics(run) if record["kind"] == "step"]
        return statistics.median(seconds[WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--explore", action="store_true")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--keep", type=Path, default=None)
    options = parser.parse_args()
    reason = why_not()
    if reason is not None:
        raise SystemExit(f"no lab here: {reason}")
    table = EXPLORED if options.explore else CONFIGURATIONS
    chosen = table[options.workload][: options.limit]
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(exist_ok=True, parents=True)
        with Hosts(max(ranks for ranks, _ in chosen), folder / "hosts") as hosts:
            show(options.workload, *outcomes(Lab(hosts, folder, options.workload), chosen))


def outcomes(lab: Lab, chosen: list[tuple[int, int]], *, pairs: int = 8) -> tuple[float, list[Outcome]]:
    """Profile once, then predict every configuration before it is measured."""
    run = lab.run("profile", "profile", *PROFILED, f"--pairs={pairs}")
    bandwidth = float(profile_link(read_profile(run)).bandwidth)
    found = []
    for ranks, mbit in chosen:
        answer = lab.predict(run, ranks, mbit)
        found.append(
            Outcome(ranks=ranks, mbit=mbit, measured=lab.measure(ranks, mbit), predicted=answer["step"]["value"],
                    low=answer["step"]["low"], high=answer["step"]["high"], rule=answer["trivial_step"])
        )  # fmt: skip
        print(row(found[-1]), flush=True)
    return bandwidth, found


def row(one: Outcome) -> str:
    times = f"{1e3 * one.measured:.0f} ms | {1e3 * one.predicted:.0f} ms ({1e3 * one.low:.0f} … {1e3 * one.high:.0f})"
    inside = "yes" if one.low <= one.measured <= one.high else "no"
    return f"| {one.ranks} | {one.mbit} | {times} | {one.error:+.1%} | {inside} | {one.rule_error:+.1%} |"


def show(workload: str, bandwidth: float, found: list[Outcome]) -> None:
    errors = [abs(one.error) for one in found]
    rules = [abs(one.rule_error) for one in found]
    covered = statistics.fmean(one.low <= one.measured <= one.high for one in found)
    print(
        f"\n{workload}: {len(found)} configurations, "
        f"mean error {statistics.fmean(errors):.1%}, worst {max(errors):.1%}; "
        f"rule {statistics.fmean(rules):.1%}, worst {max(rules):.1%}; intervals hold {covered:.0%}; "
        f"{PROFILED[1]} Mbit/s recovered as {bandwidth * 8e-6 * 1514 / 1448:.1f}"
    )


if __name__ == "__main__":
    main()
