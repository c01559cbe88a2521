"""From the journals of a command to an ordinary run folder. Clocks are not compared: steps are matched by number."""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from paceline.core.config import Config
from paceline.core.load import write_config
from paceline.core.metrics import Scores
from paceline.observe.journals import CommandJournals, Line, ProcessJournal
from paceline.observe.observed_profile import observed_profile
from paceline.records.entries import State, StepRecord, record_as_json
from paceline.records.environment import describe_environment
from paceline.records.folder import RunFolder, create_run
from paceline.records.phases import OTHER_PHASES, PHASES, PhaseRecord, RankFacts, phases_as_json
from paceline.records.profile import write_profile
from paceline.records.writer import replacing, write_json


@dataclass(frozen=True, kw_only=True)
class ObservedRun:
    """The run folder of an observed command, and how many steps were seen on how many ranks."""

    folder: RunFolder
    steps: int
    num_ranks: int


def start_observed(command: Sequence[str], runs_dir: Path, name: str | None) -> tuple[RunFolder, Config]:
    """Create the run folder of a command before it starts."""
    script = _script(command)
    config = Config(data=script, model="unknown", augment="none", track=(), runs_dir=runs_dir, name=name or script)
    folder = create_run(config)
    write_config(config, folder.config)
    environment = describe_environment(os.environ, device="cpu") | {"command": list(command)}
    write_json(folder.environment, [environment])
    _write_state(folder, State.TRAINING, 0)
    return folder, config


def finish_observed(folder: RunFolder, config: Config, journals: CommandJournals, code: int) -> ObservedRun:
    """Write what the journals hold to the run folder."""
    ranks = {rank: journal for rank, journal in journals.ranks.items() if journal.of("trains")}
    intervals = _matched(list(ranks.values()))
    steps = intervals[-1][0]["step"] if intervals else 0
    if ranks:
        facts = _facts(list(ranks.values()), intervals)
        write_config(_settings(config, list(ranks.values()), intervals, facts), folder.config)
        _write_phases(folder, [facts, *_records(list(ranks.values()), intervals)])
        _write_metrics(folder, intervals)
        accumulate = _passes_per_step(intervals)
        profile = observed_profile(list(ranks.values()), intervals, facts, accumulate=accumulate)
        if profile is not None:
            write_profile(folder, profile)
    state = State.FINISHED if code == 0 else State.STOPPED if code > 128 else State.FAILED
    _write_state(folder, state, steps, detail="" if code == 0 else f"the command ended with exit code {code}")
    return ObservedRun(folder=folder, steps=steps, num_ranks=len(ranks))


def _script(command: Sequence[str]) -> str:
    """Return the name of the script in a command, or of the command."""
    scripts = [arg for arg in command if arg.endswith(".py")]
    if not scripts and "-m" in command:
        scripts = [arg.rpartition(".")[2] for arg in command[command.index("-m") + 1 :] if not arg.startswith("-")]
    stem = Path(scripts[0] if scripts else command[0]).stem
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in stem).lstrip("-") or "observed"


def _matched(ranks: Sequence[ProcessJournal]) -> list[tuple[Line, ...]]:
    """Return the intervals that all ranks have completed."""
    found = []
    for lines in zip(*(rank.of("interval") for rank in ranks), strict=False):
        if len({line["step"] for line in lines}) > 1:
            break
        found.append(lines)
    return found


def _facts(ranks: Sequence[ProcessJournal], intervals: Sequence[tuple[Line, ...]]) -> RankFacts:
    trains = [rank.first("trains") for rank in ranks]
    model = ranks[0].first("model") or trains[0]
    samples = [sum(column) for lines in intervals for column in zip(*(line["samples"] for line in lines), strict=True)]
    return RankFacts(
        first_step=0,
        hosts=[line["host"] for line in trains],
        threads=[line["threads"] for line in trains],
        cores=[line["cores"] for line in trains],
        mode="ddp" if len(ranks) > 1 else "single",
        device=model["device"],
        parameters=model["parameters"],
        gradient_bytes=model["gradient_bytes"],
        global_batch=max(1, int(median(samples))) if samples else 1,
        num_devices=len(ranks),
    )


def _settings(
    config: Config, ranks: Sequence[ProcessJournal], intervals: Sequence[tuple[Line, ...]], facts: RankFacts
) -> Config:
    """Return the settings that describe the script, as far as it has them."""
    lead = [lines[0] for lines in intervals]
    lr = lead[0]["lr"] if lead else 0.0
    return replace(
        config,
        model=ranks[0].first("model").get("name", "unknown").lower(),
        global_batch=facts.global_batch,
        accumulate=min(_passes_per_step(intervals), facts.global_batch),
        workers=max((line["workers"] for line in lead), default=0),
        lr=lr or None,
        epochs=max((line["epoch"] for line in lead), default=1) or 1,
        mode="ddp" if len(ranks) > 1 else "single",
    )


def _passes_per_step(intervals: Sequence[tuple[Line, ...]]) -> int:
    passes = [number for lines in intervals for number in lines[0]["passes"]]
    return max(1, int(median(passes))) if passes else 1


def _records(ranks: Sequence[ProcessJournal], intervals: Sequence[tuple[Line, ...]]) -> Iterator[PhaseRecord]:
    for lines in intervals:
        yield _record(lines, lines[0]["step"], len(lines[0]["waits"]))
    ends = tuple(rank.first("end") for rank in ranks)
    if all(ends) and intervals:
        yield _record(ends, intervals[-1][0]["step"], 0)


def _record(lines: Sequence[Line], step: int, steps: int) -> PhaseRecord:
    """Return the phases of an interval; as in our own runs, the shortest wait of a step is communication."""
    waits = np.array([line["waits"] if steps else [] for line in lines], dtype=np.float64)
    sync = np.array([line["phases"]["grad_sync"] for line in lines])
    straggler, last = np.zeros(len(lines)), np.zeros(len(lines), dtype=int)
    if waits.size and len(lines) > 1:
        straggler = (waits - waits.min(axis=0)).sum(axis=1)
        last = np.bincount(waits.argmin(axis=0), minlength=len(lines))
    phases = {name: [line["phases"].get(name, 0.0) for line in lines] for name in PHASES}
    if len(lines) > 1:
        phases |= {"communication": (sync - straggler).round(6).tolist(), "straggler": straggler.round(6).tolist()}
    else:  # a lone rank waits for nobody
        phases["backward"] = [round(phases["backward"][0] + float(sync[0]), 6)]
    return PhaseRecord(
        step=step,
        steps=steps,
        seconds=[round(sum(line["phases"].values()), 6) for line in lines],
        phases=phases,
        last=last.tolist(),
        cpu=[line["cpu"] for line in lines],
        cpu_wait=[line["cpu_wait"] for line in lines],
    )


def _write_phases(folder: RunFolder, records: Sequence[RankFacts | PhaseRecord]) -> None:
    text = "".join(json.dumps(phases_as_json(record)) + "\n" for record in records)
    with replacing(folder.phases) as scratch:
        scratch.write_text(text, encoding="utf-8")


def _seconds_in_steps(line: Line) -> float:
    return sum(seconds for phase, seconds in line["phases"].items() if phase not in OTHER_PHASES)


def _write_metrics(folder: RunFolder, intervals: Sequence[tuple[Line, ...]]) -> None:
    """Write the losses: of each interval, the mean over its steps and ranks."""
    lines = []
    for ranks in intervals:
        losses = [line["loss"] for line in ranks if line["loss"] is not None]
        samples, seconds = sum(sum(line["samples"]) for line in ranks), _seconds_in_steps(ranks[0])
        if losses:
            record = StepRecord(
                step=ranks[0]["step"],
                epoch=ranks[0]["epoch"],
                score=Scores(by_name={"loss": sum(losses) / len(losses)}, samples=samples),
                lr=ranks[0]["lr"],
                samples_per_s=round(samples / seconds, 3) if seconds else 0.0,
                seconds=round(seconds, 6),
            )
            lines.append(json.dumps(record_as_json(record)) + "\n")
    with replacing(folder.metrics) as scratch:
        scratch.write_text("".join(lines), encoding="utf-8")


def _write_state(folder: RunFolder, state: State, step: int, **more: Any) -> None:
    facts: Mapping[str, Any] = {"rank": 0, "host": socket.gethostname(), "pid": os.getpid(), "launcher": "observe"}
    write_json(folder.rank(0), {"state": state, "step": step, "time": time.time(), **facts, **more})
