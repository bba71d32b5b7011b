"""The house rules that a machine can check: who may import whom, who may await, and how long.

Every rule is a function from a package to its breaches, so that the rules themselves are
tested on little packages that break them.
"""

import ast
import graphlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "p2pswarm"
FLOORS = """
errors
ids flow config
wire net settings
crypto
transport
rpc
dht tensors
swarm
reduce state
stage train
progress keyfile
roles sim
node demo
cli
""".strip().split("\n")
FLOOR = {name: height for height, row in enumerate(FLOORS) for name in row.split()}
OUTSIDE = {"net", "roles", "demo", "node.py", "cli.py", "keyfile.py"}  # meet the operating system
TORCH = {"stage", "train", "tensors/codecs", "roles"}  # where tensors are computed on
IMPURE = {"asyncio", "socket", "ssl", "time", "threading", "os", "uuid", "secrets"}
LATE_IMPORTS = {"node.py"}  # takes up a role, and with it torch, only when it is asked to
FILE_LINES_MAX, FUNCTION_LINES_MAX, PARAMETERS_MAX = 400, 50, 6
GUIDE_LINES_MAX = 200

Functions = ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[[Path], Iterator[str]]


def modules(package: Path) -> Iterator[tuple[Path, ast.Module]]:
    paths = sorted(package.rglob("*.py"))
    assert paths, f"{package}: an empty house passes every rule"
    for path in paths:
        yield path.relative_to(package), ast.parse(path.read_text())


def imports(tree: ast.Module) -> Iterator[str]:
    """Every module that `tree` names, imports inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def within(path: Path, places: set[str]) -> bool:
    return any(path.is_relative_to(place) for place in places)


def awaits(path: Path) -> bool:
    return path.name == "service.py" or within(path, OUTSIDE | {"sim"})


def upward_imports(package: Path) -> Iterator[str]:
    """A module imports lower floors and its own folder."""
    for path, tree in modules(package):
        here = path.with_suffix("").parts[0]
        if path.name == "__init__.py" and len(path.parts) == 1:
            continue
        if here not in FLOOR:
            yield f"{path}: on no floor"
            continue
        for name in imports(tree):
            if name.startswith("."):
                yield f"{path}: {name} is not written from the root"
            root, _, rest = name.partition(".")
            there = rest.split(".")[0]
            if root == "p2pswarm" and there != here and FLOOR.get(there, 99) >= FLOOR[here]:
                yield f"{path}: {name} is not below"


def circles(package: Path) -> Iterator[str]:
    graph = {
        ".".join(path.with_suffix("").parts): {
            name.removeprefix("p2pswarm.") for name in imports(tree) if name.startswith("p2pswarm.")
        }
        for path, tree in modules(package)
    }
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        yield "circle: " + " -> ".join(error.args[1])


def worldly_rules(package: Path) -> Iterator[str]:
    """Rules are pure; services meet the world through the event loop alone."""
    for path, tree in modules(package):
        if within(path, OUTSIDE):
            continue
        allowed = {"asyncio"} if awaits(path) else set()
        for root in sorted({name.split(".")[0] for name in imports(tree)} & IMPURE - allowed):
            yield f"{path}: {root} in a rule"


def awaiting_rules(package: Path) -> Iterator[str]:
    """One file of a folder awaits; a Protocol may say what an implementation awaits."""
    waiting = ast.Await | ast.AsyncFor | ast.AsyncWith
    for path, tree in modules(package):
        if not awaits(path) and any(isinstance(node, waiting) for node in ast.walk(tree)):
            yield f"{path}: awaits"


def stray_torch(package: Path) -> Iterator[str]:
    for path, tree in modules(package):
        if not within(path, TORCH) and "torch" in {name.split(".")[0] for name in imports(tree)}:
            yield f"{path}: torch"


def global_chance(package: Path) -> Iterator[str]:
    """Chance is an argument: the module `random` is good for the class Random only."""
    for path, tree in modules(package):
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id="random"), attr=name) if name != "Random":
                    yield f"{path}:{node.lineno}: random.{name}"
                case ast.ImportFrom(module="random", names=names):
                    if any(name.name != "Random" for name in names):
                        yield f"{path}:{node.lineno}: from random"


def late_imports(package: Path) -> Iterator[str]:
    """Imports stand at the top of the file, and nothing hides them from this test."""
    for path, tree in modules(package):
        tops = {id(node) for node in tree.body}
        tops |= {id(n) for node in tree.body if isinstance(node, ast.Try) for n in node.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in tops:
                yield f"{path}:{node.lineno}: import inside"
        if "importlib" in imports(tree) and not within(path, LATE_IMPORTS):
            yield f"{path}: importlib"


def code_in_init(package: Path) -> Iterator[str]:
    """`__init__.py` holds a docstring: a name is imported from where it is defined."""
    for path, tree in modules(package):
        if path.name == "__init__.py" and not (
            len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr)
        ):
            yield f"{path}: more or less than a docstring"


def too_long(package: Path) -> Iterator[str]:
    for path, tree in modules(package):
        lines = len((package / path).read_text().splitlines())
        if lines > FILE_LINES_MAX:
            yield f"{path}: {lines} lines"
        for node in ast.walk(tree):
            if isinstance(node, Functions):
                yield from (f"{path}: {node.name}: {what}" for what in too_long_function(node))


def too_long_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    doc = len((ast.get_docstring(node, clean=False) or "").splitlines())
    lines = (node.end_lineno or node.lineno) - node.lineno + 1 - doc
    if lines > FUNCTION_LINES_MAX:
        yield f"{lines} lines"
    arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    count = len([a for a in arguments if a.arg not in ("self", "cls")])
    if count > PARAMETERS_MAX:
        yield f"{count} parameters"


def empty_names(package: Path) -> Iterator[str]:
    """Words that say nothing of what a thing is."""
    vague = re.compile(r"(Manager|Handler|Helper|Impl)$")
    for path, tree in modules(package):
        if path.stem in ("utils", "common", "helpers"):
            yield f"{path}: vague"
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and vague.search(node.name):
                yield f"{path}: {node.name}"


RULES: tuple[Rule, ...] = (
    upward_imports,
    circles,
    worldly_rules,
    awaiting_rules,
    stray_torch,
    global_chance,
    late_imports,
    code_in_init,
    too_long,
    empty_names,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_the_rule(rule):
    assert list(rule(PACKAGE)) == []


def test_the_guide_names_places_that_exist():
    """A newcomer who follows ARCHITECTURE.md never looks for something that has moved."""
    root = PACKAGE.parent
    text = (root / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([\w./]+(?:\.py|\.md|/))`", text)) - {"service.py"}

    missing = [name for name in named if not ((PACKAGE / name).exists() or (root / name).exists())]

    assert len(named) > 50
    assert sorted(missing) == []
    assert len(text.splitlines()) <= GUIDE_LINES_MAX


BREACHES = [
    (upward_imports, "ids.py", "from p2pswarm.rpc.base import Rpc"),
    (upward_imports, "wire/codec.py", "import p2pswarm.net.base"),
    (upward_imports, "wire/codec.py", "def f():\n    from p2pswarm.node import main"),
    (upward_imports, "wire/codec.py", "from . import buffer"),
    (upward_imports, "attic.py", ""),
    (worldly_rules, "dht/bucket.py", "import time"),
    (worldly_rules, "dht/bucket.py", "from os import urandom"),
    (worldly_rules, "dht/service.py", "import socket"),
    (worldly_rules, "sim/loop.py", "import threading"),
    (awaiting_rules, "dht/lookup.py", "async def f(x):\n    await x"),
    (stray_torch, "reduce/service.py", "import torch.nn"),
    (stray_torch, "tensors/meta.py", "from torch import Tensor"),
    (global_chance, "dht/bucket.py", "import random\nx = random.random()"),
    (global_chance, "dht/bucket.py", "from random import choice"),
    (late_imports, "dht/bucket.py", "def f():\n    import json"),
    (late_imports, "dht/bucket.py", "import importlib"),
    (late_imports, "dht/bucket.py", "if True:\n    import json"),
    (code_in_init, "dht/__init__.py", "import json"),
    (too_long, "ids.py", "x = 1\n" * (FILE_LINES_MAX + 1)),
    (too_long, "ids.py", "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
    (too_long, "ids.py", "def f(a, b, c, d, *, e, f, g): ..."),
    (empty_names, "dht/utils.py", ""),
    (empty_names, "dht/service.py", "class LookupManager: ..."),
]


@pytest.mark.parametrize(("rule", "place", "text"), BREACHES)
def test_a_breach_is_seen(rule, place, text, tmp_path):
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)

    assert len(list(rule(tmp_path))) == 1


def test_a_circle_is_seen(tmp_path):
    (tmp_path / "dht").mkdir()
    (tmp_path / "dht/a.py").write_text("from p2pswarm.dht.b import x")
    (tmp_path / "dht/b.py").write_text("from p2pswarm.dht.a import y")

    assert len(list(circles(tmp_path))) == 1


def test_a_docstring_does_not_make_a_function_long(tmp_path):
    doc = '    """Line.\n' + "    More.\n" * 60 + '    """\n'
    (tmp_path / "ids.py").write_text("def f():\n" + doc + "    return 1\n")

    assert list(too_long(tmp_path)) == []


def test_an_empty_house_is_no_good_house(tmp_path):
    with pytest.raises(AssertionError, match="empty house"):
        list(too_long(tmp_path))
