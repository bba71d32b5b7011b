"""What `import p2pswarm` offers, used as programs use it."""

import ast
import asyncio
import dataclasses
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest

import p2pswarm as ps
from p2pswarm.api.run import RunSettings
from p2pswarm.base.errors import Unusable
from p2pswarm.data.tokenizer import train_tokenizer
from p2pswarm.node.run.run_folder import RunFolder
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.parser import load

ROOT = Path(ps.__file__).parent
LOOPBACK = "127.0.0.1:0"
NOBODY = "127.0.0.1:9"  # discard, which nobody runs
HEAVY = ("torch", "numpy", "numba", "rich", "matplotlib")
TINY = ps.models.GPT(d_model=16, layers=2, heads=2, sequence_length=32)
BATCH = {"microbatches": 2, "rows": 2, "evaluate_every": 1, "evaluate_microbatches": 1}


def tiny_run(**settings) -> ps.Run:
    return ps.Run("tiny", **{"model": TINY, "stages": 1, "steps": 2, "batch": BATCH} | settings)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("some text to learn\n" * 200)
    return path


def loaded_after(program: str) -> set[str]:
    """Which of the heavy modules a fresh process has loaded."""
    probe = f"import sys\n{program}\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    return set(done.stdout.split())


# What is offered


def test_import_loads_nothing_heavy():
    assert loaded_after("import p2pswarm") == set()


def test_node_that_others_join_through_loads_no_torch():
    program = """
import asyncio, p2pswarm as ps
async def main():
    async with ps.Node(listen="127.0.0.1:0") as node:
        await node.dht.put(bytes(32), b"", b"value", ttl_s=60)
asyncio.run(main())"""

    assert loaded_after(program) == set()


def test_server_and_trainer_load_torch_only_when_they_begin():
    """They load it in a thread then: an import in the event loop would stop a node for seconds."""
    program = """
import p2pswarm as ps
ps.Server(ps.Node())
ps.Trainer(ps.Node(), ps.Run("r"), data=ps.data.Bytes("text"))"""

    assert loaded_after(program) == set()


def test_every_name_is_there():
    assert set(ps.__all__) <= set(dir(ps))
    assert all(getattr(ps, name) is not None for name in ps.__all__)


@pytest.mark.parametrize(
    "arguments", [["plan", "gone.toml"], ["simulate", "gone.toml", "--devices", "gone.toml"]]
)
def test_a_file_that_is_not_there_is_said_before_torch_is_loaded(arguments):
    program = f"from p2pswarm.cli import main; code = main({arguments})"

    assert "torch" not in loaded_after(program)


@pytest.mark.parametrize("command", ["status", "explain", "watch"])
def test_who_looks_at_a_run_from_afar_loads_no_torch(command):
    program = f"from p2pswarm.cli import main; code = main({[command, '--bootstrap', NOBODY]})"

    assert "torch" not in loaded_after(program)


def test_stub_names_what_is_offered_and_where_it_is_from():
    """Type checkers and editors read the stub, programs the table."""
    stub = ast.parse((ROOT / "__init__.pyi").read_text())

    said = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                said[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    table = {
        name: ".".join(filter(None, ("p2pswarm", place, attribute)))
        for name, (place, attribute) in ps.OFFERED.items()
    }
    assert said == table


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nodes'"):
        ps.Nodes  # noqa: B018


@pytest.mark.parametrize("name", sorted(ps.OFFERED))
def test_every_name_is_documented(name):
    assert (getattr(ps, name).__doc__ or "").strip()


# Runs


def test_run_takes_the_settings_of_a_run():
    assert set(RunSettings.__annotations__) == {f.name for f in fields(RunConfig)} - {"name"}


def test_run_takes_tables_as_mappings_or_as_dataclasses():
    as_mapping = ps.Run("r", model={"d_model": 16, "heads": 2}, optimizer={"learning_rate": 1})
    as_value = ps.Run("r", model=ps.models.GPT(d_model=16, heads=2), optimizer={"learning_rate": 1})

    assert as_mapping.config == as_value.config
    assert as_mapping.config.optimizer.learning_rate == 1.0
    assert as_mapping.name == "r"
    assert repr(as_mapping) == f"Run({as_mapping.config})"


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"stages": 0}, "stages = 0"),
        ({"stages": "two"}, "stages = 'two'"),
        ({"stepps": 2}, "stepps = 2"),
        ({"model": {"d_model": 1}}, "model = {d_model = 1}"),
        ({"codecs": {"activation": "zip"}}, "codecs = {activation = 'zip'}"),
        ({"stages": 7}, "stages = 7"),
    ],
)
def test_wrong_setting_is_told_as_for_a_file(tmp_path, settings, lines):
    path = tmp_path / "run.toml"
    path.write_text(f"[run]\nname = 'r'\n{lines}")
    with pytest.raises(ps.errors.Unusable) as of_file:
        load(path)

    with pytest.raises(ValueError, match=r"stages|stepps|d_model|activation") as of_run:
        ps.Run("r", **settings)

    assert str(of_file.value) == f"{path}: {of_run.value}"
    assert "\n" not in str(of_run.value)


# Nodes


async def test_nodes_find_each_others_values():
    key = bytes(32)
    async with ps.Node(listen=LOOPBACK) as first:
        seeds = [str(first.contact.address)]
        async with ps.Node(listen=LOOPBACK, bootstrap=seeds) as second:
            await second.dht.put(key, b"", b"value", ttl_s=60)

            records = await first.dht.get(key)

    assert records[b""].value == b"value"


async def test_identity_file_keeps_the_peer(tmp_path):
    peers = []
    for _ in range(2):
        async with ps.Node(listen=LOOPBACK, identity=tmp_path / "node.key") as node:
            peers.append(node.contact.peer)

    assert peers[0] == peers[1]


async def test_node_outside_of_its_block_says_what_to_do():
    node = ps.Node(listen=LOOPBACK)

    with pytest.raises(RuntimeError, match="async with"):
        node.contact  # noqa: B018

    assert repr(node) == "Node(not up)"
    async with node:
        assert repr(node) == f"Node({node.contact.address})"


async def test_error_in_a_block_arrives_alone():
    with pytest.raises(KeyError):
        async with ps.Node(listen=LOOPBACK):
            raise KeyError


async def test_node_without_the_nodes_it_was_given_says_so():
    node = ps.Node(listen=LOOPBACK, bootstrap=["127.0.0.1:1"])

    with pytest.raises(ps.errors.Unusable, match="no bootstrap address answers"):
        async with node:
            pass

    assert repr(node) == "Node(not up)"


async def test_node_that_is_banned_where_it_joins_says_so(tmp_path):
    key = tmp_path / "node.key"
    async with ps.Node(listen=LOOPBACK) as seed:
        async with ps.Node(listen=LOOPBACK, identity=key) as node:
            banned, remote = node.contact.peer, ps.Address("127.0.0.1", 1)
        for _ in range(3):
            seed.stack.endpoint.bans.on_breach(banned, remote, ps.errors.BadFrame("x"), now_s())

        with pytest.raises(ps.errors.Unusable, match="it has banned this node for another 1 min"):
            await ps.Node(
                listen=LOOPBACK, identity=key, bootstrap=[str(seed.contact.address)]
            ).__aenter__()


def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("settings", "error", "part"),
    [
        ({"network": {"bulk_connections": 17}}, ValueError, "network.bulk_connections"),
        ({"network": {"peer_mb": 1}}, ValueError, "did you mean peer_mib"),
        ({"bootstrap": "203.0.113.7:4000"}, TypeError, "bootstrap is a list"),
    ],
)
def test_wrong_setting_of_a_node_is_named(settings, error, part):
    with pytest.raises(error, match=part):
        ps.Node(**settings)


# Servers and trainers


async def serve(address: str) -> str:
    async with ps.Node(listen=LOOPBACK, bootstrap=[address]) as node:
        server = ps.Server(node, run="tiny", device="cpu")
        reason = await server.serve()
        assert (server.stage, server.version) == (0, 2)
        return reason


async def test_server_and_trainer_train_and_save(text, tmp_path):
    path = tmp_path / "weights.safetensors"
    async with ps.Node(listen=LOOPBACK) as node, asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve(str(node.contact.address)))
        async with ps.Trainer(node, tiny_run(), data=ps.data.Bytes(text)) as trainer:
            events = [event async for event in trainer]
            saved = await trainer.save(path)

    assert serving.result() == "all steps are done"
    assert [e.step for e in events if isinstance(e, ps.events.Stepped)] == [1, 2]
    assert [e.step for e in events if isinstance(e, ps.events.HeldOut)] == [0, 1, 2]
    assert isinstance(events[-1], ps.events.Ended)
    assert saved == path
    assert path.stat().st_size > 0


def asked(link: str, path: str) -> Any:
    """What the page that `link` opens says under a path."""
    at = urlsplit(link)
    token = parse_qs(at.query)["t"][0]
    request = Request(f"http://{at.netloc}{path}", headers={"Authorization": f"Bearer {token}"})
    with urlopen(request, timeout=10.0) as answer:
        return json.load(answer)


async def test_nodes_of_a_program_have_pages(text):
    async with (
        ps.Node(listen=LOOPBACK, page=LOOPBACK, name="attic") as node,
        ps.Node(listen=LOOPBACK, page=LOOPBACK, bootstrap=[str(node.contact.address)]) as other,
        asyncio.TaskGroup() as tasks,
    ):
        server = ps.Server(other, run="tiny", device="cpu")
        serving = tasks.create_task(server.serve())
        run = tiny_run(steps=1_000_000)
        async with ps.Trainer(node, run, data=ps.data.Bytes(text)) as trainer:
            async for event in trainer:
                if isinstance(event, ps.events.Stepped):
                    break
            seen = await asyncio.to_thread(asked, node.page_link, "/view")
            lent = await asyncio.to_thread(asked, other.page_link, "/view")
            ready = [
                await asyncio.to_thread(asked, each, "/readyz")
                for each in (node.page_link, other.page_link)
            ]
            trainer.end("seen enough")

        assert await serving == "seen enough"
    assert seen["run"]["name"] == "tiny"
    assert seen["you"]["name"] == "attic"
    assert (lent["you"]["stage"], lent["you"]["run"]) == (0, "tiny")
    assert [each["why"] for each in ready] == ["leads the run", "serves"]


async def test_a_node_without_a_page_has_no_link():
    async with ps.Node(listen=LOOPBACK) as node:
        assert node.page_link == ""


async def test_a_node_without_a_role_is_ready_once_it_is_in_the_swarm():
    async with ps.Node(listen=LOOPBACK, page=LOOPBACK) as node:
        ready = await asyncio.to_thread(asked, node.page_link, "/readyz")
        assert ready == {"ok": True, "why": "in the swarm"}


async def test_a_budget_is_told_and_the_program_saves_and_ends(text, tmp_path):
    state, run = tmp_path / "state", tiny_run(steps=1_000_000)
    costs = {"price_per_hour": 1000.0, "currency": "EUR", "budget": 1.0}  # it has a server by then
    async with ps.Node(listen=LOOPBACK, state=state) as node, asyncio.TaskGroup() as tasks:
        other = tasks.create_task(serve_any(str(node.contact.address)))
        async with ps.Trainer(node, run, data=ps.data.Bytes(text), **costs) as trainer:
            events = []
            async for event in trainer:
                events.append(event)
                if isinstance(event, ps.cost_events.BudgetReached) and event.over:
                    saved = await trainer.save(tmp_path / "weights.safetensors")
                    trainer.end("the budget is spent")
        assert await other == "the budget is spent"

    assert isinstance(events[-1], ps.events.Ended)
    assert events[-1].reason == "the budget is spent"
    assert saved.stat().st_size > 0
    assert not RunFolder(state).read().finished
    async with ps.Node(listen=LOOPBACK, state=state) as node:
        with pytest.raises(Unusable, match="raise it to go on"):
            async with ps.Trainer(node, run, data=ps.data.Bytes(text), **costs):
                pass


async def serve_any(address: str) -> str:
    async with ps.Node(listen=LOOPBACK, bootstrap=[address]) as node:
        return await ps.Server(node, run="tiny", device="cpu").serve()


async def test_closed_run_is_for_who_is_invited_and_its_folder_begins_another_one(text, tmp_path):
    state, data = tmp_path / "owner", ps.data.Bytes(text)
    async with (
        ps.Node(listen=LOOPBACK, state=state) as node,
        asyncio.TaskGroup() as tasks,
        ps.Trainer(node, tiny_run(), data=data, closed=True) as trainer,
    ):
        written = tmp_path / "anna.txt"
        written.write_text(await trainer.invite("anna", uses=1))
        tasks.create_task(serve_invited(written))
        events = [event async for event in trainer]
        with pytest.raises(ValueError, match="one of serve, train, watch"):
            await trainer.invite(role="king")
        with pytest.raises(ValueError, match="257 peers"):
            await trainer.invite(uses=257)

    assert events[-1].reason == "all steps are done"
    assert RunFolder(state).read().finished


async def test_standby_of_a_closed_run_enters_with_an_invitation_for_trainers(text, tmp_path):
    data, run = ps.data.Bytes(text), tiny_run(steps=1_000_000)
    async with (
        ps.Node(listen=LOOPBACK, state=tmp_path / "owner") as node,
        ps.Trainer(node, run, data=data, closed=True) as trainer,
    ):
        invitation = await trainer.invite("partner", role="train")
        async with (
            ps.Node(listen=LOOPBACK, invite=invitation, state=tmp_path / "partner") as other,
            ps.Trainer(other, run, data=data, standby=True) as partner,
        ):
            saved = RunFolder(tmp_path / "partner").read()
            assert saved.identity.founder == node.contact.peer.raw
            assert saved.identity.config.owner
            with pytest.raises(ps.errors.Unusable, match="has no owner's key"):
                await partner.invite("carl")


async def serve_invited(invitation) -> None:
    async with ps.Node(listen=LOOPBACK, invite=invitation) as node:
        assert await ps.Server(node, device="cpu").serve() == "all steps are done"


async def test_invitation_that_is_none_is_named_when_the_node_enters():
    with pytest.raises(ps.errors.Unusable, match="neither a text that begins with"):
        async with ps.Node(listen=LOOPBACK, invite="no such file"):
            pass


async def test_open_run_of_a_folder_has_invitations_to_more_than_computing(text, tmp_path):
    async with (
        ps.Node(listen=LOOPBACK, state=tmp_path / "owner") as node,
        ps.Trainer(node, tiny_run(), data=ps.data.Bytes(text)) as trainer,
    ):
        invitation = await trainer.invite(role="train")

    assert invitation.startswith("p2pswarm-invite-")


def test_closed_run_needs_a_folder_for_its_owners_key():
    with pytest.raises(ValueError, match=r"Node\(state=FOLDER\)"):
        ps.Trainer(ps.Node(), tiny_run(), data=ps.data.Bytes("text"), closed=True)


async def test_program_that_leaves_its_run_early_says_goodbye(text):
    async with ps.Node(listen=LOOPBACK) as node:
        address = str(node.contact.address)
        async with ps.Node(listen=LOOPBACK, bootstrap=[address]) as other, asyncio.TaskGroup() as t:
            serving = t.create_task(ps.Server(other, device="cpu").serve())
            run = tiny_run(steps=1_000_000)
            async with ps.Trainer(node, run, data=ps.data.Bytes(text)) as trainer:
                async for event in trainer:
                    if isinstance(event, ps.events.Stepped):
                        break

    assert serving.result() == "the trainer leaves"


async def test_error_in_a_trainers_block_arrives_alone(text):
    async with ps.Node(listen=LOOPBACK) as node:
        with pytest.raises(KeyError):
            async with ps.Trainer(node, tiny_run(), data=ps.data.Bytes(text)):
                raise KeyError


async def test_script_may_train_with_the_servers_of_a_swarm(text):
    async with ps.Node(listen=LOOPBACK) as node, asyncio.TaskGroup() as tasks:
        address = str(node.contact.address)
        tasks.create_task(serve(address))

        ended = await asyncio.to_thread(
            ps.train, tiny_run(), ps.data.Bytes(text), bootstrap=[address], progress="json"
        )

    assert ended.step == 2


async def test_server_that_is_told_to_leave_leaves_though_there_is_no_run():
    async with ps.Node(listen=LOOPBACK) as node:
        server = ps.Server(node, device="cpu")
        server.leave()

        assert await server.serve() == "left"
        assert (server.stage, server.version) == (None, None)


async def test_trainer_without_text_says_so(tmp_path):
    data = ps.data.Bytes(tmp_path / "nothing")
    async with ps.Node(listen=LOOPBACK) as node:
        with pytest.raises(ps.errors.Unusable, match="no such file or folder"):
            async with ps.Trainer(node, tiny_run(), data=data):
                pass


async def test_wrong_setting_of_data_or_server_is_named():
    node = ps.Node()

    with pytest.raises(ValueError, match=r"train\.held_out_share"):
        ps.Trainer(node, tiny_run(), data=ps.data.Bytes("text", held_out_share=0.9))
    with pytest.raises(ValueError, match=r"serve\.threads"):
        ps.Server(node, threads=-1)


def test_train_starts_what_a_run_needs_and_writes_the_weights(text, tmp_path, capsys):
    path, log = tmp_path / "weights.safetensors", tmp_path / "run.jsonl"

    ended = ps.train(tiny_run(stages=2), text, weights=path, device="cpu", progress="json", log=log)

    assert (ended.step, ended.failed, ended.counts.counted) == (2, False, 4)
    assert path.exists()
    said = capsys.readouterr().out
    assert '"event":"ended"' in said
    assert said.endswith(f"\nweights: {path}\n")
    logged = log.read_text().splitlines()
    assert '"event":"begun"' in logged[0]
    assert set(logged) <= set(said.splitlines())


async def test_train_works_in_a_notebook_whose_loop_runs_already(text):
    ended = ps.train(tiny_run(), text, device="cpu", progress="json")

    assert (ended.step, ended.failed) == (2, False)


def test_train_takes_a_tokenizer_of_more_tokens_than_two_bytes_hold(text, tmp_path, monkeypatch):
    learnt = json.loads(train_tokenizer(300, [b"some text to learn"]).text)
    learnt["added_tokens"].append({**learnt["added_tokens"][0], "id": 70_000, "content": "some"})
    learnt["model"]["vocab"]["some"] = 70_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(learnt))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path, data = tmp_path / "weights.safetensors", ps.data.Tokenised(text, tmp_path)

    run = tiny_run(stages=2, model=dataclasses.replace(TINY, documents="apart"))

    ended = ps.train(run, data, weights=path, device="cpu", progress="json")

    assert (ended.step, ended.failed, ended.counts.counted) == (2, False, 4)
    model = ps.load(path)
    assert model.run.model.vocabulary == model.tokenizer.size == 70_001
    assert model.tokenizer.encode([b"some text"])[0][0] == 70_000
    assert len(list(model.generate("some", tokens=5))) == 5


def test_train_takes_a_mixture_of_texts_that_are_read_as_they_are_needed(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = [f"{number} " * 20 for number in range(80)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    parquet.write_table(arrow.table({"text": texts}), tmp_path / "b.parquet", row_group_size=9)
    (tmp_path / "c.txt").write_text("\n\n".join(texts))
    weights = {f"{tmp_path}/a.jsonl": 3.0, f"{tmp_path}/b.parquet": 1.0, f"{tmp_path}/c.txt": 1.0}
    data = ps.data.Mixture(weights, tokenizer="train:300")
    run = tiny_run(
        stages=2,
        batch=BATCH | {"samples": "streamed"},
        model=dataclasses.replace(TINY, documents="apart"),
    )

    ended = ps.train(run, data, weights=None, device="cpu", progress="json")

    assert (ended.step, ended.failed, ended.counts.counted) == (2, False, 4)


def test_train_tries_the_place_of_the_weights_before_it_begins(text, tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(ps.errors.Unusable, match=r"cannot be written: .*; name another file"):
        ps.train(tiny_run(), text, weights=tmp_path / "file" / "w.safetensors")


@pytest.mark.parametrize(
    ("model", "data", "device", "why"),
    [
        ({"family": "gtp"}, "text", "cpu", "no model family 'gtp' here"),
        ({}, "gone", "cpu", "no such file or folder"),
        ({}, "text", "cuda:99", "serve.device 'cuda:99'"),
    ],
)
def test_train_says_what_is_wrong_before_it_asks_a_swarm(model, data, device, why, text):
    """Nobody listens at the address, which would be told first if a node had begun."""
    run = ps.Run("bad", model=model, stages=1, steps=1)
    swarm = [] if "cuda" in device else ["127.0.0.1:1"]
    with pytest.raises(ps.errors.Unusable, match=why):
        ps.train(run, text if data == "text" else data, bootstrap=swarm, device=device)


def test_train_refuses_an_unknown_kind_of_progress(text):
    with pytest.raises(ValueError, match=r"train\.progress is one of auto, live"):
        ps.train(tiny_run(), text, progress="loud")


# Testing tools


def test_simulated_swarm_is_played_from_its_seed():
    config = ps.testing.SwarmConfig(seed=3, run=ps.testing.small_run(steps=2))

    result = ps.testing.run(ps.testing.SimSwarm(config).play(), seed=3)

    assert (result.steps, result.ended.failed) == (2, False)
