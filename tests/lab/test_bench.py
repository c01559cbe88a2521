"""A benchmark over several hosts: the same command on each, one table on node 0."""

from lab.runs import PACELINE, SMALL, ends
from paceline.bench.bench_folder import BenchFolder, read_bench


def test_two_hosts_take_part_in_the_runs_that_need_them(on, tmp_path):
    words = ("bench", *SMALL, "--steps=8", "--repeats=2", "--ranks=1,2,2x1", "--nnodes=2", "--rendezvous=node1:29400")
    answers = ends(*[on(node + 1, *PACELINE, *words, "--node-rank", node) for node in range(2)])
    bench = read_bench(BenchFolder(tmp_path / "runs" / "bench-digits-mlp" / "001"))
    assert [one.name for one in bench.variants] == ["single", "ddp 2", "ddp 2×1"]
    assert [sample.variant for sample in bench.measurements] == [0, 1, 2, 1, 2, 0]
    assert bench.failures == {}
    losses = [round(sample.train_loss, 3) for sample in bench.measurements]
    assert len(set(losses)) == 1, "the same work, wherever it is done"
    assert "ddp 2×1" in answers[0][0]
    assert answers[1][0] == "", "node 1 keeps no results"
    assert answers[1][1].count("took part") == 2
