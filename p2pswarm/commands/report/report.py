"""Collects what a report is made of, from files of the user and from this machine, and writes it.

Errors:  Unusable for a file that cannot be read, or an archive that cannot be written.
"""

import argparse
import dataclasses
import importlib
import json
from pathlib import Path

from p2pswarm.base.errors import SwarmError, Unusable
from p2pswarm.base.files import check_target, refuse_pipe, write_target
from p2pswarm.commands.arguments import say, say_beside
from p2pswarm.node.report.bug_report import BugReport, archive
from p2pswarm.node.report.machine import facts, redaction
from p2pswarm.progress.printable import printable
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.parser import load

STACKS_FILE = "stacks.txt"  # a node writes its stacks there when it is asked to
READ_BYTES_MAX = 16 << 20  # of the end of each file: more than an archive takes


def main(flags: argparse.Namespace) -> int:
    """Write the archive, and say what is in it; returns the exit code."""
    check_target(flags.out)
    config = load(flags.config, []) if flags.config else None
    parts = {
        "events": _end_of(flags.events or _event_log(config)),
        "log": _end_of(flags.log),
        "stacks": _end_of(flags.stacks or _stacks_file(config)),
    }
    found, gpus = ({}, []) if flags.no_doctor else _findings(config, tuple(flags.bootstrap or ()))
    report = BugReport(
        settings=config,
        events=parts["events"],
        log=parts["log"],
        stacks=parts["stacks"],
        findings=found,
        machine=facts(gpus),
    )
    data = archive(report, redaction(config, named=flags.with_machine_name))
    written = write_target(flags.out, lambda place: _write(place, data))
    say(f"report: {written}; unpack it and read it before you send it")
    lacks = [f"--{name}" for name, lines in {"config": config, **parts}.items() if not lines]
    if lacks:
        say(f"  more of the node is in it with {', '.join(lacks)}")
    return 0


def _findings(
    config: NodeConfig | None, bootstrap: tuple[str, ...]
) -> tuple[dict[str, object], list[str]]:
    """What doctor finds, and the names of GPUs; a report is made without it, too."""
    seeds = bootstrap or (config.bootstrap if config else ())
    try:
        doctor = importlib.import_module("p2pswarm.commands.doctor.doctor")
        shown = importlib.import_module("p2pswarm.commands.doctor.doctor_report")
        found = doctor.findings(NodeConfig(bootstrap=seeds))
    except (SwarmError, ModuleNotFoundError) as error:  # a first node may have no torch
        say_beside(f"doctor found nothing: {printable(str(error))}")
        return {"failure": str(error)}, []
    answer: dict[str, object] = json.loads(shown.as_json(dataclasses.replace(found, gpus=())))
    return answer, list(found.gpus)


def _event_log(config: NodeConfig | None) -> Path | None:
    """The file that the settings name for events, if they name one and it is there."""
    if config is None:
        return None
    named = (getattr(part, "log", None) for part in (config.train, config.serve))
    return next((Path(file) for file in named if file and Path(file).exists()), None)


def _stacks_file(config: NodeConfig | None) -> Path | None:
    """The file of stacks that the node has written into its folder, if it has."""
    file = config.state / STACKS_FILE if config and config.state else None
    return file if file and file.exists() else None


def _end_of(file: Path | None) -> list[str]:
    """The last lines of a file; Unusable if it cannot be read."""
    if file is None:
        return []
    try:
        begin = max(0, refuse_pipe(file).st_size - READ_BYTES_MAX)
        with file.open("rb") as opened:
            opened.seek(begin)
            data = opened.read(READ_BYTES_MAX)
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}; name another file") from error
    lines = data.decode("utf-8", "replace").splitlines()
    return lines[1:] if begin else lines  # the first one is torn


def _write(place: Path, data: bytes) -> None:
    place.write_bytes(data)
