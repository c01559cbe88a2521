"""A run and its records, without running anything."""

from pathlib import Path

from paceline.core.config import Config
from paceline.core.metrics import Scores
from paceline.records.entries import EpochRecord, StepRecord
from paceline.records.folder import RunFolder
from paceline.trackers.base import RunInfo

RUN = RunInfo(folder=RunFolder(Path("runs/a/001")), config=Config(), total_steps=100, steps_per_epoch=10, first_step=0)
SCORE = Scores(by_name={"loss": 0.5, "top1": 0.75, "top5": 1.0}, samples=1280)
VALID = Scores(by_name={"loss": 0.5, "top1": 0.9, "top5": 1.0}, samples=100)
STEP = StepRecord(step=15, epoch=2, score=SCORE, lr=0.05, samples_per_s=1280.0, seconds=1.0)
EPOCH = EpochRecord(step=20, epoch=2, train=SCORE, valid=VALID, is_best=True, samples_per_s=12345.6, seconds=1.0)
