"""Suggestions for misspelt names."""

import pytest

from paceline.core.errors import nearest, suggestion


def test_the_nearest_name_ignores_case_and_gives_up_when_nothing_is_close():
    assert nearest("ResNet2O", ["resnet20", "mlp"]) == "resnet20"
    assert nearest("xyz", ["resnet20", "mlp"]) is None


@pytest.mark.parametrize("name", ["resnet2", "resnet2O", "resnet21"])
def test_among_equals_the_nearest_name_begins_like_what_was_typed(name):
    assert nearest(name, ["resnet32", "resnet20", "resnet110", "resnet52"]) == "resnet20"


def test_a_suggestion_names_the_nearest_then_all():
    assert suggestion("resnet2O", ["resnet20", "mlp"]) == "did you mean resnet20? (known: mlp, resnet20)"
    assert suggestion("xyz", ["resnet20", "mlp"]) == "known: mlp, resnet20"
