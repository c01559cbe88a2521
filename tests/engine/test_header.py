"""The lines that a run prints before it trains."""

import pytest


@pytest.mark.parametrize(("model", "batch", "is_warned"), [("cnn", 15, True), ("cnn", 16, False), ("mlp", 15, False)])
def test_batch_norm_over_single_samples_is_warned_of(small_run, capsys, model, batch, is_warned):
    small_run(model=model, exact="bitwise", shards=8, global_batch=batch, steps=1)
    said = "".join(capsys.readouterr())
    assert ("leave batch norm with one sample at a time" in said) == is_warned
    assert ("batch norm sees a shard at a time" in said) == (model == "cnn")
