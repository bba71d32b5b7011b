"""What the recipes in deploy/ have in them: settings, command lines, names of variables."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
INSTEAD = {
    "/etc/p2pswarm/%i.toml": "stage.toml",
    "$SLURM_ARRAY_TASK_ID": "7",
    "${STATE_DIRECTORY}": "/var/lib/p2pswarm",
}
"""What a launcher puts in the place of its own variables."""
FOLDERS = re.compile(r"^(/etc/p2pswarm|/settings|~/run)/")
"""Where a recipe's settings files lie on its machines."""
JOIN = "192.0.2.1:4000"


@dataclass(frozen=True)
class CommandLine:
    """One command of a recipe, without the program's name."""

    file: Path
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file.relative_to(DEPLOY)}: {' '.join(self.words)}"

    @property
    def flags(self) -> list[str]:
        """The words as they are on a machine, but settings files are those of the recipe."""
        found = []
        for word in self.words:
            name = word
            for variable, value in INSTEAD.items():
                name = name.replace(variable, value)
            name = FOLDERS.sub("", name)
            if name.endswith(".toml"):
                name = str(self.file.parent / name)
            found.append(name)
        return found


def documents(file: Path) -> list[dict[str, Any]]:
    """The documents of a YAML file."""
    return [each for each in yaml.safe_load_all(file.read_text()) if each]


def pods(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pod of a workload of Kubernetes, if it has one."""
    template = document.get("spec", {}).get("template")
    if template:
        yield template["spec"]


def command_lines() -> list[CommandLine]:
    """Every command that a recipe runs."""
    return [CommandLine(file, tuple(words)) for file in FILES for words in _commands(file)]


def _commands(file: Path) -> Iterator[list[str]]:
    text = file.read_text()
    match file.parent.name, file.suffix:
        case "kubernetes", ".yaml":
            for document in documents(file):
                for pod in pods(document):
                    yield from (one["args"] for one in pod["containers"])
        case "skypilot", ".yaml":
            yield _after_program(documents(file)[0]["run"])
        case "systemd", ".service":
            yield from map(_after_program, re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE))
        case "slurm", ".sbatch":
            yield from map(_after_program, re.findall(r"^run_node (.*)$", text, re.MULTILINE))
        case "container", _ if file.name.endswith("Containerfile"):
            yield from map(json.loads, re.findall(r"^CMD (.*)$", text, re.MULTILINE))


def _after_program(command: str) -> list[str]:
    words = shlex.split(command)
    place = next(n for n, word in enumerate(words) if word.rpartition("/")[2] == "p2pswarm")
    return words[place + 1 :]
