"""The files of the user's own code in a run, the same on every rank."""

from pathlib import Path

from paceline.core.augment_syntax import own_steps
from paceline.core.config import Config
from paceline.core.plugin import code_files
from paceline.parallel.team import Team
from paceline.records.code import hash_code


def agreed_code(config: Config, team: Team) -> dict[str, str]:
    """Return the hashes of the user's own code; ranks that import the same files must have the same. Collective."""
    code = hash_code(own_code(config))
    imported_by_all = set(code).intersection(*team.gather(list(code)))
    team.agree({f"sha256 of {name}": code[name][:12] for name in sorted(imported_by_all)})
    return code


def own_code(config: Config) -> dict[str, Path]:
    """Return the files of the user's own loop, model, data, task and other parts, once they are loaded."""
    named = (config.model, config.data, config.task, config.collate, *config.metric, config.optimizer, config.schedule)
    named += (config.loop, *own_steps(config.augment_policy))
    return code_files([name for name in named if name is not None])
