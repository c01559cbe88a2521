"""`paceline report`: runs, or a benchmark, as one HTML file that opens anywhere."""

from collections.abc import Sequence
from pathlib import Path

from paceline.analysis.phases import split_time
from paceline.analysis.predict import predict
from paceline.analysis.scaling import Group, compare, smallest_visible
from paceline.analysis.story import Story
from paceline.commands.predict_cases import run_case
from paceline.commands.predict_options import Batch, Cluster
from paceline.core.errors import ConfigError, ExitCode, RunError
from paceline.core.units import size
from paceline.records.bench import Bench, BenchFolder, Scaling, find_bench, read_bench
from paceline.records.folder import RunFolder, find_run
from paceline.records.phases import read_phases
from paceline.records.profile import read_profile
from paceline.records.reader import read_environments, read_metrics, summarise
from paceline.records.writer import replacing
from paceline.report.compose import BenchStory, page_of_bench, page_of_run, page_of_runs
from paceline.report.page import Page, render
from paceline.report.speed import Forecast

DEFAULT_RUNS = Path("runs")
LARGEST_WORLD = 64
SCALINGS: tuple[Scaling, ...] = ("strong", "weak")


def report_command(
    run: Path, *others: Path, out: Path | None = None, label: tuple[str, ...] = (), runs_dir: Path = DEFAULT_RUNS
) -> int:
    """Draw a run, a benchmark, or several runs side by side, as one HTML file.

    The file needs no network and no script: copy it, mail it, print it.

    Examples:

      paceline report digits-resnet20

      paceline report runs/bench-digits-resnet20/001

      paceline report one-rank two-ranks --label one --label two --out compared.html

    Parameters
    ----------
    run
        Run folder, a run's name for its newest, or the folder of a benchmark.
    others
        More runs to compare with the first.
    out
        File to write; report.html in the folder of the first run when not given.
    label
        What to call the runs on the page, one for each, instead of their folders.
    runs_dir
        Folder of all runs, where RUN may be a name.
    """
    folder, page = _page([run, *others], label, runs_dir)
    path = folder / "report.html" if out is None else out
    html = render(page)
    try:
        with replacing(path) as scratch:
            scratch.write_text(html, encoding="utf-8")
    except OSError as cause:
        raise RunError(f"cannot write {path}: {cause.strerror}", hint="choose another file with --out") from cause
    print(f"{path}  ({size(len(html.encode()))}; open it in a browser)")
    return ExitCode.FINISHED


def _page(runs: Sequence[Path], labels: Sequence[str], runs_dir: Path) -> tuple[Path, Page]:
    bench = find_bench(runs[0], runs_dir)
    if bench is not None:
        if len(runs) > 1:
            raise ConfigError(f"{runs[0]} is a benchmark and gets a page of its own", hint=f"paceline report {runs[0]}")
        return bench.path, _bench_page(bench)
    if labels and len(labels) != len(runs):
        raise ConfigError(
            f"{len(runs)} runs, but {len(labels)} labels", hint="give --label once for each run, in their order"
        )
    folders = [find_run(path, runs_dir) for path in runs]
    names = labels or [folder.name for folder in folders]
    stories = [read_story(folder, name) for folder, name in zip(folders, names, strict=True)]
    page = page_of_run(stories[0], forecasts(stories[0])) if len(stories) == 1 else page_of_runs(stories)
    return folders[0].path, page


def forecasts(story: Story) -> list[Forecast]:
    """Return what a run's profile says about other numbers of ranks, on the link that it measured."""
    profile = story.profile
    if profile is None or not profile.buckets:
        return []
    largest = max(2, min(LARGEST_WORLD, profile.global_batch))
    counts = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
    strong = Batch(global_batch=profile.global_batch)
    return [
        forecast(story, "strong", counts, strong),
        forecast(story, "weak", counts, Batch()),
    ]


def forecast(story: Story, label: str, counts: Sequence[int], batch: Batch) -> Forecast:
    """Return what a run's profile says about numbers of ranks with a batch."""
    case, _ = run_case(story.summary.folder, Cluster(ranks=tuple(counts)), batch)
    found = {ranks: predict(case, ranks).efficiency for ranks in counts}
    return Forecast(label=label, efficiency={ranks: (one.value, one.low, one.high) for ranks, one in found.items()})


def read_story(folder: RunFolder, label: str) -> Story:
    """Return what a run folder has to tell."""
    return Story(
        label=label,
        summary=summarise(folder),
        records=list(read_metrics(folder)),
        split=split_time(read_phases(folder)),
        profile=read_profile(folder) if folder.profile.is_file() else None,
        environments=read_environments(folder),
    )


def _bench_page(folder: BenchFolder) -> Page:
    bench = read_bench(folder)
    groups = [group for scaling in SCALINGS if (group := compare(bench, scaling)) is not None]
    stories = [read_story(RunFolder(folder.path / where), label) for label, where in _typical_runs(bench)]
    profiled = {group.scaling: found for group in groups if (found := _profiled(folder, bench, group))}
    predicted = {group.scaling: _bench_forecast(group, profiled[group.scaling]) for group in groups
                 if group.scaling in profiled}  # fmt: skip
    name = f"{folder.path.parent.name}/{folder.path.name}"
    shown = next((story.profile for story in profiled.values()), None)
    return page_of_bench(BenchStory(name, bench, groups, stories, smallest_visible(bench), predicted, shown))


def _profiled(folder: BenchFolder, bench: Bench, group: Group) -> Story | None:
    """Return the run with a profile that has the fewest devices."""
    for sample in sorted(bench.samples, key=lambda sample: bench.contenders[sample.contender].devices):
        contender, run = bench.contenders[sample.contender], RunFolder(folder.path / sample.run)
        if contender.scaling == group.scaling and run.profile.is_file():
            return read_story(run, contender.name)
    return None


def _bench_forecast(group: Group, profiled: Story) -> Forecast:
    """Return what the profile of one contender says about all of them."""
    devices = sorted({standing.contender.devices for standing in group.standings})
    batch = Batch(global_batch=profiled.summary.config.global_batch) if group.scaling == "strong" else Batch()
    return forecast(profiled, "predicted", devices, batch)


def _typical_runs(bench: Bench) -> list[tuple[str, str]]:
    """Return for every contender the run whose speed is nearest to its median."""
    found = []
    for index, contender in enumerate(bench.contenders):
        own = sorted((s for s in bench.samples if s.contender == index), key=lambda sample: sample.images_per_s)
        if own:
            kind = f" {contender.scaling}" if contender.scaling else ""
            found.append((contender.name + kind, own[len(own) // 2].run))
    return found
