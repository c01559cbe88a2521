"""Two files side by side: the verdict, the order of differences, and the patterns that are explained."""

import torch

from paceline.compare.contents import Contents, compare_contents, explain_differences, fit_names, split_model
from paceline.compare.stored import StoredTensor
from paceline.compare.tensors import Status

MODEL = {
    "conv.weight": torch.tensor([1.0, 2.0]),
    "bn.weight": torch.tensor([1.0]),
    "bn.running_mean": torch.tensor([0.5]),
    "bn.num_batches_tracked": torch.tensor(3),
    "classes": torch.tensor([7, 8]),
}


def contents(beside=None, **changes) -> Contents:
    """Return a model with some tensors replaced, and what lies beside it."""
    state = {name: StoredTensor(tensor) for name, tensor in (MODEL | changes).items()}
    return Contents(name="x", parts=split_model(state) | (beside or {}))


def checkpoint(step=5, **changes) -> Contents:
    return contents({"progress": {"step": step, "epoch": 1}}, **changes)


def renamed(change) -> Contents:
    return Contents(name="x", parts=split_model({change(name): StoredTensor(value) for name, value in MODEL.items()}))


def test_a_model_is_split_by_the_names_and_types_of_its_tensors():
    parts = contents().parts
    assert list(parts["weights"]) == ["conv.weight", "bn.weight"]
    assert list(parts["buffers"]) == ["bn.running_mean", "bn.num_batches_tracked", "classes"]
    assert list(split_model({"w": StoredTensor(torch.ones(1))})) == ["weights"]


def test_the_verdict_is_that_of_the_worst_entry():
    close, far = ({"bn.weight": torch.tensor([value])} for value in (1.000001, 1.1))
    for change, status, agrees in (({}, "equal", True), (close, "close", False), (far, "differs", False)):
        found = compare_contents(contents(), contents(**change))
        assert (found.status, found.agrees) == (status, agrees)


def test_a_tolerance_lets_close_files_agree():
    other = contents(**{"bn.weight": torch.tensor([1.01])})
    assert compare_contents(contents(), other, tolerance=0.1).agrees
    assert not compare_contents(contents(), other, tolerance=0.001).agrees


def test_the_largest_relative_difference_of_a_part_comes_first():
    found = compare_contents(
        contents(), contents(**{"conv.weight": torch.tensor([1.0, 2.2]), "bn.weight": torch.tensor([2.0])})
    )
    assert [(part, entry.name) for part, entry in found.unequal()] == [
        ("weights", "bn.weight"),
        ("weights", "conv.weight"),
    ]
    assert found.worst_relative == 0.5


def test_another_order_of_names_is_told_but_loads_the_same():
    swapped = Contents(
        name="x", parts={name: dict(list(part.items())[::-1]) for name, part in contents().parts.items()}
    )
    found = compare_contents(contents(), swapped)
    assert found.status is Status.EQUAL
    assert [part.same_order for part in found.parts] == [False, False]
    (sentence,) = explain_differences(found)
    assert sentence.startswith("The order of names differs in: weights, buffers.")


def test_a_missing_entry_is_called_missing():
    state = {name: StoredTensor(tensor) for name, tensor in MODEL.items() if name != "bn.weight"}
    found = compare_contents(contents(), Contents(name="y", parts=split_model(state)))
    assert found.status is Status.DIFFERS
    assert [(entry.name, entry.what) for _, entry in found.unequal()] == [("bn.weight", "missing")]
    assert all(part.same_order for part in found.parts)


def test_bare_weights_need_no_optimizer_but_checkpoints_do():
    bare, whole, half = contents(), checkpoint(), contents({"optimizer": {"lr": 0.1}, "progress": {"step": 5}})
    found = compare_contents(whole, bare)
    assert (found.missing, found.status) == (("progress only in A",), Status.EQUAL)
    found = compare_contents(whole, half)
    assert found.missing == ("optimizer only in B",)
    assert found.status is Status.DIFFERS


def test_a_model_without_buffers_is_compared_with_those_of_the_other():
    bare = Contents(name="x", parts={"weights": contents().parts["weights"]})
    found = compare_contents(bare, contents())
    assert (found.missing, found.status) == ((), Status.DIFFERS)
    assert {entry.status for _, entry in found.unequal()} == {Status.ONLY_SECOND}


def test_a_prefix_is_taken_off_from_either_file():
    plain, prefixed = contents(), renamed(lambda name: f"model.{name}")
    for pair in ((plain, prefixed), (prefixed, plain)):
        fitted = fit_names(*pair)
        assert compare_contents(*fitted).status is Status.EQUAL
        assert ["model." in note for one in fitted for note in one.notes] == [True]


def test_names_that_fit_or_never_will_are_left_alone():
    plain = contents()
    half = renamed(lambda name: "labels" if name == "classes" else f"model.{name}")
    for other in (contents(), half, renamed(lambda name: f"model.{name[1:]}")):
        first, second = fit_names(plain, other)
        assert first is plain
        assert second is other


def test_running_statistics_that_differ_alone_are_explained():
    other = {"bn.running_mean": torch.tensor([0.75])}
    (sentence,) = explain_differences(compare_contents(contents(), contents(**other)))
    assert sentence.startswith("All weights are equal bit by bit; only 1 running statistic of batch norm differs.")
    for change in ({"bn.weight": torch.tensor([2.0])}, {"classes": torch.tensor([7, 9])}):
        assert explain_differences(compare_contents(contents(), contents(**other, **change))) == []


def test_other_moments_nans_and_missing_parts_are_explained():
    def explained(first, second):
        return explain_differences(compare_contents(first, second))

    assert explained(checkpoint(5), checkpoint(7)) == [
        "They are from different steps: A is after step 5, B after step 7."
    ]
    assert explained(checkpoint(), contents()) == ["Not compared: progress only in A."]
    (sentence,) = explained(contents(), contents(**{"bn.weight": torch.tensor([float("nan")])}))
    assert "not numbers (NaN)" in sentence
    assert explained(contents(), contents()) == []
