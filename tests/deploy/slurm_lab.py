"""A Slurm of one host for a test: its real daemons as processes of the test, on loopback alone."""

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
GPUS = 8
"""Device files that stand for cards: Slurm hands them out, and nobody opens one."""
NULL_DEVICE = os.makedev(1, 3)
CONFIG = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={port}
AuthType=auth/munge
AuthInfo=socket={lab}/munge/sock,cred_expire=10
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={lab}/state
SlurmdSpoolDir={lab}/spool
SlurmctldPidFile={lab}/slurmctld.pid
SlurmdPidFile={lab}/slurmd.pid
SlurmctldLogFile={lab}/slurmctld.log
SlurmdLogFile={lab}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=64 RealMemory=3000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=40
PartitionName=high Nodes={host} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
"""`cred_expire`: a job that is requeued waits for so long, 120 s by default."""


def missing() -> str:
    """Why no Slurm can run here; empty if it can."""
    absent = [name for name in PROGRAMS if _path(name) is None]
    if absent:
        return f"{', '.join(absent)} missing: apt install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "Slurm's daemons want root"


class Slurm:
    """The clients of one cluster."""

    def __init__(self, config: Path) -> None:
        self.environment = {**os.environ, "SLURM_CONF": str(config)}
        self.log = config.parent / "slurmctld.log"

    def __call__(self, *words: str, folder: Path | None = None, **environment: str) -> str:
        """What a client says."""
        return subprocess.run(
            words,
            check=True,
            capture_output=True,
            text=True,
            cwd=folder,
            env={**self.environment, **environment},
        ).stdout

    def submit(self, folder: Path, *words: str, **environment: str) -> str:
        """Submit a batch script; returns the job's number."""
        return self("sbatch", "--parsable", *words, folder=folder, **environment).strip()

    def about(self, job: str) -> dict[str, str]:
        """What the cluster knows of a job, or of a task of an array."""
        words = self("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def until(self, job: str, good: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """Ask for a job until it is as it should be; the test's own limit of time ends it."""
        while not good(found := self.about(job)):
            pass
        return found


@contextlib.contextmanager
def slurm() -> Iterator[Slurm]:
    """A cluster for the block, whose daemons end with it."""
    lab = Path(tempfile.mkdtemp(prefix="p2pswarm-slurm-"))  # a socket's path has to be short
    lab.chmod(0o755)
    for name in ("munge", "state", "spool"):
        (lab / name).mkdir(mode=0o755)
    host = socket.gethostname().partition(".")[0]
    controller_port, port = _free_ports(2)
    config = lab / "slurm.conf"
    config.write_text(
        CONFIG.format(lab=lab, host=host, controller_port=controller_port, port=port, gpus=GPUS)
    )
    for number in range(GPUS):
        os.mknod(lab / f"gpu{number}", stat.S_IFCHR | 0o600, NULL_DEVICE)
    (lab / "gres.conf").write_text(f"Name=gpu File={lab}/gpu[0-{GPUS - 1}]\n")
    munge = lab / "munge"
    (munge / "key").write_bytes(os.urandom(1024))
    (munge / "key").chmod(0o600)
    places = (("socket", "sock"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"))
    flags = [f"--{flag}={munge / name}" for flag, name in (*places, ("seed-file", "seed"))]
    try:
        with (
            _daemon("munged", "--foreground", "--force", *flags, log=lab / "munged.out"),
            _daemon("slurmctld", "-D", "-c", "-f", str(config), log=lab / "slurmctld.out"),
            _daemon("slurmd", "-D", "-c", "-f", str(config), log=lab / "slurmd.out"),
        ):
            cluster = Slurm(config)
            _wait_until_up(cluster)
            yield cluster
            _end_all_jobs(cluster)
    finally:
        shutil.rmtree(lab)


def _wait_until_up(cluster: Slurm) -> None:
    """Ask until the host is idle; the daemons begin side by side."""
    while True:
        asked = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"],
            check=False,
            capture_output=True,
            text=True,
            env=cluster.environment,
        )
        if set(asked.stdout.split()) == {"idle"}:
            return


def _end_all_jobs(cluster: Slurm) -> None:
    cluster("scancel", "--user=root")
    while cluster("squeue", "--noheader", "--states=all", "--format=%T").count("ING"):
        pass


@contextlib.contextmanager
def _daemon(name: str, *flags: str, log: Path) -> Iterator[None]:
    path = _path(name)
    assert path is not None, name
    with log.open("wb") as said:
        process = subprocess.Popen([path, *flags], stdout=said, stderr=said)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _path(name: str) -> str | None:
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has: Slurm's daemons take no 0."""
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in free]
