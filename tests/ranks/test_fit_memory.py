"""`--accumulate auto` on real ranks: one that has less memory than the others decides for all."""

from tests.engine.narrow_model import NARROW
from tests.ranks.runs import rank_settings, train_rank


def test_all_ranks_decide_together(ranks, tmp_path):
    model = tmp_path / "narrow.py"
    model.write_text(NARROW.replace("MOST", "40"), encoding="utf-8")
    settings = rank_settings(tmp_path, model=f"{model}:Narrow", accumulate="auto", steps=2)
    ranks(2).run(train_rank, settings)
    (config,) = (tmp_path / "runs").glob("*/*/config.toml")
    text = config.read_text(encoding="utf-8")
    assert "accumulate = 4\n" in text, "rank 0 alone would take 2: 32 of its 64 samples fit, 16 on rank 1"
