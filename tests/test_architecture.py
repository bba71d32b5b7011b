"""The house rules that a machine can check: who may import whom, who may await, and how long.

Every rule is a function from a package to its breaches, so that the rules themselves are
tested on little packages that break them (tests/test_architecture_rules.py).
"""

import ast
import functools
import graphlib
import re
import tomllib
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[1] / "p2pswarm"
FLOORS = """
base kernels discovery reach trainer
cli settings progress data/row_formats data/samples
net/os net/wire data/hub_dataset node/report
data plan web net/crypto tensors/codecs models/boundary_modules models/losses models/formats
models/attention
models/library models/adapters
models net run/messages data/chats
net/guard
net/bulk net/cards
net/link
net/endpoint
net/rpc
tensors discovery/dht discovery/gossip reach/nat reach/punch reach/relay run/access run/chain
run run/averaging run/state node/stack
checkpoint models/rounding models/base_weights trainer/reports
models/compute trainer/members
models/check server/waits
server/devices trainer/balance
server trainer/step
trainer/stall
trainer/coordinator
trainer/coordinator_io node/progress
trainer/leadership node/run
sim node commands
testing commands/data commands/demo commands/owner commands/status commands/weights
api commands/watch commands/doctor commands/plan
commands/report commands/simulate
command_line
__main__
""".strip().split("\n")
"""The rooms, from the ground up: a folder, or a module at the top. A room imports lower ones."""
FLOOR = {name: height for height, row in enumerate(FLOORS) for name in row.split()}
SHELL = frozenset(
    {
        "api/node.py",
        "api/one_call.py",
        "api/server.py",
        "api/trainer.py",
        "base/loop_clock.py",
        "base/signal.py",
        "base/tasks.py",
        "checkpoint/checkpoint_io.py",
        "cli.py",
        "command_line.py",
        "commands/demo/demo.py",
        "commands/demo/processes.py",
        "commands/doctor/doctor.py",
        "commands/owner/invitations.py",
        "commands/plan/swarm.py",
        "commands/status/ask.py",
        "commands/watch/afar.py",
        "commands/watch/replay.py",
        "commands/watch/watch.py",
        "discovery/dht/long_values_io.py",
        "discovery/dht/node.py",
        "discovery/dht/query_runner.py",
        "discovery/gossip/directory_io.py",
        "net/bulk/channel_set.py",
        "net/crypto/key_file.py",
        "net/endpoint/acceptor.py",
        "net/endpoint/dialler.py",
        "net/endpoint/endpoint.py",
        "net/endpoint/handshaker.py",
        "net/endpoint/joiner.py",
        "net/endpoint/link_io.py",
        "net/endpoint/resumer.py",
        "net/guard/handshake_workers.py",
        "net/link/path.py",
        "net/os/base.py",
        "net/os/bulk_threads.py",
        "net/os/event_loop.py",
        "net/os/happy_eyeballs.py",
        "net/os/interface_changes.py",
        "net/os/sockets.py",
        "net/os/tls.py",
        "net/os/web_net.py",
        "net/os/web_socket.py",
        "net/rpc/base.py",
        "net/rpc/handler_pool.py",
        "net/rpc/link_rpc.py",
        "net/rpc/stream.py",
        "node/alone.py",
        "node/attendance_io.py",
        "node/bootstrap.py",
        "node/check.py",
        "node/owner_requests.py",
        "node/owner_socket.py",
        "node/shutdown.py",
        "node/process.py",
        "node/progress/cost_io.py",
        "node/progress/notify_io.py",
        "node/progress/output.py",
        "node/run/closed_run.py",
        "node/run/discovery.py",
        "node/run/run_entry.py",
        "node/run/run_members.py",
        "node/serve.py",
        "node/page.py",
        "node/stack/reachability_service.py",
        "node/stack/stack.py",
        "node/train.py",
        "reach/nat/dial_back_io.py",
        "reach/nat/port_mapping_io.py",
        "reach/nat/reachability_io.py",
        "reach/nat/router_calls_io.py",
        "reach/punch/observed_addresses_io.py",
        "reach/punch/puncher.py",
        "reach/relay/circuit_net.py",
        "reach/relay/relay.py",
        "reach/relay/reservations_io.py",
        "run/access/rpc_guard.py",
        "run/averaging/averaging_io.py",
        "run/averaging/base.py",
        "run/averaging/stage_averaging.py",
        "run/chain/chain_file.py",
        "run/chain/chain_node.py",
        "run/peer_health_io.py",
        "run/push_io.py",
        "run/state/base.py",
        "run/state/donor.py",
        "run/state/piece_download_io.py",
        "run/state/frozen_state.py",
        "run/state/host_state.py",
        "run/state/version_reader.py",
        "server/forwarder.py",
        "server/leadership.py",
        "server/member_session_io.py",
        "server/orders_io.py",
        "server/replica.py",
        "server/stage_checkpoint_io.py",
        "server/stage_server.py",
        "server/version_digest.py",
        "server/weights_download.py",
        "server/worker.py",
        "sim/bulk_turns.py",
        "sim/compute.py",
        "sim/day.py",
        "sim/loop.py",
        "sim/rpc.py",
        "sim/swarm.py",
        "sim/swarm_trainers.py",
        "tensors/codecs/cuda_device.py",
        "tensors/transfer.py",
        "trainer/coordinator_io/checkpoint_donor_io.py",
        "trainer/coordinator_io/checkpoints_io.py",
        "trainer/coordinator_io/coordinator_io.py",
        "trainer/coordinator_io/dispatch.py",
        "trainer/coordinator_io/stalls_io.py",
        "trainer/leadership/handover_io.py",
        "trainer/leadership/participant.py",
        "trainer/leadership/rollback_io.py",
        "trainer/leadership/standby_streams.py",
        "web/page_server.py",
    }
)
"""The files that may await or meet the operating system. They pump and never decide."""
SHELL_SHARE_MAX = 0.27  # of the package's lines; it only goes down
OUTSIDE = {
    "base/file_lock.py",
    "base/files.py",
    "base/standard_streams.py",
    "base/user_folders.py",
    "cli.py",
    "command_line.py",
    "net/os",
    "node",
    "commands",
    "net/crypto/file_readers.py",
    "net/crypto/key_file.py",
    "run/chain/chain_file.py",
    "checkpoint/targets.py",
    "checkpoint/checkpoint_io.py",
    "data/token_file.py",
    "data/text_stream.py",
    "server/devices/rank.py",
    "server/devices/rank_processes.py",
    "server/devices/tensor_maps.py",
    "data/hub.py",
    "web/page_server.py",
}
"""Places that meet the operating system, so that they import more than asyncio."""
TORCH = {
    "commands",
    "data",
    "models",
    "node",
    "server/devices",
    "tensors/codecs",
    "trainer",
}  # compute on tensors
IMPURE = {"asyncio", "socket", "ssl", "time", "threading", "os", "uuid", "secrets"}
LATE_IMPORTS = {
    "__init__.py",
    "cli.py",
    "command_line.py",
    "commands",
    "data/chats/template.py",
    "data/documents.py",
    "data/tokenizer.py",
    "data/tokenizer_folder.py",
    "data/hub.py",
    "data/hub_dataset/card.py",
    "data/row_formats/compression.py",
    "kernels/loader.py",
    "models/library/hf_library.py",
    "models/registry.py",
    "net/os/web_net.py",
    "node/check.py",
    "node/page.py",
    "node/progress/curves.py",
    "node/progress/notify_io.py",
    "node/stack/reachability_service.py",
    "reach/nat/port_mapping_io.py",
    "node/progress/wandb_curves.py",
    "node/roles.py",
}
"""Who loads torch, aiohttp, pyarrow, wandb, numba, zstandard or transformers only when it is asked
to: the package's own names, the roles of a node, a run's model, WebSocket, parquet, files that are
compressed, and compiled loops."""
OFFERS = {"data/__init__.py", "models/__init__.py"}
"""What programs see as `p2pswarm.data` and `p2pswarm.models`: these name what they offer."""
FOLDER_FILES_MAX = 20  # directly in a folder
FILE_LINES_MAX, FUNCTION_LINES_MAX = 600, 60
"""Where one asks whether these are two subjects."""
GUIDE_WORDS_MAX = 900
CONTRACTS = {"Closing"}
"""Bases that call what they ask of a subclass: `async with` ends what it began by `close`."""
ADJECTIVES = {
    "closed_run",
    "observed_addresses",
    "pretrained",
    "routing_table",
    "unverified_contacts",
}
"""Terms of users and of the field, of which a participle is a part."""
NOUNS_IN_ING = {"annealing", "averaging", "crowding", "framing", "healing", "mapping", "settings"}
NOUNS_IN_ING |= {"testing", "thinning", "tying", "setting"}
"""Words of the field that end as a participle does, such as weight tying and port mapping."""
ENDINGS = [
    "ings",
    "ing",
    "ations",
    "ation",
    "ions",
    "ion",
    "ers",
    "er",
    "ors",
    "or",
    "ed",
    "es",
    "s",
    "e",
    "y",
]
NEAR_NAMES = {
    ("framing", "frames"): "the bytes of calls, above those of streams",
    ("handshake", "handshaker"): "the machine, and what does it on a connection",
    ("records", "record"): "of the DHT, and of a run's directory",
}
"""Modules whose names differ by an ending, with the reason why both are the field's words."""

Coroutine = ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith
Functions = ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[[Path], Iterator[str]]


@functools.cache
def modules(package: Path) -> tuple[tuple[Path, ast.Module], ...]:
    """A package's modules: every rule reads all of them."""
    paths = sorted(package.rglob("*.py"))
    assert paths, f"{package}: an empty house passes every rule"
    return tuple((path.relative_to(package), ast.parse(path.read_text())) for path in paths)


@functools.cache
def nodes(tree: ast.Module) -> dict[type, list[ast.AST]]:
    """All nodes of a module by their type: to walk its tree takes as long as to parse it."""
    found: dict[type, list[ast.AST]] = {}
    for node in ast.walk(tree):
        found.setdefault(type(node), []).append(node)
    return found


def nodes_of(tree: ast.Module, kinds: Any) -> Iterator[Any]:
    """The nodes of a module that are of a type, or of one of a union."""
    found = nodes(tree)
    for kind in typing.get_args(kinds) or (kinds,):
        yield from found.get(kind, ())


def imports(tree: ast.Module) -> Iterator[str]:
    """Every module that `tree` names, imports inside functions included."""
    for node in nodes_of(tree, ast.Import):
        yield from (alias.name for alias in node.names)
    for node in nodes_of(tree, ast.ImportFrom):
        yield "." * node.level + (node.module or "")


def within(path: Path, places: set[str]) -> bool:
    return any(path.is_relative_to(place) for place in places)


def in_shell(path: Path) -> bool:
    return path.as_posix() in SHELL


def upward_imports(package: Path) -> Iterator[str]:
    """A module imports lower rooms and its own, so that folders import one way."""
    for path, tree in modules(package):
        here = path.parent.as_posix() if len(path.parts) > 1 else path.stem
        if path.name == "__init__.py" and len(path.parts) == 1:
            continue
        if here not in FLOOR:
            yield f"{path}: on no floor"
            continue
        for name in imports(tree):
            if name.startswith("."):
                yield f"{path}: {name} is not written from the root"
            there = room(name)
            if there not in (None, here) and FLOOR.get(there, 99) >= FLOOR[here]:
                yield f"{path}: {name} is not below"


def room(name: str) -> str | None:
    """The room that an import leads to: the longest that its dotted name begins with."""
    parts = name.split(".")[1:] if name.startswith("p2pswarm.") else []
    for end in range(len(parts), 0, -1):
        if "/".join(parts[:end]) in FLOOR:
            return "/".join(parts[:end])
    return parts[0] if parts else None


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
        allowed = {"asyncio"} if in_shell(path) else set()
        for root in sorted({name.split(".")[0] for name in imports(tree)} & IMPURE - allowed):
            yield f"{path}: {root} in a rule"


def systems_in_rules(package: Path) -> Iterator[str]:
    """What differs between operating systems is where the program meets them."""
    for path, tree in modules(package):
        if within(path, OUTSIDE):
            continue
        for node in nodes_of(tree, ast.Attribute):
            if ast.unparse(node) in ("sys.platform", "os.name", "platform.system"):
                yield f"{path}:{node.lineno}: {ast.unparse(node)}"


def awaiting_rules(package: Path) -> Iterator[str]:
    """Only files of the shell await."""
    waiting = ast.Await | ast.AsyncFor | ast.AsyncWith
    for path, tree in modules(package):
        if not in_shell(path) and any(nodes_of(tree, waiting)):
            yield f"{path}: awaits"


def stale_shell(package: Path) -> Iterator[str]:
    """The list of shells names files that are there and need to be in it."""
    for name in sorted(SHELL):
        path = package / name
        if not path.exists():
            yield f"{name}: in SHELL, but not there"


def names_defined_twice(package: Path) -> Iterator[str]:
    """One class name has one meaning, whether it is private or not."""
    places: dict[str, list[str]] = {}
    for path, tree in modules(package):
        for node in nodes_of(tree, ast.ClassDef):
            places.setdefault(node.name.lstrip("_"), []).append(str(path))
    yield from (f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1)


def lonely_modules(package: Path) -> Iterator[str]:
    """A folder is a subject with several modules; its `__init__.py` says what it is for."""
    for init in sorted(package.rglob("__init__.py")):
        folder = init.parent
        if len([path for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()]) < 3:
            yield f"{folder.relative_to(package)}: a folder with one module"


def files_named_after_a_layer(package: Path) -> Iterator[str]:
    """A file is named after its subject."""
    for path, _ in modules(package):
        if path.name == "service.py":
            yield f"{path}: say which"


def stray_torch(package: Path) -> Iterator[str]:
    for path, tree in modules(package):
        if not within(path, TORCH) and "torch" in {name.split(".")[0] for name in imports(tree)}:
            yield f"{path}: torch"


def global_chance(package: Path) -> Iterator[str]:
    """Chance is an argument: the module `random` is good for the class Random only."""
    for path, tree in modules(package):
        for node in nodes_of(tree, ast.Attribute | ast.ImportFrom):
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
        tops |= {id(n) for node in tree.body for n in of_a_system(node)}
        for node in nodes_of(tree, ast.Import | ast.ImportFrom):
            if id(node) not in tops:
                yield f"{path}:{node.lineno}: import inside"
        if "importlib" in imports(tree) and not within(path, LATE_IMPORTS):
            yield f"{path}: importlib"


def of_a_system(node: ast.stmt) -> Iterator[ast.stmt]:
    """The statements of all branches of `if sys.platform == ...`: mypy reads each for a system."""
    if isinstance(node, ast.If) and "sys.platform" in ast.unparse(node.test):
        yield from node.body
        for other in node.orelse:
            yield other
            yield from of_a_system(other)


def code_in_init(package: Path) -> Iterator[str]:
    """`__init__.py` holds a docstring: a name is imported from where it is defined.

    What programs see of the package also names what it offers; only its root looks names up.
    """
    for path, tree in modules(package):
        if path.name != "__init__.py" or path.as_posix() == "__init__.py":
            continue
        offering = ast.ImportFrom | ast.Assign if path.as_posix() in OFFERS else ()
        if not isinstance(tree.body[0] if tree.body else None, ast.Expr):
            yield f"{path}: no docstring"
        elif not all(isinstance(node, offering) for node in tree.body[1:]):
            yield f"{path}: more than a docstring"


def too_long(package: Path) -> Iterator[str]:
    for path, tree in modules(package):
        lines = len((package / path).read_text().splitlines())
        if lines > FILE_LINES_MAX:
            yield f"{path}: {lines} lines"
        for node in nodes_of(tree, Functions):
            yield from (f"{path}: {node.name}: {what}" for what in too_long_function(node))


def too_long_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    doc = len((ast.get_docstring(node, clean=False) or "").splitlines())
    lines = (node.end_lineno or node.lineno) - node.lineno + 1 - doc
    if lines > FUNCTION_LINES_MAX:
        yield f"{lines} lines"


def empty_names(package: Path) -> Iterator[str]:
    """Words that say nothing of what a thing is."""
    vague = re.compile(r"(Manager|Handler|Helper|Impl)$")
    for path, tree in modules(package):
        if path.stem in ("utils", "common", "helpers"):
            yield f"{path}: vague"
        for node in nodes_of(tree, ast.ClassDef):
            if vague.search(node.name):
                yield f"{path}: {node.name}"


def crowded_folders(package: Path) -> Iterator[str]:
    """A folder is what a reader holds in the head."""
    counts = Counter(path.parent.as_posix() for path, _ in modules(package))
    for folder, count in counts.items():
        if count > FOLDER_FILES_MAX:
            yield f"{folder}: {count} files"


def unlike_tuples(package: Path) -> Iterator[str]:
    """What a parameter or a field holds has names: no tuple of unlike things."""
    for path, tree in modules(package):
        for node in nodes_of(tree, Functions):
            for argument in node.args.posonlyargs + node.args.args + node.args.kwonlyargs:
                if any(map(is_unlike_tuple, choices_of(argument.annotation))):
                    yield f"{path}:{node.lineno}: {node.name}: {argument.arg}"
        for node in nodes_of(tree, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and any(
                    map(is_unlike_tuple, choices_of(field.annotation))
                ):
                    yield f"{path}:{field.lineno}: {node.name}: {ast.unparse(field.target)}"


def choices_of(annotation: ast.expr | None) -> Iterator[ast.expr]:
    """The parts of a union, or what is none."""
    match annotation:
        case ast.BinOp(left=left, right=right):
            yield from choices_of(left)
            yield from choices_of(right)
        case ast.expr():
            yield annotation


def is_unlike_tuple(annotation: ast.expr) -> bool:
    match annotation:
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=parts)):
            return len({*map(ast.unparse, parts)}) > 1 and ast.unparse(parts[-1]) != "..."
    return False


def halves_of_classes(package: Path) -> Iterator[str]:
    """A base is whole: it neither annotates nor calls what only a subclass sets."""
    classes = {
        node.name: (path, node)
        for path, tree in modules(package)
        for node in nodes_of(tree, ast.ClassDef)
    }
    bases = {name for _, node in classes.values() for name in base_names(node)}
    for name in sorted(bases & classes.keys()):
        path, node = classes[name]
        if "Protocol" in base_names(node) or name in CONTRACTS:
            continue
        used = {attribute.attr for attribute in on_self(node)}
        there = members(classes, name)
        asked = {method.name for method in methods(node) if is_abstract(method)}
        missing = (used - there if there is not None else set()) | (used & asked)
        if missing:
            yield f"{path}: {name} leaves to a subclass: {', '.join(sorted(missing))}"


def members(classes: dict[str, tuple[Path, ast.ClassDef]], name: str) -> set[str] | None:
    """What a class and its bases set; None if a base is not of the package."""
    _, node = classes[name]
    values = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    there = {method.name for method in methods(node)}
    there |= {each.attr for each in on_self(node) if isinstance(each.ctx, ast.Store)}
    for each in node.body:
        match each:
            case ast.Assign(targets=targets):
                there |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=field), value=value) if values or value:
                there.add(field)
    for base in base_names(node):
        if base in classes:
            inherited = members(classes, base)
            if inherited is None:
                return None
            there |= inherited
        elif base not in ("object", "ABC", "Generic", "Protocol"):
            return None
    return there


def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, Functions)]


def on_self(node: ast.ClassDef) -> Iterator[ast.Attribute]:
    """Every attribute of `self` that the methods of a class name."""
    for method in methods(node):
        for each in ast.walk(method):
            match each:
                case ast.Attribute(value=ast.Name(id="self")):
                    yield each


def is_abstract(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("abstract" in ast.unparse(each) for each in method.decorator_list)


def base_names(node: ast.ClassDef) -> list[str]:
    plain = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return [ast.unparse(base) for base in plain]


def participles(package: Path) -> Iterator[str]:
    """A module is a noun of the field: neither a participle nor a past form."""
    for path, _ in modules(package):
        words = set(path.stem.split("_")) - NOUNS_IN_ING
        if path.stem.removesuffix("_io") not in ADJECTIVES and any(
            re.fullmatch(r"\w{2,}ing|\w{2,}ed", w) for w in words
        ):
            yield f"{path}: a participle"


def names_that_differ_by_an_ending(package: Path) -> Iterator[str]:
    """Two modules of one part of the package have names that tell them apart."""
    alike: dict[tuple[str, str], set[str]] = {}
    for path, _ in modules(package):
        stem = "_".join(map(without_ending, path.stem.split("_")))
        alike.setdefault((path.parts[0], stem), set()).add(path.stem)
    allowed = [set(pair) for pair in NEAR_NAMES]
    for (part, _), names in alike.items():
        if len(names) > 1 and names not in allowed:
            yield f"{part}: {', '.join(sorted(names))}"


def without_ending(word: str) -> str:
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= len("word"):
            return without_ending(word.removesuffix(ending))
    return word


RULES: tuple[Rule, ...] = (
    upward_imports,
    circles,
    worldly_rules,
    systems_in_rules,
    awaiting_rules,
    names_defined_twice,
    lonely_modules,
    files_named_after_a_layer,
    stray_torch,
    global_chance,
    late_imports,
    code_in_init,
    too_long,
    empty_names,
    crowded_folders,
    unlike_tuples,
    halves_of_classes,
    participles,
    names_that_differ_by_an_ending,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_the_rule(rule):
    assert list(rule(PACKAGE)) == []


def test_the_guide_names_places_that_exist():
    """A newcomer who follows ARCHITECTURE.md never looks for something that has moved."""
    root = PACKAGE.parent
    text = (root / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([\w./]+(?:\.py|\.md|/))`", text))

    missing = [name for name in named if not ((PACKAGE / name).exists() or (root / name).exists())]

    assert len(named) > 40
    assert sorted(missing) == []
    assert len(text.split()) <= GUIDE_WORDS_MAX


def test_the_guide_names_every_room_at_the_top():
    """A new folder of the package has a row of the table, too."""
    text = (PACKAGE.parent / "ARCHITECTURE.md").read_text()
    rooms = {room.split("/")[0] for room in FLOOR if (PACKAGE / room).is_dir()}

    missing = sorted(room for room in rooms if f"`{room}/`" not in text)

    assert missing == []


def test_coverage_leaves_out_the_shell_and_nothing_else():
    settings = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())

    omitted = settings["tool"]["coverage"]["report"]["omit"]

    assert omitted == [f"p2pswarm/{name}" for name in sorted(SHELL)]


def test_shells_are_there_and_few(capsys):
    assert list(stale_shell(PACKAGE)) == []

    lines = {path: len((PACKAGE / path).read_text().splitlines()) for path, _ in modules(PACKAGE)}
    waiting = {path for path, tree in modules(PACKAGE) if any(nodes_of(tree, Coroutine))}
    share = sum(lines[path] for path in waiting) / sum(lines.values())
    with capsys.disabled():
        print(f"\nshell share: {share:.2f}")
        folders = Counter(path.parent for path in lines)
        print(f"files: {len(lines)}, most in a folder: {max(folders.values())}")

    assert {path.as_posix() for path in waiting} <= SHELL
    assert share <= SHELL_SHARE_MAX
