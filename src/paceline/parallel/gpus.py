"""Counting GPUs without importing torch."""

from collections.abc import Mapping


def count_gpus(environ: Mapping[str, str]) -> int:
    """Return how many GPUs torch would see, without importing it."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in {"", "-1"}])
    import pynvml  # noqa: PLC0415 - needed only where nobody said which GPUs to use

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return 0
