"""Inference: what the model of a run predicts for files, in fixed blocks, the same at every world size."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from paceline.core.config import Config
from paceline.core.errors import ConfigError, DataError, PacelineError, TaskError
from paceline.core.plugin import load_plugin
from paceline.core.world import World
from paceline.data.catalog import is_own_data
from paceline.data.collate import Collate, load_collate, stack_samples
from paceline.data.input_files import READ_HINT, ImageReader, InputFile, list_inputs
from paceline.data.sources.text import Sequences
from paceline.data.tree import Tree, map_leaves, moved
from paceline.engine.export import Export, read_export
from paceline.engine.model_setup import autocast, memory_format
from paceline.engine.objective import named_losses
from paceline.engine.task_setup import build_task
from paceline.engine.teachers import start_teachers
from paceline.models.gpt import continue_tokens
from paceline.parallel.join import joined
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder
from paceline.tasks.language import Language
from paceline.tasks.task import Task

Row = dict[str, Any]
"""The predictions for one file, by name."""
NUM_CONTINUED = 40
"""Tokens that a language model adds to a file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What to predict: the files, the checkpoint, and where masks go."""

    paths: Sequence[Path]
    checkpoint: str
    read: str | None
    masks: Path | None


class Inference:
    """Predicts files with the model of a run."""

    def __init__(self, export: Export, team: Team, request: Request) -> None:
        self._export, self._team, self._masks = export, team, request.masks
        config = export.config
        self._task: Task = build_task(config, config.task or export.splits.task, export.splits, team.device)
        self._model = export.model.to(team.device)
        start_teachers(self._task, self._model)
        self._read = None if request.read is None else load_plugin(request.read, DataError)
        self._collate: Collate = _stacked if config.collate is None else load_collate(config.collate)
        is_text = isinstance(self._task, Language) and isinstance(export.splits.test, Sequences)
        self.is_language = is_text and request.read is None

    def run(self, paths: Sequence[Path]) -> list[Row] | None:
        """Return a row per file, in order, on the lead. Collective: every rank must call it."""
        reader = self._reader()
        files = list_inputs(paths, getattr(reader, "endings", ()))
        self._refuse_same_masks(files)
        size = 1 if self.is_language else self._task.eval_batch
        starts = range(0, len(files), size)
        world = self._team.world
        own = {start: self._block(files[start : start + size], reader) for start in starts[world.rank :: world.size]}
        gathered = self._team.gather_on_lead(own)
        if gathered is None:
            return None
        blocks = {start: rows for each in gathered for start, rows in each.items()}
        return [row for start in starts for row in blocks[start]]

    def _reader(self) -> Callable[[Path], Any]:
        if self._read is not None:
            return self._read
        if self.is_language:
            assert isinstance(self._export.splits.test, Sequences)
            return partial(_read_tokens, data=self._export.config.data, split=self._export.splits.test)
        if is_own_data(self._export.config.data) or "image_shape" not in self._export.facts:
            data = self._export.config.data
            raise ConfigError(f"paceline infer does not know how {data} reads a file", hint=READ_HINT)
        return ImageReader(self._export.splits.test, self._export.facts["image_shape"])

    @torch.no_grad()
    def _block(self, files: Sequence[InputFile], reader: Callable[[Path], Any]) -> list[Row]:
        """Return the rows of some files."""
        samples = [_read(reader, file.path) for file in files]
        config, device = self._export.config, self._team.device
        if self.is_language:
            return [{"file": str(files[0].path)} | self._continued(samples[0])]
        batch = moved(self._collate(samples), device, memory_format(config, self._model))
        try:
            with autocast(config, device):
                outputs = map_leaves(self._task.forward(self._model, batch), Tensor.float)
                predicted = self._task.predict(outputs)
        except PacelineError:
            raise
        except Exception as cause:
            raise TaskError(
                f"the task cannot predict {files[0].path}: {type(cause).__name__}: {cause}", hint=READ_HINT
            ) from cause
        return [
            {"file": str(file.path)} | self._row(file, {name: values[index] for name, values in predicted.items()})
            for index, file in enumerate(files)
        ]

    def _row(self, file: InputFile, predicted: Mapping[str, Any]) -> Row:
        """Return the predictions of one sample as plain values, with the names of classes."""
        classes = self._export.facts.get("classes")
        row: Row = {}
        for name, value in predicted.items():
            plain = value.tolist() if isinstance(value, Tensor) else value
            if name == "class" and classes:
                row[name] = classes[plain]
            elif name == "mask":
                row |= self._mask(file, value, classes)
            else:
                row[name] = plain
        return row

    def _mask(self, file: InputFile, mask: Tensor, classes: Sequence[str] | None) -> Row:
        """Return the fraction of pixels of each class in a mask, and write it as an image of class indices."""
        found, counts = mask.unique(return_counts=True)
        names = [classes[index] if classes else str(index) for index in found.tolist()]
        row: Row = {"pixels": dict(zip(names, (counts / mask.numel()).tolist(), strict=True))}
        if self._masks is not None:
            path = self._mask_path(file)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask.cpu().numpy().astype(np.uint8)).save(path)
            row["mask"] = str(path)
        return row

    def _mask_path(self, file: InputFile) -> Path:
        assert self._masks is not None
        return self._masks / file.name.with_suffix(".png")

    def _refuse_same_masks(self, files: Sequence[InputFile]) -> None:
        if self._masks is None:
            return
        paths: dict[Path, Path] = {}
        for file in files:
            other = paths.setdefault(self._mask_path(file), file.path)
            if other is not file.path:
                problem = f"the masks of {other} and {file.path} would be the same file, {self._mask_path(file)}"
                raise ConfigError(problem, hint="infer one folder at a time, each with another --out")

    def _continued(self, tokens: Tensor) -> Row:
        """Return the perplexity of a text and how the model continues it; its likeliest tokens, not drawn."""
        export, device = self._export, self._team.device
        context, tokens = export.facts["context"], tokens.to(device)[None]
        loss, num = 0.0, 0
        for start in range(0, tokens.shape[1] - 1, context):
            part = tokens[:, start : start + context + 1]
            targets = self._task.targets(part)
            with autocast(export.config, device):
                outputs = self._task.forward(self._model, part).float()
            loss += sum(each.item() for each in named_losses(self._task.eval_loss(outputs, targets)).values())
            num += targets.numel()
        generator, given = torch.Generator(device), tokens.shape[1]
        for _ in range(NUM_CONTINUED):
            tokens = continue_tokens(self._model, tokens, context=context, temperature=0, generator=generator)
        drawn = tokens[0, given:].tolist()
        is_text = not export.config.data.startswith("tokens:")
        mean = loss / num if num else math.nan
        return {
            "tokens": given,
            "perplexity": math.exp(mean) if mean < 700 else math.inf,
            **({"text": bytes(drawn).decode(errors="replace")} if is_text else {"ids": drawn}),
        }


def infer_files(
    config: Config, folder: RunFolder, request: Request, world: World, *, timeout: float
) -> list[Row] | None:
    """Return a row per file on the lead. Collective: every rank must call it."""
    with joined(world, device=config.device, threads=config.threads, timeout=timeout) as team:
        export = read_export(folder, config, checkpoint=request.checkpoint)
        return Inference(export, team, request).run(request.paths)


def _stacked(samples: Sequence[Any]) -> Tree:
    return stack_samples(samples, list(range(len(samples))))


def _read(reader: Callable[[Path], Any], path: Path) -> Any:
    try:
        return reader(path)
    except PacelineError:
        raise
    except Exception as cause:
        raise DataError(f"reading {path} raised {type(cause).__name__}: {cause}", hint="check --read") from cause


def _read_tokens(path: Path, *, data: str, split: Sequences) -> Tensor:
    """Return the bytes of a text, or the token ids of a file of the type that the run was trained on."""
    raw, size = path.read_bytes(), np.dtype(split.kind).itemsize
    if not raw or len(raw) % size:
        raise DataError(f"{path} has {len(raw)} bytes, no token ids of {size} bytes", hint="give another file")
    ids = np.frombuffer(raw, split.kind).astype(np.int64)
    if ids.max() >= split.vocab_size:
        problem = f"{path} has token {ids.max()}, but the vocabulary of {data} has {split.vocab_size}"
        raise DataError(problem, hint="write the file with the tokenizer of the training data")
    return torch.from_numpy(ids)
