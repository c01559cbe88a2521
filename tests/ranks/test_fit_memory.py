"""`--accumulate auto` on real ranks: one that has less memory than the others decides for all."""

from paceline.core.config import Config
from paceline.core.start import Start
from paceline.engine.rank import Startup
from paceline.parallel.team import Team
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


def agreed_accumulate(team: Team) -> int | str:
    """Agree as ranks do of which the first has read the number of a run to resume."""
    startup = Startup(Config(accumulate=4 if team.is_lead else "auto"), team, Start())
    startup.agree()
    return startup.config.accumulate


def test_a_resume_takes_the_number_that_the_lead_has_read(ranks):
    assert ranks(3).run(agreed_accumulate) == [4, 4, 4]
