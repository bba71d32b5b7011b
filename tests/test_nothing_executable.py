"""Nothing executable is on the wire: the source has no way to run what a peer or a file sent.

Like the rules of tests/test_architecture.py: a function from a package to its breaches, which is
tested on little packages that break it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_architecture import LATE_IMPORTS, PACKAGE, modules, nodes_of, within

RUNS_CODE = frozenset({"eval", "exec", "compile", "__import__"})
"""Builtins; `re.compile` is an attribute of a module and not meant."""
MODULES = frozenset(
    {
        "pickle",
        "_pickle",
        "cPickle",
        "dill",
        "cloudpickle",
        "joblib",
        "jsonpickle",
        "marshal",
        "shelve",
        "dbm",
        "yaml",
        "ruamel",
        "multiprocessing",
        "copyreg",
        "code",
        "codeop",
        "runpy",
        "pty",
        "xmlrpc",
        "torch.package",
        "torch.jit",
        "torch.hub",
        "torch.multiprocessing",
    }
)
"""Modules whose readers build any object, or run a text: the bytes choose what happens."""
Suspect = ast.Import | ast.ImportFrom | ast.Name | ast.Attribute | ast.Call
"""What a breach can be."""
LOADERS = {
    "load": {"torch": "weights_only", "np": "allow_pickle", "numpy": "allow_pickle"},
}
"""Functions that unpickle unless this argument says otherwise."""
SAFE = {"weights_only": True, "allow_pickle": False}
STARTS_PROCESSES = ("system", "popen", "posix_spawn", "posix_spawnp")
PROCESSES = {
    "commands/demo/processes.py",
    "net/os/local_network.py",
    "node/progress/notify_io.py",
    "server/devices/rank_processes.py",
}
"""The demo starts nodes of this package, a node a process for each of its devices, and a trainer
the command that its owner has set to be told of alerts. On macOS a node asks the system's own
`route` for its gateway, always with the same words."""


def executable_input(package: Path) -> Iterator[str]:
    """Every place that could run what came from outside."""
    for path, tree in modules(package):
        for node in nodes_of(tree, Suspect):
            for what in _breaches(path, node):
                yield f"{path}:{getattr(node, 'lineno', 0)}: {what}"


def _breaches(path: Path, node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names if _is_banned(alias.name))
        case ast.ImportFrom(module=str(module), names=names):
            if any(_is_banned(name) for name in (module, *(f"{module}.{n.name}" for n in names))):
                yield module
            if module in ("os", "subprocess") and not within(path, PROCESSES):
                yield from (alias.name for alias in names if _starts_process(alias.name))
            if module in ("torch", "numpy"):
                yield from (f"{module}.load" for alias in names if alias.name == "load")
        case ast.Name(id=name) if name in RUNS_CODE:
            yield name
        case ast.Attribute(value=ast.Name(id="builtins"), attr=name) if name in RUNS_CODE:
            yield f"builtins.{name}"
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if _is_banned(f"torch.{name}"):
            yield f"torch.{name}"
        case ast.Attribute(value=ast.Name(id="importlib")) if not within(path, LATE_IMPORTS):
            yield "importlib"
        case ast.Attribute(value=ast.Name(id="os" | "subprocess"), attr=name):
            if _starts_process(name) and not within(path, PROCESSES):
                yield name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name), keywords=keywords):
            yield from _loader(module, name, keywords)
            if name.startswith("create_subprocess_shell"):
                yield name
            if name == "create_subprocess_exec" and not within(path, PROCESSES):
                yield name


def _is_banned(name: str) -> bool:
    parts = name.split(".")
    return parts[0] in MODULES or ".".join(parts[:2]) in MODULES


def _starts_process(name: str) -> bool:
    started = name in STARTS_PROCESSES or name.startswith(("exec", "spawn", "fork"))
    return started or name in ("run", "Popen", "call", "check_call", "check_output", "getoutput")


def _loader(module: str, name: str, keywords: list[ast.keyword]) -> Iterator[str]:
    argument = LOADERS.get(name, {}).get(module)
    if argument is None:
        return
    safe = any(
        word.arg == argument
        and isinstance(word.value, ast.Constant)
        and word.value.value is SAFE[argument]
        for word in keywords
    )
    if not safe:
        yield f"{module}.{name} without {argument}={SAFE[argument]}"


def test_nothing_that_came_from_outside_is_run():
    assert list(executable_input(PACKAGE)) == []


BREACHES = [
    ("net/wire/message.py", "import pickle"),
    ("net/wire/message.py", "from pickle import loads"),
    ("net/wire/message.py", "import cloudpickle as p"),
    ("settings/parser.py", "import yaml"),
    ("settings/parser.py", "from ruamel.yaml import YAML"),
    ("run/chain/chain_file.py", "import marshal"),
    ("run/chain/chain_file.py", "import shelve"),
    ("node/stack/stack.py", "import multiprocessing.connection"),
    ("node/stack/stack.py", "from multiprocessing import Pipe"),
    ("checkpoint/stage_file.py", "import torch\ntorch.load(path)"),
    ("checkpoint/stage_file.py", "import torch\ntorch.load(path, weights_only=False)"),
    ("checkpoint/stage_file.py", "import torch\ntorch.load(path, weights_only=trusted)"),
    ("checkpoint/stage_file.py", "from torch import load"),
    ("models/gpt.py", "import torch\ntorch.jit.load(path)"),
    ("models/gpt.py", "import torch.jit"),
    ("models/gpt.py", "import torch\ntorch.hub.load('a', 'b')"),
    ("data/text_files.py", "import numpy as np\nnp.load(path)"),
    ("data/text_files.py", "import numpy as np\nnp.load(path, allow_pickle=True)"),
    ("run/manifest.py", "eval(text)"),
    ("run/manifest.py", "exec(text)"),
    ("run/manifest.py", "run = eval"),
    ("run/manifest.py", "import builtins\nbuiltins.exec(text)"),
    ("run/manifest.py", "compile(text, '', 'exec')"),
    ("run/manifest.py", "__import__(text)"),
    ("run/manifest.py", "import importlib\nimportlib.import_module(text)"),
    ("net/os/sockets.py", "import os\nos.system(text)"),
    ("net/os/sockets.py", "import os\nos.execv(path, text)"),
    ("net/os/sockets.py", "import subprocess\nsubprocess.run(text)"),
    ("net/os/sockets.py", "from subprocess import Popen"),
    ("net/os/sockets.py", "import asyncio\nasyncio.create_subprocess_exec(text)"),
    ("commands/demo/processes.py", "import asyncio\nasyncio.create_subprocess_shell(text)"),
]


@pytest.mark.parametrize(("place", "text"), BREACHES)
def test_a_way_to_run_it_is_seen(place: str, text: str, tmp_path: Path):
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

    assert len(list(executable_input(tmp_path))) == 1


HARMLESS = [
    ("base/ids.py", "import re\nre.compile(text)"),
    ("checkpoint/stage_file.py", "import torch\ntorch.load(path, weights_only=True)"),
    ("data/text_files.py", "import numpy as np\nnp.load(path, allow_pickle=False)"),
    (
        "commands/demo/flags.py",
        "import importlib\nimportlib.import_module('p2pswarm.commands.demo.demo')",
    ),
    ("commands/demo/processes.py", "import asyncio\nasyncio.create_subprocess_exec('python')"),
    ("models/gpt.py", "def f(self):\n    self.model.eval()"),
]


@pytest.mark.parametrize(("place", "text"), HARMLESS)
def test_what_is_harmless_passes(place: str, text: str, tmp_path: Path):
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

    assert list(executable_input(tmp_path)) == []
