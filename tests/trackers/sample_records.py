"""A run and its records, without running anything."""

from pathlib import Path

from paceline.core.config import Config
from paceline.core.metrics import Score
from paceline.records.entries import EpochRecord, StepRecord
from paceline.records.folder import RunFolder
from paceline.trackers.base import RunInfo

RUN = RunInfo(folder=RunFolder(Path("runs/a/001")), config=Config(), total_steps=100, steps_per_epoch=10, first_step=0)
SCORE = Score.of(640.0, correct1=960, correct5=1280, samples=1280)
VALID = Score.of(50.0, correct1=90, correct5=100, samples=100)
STEP = StepRecord(step=15, epoch=2, score=SCORE, lr=0.05, samples_per_s=1280.0, seconds=1.0)
EPOCH = EpochRecord(step=20, epoch=2, train=SCORE, valid=VALID, is_best=True, samples_per_s=12345.6, seconds=1.0)
