"""Recipes are files to copy: our own parser takes all that they say to us."""

import json
import re
import signal
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML reads the recipes: pip install '.[lint]'")

from deploy.recipes import (  # noqa: E402
    DEPLOY,
    FILES,
    JOIN,
    ROOT,
    command_lines,
    documents,
    pods,
)

from p2pswarm.base.exit_codes import DONE, INTERRUPTED, TERMINATED, UNUSABLE, code_of  # noqa: E402
from p2pswarm.checkpoint.targets import may_use  # noqa: E402
from p2pswarm.command_line import make_parser  # noqa: E402
from p2pswarm.commands.health import ANSWER_S  # noqa: E402
from p2pswarm.commands.node import settings_of  # noqa: E402
from p2pswarm.node.shutdown import LEAVE_S  # noqa: E402
from p2pswarm.settings.environment import VARIABLES  # noqa: E402
from p2pswarm.settings.node_config import NodeConfig, ServeConfig  # noqa: E402
from p2pswarm.settings.parser import load  # noqa: E402
from p2pswarm.settings.service_hours import idle_s, leaves_with_run  # noqa: E402
from p2pswarm.web.health import STANDS_STILL_S  # noqa: E402

LAUNCHERS = ("container", "kubernetes", "skypilot", "slurm", "systemd")
RENTED = ("kubernetes", "skypilot", "slurm")
"""The launchers whose machines cost while they run."""
PAGES = [ROOT / "docs/twenty_machines.md", *sorted((ROOT / "docs/deploy").glob("*.md"))]
LINE = re.compile(
    r"^\s*(?:\$ )?p2pswarm ((?:node|train|invite|status|generate|plan) .*)$", re.MULTILINE
)
INCLUDED = re.compile(r'--8<-- "(deploy/.+)"')
SETTINGS = [file for file in FILES if file.suffix == ".toml"]
WAITS_S = ServeConfig().grace_s + LEAVE_S
"""What a server may take to leave."""


def named(path) -> str:
    return str(path.relative_to(ROOT))


def settings(words, monkeypatch) -> NodeConfig:
    monkeypatch.setenv("P2PSWARM_BOOTSTRAP", JOIN)
    monkeypatch.delenv("P2PSWARM_INVITE", raising=False)
    return settings_of(make_parser().parse_args(words))


def test_each_launcher_has_its_recipe_and_its_page():
    there = {file.parent.name for file in FILES if file.parent != DEPLOY}

    assert there == set(LAUNCHERS)
    assert {page.stem for page in PAGES[1:]} == set(LAUNCHERS)


@pytest.mark.parametrize("line", command_lines(), ids=str)
def test_a_command_line_of_a_recipe_is_one_of_ours(line, monkeypatch):
    config = settings(line.flags, monkeypatch)

    assert config.role != "auto"
    assert config.role == "bootstrap" or config.bootstrap == (JOIN,)


def test_every_recipe_that_runs_something_runs_us():
    lines = command_lines()

    assert {line.file.parent.name for line in lines} == set(LAUNCHERS)
    assert len(lines) >= 11


@pytest.mark.parametrize("file", SETTINGS, ids=named)
def test_a_settings_file_of_a_recipe_is_one_of_ours(file):
    assert load(file) != NodeConfig()


@pytest.mark.parametrize("file", FILES, ids=named)
def test_a_recipe_names_what_the_program_reads_from_the_environment(file):
    names = set(re.findall(r"P2PSWARM_\w+", file.read_text()))

    assert names <= set(VARIABLES.values())


@pytest.mark.parametrize("file", FILES, ids=named)
def test_no_recipe_shows_an_invitation_in_a_list_of_processes(file):
    assert "--invite" not in file.read_text()


@pytest.mark.parametrize("launcher", RENTED)
def test_a_rented_server_ends_with_its_run_and_without_one(launcher):
    leave = load(DEPLOY / launcher / "stage.toml").serve.leave

    assert leaves_with_run(leave)
    assert idle_s(leave) is not None


@pytest.mark.parametrize("launcher", RENTED)
def test_servers_let_the_trainer_name_its_checkpoints_and_each_stage_has_two(launcher):
    run = load(DEPLOY / launcher / "run.toml")
    serve = load(DEPLOY / launcher / "stage.toml").serve

    assert may_use(run.checkpoint.target, serve.checkpoint_targets)
    assert run.run.on_stage_lost == "rewind"
    assert run.state is not None
    assert 2 * run.run.stages == 20


def test_slurms_script_knows_the_exit_codes():
    text = (DEPLOY / "slurm/requeue.sh").read_text()
    ends = re.search(r"([\d |]+)\) exit", text)
    requeues = re.search(r"(\d+)\) break", text)

    assert ends
    assert requeues
    hung_up = code_of(signal.SIGHUP)
    assert list(map(int, ends[1].split("|"))) == [DONE, UNUSABLE, hung_up, INTERRUPTED]
    assert int(requeues[1]) == TERMINATED
    assert f"exit {TERMINATED}\n}}\n" in text


def test_a_spot_machine_of_skypilot_comes_back_after_it_left():
    node = documents(DEPLOY / "skypilot/node.yaml")[0]

    assert node["resources"]["job_recovery"]["recover_on_exit_codes"] == [TERMINATED]
    assert all(hook["timeout"] > WAITS_S for hook in node["config"]["hooks"])
    assert node["secrets"] == {"P2PSWARM_INVITE": ""}


def test_systemd_restarts_what_failed_and_nothing_that_a_person_has_to_mend():
    text = (DEPLOY / "systemd/p2pswarm@.service").read_text()

    assert f"\nRestartPreventExitStatus={UNUSABLE}\n" in text
    assert f"\nSuccessExitStatus={TERMINATED}\n" in text
    assert int(re.findall(r"\nTimeoutStopSec=(\d+)\n", text)[0]) > WAITS_S


def test_the_unit_of_systemd_keeps_the_state_of_a_server_and_runs_the_trainer_too(monkeypatch):
    """Its trainer may write in the folder of its unit alone, and read nothing of /home."""
    (line,) = (each for each in command_lines() if each.file.parent.name == "systemd")
    run = settings([flag.replace("stage.toml", "run.toml") for flag in line.flags], monkeypatch)
    own = Path("/var/lib/p2pswarm/run")

    assert settings(line.flags, monkeypatch).state == Path("/var/lib/p2pswarm")
    assert run.role == "trainer"
    assert run.train.weights is not None
    assert run.train.weights.parent == own
    assert Path(run.checkpoint.target).parent == own
    assert run.train.data == Path("/srv/text")


def test_each_launcher_has_a_run_of_twenty_servers_for_its_trainer():
    for launcher in LAUNCHERS:
        run = load(DEPLOY / launcher / "run.toml").run
        assert run.name == "twenty"
        assert 2 * run.stages == 20


@pytest.mark.parametrize("name", ["servers-job.yaml", "trainer.yaml"])
def test_a_job_of_kubernetes_counts_no_pod_that_was_taken(name):
    job = next(one for one in documents(DEPLOY / "kubernetes" / name) if one["kind"] == "Job")
    rules = job["spec"]["podFailurePolicy"]["rules"]
    codes = {
        tuple(rule["onExitCodes"]["values"]): rule["action"]
        for rule in rules
        if "onExitCodes" in rule
    }
    names = {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule}

    assert codes.pop((TERMINATED,)) == "Ignore"
    assert codes.pop((UNUSABLE,)) in ("FailIndex", "FailJob")
    assert not codes
    assert names == {one["name"] for one in job["spec"]["template"]["spec"]["containers"]}


def test_a_pod_has_the_time_to_leave_and_no_more_rights_than_it_needs():
    found = workload_pods()

    assert len(found) == 4
    for pod in found:
        assert pod["terminationGracePeriodSeconds"] > WAITS_S
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
        assert not pod["automountServiceAccountToken"]
        for container in pod["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"]


def test_a_probe_begins_a_pod_again_for_its_loop_and_never_for_its_run():
    for container in [each for pod in workload_pods() for each in pod["containers"]]:
        live = {probe: asked(container[probe]) for probe in ("startupProbe", "livenessProbe")}
        assert all(flags.live for flags in live.values())
        assert not asked(container["readinessProbe"]).live
        still_s = container["livenessProbe"]["periodSeconds"]
        assert still_s * container["livenessProbe"]["failureThreshold"] > 10 * STANDS_STILL_S


def test_the_health_check_of_an_image_is_our_command():
    for name in ("Containerfile", "bootstrap.Containerfile"):
        line = re.search(
            r"^HEALTHCHECK .*CMD (\[.*\])$", (DEPLOY / "container" / name).read_text(), re.MULTILINE
        )
        assert line
        assert not health_flags(json.loads(line[1])).live


def workload_pods():
    """The pods of all workloads of Kubernetes."""
    return [
        pod
        for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
        for document in documents(file)
        for pod in pods(document)
    ]


def asked(probe):
    """The flags of the command that a probe of Kubernetes runs."""
    assert probe["timeoutSeconds"] > ANSWER_S
    return health_flags(probe["exec"]["command"])


def health_flags(words):
    """The flags of `p2pswarm health` as a container runs it."""
    python, module, program, *flags = words
    assert Path(python).name in ("python", "python3")
    assert (module, program, flags[0]) == ("-m", "p2pswarm", "health")
    return make_parser().parse_args(flags)


def test_the_pages_show_the_recipes_themselves():
    shown = {name for page in PAGES for name in INCLUDED.findall(page.read_text())}
    recipes = {named(file) for file in FILES if file.parent != DEPLOY and file.suffix != ".py"}

    assert shown == recipes


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_commands_on_a_page_are_ours(page):
    parser = make_parser()

    for line in LINE.findall(page.read_text()):
        parser.parse_args(line.split("  #")[0].rstrip(" &").split())
