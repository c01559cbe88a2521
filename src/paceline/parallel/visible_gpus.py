"""The GPUs that this process may use, counted and chosen without importing torch."""

from collections.abc import Mapping, Sequence

from paceline.core.errors import ConfigError


def visible_devices(devices: Sequence[int], environ: Mapping[str, str]) -> str:
    """Return CUDA_VISIBLE_DEVICES for --devices: some of the GPUs that are visible already, by their index."""
    given = environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return ",".join(map(str, devices))
    names = [name.strip() for name in given.split(",")]
    missing = next((device for device in devices if device >= len(names)), None)
    if missing is not None:
        raise ConfigError(
            f"--devices {missing} is not among the GPUs of CUDA_VISIBLE_DEVICES={given}",
            hint=f"use indices from 0 to {len(names) - 1}, or unset CUDA_VISIBLE_DEVICES",
        )
    return ",".join(names[device] for device in devices)


def count_gpus(environ: Mapping[str, str]) -> int:
    """Return the number of GPUs that torch would see, without importing it."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in {"", "-1"}])
    import pynvml  # noqa: PLC0415 - needed only if no variable selects GPUs

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return 0
