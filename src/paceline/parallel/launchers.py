"""The environment variables of launchers that start one process per rank: a table, and its lookup."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Launcher:
    """The variables that a launcher sets in every rank."""

    name: str
    rank: str
    size: str
    local_rank: tuple[str, ...]
    """Variables for the local rank; the first that is set is used, here and below."""
    local_size: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    """Variables for the number of nodes, if there is no local size."""
    job: tuple[str, ...] = ()
    """Variables that identify the launch, from which its port is derived."""
    mark: str | None = None
    """A variable that only this launcher sets, if others set the same rank variable."""
    srun_sets_it: bool = False
    """Whether Slurm tasks may have these variables too."""

    def started(self, environ: Mapping[str, str], *, in_slurm_task: bool) -> bool:
        """Tell whether this launcher started the process."""
        return (self.mark or self.rank) in environ and not (self.srun_sets_it and in_slurm_task)


INTERNAL_STEPS = 0xFFFFFFF0
"""Slurm step ids from here on are internal: the batch script, and the shell that salloc opens."""
BATCH_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
PMI_JOB = ("PMI_JOBID", "HYDI_CONTROL_FD", "PMI_PORT")

LAUNCHERS = (
    Launcher(
        name="jsrun",
        rank="JSM_NAMESPACE_RANK",
        size="JSM_NAMESPACE_SIZE",
        local_rank=("JSM_NAMESPACE_LOCAL_RANK",),
        local_size=("JSM_NAMESPACE_LOCAL_SIZE",),
    ),
    Launcher(
        name="mpirun",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
        local_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    Launcher(
        name="MVAPICH",
        rank="MV2_COMM_WORLD_RANK",
        size="MV2_COMM_WORLD_SIZE",
        local_rank=("MV2_COMM_WORLD_LOCAL_RANK",),
        local_size=("MV2_COMM_WORLD_LOCAL_SIZE",),
        job=("PMI_PORT",),
    ),
    Launcher(
        name="MVAPICH",
        rank="MVP_COMM_WORLD_RANK",
        size="MVP_COMM_WORLD_SIZE",
        local_rank=("MVP_COMM_WORLD_LOCAL_RANK",),
        local_size=("MVP_COMM_WORLD_LOCAL_SIZE",),
        job=("PMI_PORT",),
    ),
    Launcher(
        name="Flux",
        rank="FLUX_TASK_RANK",
        size="FLUX_JOB_SIZE",
        local_rank=("FLUX_TASK_LOCAL_ID",),
        nodes=("FLUX_JOB_NNODES",),
        job=("FLUX_JOB_ID",),
    ),
    Launcher(
        name="mpirun",
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank=("MPI_LOCALRANKID",),
        local_size=("MPI_LOCALNRANKS",),
        job=PMI_JOB,
        mark="MPI_LOCALRANKID",
    ),
    Launcher(
        name="PALS",
        rank="PALS_RANKID",
        size="PMI_SIZE",  # not set with --pmi=pmix
        local_rank=("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
        local_size=("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
        job=("PALS_APID",),
        srun_sets_it=True,
    ),
    Launcher(
        name="mpirun",
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank=("PMI_LOCAL_RANK",),
        local_size=("PMI_LOCAL_SIZE",),
        job=PMI_JOB,
        srun_sets_it=True,
    ),
)
"""In order of lookup: some launchers start others, or set the variables of others besides their own."""

TRACES = ("PMIX_RANK", "ALPS_APP_PE", "HOROVOD_RANK", *(launcher.size for launcher in LAUNCHERS))
"""Variables that only a launcher sets, and that contain neither rank nor size."""

COMMON_TRACES = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
"""Variables that other programs may also set: a sign of a launcher if above 0."""

ADDRESSED_TRACES = ("JOB_COMPLETION_INDEX", "ACCELERATE_MIXED_PRECISION")
"""Variables of processes that may well be alone: a sign of others if MASTER_ADDR is set too."""


def find_launcher(environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher in the table that started this process."""
    in_task = in_slurm_task(environ)
    return next((launcher for launcher in LAUNCHERS if launcher.started(environ, in_slurm_task=in_task)), None)


def in_slurm_task(environ: Mapping[str, str]) -> bool:
    """Tell whether srun started this process, rather than sbatch or salloc the shell around it."""
    step = environ.get("SLURM_STEP_ID", "")
    return "SLURM_PROCID" in environ and step.isdigit() and int(step) < INTERNAL_STEPS


def started_by(environ: Mapping[str, str]) -> str:
    """Return what started a process that is connected to others already."""
    if "RAY_JOB_ID" in environ:
        return "Ray"
    return "torchrun" if "TORCHELASTIC_RUN_ID" in environ else "your script"
