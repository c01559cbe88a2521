"""Thinned records: evenly spaced, the last one included, and never more than a limit."""

from itertools import pairwise

from paceline.records.thinned import ThinnedRecords


def thinned(records, most=100):
    thin = ThinnedRecords(most)
    for record in records:
        thin.add(record)
    return thin.kept()


def test_few_records_are_all_kept_in_order():
    records = [{"kind": "step" if step % 3 else "epoch", "step": step} for step in range(90)]
    assert thinned(records) == records


def test_many_records_are_thinned_evenly_and_end_with_the_last():
    kept = [record["step"] for record in thinned({"kind": "step", "step": step} for step in range(10_001))]
    assert 50 <= len(kept) <= 101
    assert kept[0] == 0
    assert kept[-1] == 10_000
    assert len({after - before for before, after in pairwise(kept[:-1])}) == 1


def test_rare_kinds_are_kept_among_many_others():
    records = [{"kind": "step", "step": step} for step in range(5000)]
    records[2500:2500] = [{"kind": "eval", "split": split, "step": 2500} for split in ("valid", "test")]
    kept = thinned(records)
    assert [record["split"] for record in kept if record["kind"] == "eval"] == ["valid", "test"]
    assert len(kept) < 110
