"""`paceline sample`: text of a language model, and what is not one."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from paceline.core.config import Config
from paceline.engine import export as exporting
from paceline.models.zoo import build_model


@pytest.fixture
def language_run(own_run, monkeypatch):
    """Let the run of the tests be one of a small transformer, and return its data set, which a test may change."""
    torch.manual_seed(0)
    facts, language = {"vocab_size": 256, "context": 16}, SimpleNamespace(data="alice")
    read, model = exporting.read_export, build_model("gpt-nano", **facts).eval()

    def read_language(*args, **options):
        export = read(*args, **options)
        splits = replace(export.splits, facts=facts)
        return replace(export, model=model, splits=splits, config=Config(data=language.data))

    monkeypatch.setattr(exporting, "read_export", read_language)
    return language


def test_text_continues_the_prompt_and_depends_on_the_seed(run, language_run):
    texts = [
        run("sample", "demo", "--prompt=Alice", "--tokens=30", f"--seed={seed}", "--temperature=1").out
        for seed in (0, 0, 1)
    ]
    assert all(text.startswith("Alice") for text in texts)
    assert texts[0] == texts[1] != texts[2]


def test_other_tokens_are_printed_as_ids(run, language_run):
    language_run.data = "tokens:ids.bin"
    drawn = run("sample", "demo", "--prompt=15 27", "--tokens=3", "--temperature=0").out.split()
    assert drawn[:2] == ["15", "27"]
    assert len(drawn) == 5
    assert "is no list of token ids" in run("sample", "demo", "--prompt=Alice").message
    assert "has token 300, but the vocabulary has 256" in run("sample", "demo", "--prompt=300").message


@pytest.mark.parametrize(("word", "message"), [("--prompt=", "--prompt is empty"), ("--tokens=0", "at least 1")])
def test_nothing_to_draw_is_refused(run, language_run, word, message):
    answer = run("sample", "demo", word)
    assert answer.code == 2
    assert message in answer.message


def test_a_classifier_is_refused(run, own_run):
    assert "is no language model" in run("sample", "demo").message
