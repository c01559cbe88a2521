"""Models of Hugging Face's transformers: "hf:FOLDER", built from the config.json in it, with fresh weights."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from paceline.core.errors import ModelError

CONFIG = "config.json"


class HuggingFace(nn.Module):
    """A model of transformers that returns its logits alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of token ids or images."""
        return self.model(inputs).logits


def build_hugging_face(name: str, facts: Mapping[str, Any]) -> nn.Module:
    """Return the model that the config.json of a folder describes: of language for token ids, else of images.

    Its weights are drawn from torch's seed; --init FOLDER loads those of the folder.
    """
    folder = Path(name.partition(":")[2]).expanduser()
    if not (folder / CONFIG).is_file():
        raise ModelError(f"{name}: {folder / CONFIG} does not exist", hint="give a folder with the files of a model")
    try:
        transformers = importlib.import_module("transformers")
    except ModuleNotFoundError as cause:
        raise ModelError("transformers is not installed", hint="pip install transformers") from cause
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        if "vocab_size" in facts:
            _refuse_small_vocabulary(name, config, facts)
            return HuggingFace(transformers.AutoModelForCausalLM.from_config(config))
        config.num_labels = facts["num_classes"]
        return HuggingFace(transformers.AutoModelForImageClassification.from_config(config))
    except ImportError as cause:  # beside a torchvision for another torch, it cannot import its models
        raise ModelError(
            f"transformers is installed, but cannot import the model of {name}: {cause}",
            hint="python -c 'import torchvision' may show why; uninstall it, or install the one for this torch",
        ) from cause
    except (ValueError, KeyError, TypeError, OSError) as cause:
        raise ModelError(
            f"{name} cannot be built for this data: {type(cause).__name__}: {cause}",
            hint="choose a causal language model for token ids, or an image classifier for images",
        ) from cause


def _refuse_small_vocabulary(name: str, config: Any, facts: Mapping[str, Any]) -> None:
    """Refuse token ids and lengths that the model has no embeddings for."""
    vocabulary, longest = config.vocab_size, getattr(config, "max_position_embeddings", facts["context"])
    if vocabulary < facts["vocab_size"]:
        raise ModelError(
            f"{name} has a vocabulary of {vocabulary}, but the data one of {facts['vocab_size']}",
            hint="use data with the tokens of this model",
        )
    if longest < facts["context"]:
        raise ModelError(
            f"{name} takes at most {longest} tokens, but samples have {facts['context']}",
            hint=f"use --context {longest}",
        )
