"""A real Slurm on the hosts of a lab: munged, slurmctld and a slurmd per node, without systemd and cgroups."""

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from lab.environment import child_environment
from lab.hosts import Hosts, wait_for

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")

CONFIG = """\
ClusterName=lab
SlurmctldHost=ctl({controller})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/ctl.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/ctl.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=10
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=30
InactiveLimit=0
PropagateResourceLimits=NONE
MailProg=/bin/true
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Return the reason why this machine cannot run Slurm, if there is one."""
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    return f"Slurm is not installed: no {missing[0]} (make lab installs it)" if missing else None


class Slurm:
    """A cluster whose nodes are the hosts of a lab. Commands run on ctl."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        self.environment = child_environment(SLURM_CONF=str(folder / "slurm.conf"))
        self._hurried: set[str] = set()

    def __enter__(self) -> "Slurm":
        try:
            self._write_files()
            self._start_daemons()
            wait_for(lambda: len(self.idle_nodes()) == self.hosts.number, f"idle nodes; see {self.folder}", 30)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        files = [*self.folder.glob("node*.pid"), self.folder / "ctl.pid", self.folder / "munge" / "pid"]
        pids = [int(file.read_text()) for file in files if file.exists() and file.read_text().strip()]
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("scancel", "--user=root", timeout=10)
            wait_for(lambda: not self.run("squeue", "-h", timeout=10).stdout, "the last job to leave", 15)
        for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            with contextlib.suppress(AssertionError):
                wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "daemons to end", seconds)

    def _write_files(self) -> None:
        for name in ("state", "munge", *(f"spool.node{host}" for host in range(1, self.hosts.number + 1))):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "munge").chmod(0o755)
        key = self.folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        text = CONFIG.format(folder=self.folder, controller=self.hosts.address(0))
        for host in range(1, self.hosts.number + 1):
            name = self.hosts.name(host)
            text += f"NodeName={name} NodeAddr={self.hosts.address(host)} CPUs=4 RealMemory=4000 State=UNKNOWN\n"
        (self.folder / "slurm.conf").write_text(text)
        # nothing uses cgroups, but slurmd 22.05 does not start without a choice where /sys/fs/cgroup is missing
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _start_daemons(self) -> None:
        munge = self.folder / "munge"
        files = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        paths = [f"--{option}={munge / name}" for option, name in files.items()]
        subprocess.run(["munged", "--force", "--num-threads=2", *paths], check=True, capture_output=True)
        self._start_daemon(0, "slurmctld", "-c")
        for host in range(1, self.hosts.number + 1):
            self._start_daemon(host, "slurmd", "-N", self.hosts.name(host))

    def _start_daemon(self, host: int, *args: str) -> None:
        # a daemon that inherits our pipes keeps their readers waiting
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "capture_output": False}
        answer = self.hosts.run(host, *args, env=self.environment, **quiet)
        assert answer.returncode == 0, f"{args[0]} did not start; see {self.folder}"

    def idle_nodes(self) -> set[str]:
        """Return the names of the nodes that wait for work."""
        return set(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").stdout.split())

    def run(self, *args: object, **options: Any) -> subprocess.CompletedProcess:
        """Run a command on the controller to its end."""
        return self.hosts.run(0, *args, **({"env": self.environment} | options))

    def start(self, *args: object, **options: Any) -> subprocess.Popen:
        """Start a command on the controller."""
        return self.hosts.start(0, *args, **({"env": self.environment} | options))

    def state(self, job: str) -> str:
        """Return the state of a job, and of each task of an array."""
        answer = self.run("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%T")
        return " ".join(answer.stdout.split())

    def show(self, job: str) -> str:
        """Return all that Slurm knows of a job."""
        return self.run("scontrol", "show", "job", job).stdout

    def wait_for_state(self, job: str, *states: str) -> str:
        """Wait until every task of a job is in one of these states."""
        wait_for(lambda: self.is_in(job, *states), f"{states} of job {job}")
        return self.state(job)

    def is_in(self, job: str, *states: str) -> bool:
        """Tell whether every task of a job is in one of these states; False if the controller is too busy to answer."""
        now = set(self.state(job).split())
        return bool(now) and now <= set(states)

    def start_waiting_jobs(self) -> None:
        """Shorten the two minutes that Slurm lets a requeued job wait.

        Not to zero: a node refuses a job that starts in the second in which it was stopped.
        """
        for job in self.run("squeue", "-h", "-r", "-t", "PENDING", "-o", "%A").stdout.split():
            turn = f"{job} {re.findall(r'Restarts=[0-9]+', self.show(job))}"
            if turn not in self._hurried:
                self.run("scontrol", "update", f"JobId={job}", "StartTime=now+3")
                self._hurried.add(turn)
