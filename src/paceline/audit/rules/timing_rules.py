"""Rules about the script's own timing: which part of a step its clock covers."""

from collections import Counter
from collections.abc import Iterator

from paceline.audit.evidence import Evidence
from paceline.audit.finding import Finding, Rule
from paceline.audit.source import clock_differences, clock_starts
from paceline.observe.journals import Line

CLOCK_BEFORE_DEVICE = Rule(
    name="clock-before-device",
    level="note",
    summary="the clock is read while the GPU still computes",
    effect="CUDA calls return at once: the time of a step is that of queueing it, and the rest is seen in a later one",
    wrong="loss.backward()\noptimizer.step()\nseconds = time.time() - start",
    fix="optimizer.step()\ntorch.cuda.synchronize()  # or time many steps at once\nseconds = time.time() - start",
)
CLOCK_AFTER_BATCH = Rule(
    name="clock-after-batch",
    level="note",
    summary="the clock of a step is started after its batch has arrived",
    effect="the wait for data is not part of the measured time: a slow loader stays invisible",
    wrong="for batch in loader:\n    start = time.time()\n    …\n    seconds = time.time() - start",
    fix="start = time.time()\nfor batch in loader:\n    …\n    seconds, start = time.time() - start, time.time()",
)
RULES = (CLOCK_BEFORE_DEVICE, CLOCK_AFTER_BATCH)
FEWEST_STEPS = 3


def check_clocks(evidence: Evidence) -> Iterator[Finding]:
    """Look at the differences that the script takes after an update."""
    steps = evidence.lead.of("clocks")
    ends = Counter(site for line in steps for site in {site for site, stage, _ in line["reads"] if stage == "updated"})
    for site, number in ends.items():
        file, _, line = site.rpartition(":")
        names = clock_differences(file).get(int(line), set())
        if number < max(FEWEST_STEPS, len(steps) - 1) or not names:
            continue
        pending = sum(_is_pending(line, site) for line in steps)
        if evidence.lead.of("cuda") and pending == number:
            seen = f"in {number} steps, nothing waits for the device between the update and this clock"
            yield CLOCK_BEFORE_DEVICE.at(site, seen)
        yield from _late_starts(steps, file, names, number)


def _is_pending(line: Line, site: str) -> bool:
    return any(read == site and is_pending for read, stage, is_pending in line["reads"] if stage == "updated")


def _late_starts(steps: list[Line], file: str, names: set[str], number: int) -> Iterator[Finding]:
    """Find clocks that are started between the batch and the forward pass."""
    for name in sorted(names):
        lines = {at for at, target in clock_starts(file).items() if target == name}
        stages = Counter(
            (site, stage)
            for line in steps
            for site, stage, _ in line["reads"]
            if site.rpartition(":")[0] == file and int(site.rpartition(":")[2]) in lines
        )
        late = [site for (site, stage), times in stages.items() if stage == "arrived" and times >= number]
        if late:
            yield CLOCK_AFTER_BATCH.at(late[0], f"in {number} steps, {name} is set after the batch has arrived")


CHECKS = (check_clocks,)
