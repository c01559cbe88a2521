"""`paceline sample RUN`: text from a language model, token by token."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.errors import ConfigError, ExitCode, RunError
from paceline.core.units import count, escape_controls
from paceline.records.code import refuse_code_inside, refuse_own_loop
from paceline.records.mirror import open_run
from paceline.records.reader import read_config


def sample_command(
    run: Path,
    *,
    prompt: str = "\n",
    tokens: int = 300,
    temperature: float = 0.8,
    seed: int = 0,
    checkpoint: str = "best",
    runs_dir: Path = DEFAULT_RUNS,
    trust: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Print text that a language model of bytes continues; of other tokens, their ids.

    Parameters
    ----------
    run
        Run folder, or a run name for its newest folder.
    prompt
        Text to continue; for --data tokens:PATH, ids separated by spaces.
    tokens
        Number of tokens to draw.
    temperature
        Below 1 likely tokens become likelier; 0 always takes the likeliest.
    seed
        Seed of the draws.
    checkpoint
        Checkpoint: best, last, or a name such as step-00000055.
    runs_dir
        Folder of all runs, in which run names are looked up.
    trust
        Run code that lies inside the run folder, as of a folder from elsewhere.
    """
    import torch

    from paceline.engine.export import read_export
    from paceline.models.gpt import continue_tokens

    if tokens < 1 or not temperature >= 0:
        raise ConfigError("--tokens must be at least 1, and --temperature at least 0")
    folder = open_run(run, runs_dir)
    config = read_config(folder)
    refuse_own_loop(folder, config)
    if not trust:
        refuse_code_inside(folder, config)
    export = read_export(folder, config, checkpoint=checkpoint)
    if "vocab_size" not in export.facts:
        raise RunError(f"{folder.path} is no language model", hint="sample a run on --data alice, text: or tokens:")
    vocab_size, context = export.facts["vocab_size"], export.facts["context"]
    is_text = not export.config.data.startswith("tokens:")
    sequence = torch.tensor([_ids(prompt, vocab_size, is_text=is_text)])
    generator = torch.Generator().manual_seed(seed)
    for _ in range(tokens):
        sequence = continue_tokens(
            export.model, sequence, context=context, temperature=temperature, generator=generator
        )
    drawn = sequence[0].tolist()
    print(escape_controls(bytes(drawn).decode(errors="replace")) if is_text else " ".join(map(str, drawn)))
    return ExitCode.FINISHED


def _ids(prompt: str, vocab_size: int, *, is_text: bool) -> list[int]:
    """Return the token ids of a prompt."""
    try:
        ids = list(prompt.encode()) if is_text else [int(word) for word in prompt.split() or ["0"]]
    except ValueError as cause:
        raise ConfigError(f'--prompt "{prompt}" is no list of token ids', hint='write --prompt "15 27"') from cause
    if not ids:
        raise ConfigError("--prompt is empty", hint="drop it, or write some text")
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        raise ConfigError(f"--prompt has token {max(ids)}, but the vocabulary has {count(vocab_size)}")
    return ids
