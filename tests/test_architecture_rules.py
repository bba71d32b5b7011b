"""The rules of tests/test_architecture.py see what breaks them."""

import pytest
from test_architecture import (
    FILE_LINES_MAX,
    FOLDER_FILES_MAX,
    FUNCTION_LINES_MAX,
    awaiting_rules,
    circles,
    code_in_init,
    crowded_folders,
    empty_names,
    files_named_after_a_layer,
    global_chance,
    halves_of_classes,
    late_imports,
    lonely_modules,
    names_defined_twice,
    names_that_differ_by_an_ending,
    participles,
    stray_torch,
    systems_in_rules,
    too_long,
    unlike_tuples,
    upward_imports,
    worldly_rules,
)

BREACHES = [
    (upward_imports, "base/ids.py", "from p2pswarm.net.rpc.base import Rpc"),
    (upward_imports, "net/wire/codec.py", "import p2pswarm.net.os.base"),
    (upward_imports, "net/wire/codec.py", "def f():\n    from p2pswarm.node import main"),
    (upward_imports, "net/wire/codec.py", "from . import buffer"),
    (upward_imports, "attic.py", ""),
    (worldly_rules, "discovery/dht/routing_table.py", "import time"),
    (worldly_rules, "discovery/dht/routing_table.py", "from os import urandom"),
    (worldly_rules, "discovery/dht/node.py", "import socket"),
    (worldly_rules, "sim/loop.py", "import threading"),
    (systems_in_rules, "run/router.py", 'import sys\nif sys.platform == "win32": ...'),
    (awaiting_rules, "discovery/dht/lookup.py", "async def f(x):\n    await x"),
    (names_defined_twice, "base/ids.py", "class A: ...\nclass _A: ..."),
    (lonely_modules, "discovery/dht/__init__.py", '"""Kademlia."""'),
    (files_named_after_a_layer, "discovery/dht/service.py", ""),
    (stray_torch, "run/averaging/averaging_io.py", "import torch.nn"),
    (stray_torch, "tensors/budget.py", "from torch import Tensor"),
    (global_chance, "discovery/dht/routing_table.py", "import random\nx = random.random()"),
    (global_chance, "discovery/dht/routing_table.py", "from random import choice"),
    (late_imports, "discovery/dht/routing_table.py", "def f():\n    import json"),
    (late_imports, "discovery/dht/routing_table.py", "import importlib"),
    (late_imports, "discovery/dht/routing_table.py", "if True:\n    import json"),
    (
        late_imports,
        "discovery/dht/routing_table.py",
        'import sys\nif sys.platform == "win32":\n    def f():\n        import json',
    ),
    (code_in_init, "discovery/dht/__init__.py", "import json"),
    (code_in_init, "discovery/dht/__init__.py", '"""Kademlia."""\nNAME = 1'),
    (code_in_init, "data/__init__.py", '"""Text."""\ndef f(): ...'),
    (too_long, "base/ids.py", "x = 1\n" * (FILE_LINES_MAX + 1)),
    (too_long, "base/ids.py", "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
    (crowded_folders, "base/ids.py", ""),
    (unlike_tuples, "base/ids.py", "def f(run: tuple[bytes, RunConfig]): ..."),
    (unlike_tuples, "base/ids.py", "def f(run: tuple[bytes, int] | None = None): ..."),
    (unlike_tuples, "base/ids.py", "class A:\n    run: tuple[bytes, int] | None = None"),
    (
        halves_of_classes,
        "base/ids.py",
        "class A:\n    def f(self):\n        self.g()\nclass B(A):\n    def g(self): ...",
    ),
    (
        halves_of_classes,
        "base/ids.py",
        "class A:\n    _x: int\n    def f(self):\n        return self._x\nclass B(A): ...",
    ),
    (participles, "trainer/going_back.py", ""),
    (participles, "server/expected.py", ""),
    (empty_names, "discovery/dht/utils.py", ""),
    (empty_names, "discovery/dht/node.py", "class LookupManager: ..."),
]


@pytest.mark.parametrize(("rule", "place", "text"), BREACHES)
def test_a_breach_is_seen(rule, place, text, tmp_path):
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    if rule is crowded_folders:
        for number in range(FOLDER_FILES_MAX):
            (path.parent / f"a{number}.py").write_text("")
    path.write_text(text)

    assert len(list(rule(tmp_path))) == 1


def test_a_circle_is_seen(tmp_path):
    (tmp_path / "discovery/dht").mkdir(parents=True)
    (tmp_path / "discovery/dht/a.py").write_text("from p2pswarm.discovery.dht.b import x")
    (tmp_path / "discovery/dht/b.py").write_text("from p2pswarm.discovery.dht.a import y")

    assert len(list(circles(tmp_path))) == 1


def test_names_that_differ_by_an_ending_are_seen(tmp_path):
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/standby.py").write_text("")
    (tmp_path / "trainer/standbys.py").write_text("")

    assert len(list(names_that_differ_by_an_ending(tmp_path))) == 1


def test_a_docstring_does_not_make_a_function_long(tmp_path):
    doc = '    """Line.\n' + "    More.\n" * 60 + '    """\n'
    (tmp_path / "ids.py").write_text("def f():\n" + doc + "    return 1\n")

    assert list(too_long(tmp_path)) == []


def test_an_empty_house_is_no_good_house(tmp_path):
    with pytest.raises(AssertionError, match="empty house"):
        list(too_long(tmp_path))
