"""The recipe for Slurm under Slurm's own daemons: requeued, cut short, cancelled, and over."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deploy.recipes import DEPLOY, ROOT

from deploy import slurm_lab
from p2pswarm.base.exit_codes import DONE, TERMINATED

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why := slurm_lab.missing()), reason=why),
    pytest.mark.xdist_group("slurm"),
]
SMALLER = {
    "stages = 10": "stages = 2",
    "steps = 2000": "steps = {steps}",
    "every_steps = 50": "every_steps = 10",
    "d_model = 768": "d_model = 32",
    "layers = 20": "layers = 4",
    "heads = 12": "heads = 2",
    "sequence_length = 1024": "sequence_length = 32",
    "microbatches = 40": "microbatches = 4",
}
"""What makes the recipe's run one for a test."""
RUNS = "RUNNING"


@pytest.fixture(scope="module")
def cluster():
    with slurm_lab.slurm() as there:
        yield there


@pytest.fixture
def swarm(cluster, tmp_path):
    """A folder with the recipe, a bootstrap node, and the environment of its user."""
    nodes: list[subprocess.Popen[str]] = []

    class Swarm:
        folder = tmp_path / "run"

        def __init__(self) -> None:
            shutil.copytree(DEPLOY / "slurm", self.folder)
            (self.folder / "text").mkdir()
            (self.folder / "text/a.txt").write_text("the quick brown fox jumps. " * 5_000)
            programs = tmp_path / "bin"
            programs.mkdir()
            program = programs / "p2pswarm"
            program.write_text(f'#!/bin/bash\nexec {sys.executable} -m p2pswarm "$@"\n')
            program.chmod(0o755)
            self.environment = {
                "PATH": f"{programs}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
            }

        def steps(self, steps: int) -> None:
            run = self.folder / "run.toml"
            text = run.read_text()
            for recipe, test in SMALLER.items():
                assert text.count(recipe) == 1
                text = text.replace(recipe, test.format(steps=steps))
            run.write_text(text)

        def join(self) -> None:
            words = ["p2pswarm", "node", "--config", "bootstrap.toml", "--listen", "127.0.0.1:0"]
            environment = {**os.environ, **self.environment}
            node = subprocess.Popen(
                words, cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True
            )
            nodes.append(node)
            assert node.stdout is not None
            begun = re.match(r"peer \S+ at (\S+),", node.stdout.readline())
            assert begun
            self.environment["P2PSWARM_BOOTSTRAP"] = begun[1]

        def submit(self, *words: str) -> str:
            return cluster.submit(self.folder, *words, **self.environment)

        def said(self, name: str) -> str:
            log = self.folder / f"{name}.log"
            return log.read_text() if log.exists() else ""

        def until(self, name: str, mark: str, times: int = 1) -> str:
            while len(re.findall(mark, said := self.said(name))) < times:
                cluster("squeue")
            return said

    yield Swarm()
    for node in nodes:
        with node:
            node.terminate()


def ended(about: dict[str, str]) -> tuple[str, str]:
    return about["JobState"], about["ExitCode"]


def test_an_array_of_four_trains_whatever_happens_to_its_tasks(cluster, swarm):
    """Requeued by hand, its node ended by SIGTERM, cancelled, and the run's own end.

    The two servers of stage 1, or of stage 0, may be the ones that go: then its weights come back
    from the newest checkpoint.
    """
    swarm.steps(400)
    swarm.join()
    trainer = swarm.submit("trainer.sbatch")
    array = swarm.submit("--array=0-3", "node.sbatch")
    swarm.until("trainer", r"checkpoint of step \d+")

    cluster("scontrol", "requeue", f"{array}_1")
    terminate_node(cluster, f"{array}_2", swarm.folder)
    cluster("scancel", f"{array}_3")
    for task in (1, 2):
        again = cluster.until(
            f"{array}_{task}", lambda job: job["Restarts"] == "1" and job["JobState"] == RUNS
        )
        assert again["Reason"] == "None"
    cancelled = cluster.about(f"{array}_3")
    over = {job: cluster.until(job, is_over) for job in (trainer, *tasks(array, 0, 1, 2))}

    assert [ended(job) for job in over.values()] == [("COMPLETED", f"{DONE}:0")] * 4
    assert ended(cancelled) == ("CANCELLED", f"{TERMINATED}:0")
    assert cancelled["Restarts"] == "0"
    for name in ("node-1", "node-2"):
        assert "leaving" in swarm.said(name)
        assert swarm.said(name).count("peer ") == 2
    for name in ("node-0", "node-1", "node-2"):
        assert "is over: all steps are done; this server ends" in swarm.said(name)
    assert re.search("done after 400 steps.* +counted 1600 ", swarm.said("trainer"))
    assert list(swarm.folder.glob("weights-twenty-step-400*"))


def test_a_job_that_its_time_limit_ends_goes_on_later(cluster, swarm):
    """The time limit of Slurm is in minutes, and a minute before it the shell alone is told."""
    swarm.steps(1_000_000)
    swarm.join()
    node = swarm.submit("--array=0", "--time=1", "--signal=B:TERM@55", "node.sbatch")
    assert "no run yet" in swarm.until("node-0", "no run yet")

    again = cluster.until(f"{node}_0", lambda job: job["Restarts"] == "1")

    assert again["JobState"] in ("PENDING", "COMPLETING", RUNS)
    assert "DUE TO TIME LIMIT" not in swarm.said("node-0")
    assert swarm.said("node-0").count("leaving") == 1


def test_a_node_whose_settings_are_wrong_ends_its_job_for_good(cluster, swarm):
    (swarm.folder / "stage.toml").write_text("[serve]\nleave = 'soon'\n")
    swarm.join()
    node = swarm.submit("--array=0", "node.sbatch")

    job = cluster.until(f"{node}_0", is_over)

    assert ended(job) == ("FAILED", "2:0")
    assert job["Restarts"] == "0"
    assert swarm.said("node-0").count("error:") == 1


def test_a_job_without_the_address_of_a_node_ends_for_good(cluster, swarm):
    """Else each server, and the trainer, would begin a swarm of its own."""
    swarm.environment["P2PSWARM_BOOTSTRAP"] = ""
    job = cluster.until(swarm.submit("trainer.sbatch"), is_over)

    assert ended(job) == ("FAILED", "2:0")
    assert "P2PSWARM_BOOTSTRAP is not set" in swarm.said("trainer")


def test_a_node_that_fails_is_begun_three_times(cluster, swarm):
    """Its program is one that fails."""
    swarm.join()
    program = Path(swarm.environment["PATH"].partition(":")[0]) / "p2pswarm"
    program.write_text("#!/bin/bash\necho began\nexit 1\n")
    node = swarm.submit("--array=0", "node.sbatch")

    job = cluster.until(f"{node}_0", is_over)

    assert ended(job) == ("FAILED", "1:0")
    assert swarm.said("node-0").count("began") == 3


def is_over(job: dict[str, str]) -> bool:
    return job["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")


def tasks(array: str, *numbers: int) -> list[str]:
    return [f"{array}_{number}" for number in numbers]


def terminate_node(cluster: slurm_lab.Slurm, task: str, folder: Path) -> None:
    """SIGTERM to the node of a task alone, as a machine's own agent sends it."""
    pids = cluster("scontrol", "listpids", cluster.about(task)["JobId"]).split("\n")[1:]
    for pid in (line.split()[0] for line in pids if line):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "p2pswarm" in words and words[0] == sys.executable:
            assert Path(f"/proc/{pid}/cwd").resolve() == folder
            subprocess.run(["kill", "-TERM", pid], check=True)
            return
    raise AssertionError(f"no node in {pids}")
