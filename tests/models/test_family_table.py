"""docs/models.md says of each family what was tried; `pytest --update` writes its rows anew.

The columns: stages equal the library's model from random weights; a run starts from the files that
the library writes; it exports these files again; two devices may share its layers by tensors.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from core import core_of
from models.families import MIXTURES, PLAIN
from models.family_trials import FAMILIES, NO, YES, from_random, pretrained_and_export, tiny_run
from models.more_families import EACH_KIND, OTHERS
from server.devices.harness import CPU, by_ranks

from p2pswarm.base.errors import Unusable
from p2pswarm.server.devices.plan_check import require_right_plan
from p2pswarm.settings.node_config import TENSOR

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
ROW = re.compile(
    r"^\| ([\w-]+(?: with [a-z ]+)?) \| (yes|no) \| (yes|no) \| (yes|no) \| (yes|no) \|$"
)
CORE = ("mixtral", "qwen3_moe", "deepseek_v3", "gemma2", "gpt2", "opt")
SHARED_CORE = ("llama", "mixtral", "gpt2")
RANKS = 2


@dataclass(frozen=True)
class Row:
    """What the page says of a family."""

    random: str
    pretrained: str
    export: str
    tensors: str

    def text(self, name: str) -> str:
        """Its line."""
        return f"| {name} | {self.random} | {self.pretrained} | {self.export} | {self.tensors} |"


def rows() -> dict[str, Row]:
    """The table, by family."""
    found = (ROW.match(line) for line in PAGE.read_text().splitlines())
    return {row[1]: Row(*row.groups()[1:]) for row in found if row}


def update(name: str, row: Row) -> None:
    lines = PAGE.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if (found := ROW.match(line)) and found[1] == name)
    lines[at] = row.text(name) + "\n"
    PAGE.write_text("".join(lines))


def short(found: str) -> str:
    return YES if found == YES else NO


def test_the_table_has_every_family_that_is_tried_once_and_in_order():
    listed = [row[1] for line in PAGE.read_text().splitlines() if (row := ROW.match(line))]

    assert sorted(listed) == sorted(FAMILIES)
    assert listed == sorted(listed)
    assert len(FAMILIES) == len(PLAIN) + len(MIXTURES) + len(EACH_KIND) + len(OTHERS)


@pytest.mark.parametrize("name", core_of(FAMILIES, CORE))
def test_the_page_says_of_a_family_what_was_tried(name, tmp_path, pytestconfig):
    started, exported = pretrained_and_export(name, tmp_path)
    random, written = from_random(name), rows()[name]
    tried = Row(short(random), short(started), short(exported), written.tensors)

    if pytestconfig.getoption("update"):
        update(name, tried)
    else:
        assert written == tried, (random, started, exported)


def try_plans(rank: int, ranks: int, names: list[str], report: str) -> None:
    """Try on two devices the plan of each family; the first writes what was found."""
    found = {name: try_plan(name, (rank, ranks)) for name in names}
    if rank == 0:
        Path(report).write_text(json.dumps(found))


def try_plan(name: str, rank: tuple[int, int]) -> str:
    said = ""
    for more in (doubled_heads(name), {}):
        try:
            require_right_plan(tiny_run(name, **more), rank, CPU, TENSOR)
        except Unusable as error:
            said = str(error)
        except RuntimeError:  # the library's model itself cannot have such heads
            continue
        else:
            return YES
    return said


def doubled_heads(name: str) -> dict[str, int]:
    """Heads that two devices can share, and a width for them."""
    own = FAMILIES[name]
    width, heads = own.get("hidden_size", 16), own.get("num_attention_heads", 2)
    groups = own.get("num_key_value_heads", 1)
    return {
        "hidden_size": 2 * width,
        "num_attention_heads": 2 * heads,
        "num_key_value_heads": 2 * groups,
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SHARED_CORE, id="core"),
        pytest.param(tuple(FAMILIES), id="all", marks=pytest.mark.full),
    ],
)
def test_the_page_says_whose_layers_two_devices_share_by_tensors(
    fork_server, names, tmp_path, pytestconfig
):
    by_ranks(fork_server, RANKS, try_plans, list(names), str(tmp_path / "report.json"))
    found = json.loads((tmp_path / "report.json").read_text())

    for name in names:
        written = rows()[name]
        tried = Row(written.random, written.pretrained, written.export, short(found[name]))
        if pytestconfig.getoption("update"):
            update(name, tried)
        else:
            assert written == tried, (name, found[name])
