"""What a command answers, and its exit code, where no process has to live."""

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest

from p2pswarm.command_line import main
from p2pswarm.data import hub
from p2pswarm.models.library import hf_library


def test_an_example_is_printed(capsys):
    assert main(["node", "--example", "stage"]) == 0
    assert 'role = "stage"' in capsys.readouterr().out


def test_a_check_prints_what_the_settings_mean(capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("role = 'stage'")

    assert main(["node", "--check"]) == 0
    assert capsys.readouterr().out.startswith("the flags: good\nrole ")
    assert main(["node", "--config", str(file), "--check"]) == 0
    assert re.match(rf"{file}: good\nrole +stage\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["node", "--config", "none.toml"], "none.toml: cannot be read"),
        (["node", "--listen", "4000", "--check"], "listen: '4000' is not HOST:PORT"),
        (["demo", "--json", "."], ". cannot be written: it is a folder"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_code_2(argv, part, capsys):
    assert main(argv) == 2

    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert part in said


@pytest.mark.parametrize("argv", [["node", "--config", "none.toml"], ["watch", "--speed", "soon"]])
@pytest.mark.parametrize("stderr", ["closed", "full"])
def test_who_cannot_be_told_what_to_mend_has_code_2_as_well(argv, stderr, monkeypatch):
    """A launcher that sees another one tries again for ever."""
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stderr", full if stderr == "full" else None)
        with pytest.raises(SystemExit) as ended:
            sys.exit(main(argv))

    assert ended.value.code == 2


def test_what_an_error_quotes_does_not_reach_the_terminal_as_it_is(capsys):
    assert main(["node", "--config", "\x1b[2J\n.toml"]) == 2

    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert said.count("\n") == 1


TEXT = "some text to learn\n" * 500


def run_of(data: str = "text.txt", train: str = "", run: str = "", more: str = "") -> str:
    """A trainer's settings."""
    lines = [f'data = "{data}"' if data else "", 'weights = ""' if "weights" not in train else ""]
    return "\n".join(["[train]", *lines, train, "[run]", run, more])


TEXTS = {
    "no text is named": (run_of(""), "train.data is missing: name a text file or a folder"),
    "a text that is gone": (run_of("gone.txt"), "gone.txt: there is no such file or folder"),
    "an empty text": (
        run_of("empty.txt"),
        "empty.txt: there is no text; passed over: 1 empty.*: name",
    ),
    "a text of six bytes": (run_of("short.txt"), "short.txt: 5 bytes of training text"),
    "a folder without text": (run_of("nothing"), "nothing: there is no text: name a larger"),
    "a folder of files with rows": (run_of("rows"), r"name them by a pattern, .*rows/\*.jsonl"),
    "endings that no file has": (
        run_of("rows", 'suffixes = ["txt"]'),
        r"rows: a folder is read as plain text",
    ),
    "a pattern that finds nothing": (run_of("*.text"), "no file is found by that pattern"),
    "rows without the field": (run_of("rows/a.jsonl", 'field = "body"'), "no field 'body'.*; set"),
    "rows that are no JSON": (run_of("broken.jsonl"), "broken.jsonl: row 1: not JSON"),
    "an array that ends early": (run_of("array.jsonl"), "array.jsonl: row 2: not JSON"),
    "a file of rows without any": (run_of("empty.jsonl"), "has no rows: remove it, or copy"),
    "a torn file of columns": (run_of("torn.parquet"), "torn.parquet: .*copy it again"),
    "a compressed text": (run_of("text.txt.gz"), "is compressed: unpack it"),
    "a part of a mixture that is gone": (
        run_of("", 'mixture = [{ data = "text.txt" }, { data = "gone" }]'),
        "gone: there is no such file or folder",
    ),
    "more held out than is learnt": (run_of(train="held_out_share = 0.9"), "from 0.001 to 0.5"),
    "a folder of a tokenizer that is gone": (
        run_of(train='tokenizer = "gone"'),
        "train.tokenizer: .*gone: there is no such folder: name a folder that has one",
    ),
    "a folder without a tokenizer": (
        run_of(train='tokenizer = "nothing"'),
        "there is no tokenizer.json in it: name a folder",
    ),
    "a broken tokenizer": (run_of(train='tokenizer = "broken"'), "tokenizer.json.*: "),
    "a tokenizer of ten tokens": (run_of(train='tokenizer = "train:10"'), "N from 300 to"),
    "a vocabulary that is smaller than its tokenizer": (
        run_of(train='tokenizer = "train:320"', more="[run.model]\nvocabulary = 257"),
        "train.tokenizer has .* tokens and the model 257: name the tokenizer",
    ),
}
MODELS = {
    "a family with a typing error": (run_of(run='model = "gtp"'), "no model family 'gtp' here"),
    "a folder of a model that is gone": (run_of(run='model = "hf:./gone"'), "put the model's conf"),
    "a folder of a model without its config": (
        run_of(run='model = "hf:./nothing"'),
        "there is no .*",
    ),
    "a broken config of a model": (run_of(run='model = "hf:./broken"'), "config.json is not JSON"),
    "a package of a model that is not here": (
        run_of(run='model = "nowhere.models:make"'),
        "nowhere",
    ),
    "weights to start from without a model that has some": (
        run_of(run='start = "pretrained"'),
        'needs weights in a folder, or of the hub: run.model = "hf:FOLDER"',
    ),
    "heads that do not share the width": (run_of(more="[run.model]\nheads = 3"), "no.* a multiple"),
    "more stages than blocks": (run_of(run="stages = 9"), "stages 9 is more than the 6 blocks"),
    "a cut for another number of stages": (run_of(run="cut = [6]"), "cut has 1 numbers for 2"),
    "a cut of other blocks": (run_of(run="cut = [1, 1]"), "the numbers have to add up to that"),
    "packed documents of bytes": (
        run_of(more='[run.batch]\nsamples = "packed"'),
        "train.tokenizer",
    ),
    "documents apart, of bytes": (
        run_of(more='[run.model]\ndocuments = "apart"'),
        "train.tokenizer",
    ),
    "more microbatches than a record has room for": (
        run_of(more="[run.batch]\nmicrobatches = 64000"),
        "lower run.batch.microbatches, and raise run.batch.rows",
    ),
    "spot checks of what differs by itself": (
        run_of(run='precision = "bf16"\nspot_check_share = 0.1'),
        "set spot_check_share to 0, or precision to full",
    ),
    "half weights of whole numbers": (
        run_of(run='weight_storage = "bf16"'),
        "set precision to bf16",
    ),
    "a warm-up that is longer than the run": (
        run_of(run="steps = 30", more="[run.optimizer]\nwarmup_steps = 100"),
        "warmup_steps 100 is more than the steps of the run .*, 30: .*; lower it, or raise run.ste",
    ),
    "a warm-up that is longer than the schedule": (
        run_of(more="[run.optimizer]\nwarmup_steps = 100\ndecay_steps = 50"),
        "warmup_steps 100 is more .*, 50: ",
    ),
}
PLACES = {
    "weights whose name is a folder": (
        run_of(train='weights = "/proc/x"'),
        "/proc/x.* cannot be wr",
    ),
    "weights below a file": (
        run_of(train='weights = "text.txt/w"'),
        "cannot be written: .*name ano",
    ),
    "curves in another file": (run_of(train='curves = "mine.csv"'), "is no file of curves: name"),
    "curves below a file": (
        run_of(train='curves = "text.txt/c.csv"'),
        "name another file in train",
    ),
    "curves for a program that is not here": (
        run_of(train='curves = "board"'),
        "pip install tenso",
    ),
    "curves for a service whose program is not here": (
        run_of(train='wandb = "w"'),
        "pip install wa",
    ),
    "checkpoints below a file": (
        run_of(more='[checkpoint]\ntarget = "{}/text.txt/c"'),
        "checkpoint.target: .* cannot be written: .*: name another target, or mend it",
    ),
    "checkpoints in a store whose library is not here": (
        run_of(more='[checkpoint]\ntarget = "s3://bucket/run"'),
        "fsspec cannot use this: .*s3fs.*; install what it names",
    ),
    "a checkpoint that is gone": (run_of(train='resume = "gone"'), "no checkpoint to go on from"),
    "going back without checkpoints": (
        run_of(run='on_stage_lost = "rewind"'),
        "set checkpoint.tar",
    ),
    "a state that is a file": (
        "state = 'text.txt'\n" + run_of(),
        "state: .*text.txt cannot be used",
    ),
    "a state that cannot be": (
        "state = '/proc/x/y'\n" + run_of(),
        "free some space or name another",
    ),
    "a closed run without a state": (run_of(train="closed = true"), "set `state` in the file"),
    "a key below a file": (
        "identity = 'text.txt/key'\n" + run_of(),
        "identity: .*text.txt cannot be used: .*name another folder",
    ),
    "a place for prepared text that is a file": (
        run_of("rows/a.jsonl", 'cache = "text.txt"'),
        "train.cache: .*text.txt cannot be used: .*name another folder",
    ),
    "a key of another program": ("identity = 'text.txt'\n" + run_of(), "identity file .*: "),
}
ADDRESSES = {
    "an address without a port": (
        "bootstrap = ['a']\n" + run_of(),
        "is not HOST:PORT, for example",
    ),
    "two addresses in one": (
        "bootstrap = ['a:1,b:2']\n" + run_of(),
        "several addresses: give each",
    ),
    "an address of the web": ("bootstrap = ['http://a:1']\n" + run_of(), "leave out 'http://'"),
    "an address that is no list": (
        "bootstrap = 'a:1'\n" + run_of(),
        'bootstrap is a list, not "a:1"',
    ),
    "a place to listen that is elsewhere": (
        "listen = '192.0.2.1:4000'\n" + run_of(),
        "cannot listen on 192.0.2.1.*; name an addr",
    ),
    "a place to listen that nobody knows": (
        "listen = 'nowhere.invalid:1'\n" + run_of(),
        "cannot listen on nowhere.invalid:1: .*; name an address of this machine",
    ),
    "a port that is taken": (
        "listen = '127.0.0.1:{port}'\n" + run_of(),
        "another port with --listen",
    ),
    "an address for others without a host": (
        run_of(more='[network]\nannounce = ":4000"'),
        "network.announce: ':4000' has no host",
    ),
    "a certificate that is gone": (
        run_of(more='[network]\nrelay_web = {free}\nrelay_certificate = "gone.pem"'),
        "network.relay_certificate: .*gone.pem: .*it is one PEM file",
    ),
    "an invitation that is none": (
        "invite = 'hello'\n" + run_of(),
        "'hello' is neither a text that",
    ),
}
WORDS = {
    "a setting with a typing error": (run_of(run="stepps = 5"), "did you mean steps"),
    "a setting in another table": (run_of(run="learning_rate = 1"), "learning_rate is no setting"),
    "a number for a text": (
        run_of(run="name = 3"),
        "run.name is 1 to 64 printable characters, not 3",
    ),
    "a text for a number": (run_of(run='steps = "many"'), "run.steps is a whole number from 1"),
    "a file that is no TOML": ("[train\n", "not TOML"),
    "a setting twice": (run_of(run="steps = 1\nsteps = 2"), "stands there twice"),
    "the file of a server": ("[serve]\nthreads = 1", r"\[serve\] is for a server.*p2pswarm node"),
}
SERVERS = {
    "the file of a trainer": (run_of(), r"\[train\] is for a trainer.*p2pswarm train"),
    "a GPU that is not here": ("[serve]\ndevice = 'cuda:99'", "serve.device 'cuda:99'"),
    "a device that nobody knows": ("[serve]\ndevice = 'gpu'", "serve.device"),
    "one program for several devices": (
        "[serve]\ndevice = 'cpu,cpu'\ncompiled = true",
        "serve.compiled is for one device: leave it out, or name one device",
    ),
    "a folder of weights that is gone": ("[serve]\npretrained = 'gone'", "gone"),
    "a folder without weights": ("[serve]\npretrained = 'nothing'", "nothing"),
    "a package that is not here": (
        "[serve]\npackages = ['nowhere']",
        "no package 'nowhere' here: in",
    ),
    "a stage that is none": ("[serve]\nstage = -1", "serve.stage is a whole number from 0 to 255"),
}
MISTAKES = {
    **{name: ("train", *row) for name, row in (TEXTS | MODELS | PLACES).items()},
    **{name: ("train", *row) for name, row in (ADDRESSES | WORDS).items()},
    **{name: ("node", *row) for name, row in SERVERS.items()},
}
"""What new users do wrong: the command, the file, and what the line about it says."""


@pytest.fixture
def beginner(tmp_path, monkeypatch):
    """A folder with what a new user may name; it is the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for folder in ("nothing", "rows", "broken"):
        (tmp_path / folder).mkdir()
    files = {
        "text.txt": TEXT,
        "empty.txt": "",
        "short.txt": "short\n",
        "mine.csv": "mine\n1\n",
        "rows/a.jsonl": '{"text": "some text"}\n' * 300,
        "broken.jsonl": "some text\n" * 300,
        "array.jsonl": '[\n{"text": "some text"},\n',
        "empty.jsonl": "",
        "torn.parquet": "PAR1 and no more",
        "text.txt.gz": "some bytes",
        "broken/tokenizer.json": "{",
        "broken/config.json": "{",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_a_new_user_is_found_by_check_in_one_line(beginner, capsys, name):
    command, text, says = MISTAKES[name]
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("", 0)) as free:
        ports = {"{port}": taken.getsockname()[1], "{free}": free.getsockname()[1]}
        free.close()
        for place, port in ports.items():
            text = text.replace(place, str(port))
        (beginner / "run.toml").write_text(text.replace("{}", str(beginner)))
        before = sorted(beginner.rglob("*"))
        words = ["run.toml"] if command == "train" else ["--role", "stage", "--config", "run.toml"]

        assert main([command, *words, "--check", "--json"]) == 2
        found = json.loads(capsys.readouterr().out)
        assert main([command, *words, "--check"]) == 2
        said = capsys.readouterr()

    assert found["good"] is False
    assert len(found["problems"]) == 1, found["problems"]
    assert re.search(says, found["problems"][0]), found["problems"][0]
    assert said.err == f"error: {found['problems'][0]}\n"
    assert said.out == ""
    assert [each for each in sorted(beginner.rglob("*")) if "cache" not in str(each)] == before


def test_there_are_as_many_mistakes_as_were_asked_for():
    assert len(MISTAKES) >= 60


def test_a_node_that_is_not_there_may_be_asked_later(capsys):
    code = main(["status", "--bootstrap", "127.0.0.1:1"])

    said = capsys.readouterr()
    assert code == 1
    assert "is a node running there, and its port open" in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "arguments are required: COMMAND; see --help"),
        ("trian run.toml", "invalid choice: 'trian' .*'train'"),
        ("train", "arguments are required: FILE"),
        ("train run.tml", "run.tml: cannot be read: No such file or directory; name another file"),
        ("train devices.toml", "a file of devices, for p2pswarm plan: name a node's settings"),
        ("train text.txt", "text.txt: not TOML"),
        ("train run.toml --steps 5", "unrecognized arguments: --steps 5; see --help"),
        ("train run.toml --resume", "add one, or set checkpoint.target"),
        ("train run.toml --standby --new", "leave one of them out"),
        ("node --role cook", "invalid choice: 'cook'"),
        ("node --invite hello", "neither a text that begins with p2pswarm-invite-"),
        ("node --relay-port 99999", "not a whole number from 1 to 65535"),
        ("generate gone", "gone: there is no such file: name the .safetensors file"),
        ("generate nothing", "nothing: a folder: name the file of weights in it"),
        (
            "generate text.txt",
            "cannot be read as safetensors: .*name the file that a trai",
        ),
        ("generate gone --temperature hot", "no number from 0 to 100"),
        ("evaluate gone gone.toml", "gone.toml: cannot be read"),
        ("export text.txt nothing", "nothing is there already, and is kept: name another"),
        ("verify nothing", "no checkpoint in nothing: name the folder of one"),
        ("status", "say through which node to ask: --bootstrap HOST:PORT"),
        ("doctor --bootstrap a", "is not HOST:PORT, for example"),
        ("plan", "p2pswarm plan --example > devices.toml"),
        ("plan run.toml", "no devices: p2pswarm plan --example prints a file of devices"),
        ("simulate run.toml", "arguments are required: --devices"),
        ("simulate run.toml --devices run.toml", "p2pswarm plan --example prints a file"),
        ("simulate devices.toml --devices devices.toml", "a file of devices, for p2pswarm plan"),
        ("demo --steps 0", "not a whole number from 1"),
        ("demo --data gone", "there is no file or folder gone"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(beginner, capsys, words, says):
    (beginner / "run.toml").write_text(run_of())
    (beginner / "devices.toml").write_text("[[device]]\ntflops = 1\n")

    try:
        code = main(words.split())
    except SystemExit as ended:
        code = ended.code

    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert re.fullmatch(f"error: [^\\n]*{says}[^\\n]*\\n", said.err), said.err


@pytest.mark.parametrize(
    ("package", "settings", "says"),
    [
        (
            "tokenizers",
            run_of(train='tokenizer = "train:320"'),
            r"pip install '\.\[data\]' in the cl",
        ),
        (
            "transformers",
            run_of(run='model = "hf:./llama"'),
            r"pip install '\.\[hf\]' in the clone",
        ),
        ("pyarrow", run_of("torn.parquet"), r"pip install '\.\[data\]' in the clone"),
        (
            "huggingface_hub",
            run_of(run='model = "hf:owner/name"'),
            r"pip install '\.\[hf\]' in the cl",
        ),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    beginner, capsys, monkeypatch, package, settings, says
):
    (beginner / "llama").mkdir()
    config = {"model_type": "llama", "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2}
    (beginner / "llama" / "config.json").write_text(json.dumps(config))
    (beginner / "run.toml").write_text(settings)
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    for library in (hf_library.library, hub.library):
        library.cache_clear()

    try:
        assert main(["train", "run.toml", "--check", "--json"]) == 2
    finally:
        for library in (hf_library.library, hub.library):
            library.cache_clear()

    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert re.search(says, problem), problem


def test_check_says_all_that_is_wrong(beginner, capsys):
    train = 'curves = "mine.csv"\nwandb = "project"\nweights = "text.txt/w"'
    (beginner / "run.toml").write_text("state = 'text.txt'\n" + run_of("empty.txt", train))

    assert main(["train", "run.toml", "--check", "--json"]) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert main(["train", "run.toml", "--check"]) == 2

    wanted = (
        "state: ",
        "is no file of curves",
        "pip install wandb",
        "text.txt/w",
        "empty.txt: there is no text",
    )
    assert len(problems) == len(wanted)
    assert all(any(part in line for line in problems) for part in wanted), problems
    assert capsys.readouterr().err == "".join(f"error: {line}\n" for line in problems)


def test_what_is_good_is_good_for_scripts_and_nothing_is_left_behind(beginner, capsys):
    more = '[checkpoint]\ntarget = "checkpoints"'
    settings = run_of(train='curves = "c.csv"\nweights = "w.safetensors"', more=more)
    (beginner / "run.toml").write_text("state = 'kept/here'\nidentity = 'n.key'\n" + settings)
    before = sorted(beginner.rglob("*"))

    assert main(["train", "run.toml", "--check", "--json"]) == 0

    assert json.loads(capsys.readouterr().out) == {"good": True, "problems": []}
    left = {each.name for each in set(beginner.rglob("*")) - set(before)}
    assert left <= {"checkpoints", "cache"}, left


def test_a_default_warm_up_that_a_short_run_does_not_end_is_said(beginner, capsys):
    (beginner / "run.toml").write_text(run_of(run="steps = 4"))

    assert main(["train", "run.toml", "--check"]) == 0

    assert (
        "after 20 steps (more than the run has, so it is never reached)" in capsys.readouterr().out
    )


def test_json_is_the_answer_of_check(beginner, capsys):
    (beginner / "run.toml").write_text(run_of())

    assert main(["train", "run.toml", "--json"]) == 2
    assert "--json is the answer of --check" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_a_key_that_others_may_read_is_found_by_check(beginner, capsys):
    (beginner / "n.key").write_bytes(bytes(32))
    (beginner / "n.key").chmod(0o644)
    (beginner / "run.toml").write_text("identity = 'n.key'\n" + run_of())

    assert main(["train", "run.toml", "--check"]) == 2
    assert "run chmod 600" in capsys.readouterr().err
