"""The data for a benchmark's report, read from its folder: results, a typical run of each variant, predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.bench.bench_folder import Bench, BenchFolder, read_bench
from paceline.bench.statistics import ScalingGroup, compare_all, smallest_visible
from paceline.predict.predict_options import BatchOptions
from paceline.records.folder import RunFolder
from paceline.records.profile import Profile
from paceline.report.run_data import Forecast, RunData, forecast, read_run_data


@dataclass(frozen=True, slots=True)
class BenchData:
    """The data of a benchmark's report."""

    name: str
    bench: Bench
    groups: Sequence[ScalingGroup]
    runs: Sequence[RunData]
    """One run of each variant."""
    visible: float | None
    """The smallest difference that could have been detected."""
    predicted: Mapping[str, Forecast]
    """By kind of scaling."""
    profile: Profile | None = None


def read_bench_data(folder: BenchFolder) -> BenchData:
    """Read the folder of a benchmark."""
    bench = read_bench(folder)
    groups = compare_all(bench)
    profiled = {group.scaling: run for group in groups if (run := _profiled(folder, bench, group)) is not None}
    return BenchData(
        name=f"{folder.path.parent.name}/{folder.path.name}",
        bench=bench,
        groups=groups,
        runs=[read_run_data(RunFolder(folder.path / where), label) for label, where in _typical_runs(bench)],
        visible=smallest_visible(bench),
        predicted={
            group.scaling: _predicted(group, profiled[group.scaling]) for group in groups if group.scaling in profiled
        },
        profile=next((run.profile for run in profiled.values()), None),
    )


def _profiled(folder: BenchFolder, bench: Bench, group: ScalingGroup) -> RunData | None:
    """Return the run with a profile that has the fewest devices."""
    for measurement in sorted(bench.measurements, key=lambda measurement: bench.variants[measurement.variant].devices):
        variant, run = bench.variants[measurement.variant], RunFolder(folder.path / measurement.run)
        if variant.scaling == group.scaling and run.profile.is_file():
            return read_run_data(run, variant.name)
    return None


def _predicted(group: ScalingGroup, profiled: RunData) -> Forecast:
    """Return predictions for all variants from the profile of one."""
    devices = sorted({result.variant.devices for result in group.results})
    batch = (
        BatchOptions(global_batch=profiled.summary.config.global_batch) if group.scaling == "strong" else BatchOptions()
    )
    return forecast(profiled, "predicted", devices, batch)


def _typical_runs(bench: Bench) -> list[tuple[str, str]]:
    """Return for every variant the run whose speed is nearest to its median."""
    found = []
    for index, variant in enumerate(bench.variants):
        own = sorted(
            (s for s in bench.measurements if s.variant == index), key=lambda measurement: measurement.samples_per_s
        )
        if own:
            kind = f" {variant.scaling}" if variant.scaling else ""
            found.append((variant.name + kind, own[len(own) // 2].run))
    return found
