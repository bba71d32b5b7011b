"""Real nodes behind real NATs leave their relay by themselves: nothing is set for it.

Skipped where no lab may be opened; the reason is told.
"""

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from natlab.lab import LabUnavailable, NatLab
from natlab.matrix import Plan, attempts, peer, public_nodes
from p2pswarm.reach.punch.limits import LASTED_S

ROOT = Path(__file__).parents[2]
NODE = (sys.executable, "-m", "p2pswarm.node")
LIMIT_S = 240.0  # three processes load torch, on a busy machine
DELAY_S = 0.0125
RUN = """
[train]
data = "{data}"
weights = "{weights}"
progress = "lines"

[checkpoint]
target = ""

[run]
name = "punched"
stages = 1
steps = {steps}

[run.model]
d_model = 16
layers = 1
heads = 2
sequence_length = 32

[run.batch]
microbatches = 2
rows = 1
"""


@pytest.fixture
def lab():
    """Opens a lab of these sites, with a delay; skips the test where that is not allowed."""
    with ExitStack() as stack:

        def opened(*profiles: str, public: int) -> NatLab:
            try:
                return stack.enter_context(NatLab(profiles, public=public, delay_s=DELAY_S))
            except LabUnavailable as reason:
                pytest.skip(str(reason))

        yield opened


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("port-restricted", "masquerade-drop"),
        pytest.param("symmetric", "address-restricted", marks=pytest.mark.full),
        pytest.param("double", "masquerade", marks=pytest.mark.full),
        pytest.param("none", "symmetric", marks=pytest.mark.full),
    ],
)
def test_a_relayed_link_is_punched_without_any_flag(lab, a, b):
    opened = lab(a, b, public=3)
    sites = opened.sites
    with public_nodes(opened):
        (row,) = attempts(opened, sites[:1], sites[1:], Plan(limit_s=20.0, upgrade_s=20.0))

    # whom a public host calls may dial it by itself before it is asked to
    left_the_relay = {"punched", "direct"} if a == "none" else {"punched"}
    assert row["path"] in left_the_relay, row
    assert row["first"]["path"] == "relayed"


@pytest.mark.full  # a trainer and a server send theirs over one
def test_tensors_go_over_punched_connections(lab):
    """Each bulk connection is punched by itself, from a port that the relay has seen."""
    opened = lab("port-restricted", "masquerade-drop", public=3)
    site_a, site_b = opened.sites
    plan = Plan()
    with public_nodes(opened), peer(opened, site_b, plan) as b, peer(opened, site_a, plan) as a:
        time.sleep(plan.settle_s)
        card = b.told(LIMIT_S, do="card")["card"]
        order = {"card": card, "limit_s": 20.0, "upgrade_s": 20.0}
        relays = [opened.address(host) for host in range(3)]
        told = a.told(LIMIT_S, do="reach", relays=relays, **order)
        assert told["upgraded"]["says"] == "punched", told

        sent = a.told(LIMIT_S, do="send", mib=8, **order)

    assert sent["bulk"] >= 1
    punched = [text for text in sent["said"] if "was punched in" in text]
    assert len(punched) >= 1 + sent["bulk"], sent
    assert not [text for text in sent["said"] if "goes by relay" in text], sent


CUT = """
table ip cut {{
  chain forward {{ type filter hook forward priority -10; policy accept;
    ip daddr {far} drop
    ip saddr {far} drop
  }}
}}
"""


@pytest.mark.full
def test_a_punched_path_that_is_cut_is_replaced_by_the_relay_and_used_again_when_it_is_back(lab):
    """Calls go on all the time; none fails. A silent path is noticed after 10 s."""
    opened = lab("port-restricted", "masquerade-drop", public=3)
    site_a, site_b = opened.sites
    router, rules = site_a.routers[0], CUT.format(far=site_b.wan_address)
    with ExitStack() as stack:
        stack.enter_context(public_nodes(opened))
        b, a = (stack.enter_context(peer(opened, site, Plan())) for site in (site_b, site_a))
        time.sleep(Plan().settle_s)
        card = b.told(LIMIT_S, do="card")["card"]
        order = {"card": card, "limit_s": 30.0, "upgrade_s": 20.0}
        relays = [opened.address(host) for host in range(3)]
        a.told(LIMIT_S, do="reach", relays=relays, **order)
        time.sleep(LASTED_S)
        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(a.told, LIMIT_S, do="follow", seconds=30.0, **order)
            time.sleep(1.0)
            opened.run(router, ["nft", "-f", "-"], input=rules, text=True, check=True)
            time.sleep(14.0)
            opened.run(router, ["nft", "delete", "table", "ip", "cut"], check=True)
            told = following.result()

    assert [says for _, says in told["seen"]] == ["punched", "relayed", "punched"], told
    (_, (relayed_s, _), (again_s, _)) = told["seen"]
    assert relayed_s < again_s


@pytest.mark.full
def test_a_link_between_two_symmetric_nats_stays_relayed(lab):
    opened = lab("symmetric", "symmetric", public=3)
    sites = opened.sites
    with public_nodes(opened):
        (row,) = attempts(opened, sites[:1], sites[1:], Plan(limit_s=20.0, upgrade_s=3.0))

    assert row["path"] == "relayed", row


def test_a_trainer_and_a_server_behind_nats_train_over_a_punched_link(lab, tmp_path):
    """One public node is all that they have; it is the relay of both."""
    opened = lab("port-restricted", "masquerade-drop", public=1)
    text = tmp_path / "text"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    settings = tmp_path / "run.toml"
    weights = tmp_path / "weights.safetensors"
    settings.write_text(RUN.format(data=text, weights=weights, steps=30))
    through = ("--bootstrap", f"{opened.address(0)}:4000", "--log-level", "info")
    trains = (*NODE, "--role", "trainer", "--config", str(settings), *through)
    serves = (*NODE, "--role", "stage", *through)
    trainer_site, server_site = opened.sites

    with public_nodes(opened), ExitStack() as stack:
        logs = [stack.enter_context((tmp_path / name).open("w+")) for name in ("server", "trainer")]
        out = {"stdout": subprocess.DEVNULL, "cwd": ROOT}
        server = stack.enter_context(opened.popen(server_site.host, serves, stderr=logs[0], **out))
        stack.callback(server.terminate)
        trainer = stack.enter_context(
            opened.popen(trainer_site.host, trains, stderr=logs[1], **out)
        )
        stack.callback(trainer.terminate)
        begun_s = time.monotonic()
        code = trainer.wait(LIMIT_S)
        took_s = time.monotonic() - begun_s

    told = "".join((tmp_path / name).read_text() for name in ("server", "trainer"))
    assert code == 0, told[-3000:]
    assert re.search(r"was punched in \d+ ms, at 11\.", told), (took_s, told[-3000:])
