"""The runs that must give the same bits on simulated GPUs as on the CPU, without a wait for the device in any step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.sim.simulate import Command

MODELS = Path(__file__).with_name("models.py")
DROPOUT = f"{MODELS}:dropout"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Settings of a short run, its number of ranks, and the variables of its simulated ranks."""

    argv: Sequence[str] = ()
    gpu_argv: Sequence[str] = ()
    """Settings of the run on the GPU only."""
    world: int = 1
    model: str = "cnn"
    steps: int = 4
    batch: int = 64
    environ: Mapping[str, str] = field(default_factory=dict)
    resumed_until: int | None = None
    """The run is resumed, and ends after this step."""

    def commands(self, name: str, runs: Path) -> list[Command]:
        """Return the run on the GPU and the one on the CPU, each with its resume."""
        return [*self._commands(name, runs, "cuda"), *self._commands(f"{name}-cpu", runs, "cpu")]

    def on_gpu(self, name: str, runs: Path) -> Command:
        """Return the run on the GPU alone."""
        return self._commands(name, runs, "cuda")[0]

    def _commands(self, name: str, runs: Path, device: str) -> list[Command]:
        argv = [
            *("train", "--data", "digits", "--model", self.model),
            *("--global-batch", str(self.batch), "--threads", "1", "--track", "none", "--log-every", "2"),
            *("--device", device, "--runs-dir", str(runs), "--name", name, *self.argv),
            *(self.gpu_argv if device == "cuda" else ()),
        ]
        environ = self.environ if device == "cuda" else {}
        lengths = {name: ["--steps", str(self.steps)]}
        if self.resumed_until:
            lengths[f"{name}-resumed"] = ["--steps", str(self.resumed_until), "--resume", str(runs / name)]
        return [
            Command(name=each, argv=[*argv, *length], world=self.world, environ=environ)
            for each, length in lengths.items()
        ]


CASES = {
    "single": Case(),
    "resnet20": Case(model="resnet20", steps=3, batch=32),
    "dropout, no channels-last": Case(model=DROPOUT),
    "workers, ema, clip, accumulate, adamw": Case(
        argv=["--workers", "1", "--ema", "0.9", "--clip", "1", "--accumulate", "2", "--optimizer", "adamw"]
    ),
    "evaluate and save every two steps": Case(
        argv=["--eval-every", "2 steps", "--save-every", "2 steps", "--save-async", "--label-smoothing", "0.1"]
    ),
    "resume": Case(resumed_until=7),
    "fp16": Case(argv=["--precision", "fp16", "--clip", "1"]),
    "bf16": Case(argv=["--precision", "bf16", "--ema", "0.9"]),
    "ghost": Case(argv=["--batch-norm", "ghost"]),
    "bitwise": Case(argv=["--exact", "bitwise"]),
    "profile": Case(argv=["--profile"]),
    "the second device": Case(gpu_argv=["--devices", "1"]),
    "ddp": Case(world=2),
    "ddp, resume": Case(world=2, resumed_until=7),
    "ddp, bitwise": Case(world=2, argv=["--exact", "bitwise"]),
    "ddp, accumulate, clip, ema": Case(world=2, argv=["--accumulate", "2", "--clip", "1", "--ema", "0.9"]),
    "ddp, sync": Case(world=2, argv=["--batch-norm", "sync", "--check-replicas", "1"]),
    "ddp, ghost": Case(world=2, argv=["--batch-norm", "ghost", "--check-replicas", "1"]),
    "ddp, fp16": Case(world=2, argv=["--precision", "fp16", "--compress", "fp16"]),
    "ddp, bf16": Case(world=2, argv=["--precision", "bf16", "--compress", "bf16", "--workers", "1"]),
    "ddp, one visible device per rank": Case(world=2, environ={"CUDA_VISIBLE_DEVICES": "{rank}"}),
    "ddp, three ranks, sync": Case(world=3, argv=["--batch-norm", "sync"], batch=100, steps=3),
}
