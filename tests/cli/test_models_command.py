"""`paceline models`: what is listed, for people and for programs."""

import json

from paceline.models.zoo import list_models


def test_every_model_is_listed_with_parameters_input_and_flops_and_how_to_use_others(run):
    answer = run("models")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0].split() == ["model", "parameters", "input", "classes", "FLOPs"]
    assert [line.split()[0] for line in lines[2 : 2 + len(list_models())]] == list_models()
    assert "resnet50            25,557,032   224×224×3     1,000    8.18 G" in lines
    assert "gpt2                124,439,808  1,024 tokens  50,257   292 G" in lines
    assert all(name in answer.out for name in ("timm:NAME", "torchvision:NAME", "my.py:build"))


def test_programs_get_plain_numbers(run):
    rows = [json.loads(line) for line in run("models", "--json").out.splitlines()]
    by_name = {row["model"]: row for row in rows}
    assert list(by_name) == list_models()
    assert by_name["resnet20"] == {
        "model": "resnet20",
        "parameters": 272_474,
        "image_shape": [3, 32, 32],
        "num_classes": 10,
        "flops": 2 * 40_813_184,
    }
