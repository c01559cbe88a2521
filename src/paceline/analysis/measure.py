"""What one run of a benchmark measured, from its records, without the steps in which it warmed up."""

from collections.abc import Iterable
from typing import Any

from paceline.core.errors import RunError
from paceline.records.bench import Sample


def measure(records: Iterable[dict[str, Any]], *, cut: int, contender: int, round_number: int, run: str) -> Sample:
    """Return the speed and the losses after the first `cut` steps; a record must end with the last of them."""
    images, seconds, loss_sum, test = 0, 0.0, 0.0, {}
    last = cut
    for record in records:
        if record["kind"] == "step" and record["step"] > cut:
            images += record["images"]
            seconds += record["images"] / record["images_per_s"]
            loss_sum += record["loss"] * record["images"]
            last = record["step"]
        if record["kind"] == "eval" and record["split"] == "test":
            test = {"test_loss": record["loss"], "test_top1": record["top1"], "test_images": record["images"]}
    if not images:
        raise RunError(f"{run} has no record after step {cut}", hint="measure more steps with --steps")
    return Sample(
        contender=contender,
        round=round_number,
        images_per_s=images / seconds,
        step_s=seconds / (last - cut),
        train_loss=loss_sum / images,
        run=run,
        **test,
    )
