"""Training on augmented images: the same bits after a stop, with worker processes, and for every step of a policy."""

import signal

import pytest

import paceline
from paceline.records.entries import State
from tests.states import differences, final_state

POLICY = "crop1,flip,erase0.5"


@pytest.mark.parametrize("policy", [POLICY, "rand-m9-mstd0.5-inc1,resized-crop,mixup0.2,cutmix1.0"])
def test_an_augmented_run_that_is_stopped_and_resumed_ends_with_the_same_bits(
    plugin, small_config, monkeypatch, policy
):
    whole = paceline.train(small_config(model=plugin, name="whole", augment=policy))
    monkeypatch.setenv("TEST_SIGNAL_AT", "15")
    monkeypatch.setenv("TEST_SIGNAL", str(int(signal.SIGTERM)))
    stopped = paceline.train(small_config(model=plugin, name="stopped", augment=policy))
    assert stopped.state is State.STOPPED
    monkeypatch.delenv("TEST_SIGNAL_AT")
    resumed = paceline.train(resume=stopped.folder)
    assert resumed.state is State.FINISHED
    assert differences(final_state(whole.folder), final_state(resumed.folder)) == []


def test_worker_processes_augment_to_the_same_bits(small_config):
    alone, helped = (
        paceline.train(small_config(name=f"workers{workers}", augment=POLICY, workers=workers)) for workers in (0, 2)
    )
    assert differences(final_state(alone.folder), final_state(helped.folder)) == []


def test_augmentation_changes_what_is_learned(small_config):
    """The control of the tests above."""
    plain, changed = (
        paceline.train(small_config(name=f"policy{len(text)}", augment=text)) for text in ("none", POLICY)
    )
    assert any("/model/" in place for place in differences(final_state(plain.folder), final_state(changed.folder)))


def test_the_run_remembers_the_policy_it_was_trained_with(small_config):
    from paceline.core.load import load_config

    result = paceline.train(small_config(name="usual", epochs=1))
    assert load_config(result.folder / "config.toml").augment == "none"
