"""Several hosts on one machine: a network and UTS namespace each, on a bridge in a separate namespace.

Nothing is added to the machine's own network, and no host has a route out of the lab.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LONGEST = 100
"""Seconds after which a wait is a failure."""
ENTER = 'hostname "$1"; mount --bind "$2" /etc/hosts; mount --bind /dev/null /etc/resolv.conf; shift 2; exec "$@"'


def why_not() -> str | None:
    """Return the reason why this machine cannot hold a lab, if there is one."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("ip", "nsenter", "unshare", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    name = f"pltry{os.getpid()}"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        return f"no network namespaces: {probe.stderr.strip()}"
    command = ["nsenter", f"--net=/run/netns/{name}", "unshare", "-u", "-m", "true"]
    entered = subprocess.run(command, capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None if entered.returncode == 0 else f"cannot enter a namespace: {entered.stderr.strip()}"


class Hosts:
    """Hosts node1 … nodeN at 10.77.0.1 … N, and ctl at 10.77.0.254 on the bridge itself.

    As on a stock Debian, every host believes that its own name is 127.0.1.1, which is useless to the others.
    """

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.folder = folder
        self._prefix = f"pl{os.getpid()}x"
        self._switch = self._prefix + "s"
        self._started: list[subprocess.Popen] = []

    def __enter__(self) -> "Hosts":
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()
        for name in [self._namespace(host) for host in range(self.number + 1)]:
            for pid in pids_in(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def _build(self) -> None:
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "set", "lo", "up")
        ip("-n", self._switch, "link", "add", "br0", "type", "bridge", "forward_delay", "0", "stp_state", "0")
        ip("-n", self._switch, "addr", "add", f"{self.address(0)}/24", "dev", "br0")
        ip("-n", self._switch, "link", "set", "br0", "up")
        self._write_hosts(0)
        for host in range(1, self.number + 1):
            name = self._namespace(host)
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            veth = ["type", "veth", "peer", "name", "eth0", "netns", name]
            ip("-n", self._switch, "link", "add", f"p{host}", *veth)
            ip("-n", self._switch, "link", "set", f"p{host}", "master", "br0", "up")
            ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            self._write_hosts(host)

    def _write_hosts(self, host: int) -> None:
        lines = ["127.0.0.1 localhost"]
        for other in range(self.number + 1):
            address = "127.0.1.1" if other == host and host else self.address(other)
            lines.append(f"{address} {self.name(other)}")
        self._hosts_file(host).write_text("\n".join(lines) + "\n")

    def _namespace(self, host: int) -> str:
        return self._switch if host == 0 else f"{self._prefix}{host}"

    def _hosts_file(self, host: int) -> Path:
        return self.folder / f"hosts-{self.name(host)}"

    def name(self, host: int) -> str:
        """Return the name of a host; 0 is the controller on the bridge."""
        return "ctl" if host == 0 else f"node{host}"

    def address(self, host: int) -> str:
        """Return the address that the other hosts know."""
        return f"10.77.0.{host or 254}"

    def command(self, host: int, args: Sequence[object]) -> list[str]:
        """Return the command that runs these arguments on a host."""
        # not `ip netns exec`, which mounts another /sys, without which slurmd does not start
        enter = ["nsenter", f"--net=/run/netns/{self._namespace(host)}", "unshare", "-u", "-m", "/bin/sh", "-c", ENTER]
        return [*enter, "sh", self.name(host), str(self._hosts_file(host)), *map(str, args)]

    def start(self, host: int, *args: object, **options: Any) -> subprocess.Popen:
        """Start a command on a host."""
        usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        process = subprocess.Popen(self.command(host, args), **(usual | options))
        self._started.append(process)
        return process

    def run(self, host: int, *args: object, **options: Any) -> subprocess.CompletedProcess:
        """Run a command on a host to its end."""
        usual = {"capture_output": True, "text": True, "timeout": LONGEST}
        return subprocess.run(self.command(host, args), check=False, **(usual | options))

    def stop_all(self) -> None:
        """End every command that still runs, with all that it started."""
        for process in self._started:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=LONGEST)
        self._started.clear()

    def kill(self, host: int) -> None:
        """Kill every process of a host at once, as when it loses its power: its link is down, so nobody is told."""
        self.cut(host)
        for pid in self.pids(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pids(self, host: int) -> list[int]:
        """Return the processes that run on a host."""
        return pids_in(self._namespace(host))

    def limit(self, host: int, rate: str) -> None:
        """Slow the link of a host down to a rate such as 100mbit, both ways."""
        for namespace, link in ((self._switch, f"p{host}"), (self._namespace(host), "eth0")):
            shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            subprocess.run(["tc", "-n", namespace, "qdisc", "replace", "dev", link, *shape], check=True)

    def unlimit(self, host: int) -> None:
        """Give the link its full speed again."""
        for namespace, link in ((self._switch, f"p{host}"), (self._namespace(host), "eth0")):
            subprocess.run(["tc", "-n", namespace, "qdisc", "del", "dev", link, "root"], check=True)

    def cut(self, host: int) -> None:
        """Pull the cable of a host."""
        ip("-n", self._switch, "link", "set", f"p{host}", "down")

    def heal(self, host: int) -> None:
        """Put the cable back."""
        ip("-n", self._switch, "link", "set", f"p{host}", "up")


def pids_in(namespace: str) -> list[int]:
    """Return the processes in a network namespace."""
    answer = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(pid) for pid in answer.stdout.split()]


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


def wait_for(condition: Callable[[], object], what: str, seconds: float = LONGEST) -> None:
    """Poll a condition until it is true, and fail after a timeout."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for: {what}"
        time.sleep(0.1)
