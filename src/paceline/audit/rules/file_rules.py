"""Rules about files: who writes what, what a checkpoint holds, where a resumed run starts."""

import re
from collections.abc import Iterator
from pathlib import Path

from paceline.audit.evidence import Evidence, lines_run
from paceline.audit.finding import Finding, Level, Rule
from paceline.audit.source import calls_of
from paceline.observe.journals import Line

SAME_FILE = Rule(
    name="same-file",
    level="wrong",
    summary="several ranks write the same file",
    effect="ranks that write at the same moment leave a mixed or torn file",
    wrong='torch.save(model.state_dict(), "model.pt")',
    fix='if rank == 0:\n    torch.save(model.state_dict(), "model.pt")',
)
SAME_LOG = Rule(
    name="same-log",
    level="note",
    summary="several ranks append to the same file",
    effect="their lines are mixed",
    wrong='logging.basicConfig(filename="train.log")',
    fix='logging.basicConfig(filename=f"train-{rank}.log")',
)
OWN_FOLDER = Rule(
    name="own-folder",
    level="wrong",
    summary="each rank makes its own run folder",
    effect="one run leaves several folders, and only one of them has the checkpoint",
    wrong='folder = Path("runs") / datetime.now().isoformat()\nfolder.mkdir()',
    fix="names = [str(folder)]\ndist.broadcast_object_list(names, 0)\nfolder = Path(names[0])",
)
SAME_BOARD = Rule(
    name="same-board",
    level="wrong",
    summary="several ranks write TensorBoard events into one folder",
    effect="TensorBoard draws the curves of all ranks as one run",
    wrong='writer = SummaryWriter("runs/it")',
    fix='writer = SummaryWriter("runs/it") if rank == 0 else None',
)
INCOMPLETE_CHECKPOINT = Rule(
    name="incomplete-checkpoint",
    level="note",
    summary="the checkpoint lacks state that a resumed run needs",
    effect="a resumed run starts without momentum or at the start of the schedule, and so gives another result",
    wrong='torch.save({"model": model.state_dict(), "epoch": epoch}, path)',
    fix='torch.save({"model": …, "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), …}, path)',
)
RESUME_AT_ZERO = Rule(
    name="resume-at-zero",
    level="wrong",
    summary="the checkpoint holds an epoch, but training starts at epoch 0",
    effect="a resumed run trains too long, and repeats the orders and the schedule of the first epochs",
    wrong='start = torch.load(path)["epoch"]\nfor epoch in range(epochs):',
    fix='start = torch.load(path)["epoch"] + 1\nfor epoch in range(start, epochs):',
)
OVERWRITTEN_CHECKPOINT = Rule(
    name="overwritten-checkpoint",
    level="note",
    summary="each checkpoint overwrites the one before in place",
    effect="a crash while it is written leaves no usable checkpoint",
    wrong='torch.save(state, "last.pt")  # every epoch',
    fix='torch.save(state, "last.pt.new")\nos.replace("last.pt.new", "last.pt")',
)
RULES = (
    SAME_FILE, SAME_LOG, OWN_FOLDER, SAME_BOARD, INCOMPLETE_CHECKPOINT, RESUME_AT_ZERO, OVERWRITTEN_CHECKPOINT,
)  # fmt: skip


def _tail(path: str) -> str:
    return "/".join(Path(path).parts[-2:])


def check_writers(evidence: Evidence) -> Iterator[Finding]:
    """Look for files that several ranks write with no collective between them."""
    writers: dict[str, dict[int, list[Line]]] = {}
    for rank, journal in evidence.ranks.items():
        for line in [*journal.of("write"), *journal.of("save")]:
            if line["path"] and "tfevents" not in line["path"]:
                writers.setdefault(line["path"], {}).setdefault(rank, []).append(line)
    by_line: dict[str, list[str]] = {}
    for path, by_rank in writers.items():
        moments = [{line["serial"] for line in lines} for lines in by_rank.values()]
        if len(by_rank) > 1 and set.intersection(*moments) and not _is_empty(path):
            by_line.setdefault(next(iter(by_rank.values()))[0]["site"], []).append(path)
    for site, paths in by_line.items():
        by_rank = writers[paths[0]]
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        if all(line.get("appends") for lines in by_rank.values() for line in lines):
            yield SAME_LOG.at(site, f"{len(by_rank)} ranks append to {_tail(paths[0])}{more}")
        else:
            level: Level = "wrong" if _holds_results(evidence, by_rank) else "note"
            yield SAME_FILE.at(site, f"{len(by_rank)} ranks write {_tail(paths[0])}{more}", level=level)


def _is_empty(path: str) -> bool:
    """Tell whether a file is there and empty, such as a lock."""
    file = Path(path)
    return file.is_file() and file.stat().st_size == 0


def _holds_results(evidence: Evidence, by_rank: dict[int, list[Line]]) -> bool:
    """Tell whether a file holds a checkpoint or what came after the first step; earlier, all ranks write the same."""
    first = min((line["time"] for line in evidence.lead.of("step")[:1]), default=float("inf"))
    return any("holds" in line or line["time"] > first for lines in by_rank.values() for line in lines)


def check_boards(evidence: Evidence) -> Iterator[Finding]:
    """Look for TensorBoard folders that several ranks write to."""
    folders: dict[str, set[int]] = {}
    for rank, journal in evidence.ranks.items():
        for line in journal.of("board"):
            if _num_events(Path(line["path"])) > 1:  # the first event is the version of the file
                folders.setdefault(str(Path(line["path"]).parent), set()).add(rank)
    for folder, ranks in folders.items():
        if len(ranks) > 1:
            yield SAME_BOARD.at(_line_of_board(evidence), f"{len(ranks)} ranks write events into {_tail(folder)}")


def _num_events(path: Path) -> int:
    """Return the number of events in a file of TensorBoard: each has 12 bytes before it and 4 after it."""
    try:
        data = path.read_bytes()
    except OSError:
        return 0
    number = at = 0
    while at + 12 <= len(data):
        at += 16 + int.from_bytes(data[at : at + 8], "little")
        number += 1
    return number


def _line_of_board(evidence: Evidence) -> str:
    """Return a line with a SummaryWriter that every rank ran: TensorBoard writes in another thread."""
    ran = lines_run(evidence)
    for file in set.intersection(*(set(files) for files in ran.values())):
        for call in calls_of(file, "SummaryWriter"):
            if all(call.lineno in files[file] for files in ran.values()):
                return f"{file}:{call.lineno}"
    return ""


def check_folders(evidence: Evidence) -> Iterator[Finding]:
    """Look for a line that makes another folder on every rank."""
    made: dict[str, dict[int, set[str]]] = {}
    for rank, journal in evidence.ranks.items():
        for line in journal.of("mkdir"):
            made.setdefault(line["site"], {}).setdefault(rank, set()).add(line["path"])
    roots: list[str] = []
    for site, by_rank in made.items():
        common = set.intersection(*by_rank.values())
        own = {rank: min(paths - common) for rank, paths in by_rank.items() if paths - common}
        pids = {rank: evidence.ranks[rank].process.get("pid", rank) for rank in own}
        is_numbered = any(_is_named_by(own, by) for by in ({rank: rank for rank in own}, pids))
        is_inside = any(path.startswith(root) for path in own.values() for root in roots)
        if len(own) == evidence.world_size > 1 and not is_numbered and not is_inside:
            roots += own.values()
            yield OWN_FOLDER.at(site, f"each rank makes its own folder: {', '.join(map(_tail, own.values()))}")


def _is_named_by(paths: dict[int, str], numbers: dict[int, int]) -> bool:
    """Tell whether paths are the same but for a number of each rank."""
    plain = {re.sub(rf"(?<!\d)0*{numbers[rank]}(?!\d)", "#", path) for rank, path in paths.items()}
    return len(plain) == 1


def check_checkpoints(evidence: Evidence) -> Iterator[Finding]:
    """Look at what checkpoints hold, and how they are replaced."""
    saves = [line for lines in evidence.of("save") for line in lines]
    told: set[str] = set()
    for line in saves:
        missing = _missing(evidence, line)
        if missing and line["site"] not in told:
            told.add(line["site"])
            held = ", ".join(line["holds"])
            yield INCOMPLETE_CHECKPOINT.at(
                line["site"], f"the checkpoint holds {held}, but no {' and no '.join(missing)}"
            )
    renamed = {line.get("source") for lines in evidence.of("rename") for line in lines}
    steps: dict[tuple[str, str], set[int]] = {}
    for line in evidence.lead.of("save"):
        if line["path"] and line["path"] not in renamed:
            steps.setdefault((line["path"], line["site"]), set()).add(line["step"])
    for (path, site), found in steps.items():
        if len(found) > 1:
            yield OVERWRITTEN_CHECKPOINT.at(site, f"{_tail(path)} is written {len(found)} times in place")


def _missing(evidence: Evidence, save: Line) -> list[str]:
    """Return the state that a checkpoint lacks; plain weights are no checkpoint to resume from."""
    kinds = set(save["holds"].values())
    counts = any(kind.startswith("int ") for kind in kinds)
    if not (("weights" in kinds and counts) or "optimizer" in kinds):
        return []
    missing = [] if "optimizer" in kinds else ["optimizer"]
    if evidence.lead.of("schedule") and "scheduler" not in kinds:
        missing.append("scheduler")
    return missing


def check_resume(evidence: Evidence) -> Iterator[Finding]:
    """Compare the epoch of a loaded checkpoint with that of the first training pass."""
    for load in evidence.lead.of("load"):
        epochs = [int(kind[4:]) for name, kind in load["holds"].items() if "epoch" in name and kind.startswith("int ")]
        if load["step"] or not epochs or epochs[0] <= 0:
            continue
        loaders = evidence.loaders
        keys = [key for loader in loaders.shared for key in loaders.training_passes(loader)]
        starts = [line["epoch"] for key in keys[:2] for line in loaders.passes(key)[:1]]
        if len(starts) == 2 and starts == [0, 1]:  # set_epoch is called, and counts from 0
            seen = f"the checkpoint is of epoch {epochs[0]}, and training starts with set_epoch(0)"
            is_resumed = any(line["step"] == 0 for line in evidence.lead.of("load_optimizer"))
            yield RESUME_AT_ZERO.at(load["site"], seen, level="wrong" if is_resumed else "note")  # or fine-tuned
            return


CHECKS = (check_writers, check_boards, check_folders, check_checkpoints, check_resume)
