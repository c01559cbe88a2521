"""Weights & Biases: online with a key, offline without one, under the same id after a resume."""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paceline.core.errors import ConfigError
from paceline.records.entries import Entry, EpochRecord, EvalRecord, RunResult, StepRecord
from paceline.records.folder import RunFolder
from paceline.records.writer import write_text
from paceline.trackers.base import RunInfo, scalars

SLURM_TOKEN = "SLURM_JWT"
NO_MODEL = ("false", "0", "")
"""Values of WANDB_LOG_MODEL that upload no checkpoint, as with the trainer of transformers."""
SETTINGS = {
    "silent": ("WANDB_SILENT", True),
    "console": ("WANDB_CONSOLE", "off"),
    "x_disable_stats": ("WANDB_X_DISABLE_STATS", True),
}
"""By name, the variable that a user sets it with, and our value."""


class WandB:
    """One W&B run per run folder."""

    name = "wandb"

    def __init__(self, say: Callable[[str], None]) -> None:
        if find_spec("wandb") is None:
            raise ConfigError("--track wandb needs the wandb package", hint="pip install 'paceline[wandb]'")
        self._say = say
        self._run: Any = None
        self._folder: RunFolder
        self._step = 0

    def open(self, run: RunInfo) -> None:
        """Start or continue the W&B run."""
        import wandb  # noqa: PLC0415 - an extra, and 1 s of imports

        self._folder = run.folder
        known_id = run.folder.wandb_id.read_text(encoding="utf-8").strip() if run.folder.wandb_id.exists() else None
        identity = known_id or os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        write_text(run.folder.wandb_id, identity + "\n")
        asked = os.environ.get("WANDB_MODE")
        mode: Any = asked or ("online" if _has_key() else "offline")
        place = Path(os.environ.get("WANDB_DIR") or run.folder.path) / "wandb"
        if mode == "offline":
            why = "WANDB_MODE is offline" if asked else "no key found"
            self._say(f"wandb: {why}, so it writes to {place}; to upload it later: wandb sync")
        with _without_secrets():
            self._run = wandb.init(
                id=identity,
                config=run.config.as_dict(),
                mode=mode,
                settings=wandb.Settings(**_unless_set(SETTINGS, os.environ)),
                **_unless_set(_arguments(run, resumed=known_id is not None), os.environ),
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
        if result is not None and os.environ.get("WANDB_LOG_MODEL", "false").lower() not in NO_MODEL:
            self._log_model(result)
        self._run.finish(exit_code=0 if result is not None else 1)

    def _log_model(self, result: RunResult) -> None:
        """Upload the tested checkpoint, which is the best, or else the newest, as an artifact of W&B."""
        import wandb  # noqa: PLC0415 - see open

        alias, step = ("latest", result.step) if result.test_step is None else ("best", result.test_step)
        artifact = wandb.Artifact(f"model-{self._run.id}", type="model", metadata={"step": step})
        artifact.add_dir(str(self._folder.checkpoint(step)))
        self._run.log_artifact(artifact, aliases=[alias])


def _arguments(run: RunInfo, *, resumed: bool) -> dict[str, tuple[str, Any]]:
    """Return the arguments of wandb.init by name, each with the variable that a user sets it with."""
    return {
        "project": ("WANDB_PROJECT", run.config.run_name),
        "name": ("WANDB_NAME", run.folder.name),
        "group": ("WANDB_RUN_GROUP", run.config.run_name),
        "job_type": ("WANDB_JOB_TYPE", "train"),
        "dir": ("WANDB_DIR", str(run.folder.path.absolute())),  # its own process may have another working directory
        "resume": ("WANDB_RESUME", "allow" if resumed or "WANDB_RUN_ID" in os.environ else None),
    }


def _unless_set(arguments: Mapping[str, tuple[str, Any]], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments whose variable is not set: an argument would win over it."""
    return {name: value for name, (variable, value) in arguments.items() if variable not in environ}


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
