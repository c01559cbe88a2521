"""Weights & Biases: online with a key, offline without one, under the same id after a resume."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paceline.core.errors import ConfigError
from paceline.records.entries import Entry, EpochRecord, EvalRecord, RunResult, StepRecord
from paceline.records.writer import write_text
from paceline.trackers.base import RunInfo, scalars

SLURM_TOKEN = "SLURM_JWT"


class WandB:
    """One W&B run per run folder."""

    name = "wandb"

    def __init__(self, say: Callable[[str], None]) -> None:
        if find_spec("wandb") is None:
            raise ConfigError("--track wandb needs the wandb package", hint="pip install 'paceline[wandb]'")
        self._say = say
        self._run: Any = None
        self._step = 0

    def open(self, run: RunInfo) -> None:
        """Start or continue the W&B run."""
        import wandb  # noqa: PLC0415 - an extra, and 1 s of imports

        known_id = run.folder.wandb_id.read_text(encoding="utf-8").strip() if run.folder.wandb_id.exists() else None
        identity = known_id or secrets.token_hex(4)
        write_text(run.folder.wandb_id, identity + "\n")
        asked = os.environ.get("WANDB_MODE")
        mode: Any = asked or ("online" if _has_key() else "offline")
        if mode == "offline":
            why = "WANDB_MODE is offline" if asked else "no key found"
            self._say(f"wandb: {why}, so it writes to {run.folder.path / 'wandb'}; to upload it later: wandb sync")
        with _without_secrets():
            self._run = wandb.init(
                project=run.config.run_name,
                name=run.folder.name,
                id=identity,
                resume="allow" if known_id else None,
                dir=str(run.folder.path),
                config=run.config.as_dict(),
                mode=mode,
                settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
            )

    def record(self, entry: Entry) -> None:
        """Send the scalars of a record."""
        if isinstance(entry, StepRecord | EpochRecord | EvalRecord):
            self._step = max(self._step, entry.step)  # W&B drops records of an earlier step, which the test may be
            self._run.log(scalars(entry), step=self._step)

    def close(self, result: RunResult | None) -> None:
        """Write the summary and finish."""
        if result is not None and result.test is not None:
            scores = result.test.as_dict() | {"step": result.test_step}
            self._run.summary.update({f"test/{key}": value for key, value in scores.items()})
        self._run.finish(exit_code=0 if result is not None else 1)


@contextmanager
def _without_secrets() -> Iterator[None]:
    """Hide SLURM_JWT, a token for the whole cluster: W&B writes every SLURM_… variable to its file."""
    token = os.environ.pop(SLURM_TOKEN, None)
    try:
        yield
    finally:
        if token is not None:
            os.environ[SLURM_TOKEN] = token


def _has_key() -> bool:
    """Tell whether there is a W&B API key, without using the network."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    file = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return host is not None and netrc(file).authenticators(host) is not None
    except (OSError, NetrcParseError):
        return False
