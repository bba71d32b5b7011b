"""Settings: what a file may say, and the one line when it may not."""

import dataclasses
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.settings import config, node_config
from p2pswarm.settings import parser as settings
from p2pswarm.settings.parser import RUN_VERSION as OURS
from p2pswarm.tensors.codecs.base import TensorUse
from p2pswarm.tensors.codecs.codec import CodecKind
from p2pswarm.tensors.codecs.registry import CODECS


@pytest.fixture
def written(tmp_path):
    def write(text: str):
        path = tmp_path / "run.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_an_empty_file_means_the_defaults(written):
    assert settings.load(written("")) == node_config.NodeConfig()


def test_a_file_sets_values_at_any_depth(written):
    path = written('bootstrap = ["a:1", "b:2"]\n[run]\nstages = 3\n[run.optimizer]\nclip_norm = 2')

    node = settings.load(path)

    assert node.bootstrap == ("a:1", "b:2")
    assert node.run.stages == 3
    assert node.run.optimizer.clip_norm == 2.0
    assert isinstance(node.run.optimizer.clip_norm, float)


def test_paths_are_relative_to_the_file_and_empty_ones_are_none(written):
    path = written('[train]\ndata = "text"\nweights = ""')

    node = settings.load(path)

    assert node.train.data == path.parent / "text"
    assert node.train.weights is None


def test_a_mixture_names_its_texts_relative_to_the_file(written):
    path = written('[[train.mixture]]\ndata = "a"\n[[train.mixture]]\ndata = "b"\nweight = 3')

    train = settings.load(path).train

    assert [part.data for part in train.parts] == [path.parent / "a", path.parent / "b"]
    assert [part.weight for part in train.parts] == [1.0, 3.0]
    assert settings.from_values(type(train), {"mixture": train.mixture}, "train") == train


@pytest.mark.parametrize("place", ["", "tries", "tries/the first one"])
def test_a_project_of_wandb_may_have_the_runs_name_behind_it(written, place):
    assert settings.load(written(f'[train]\nwandb = "{place}"')).train.wandb == place


def test_a_whole_number_may_be_written_as_a_float(written):
    steps = settings.load(written("[run]\nsteps = 1e3")).run.steps

    assert steps == 1000
    assert type(steps) is int


def test_a_file_may_begin_with_a_byte_order_mark(written):
    path = written("\ufeff[run]\nsteps = 7")

    assert settings.load(path).run.steps == 7


def test_an_optional_number_can_be_left_out_or_given(written):
    assert settings.load(written("[serve]\nthreads = 2")).serve.stage is None
    assert settings.load(written("[serve]\nstage = 1")).serve.stage == 1
    assert settings.load(written("[serve]\nplanned_stage = 1")).serve.planned_stage == 1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("role = 'cook'", ["role is one of auto, bootstrap, stage, trainer", '"cook"']),
        ("rolle = 'stage'", ["rolle is no setting", "did you mean role?", "log_level"]),
        ("[run]\nstepps = 1", ["run.stepps is no setting", "did you mean steps?", "min_replicas"]),
        ("[run]\nstages = 0", ["run.stages is a whole number from 1 to 256, not 0"]),
        ("[run]\nstages = true", ["run.stages", "not true"]),
        ("[run]\nstages = 2.5", ["run.stages is a whole number from 1 to 256, not 2.5"]),
        ("[run]\nseed = nan", ["run.seed is a whole number from 0 to 9223372036854775807"]),
        ("[run]\nseed = " + "9" * 5000, ["not TOML"]),
        ("[run.model]\nvocabulary = 255", ["vocabulary is a whole number from 256", "not 255"]),
        ("[run]\nname = ''", ["run.name is 1 to 64 printable characters"]),
        ('[run]\nname = "\\u001b[2J"', ["run.name is 1 to 64 printable characters"]),
        ("[run]\nmodel = 3", ["run.model is a table, not 3"]),
        ("[run.model]\ndtype = 'float16'", ["run.model.dtype is one of float32, float64"]),
        (
            '[run]\non_stage_lost = "rewind"',
            [': run.on_stage_lost = "rewind" needs checkpoints to go back to: set', "target"],
        ),
        ("[run.model]\nheads = 3", ["run.model: d_model 128 is not a multiple of heads 3"]),
        ("[run.model]\nd_model = 12", ["run.model: rotary positions need an even number"]),
        (
            "[network]\npeer_mib = 9\ntotal_mib = 8",
            ["network: peer_mib 9 is more than total_mib 8"],
        ),
        ("role = {a = 1}", ["role is one of auto", "not a table"]),
        ("[run]\nstages = 7", ["run: stages 7 is more than the 6 blocks"]),
        (
            "[run.codecs]\ngradient = 'gzip'",
            ["run.codecs.gradient is one of raw, fp16, bf16, int8"],
        ),
        ("[run.optimizer]\nlearning_rate = nan", ["run.optimizer.learning_rate", "NaN"]),
        ("[run.optimizer]\nlearning_rate = -1", ["a number from 0 to 1000, not -1"]),
        ("[run.optimizer]\nlearning_rate = 1" + "0" * 400, ["a number from 0 to 1000, not 10"]),
        ("bootstrap = 'a:1'", ['bootstrap is a list, not "a:1"']),
        ("bootstrap = ['a:1', 2]", ["bootstrap[1] is a text, not 2"]),
        ('[train]\nweights = "a\\u0000b"', ["train.weights is a path, not"]),
        (f"[train]\ndata = '{'x' * 256}'", ["train.data has a name of more than 255 bytes"]),
        (f"[train]\ntokenizer = '{'x' * 256}'", ['train.tokenizer is "bytes", a folder']),
        ("[train]\ndata = '~nobody-here/x'", ["train.data: ", "there is no such user"]),
        ('[train]\ndata = "a"\n[[train.mixture]]\ndata = "b"', ["both given: put data into the"]),
        ("[[train.mixture]]\nweight = 2", ["train.mixture[0]: data is missing: name a text"]),
        ('[[train.mixture]]\ndata = "a"\nweight = 0', ["train.mixture[0].weight is a number"]),
        ("[train]\nmixture = 'a'", ['train.mixture is a list, not "a"']),
        ("[train]\nmixture = ['a']", ["train.mixture[0] is a table"]),
        ('[train]\nwandb = "a/b/c"', ["train.wandb is a project of wandb or", "without / "]),
        ('[train]\nwandb = "tries/"', ["each 1 to 128 printable characters"]),
        ('[train]\nwandb = " "', ["each 1 to 128 printable characters"]),
        (f'[train]\nwandb = "{"a" * 129}"', ["each 1 to 128 printable characters"]),
        ("[train]\ndata = 3", ["train.data is a text, not 3"]),
        ("listen = [", ["not TOML", "at end of document"]),
        ('listen = ":1"\nlisten = ":2"', ["stands there twice"]),
        ("[run]\nsteps = 1\n[run]\nsteps = 2", ["stands there twice", "line 3"]),
        ("a = " + "[" * 3000, ["not TOML"]),
        ("listen =\nrole = 3", ["not TOML", "line 1"]),
        ('"a\\nb" = 1', ["is no setting"]),
        ("x" * 500 + " = 1", ["is no setting"]),
        ("role = " + "'" + "x" * 500 + "'", ["role is one of"]),
    ],
)
def test_a_wrong_value_is_one_line_with_file_key_and_what_is_allowed(written, text, parts):
    path = written(text)

    with pytest.raises(Unusable) as caught:
        settings.load(path)

    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < len(str(path)) + 350
    for part in parts:
        assert part in message


def test_a_file_that_is_not_there_or_not_text_is_one_line(tmp_path):
    with pytest.raises(Unusable, match="cannot be read: No such file"):
        settings.load(tmp_path / "none.toml")
    with pytest.raises(Unusable, match="cannot be read: Is a directory"):
        settings.load(tmp_path)
    (tmp_path / "bin.toml").write_bytes(b"a = 'x\xff'")
    with pytest.raises(Unusable, match="not UTF-8 at byte 6"):
        settings.load(tmp_path / "bin.toml")
    (tmp_path / "big.toml").write_bytes(b"#" * (settings.SETTINGS_BYTES_MAX + 1))
    with pytest.raises(Unusable, match="larger than"):
        settings.load(tmp_path / "big.toml")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_settings_file_that_is_a_pipe_is_one_line_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "run.toml")

    with pytest.raises(Unusable, match=r"run\.toml is a pipe or a device: write what it gives"):
        settings.load(tmp_path / "run.toml")


@pytest.mark.parametrize("role", ["bootstrap", "stage", "trainer"])
def test_the_files_that_we_ship_are_good(role, request):
    node = settings.load(request.config.rootpath / "nodes" / f"{role}.toml")

    assert node.role == role


def test_an_optimizer_may_be_named_alone(written):
    assert settings.load(written('[run]\noptimizer = "muon"')).run.optimizer.name == "muon"
    with pytest.raises(Unusable, match=r'run\.optimizer\.name is one of adamw, muon, not "sgd"'):
        settings.load(written('[run]\noptimizer = "sgd"'))


runs = st.builds(
    config.RunConfig,
    name=st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=64),
    seed=st.integers(0, 2**63 - 1),
    stages=st.integers(1, 6),
    steps=st.integers(1, 10**9),
    optimizer=st.builds(
        config.OptimizerConfig,
        learning_rate=st.floats(0, 1e3),
        beta1=st.floats(0, 0.999999),
        epsilon=st.floats(1e-16, 1),
    ),
    codecs=st.builds(
        config.CodecConfig,
        activation=st.sampled_from(["bf16", *config.FP4_NAMES]),
        gradient=st.sampled_from(
            [name for name in config.ANY_CODEC.choices if name not in config.NEAREST_FP4_NAMES]
        ),
        gradient_keys=st.sampled_from([(), ("x=int8-ef", "memory=raw")]),
        exact=st.just(False),
    ),
)


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        ("activation_keys", ["x"]),
        ("activation_keys", ["x=gzip"]),
        ("activation_keys", ["x=int8-ef"]),
        ("activation_keys", ["two words=raw"]),
        ("gradient_keys", ["=raw"]),
        ("gradient_keys", [f"x{number}=raw" for number in range(17)]),
    ],
)
def test_a_codec_for_a_key_is_named_as_key_and_codec(kind, entries):
    with pytest.raises(ValueError, match=kind):
        config.CodecConfig(**{kind: tuple(entries)})


def test_a_codec_for_a_key_stands_before_the_common_one():
    codecs = config.CodecConfig(activation_keys=("a=int8",), gradient_keys=("b=dither3",))

    assert (codecs.activation_of("a"), codecs.activation_of("b")) == ("int8", None)
    assert (codecs.gradient_of("a"), codecs.gradient_of("b")) == (None, "dither3")


@pytest.mark.parametrize("chosen", [{"gradient": "int8-ef"}, {"gradient_keys": ("x=int8-ef",)}])
def test_a_codec_with_a_memory_is_for_runs_that_promise_less(chosen):
    with pytest.raises(ValueError, match=r"int8-ef adds the errors .* set codecs.exact = false"):
        config.CodecConfig(**chosen)

    assert config.CodecConfig(**chosen, exact=False).exact is False


def test_sums_that_each_server_rounds_are_for_runs_that_promise_less():
    rounding = {
        codec.name
        for codec in CODECS
        if TensorUse.AVERAGING in codec.uses and codec.kind is not CodecKind.EXACT
    }
    assert set(config.ROUNDED_SUM_NAMES) == rounding

    for name in config.ROUNDED_SUM_NAMES:
        for chosen in (name, ("raw", name)):
            with pytest.raises(ValueError, match=rf"averaging {name} rounds .* \"int-grid\", or"):
                config.CodecConfig(averaging=chosen)
            assert config.CodecConfig(averaging=chosen, exact=False).exact is False


def test_all_codecs_of_a_run_are_named():
    assert config.CodecConfig().names == {"bf16", "raw"}
    single = config.CodecConfig(averaging="int-grid", gradient_keys=("a=int8",))
    assert single.names == {"bf16", "int-grid", "int8"}
    low = config.CodecConfig(averaging=("powersgd", "int-grid", "powersgd"))
    assert low.names == {"bf16", "raw", "int-grid"}
    assert config.CodecConfig(choice="measured").names >= {"bf16", "int8", "dither4", "dither3"}


def test_sums_are_averaged_in_one_way_or_in_one_for_each_stage(written):
    one = settings.load(written("[run.codecs]\naveraging = 'powersgd'\naveraging_rank = 16")).run
    each = settings.load(
        written("[run]\nstages = 3\n[run.codecs]\naveraging = ['raw', 'powersgd', 'int-grid']")
    ).run

    assert [one.averaging_of(stage) for stage in (0, 1)] == ["powersgd", "powersgd"]
    assert [each.averaging_of(stage) for stage in (0, 1, 2)] == ["raw", "powersgd", "int-grid"]
    assert settings.run_from_json(settings.run_to_json(each)) == each


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("averaging = 'powersg'", "averaging is one of raw, fp16, bf16, int8, planes-zstd, int-"),
        ("averaging = 3", "run.codecs.averaging is one of raw"),
        ("averaging = ['raw', 'dither4']", "averaging[1] is one of raw"),
        ("averaging = ['powersgd']", "codecs.averaging has 1 names for 2 stages: one for each"),
        ("averaging = []", "codecs.averaging has 0 names for 2 stages: one for each"),
        ("averaging_rank = 3", "averaging_rank is a whole number from 4 to 32, not 3"),
        ("averaging_rank = 33", "averaging_rank is a whole number from 4 to 32, not 33"),
        (
            "averaging = ['powersgd', 'raw']\n[run.model]\ntie = true",
            "model.tie has one tensor in the first and the last stage, which average it together",
        ),
    ],
)
def test_what_no_stage_can_average_is_refused_in_one_line(written, text, part):
    with pytest.raises(Unusable) as refusal:
        settings.load(written(f"[run.codecs]\n{text}"))

    assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_rehearsal_has_no_directions():
    with pytest.raises(ValueError, match=r"a rehearsal.* set codecs.averaging to .raw."):
        config.RunConfig(emulated=True, codecs=config.CodecConfig(averaging="powersgd"))


@pytest.mark.parametrize("name", config.NEAREST_FP4_NAMES)
def test_gradients_are_not_rounded_to_the_nearest_of_four_bits(name):
    for chosen in ({"gradient": name}, {"gradient_keys": (f"x={name}",)}):
        with pytest.raises(
            ValueError, match=f'{name} is round-to-nearest below 8 bits.* "dither4"'
        ):
            config.CodecConfig(**chosen)

    assert config.CodecConfig(activation=name, gradient="nvfp4-eden").activation == name


@given(runs)
def test_a_run_survives_its_manifest(run):
    assert settings.run_from_json(settings.run_to_json(run)) == run


@given(runs, runs)
def test_runs_share_an_id_only_when_they_are_equal(one, other):
    ids = [settings.run_id(settings.run_to_json(run)) for run in (one, other)]

    assert (ids[0] == ids[1]) == (one == other)


@given(st.binary(max_size=300))
def test_garbage_is_no_manifest(data):
    with pytest.raises(BadMessage):
        settings.run_from_json(data)


def changed(**values) -> bytes:
    whole = json.loads(settings.run_to_json(config.RunConfig()))
    whole["run"].update(values)
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"run":{},"version":99}', f"a run of version 99; this program speaks version {OURS}"),
        (
            b'{"run":{},"version":65535}',
            f"a run of version 65535; this program speaks version {OURS}",
        ),
        (b'{"run":{},"version":65536}', "version is no number from 0 to 65535"),
        (b'{"run":{},"version":-1}', "version is no number from 0 to 65535"),
        (b'{"run":{},"version":true}', "version is no number from 0 to 65535"),
        (b'{"run":{},"version":"1"}', "version is no number from 0 to 65535"),
        (b'{"run":{}}', "without a version"),
        (b"[]", "without a version"),
        (b"[" * 100_000, "not JSON"),
        (changed(stages=0), "run.stages is a whole number from 1"),
        (changed(stages=2.0), "canonical"),
        (changed(stages=None), "run.stages"),
        (changed(extra=1), "run.extra is no setting"),
        (changed(name="\x1b[2J"), "printable"),
        (changed(model=[]), "run.model is a table"),
        (changed().replace(b":", b": "), "canonical"),
    ],
)
def test_a_manifest_of_another_kind_is_refused_in_one_line(data, message):
    with pytest.raises(BadMessage) as caught:
        settings.run_from_json(data)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_whole_manifest_is_of_another_version_to_a_newer_program():
    data = settings.run_to_json(config.RunConfig())

    told = f"version {OURS}; this program speaks version {OURS + 1}"
    with pytest.raises(settings.OtherRunVersion, match=told):
        settings.run_from_json(data, version=OURS + 1)


def test_a_program_reads_what_it_writes_whatever_its_version():
    run = config.RunConfig(name="newer")

    assert settings.run_from_json(settings.run_to_json(run, version=2), version=2) == run


def test_every_setting_says_what_it_may_be():
    """Each number has its range and each name its choices, so that no file can set nonsense."""
    for kind in vars(config).values():
        if dataclasses.is_dataclass(kind) and kind.__name__.endswith("Config"):
            for field in dataclasses.fields(kind):
                assert field.type not in (int, float), (kind.__name__, field.name)


@pytest.mark.parametrize("target", ["x" * 1001, "a\nb"])
def test_a_target_that_cannot_be_told_to_servers_is_refused(target):
    with pytest.raises(ValueError, match="target is a path or URL of at most 1000 characters"):
        node_config.CheckpointConfig(target=target)


def test_tensors_are_shared_by_several_devices_only(written):
    for device in ("cuda:all", "cpu,cpu"):
        for parallel in ("tensor", "context"):
            text = f'[serve]\ndevice = "{device}"\nparallel = "{parallel}"'
            assert settings.load(written(text)).serve.parallel == parallel

    with pytest.raises(Unusable, match="parallel tensor is for several devices; device is auto"):
        settings.load(written('[serve]\nparallel = "tensor"'))
    with pytest.raises(Unusable, match="parallel context is for several devices; device is cpu"):
        settings.load(written('[serve]\ndevice = "cpu"\nparallel = "context"'))
    with pytest.raises(Unusable, match="parallel"):
        settings.load(written('[serve]\ndevice = "cpu,cpu"\nparallel = "columns"'))
