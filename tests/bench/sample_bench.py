"""A benchmark with given speeds, without running anything."""

from paceline.bench.bench_folder import Bench, Measurement, Scaling, Variant

SETTINGS = {"model": "resnet20", "data": "digits", "global_batch": 128}


def make_bench(speeds, *, devices=None, scaling: Scaling = "strong", loss=None) -> Bench:
    """Return a benchmark of variants with these samples per second, round by round."""
    devices = dict(enumerate(devices or [1] * len(speeds)))
    variants = [
        Variant(
            mode="single" if devices[index] == 1 else "ddp",
            per_node=devices[index],
            scaling=None if devices[index] == 1 else scaling,
            global_batch=128 * (devices[index] if scaling == "weak" else 1),
            again=list(devices.values())[:index].count(devices[index]),
        )
        for index in speeds
    ]
    measurements = [
        Measurement(
            variant=index,
            round=number,
            samples_per_s=speed,
            step_s=variants[index].global_batch / speed,
            train_loss=(loss or {}).get(index, 0.5),
            test_top1=0.9,
        )
        for index, values in speeds.items()
        for number, speed in enumerate(values)
    ]
    return Bench(
        started=0, settings=SETTINGS, steps=60, cut=15, train_samples=1280, repeats=5, variants=variants,
        measurements=measurements,
    )  # fmt: skip
