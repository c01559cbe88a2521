"""How much of a script an audit runs."""

import os

TRAIN_BATCHES = int(os.environ.get("_PACELINE_BATCHES", "6"))
"""Batches of an epoch; the rest of its order is read from the sampler, without the data."""
EVAL_BATCHES = int(os.environ.get("_PACELINE_EVAL_BATCHES", "24"))
EPOCHS = int(os.environ.get("_PACELINE_EPOCHS", "2"))
STEPS = TRAIN_BATCHES * EPOCHS * 2
"""Updates after which a script without epochs is ended."""
LARGEST_ORDER = 100_000
SECONDS_UNTIL_STUCK = float(os.environ.get("_PACELINE_STUCK", "5"))
SECONDS_OF_COLLECTIVES = 60
ON_CPU = os.environ.get("_PACELINE_ON_CPU", "") == "1"
"""Whether CUDA calls run on the CPU."""
NUM_DEVICES = int(os.environ.get("_PACELINE_DEVICES", "2"))
BATCH_FACTOR = int(os.environ.get("_PACELINE_BATCH_FACTOR", "1"))
"""What the batch size of every loader is multiplied by: one rank then trains on the batches of several."""
