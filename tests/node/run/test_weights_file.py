"""The weights as a file: what went in comes out, under names that another program can read."""

import contextlib
import dataclasses
import resource

import pytest
import torch
from safetensors import safe_open

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.models.blocks import block_count, make_blocks, stage_blocks
from p2pswarm.models.compute.base import StateMemory, Update
from p2pswarm.models.compute.flat_parameters import (
    FlatParameters,
    digest_of,
    named_parameters,
    state_of,
)
from p2pswarm.models.compute.inference import load_model
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.node.run.weights_file import (
    model_size,
    named_weights,
    state_sizes,
    write_run,
    write_weights,
)
from p2pswarm.run.state.base import Snapshot
from p2pswarm.settings.config import ModelConfig, OptimizerConfig, RunConfig
from p2pswarm.settings.parser import run_to_json
from p2pswarm.tensors.state_tree import root_of

ROOM_BYTES = 10_000
RUN = RunConfig(
    stages=2,
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=8, dtype="float64"),
)


BF16 = dataclasses.replace(
    RUN,
    precision="bf16",
    weight_storage="bf16",
    model=dataclasses.replace(RUN.model, dtype="float32"),
)
HEADER_ROOM_BYTES = 16_384


@contextlib.contextmanager
def little_room():
    """No file of this process grows past `ROOM_BYTES`, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def state_in(state: StateMemory) -> memoryview:
    """The whole state, tensor after tensor."""
    parts = [state.read(t, k) for t in range(state.tensors) for k in range(state.pieces)]
    return memoryview(bytearray(b"".join(parts)))


def snapshots(run: RunConfig = RUN, steps: int = 0) -> list[Snapshot]:
    """Version 0 of each stage, or after some steps, as its servers would send it."""
    found = []
    for stage in range(run.stages):
        engine = torch_engine(run, stage, torch.device("cpu"), 0)
        engine.weights.reset(draw=True)
        for step in range(steps):
            reduced = engine.weights.reduction()
            reduced.reduced_N.fill_(1.0)
            engine.weights.apply(reduced, Update(step + 1, 1.0, 0.01))
        digest = root_of(engine.weights.hashes())
        found.append(Snapshot(0, digest, state_in(engine.state)))
    return found


@pytest.mark.parametrize("run", [RUN, BF16])
def test_the_sizes_are_those_of_the_snapshots(run):
    assert [size.nbytes for size in state_sizes(run)] == [
        snapshot.data.nbytes for snapshot in snapshots(run)
    ]


def test_weights_that_are_kept_in_bfloat16_are_so_in_the_file_and_their_average_is_not(tmp_path):
    run = dataclasses.replace(BF16, optimizer=OptimizerConfig(average_decay=0.75))
    found = snapshots(run, 2)

    written = write_run(tmp_path / "w.safetensors", run, found)

    assert (
        written.size_bytes
        <= model_size(run).file_bytes
        < 2.2 * model_size(run).parameters + (HEADER_ROOM_BYTES)
    )
    for average, dtype in ((False, torch.bfloat16), (True, torch.float32)):
        path = tmp_path / ("w-average.safetensors" if average else "w.safetensors")
        model = dict(named_parameters(range(4), load_model(path).blocks))
        for name, tensor in named_weights(run, found, average=average):
            assert tensor.dtype == dtype
            assert model[name].dtype == torch.float32
            assert torch.equal(model[name], tensor.float())
    assert len("".join(load_model(written.path).generate_text("a", tokens=4))) > 0


def test_every_parameter_of_the_model_is_named_once():
    named = dict(named_weights(RUN, snapshots()))

    with torch.device("meta"):
        blocks = make_blocks(RUN, range(block_count(RUN.model)))
    shapes = {
        f"blocks.{number}.{name}": parameter.shape
        for number, block in enumerate(blocks)
        for name, parameter in block.named_parameters()
    }
    assert {name: tensor.shape for name, tensor in named.items()} == shapes


def test_a_tied_tensor_is_written_once_and_has_to_be_the_same_at_both_ends():
    run = dataclasses.replace(RUN, model=dataclasses.replace(RUN.model, tie=True))
    first, last = snapshots(run)
    named = list(named_weights(run, [first, last]))

    assert len({name for name, _ in named}) == len(named)
    assert len(named) == len(list(named_weights(RUN, snapshots()))) - 1
    assert sum(x.numel() for _, x in named) == model_size(run).parameters
    assert model_size(run).parameters == model_size(RUN).parameters - 256 * 16

    last.data[last.data.nbytes // 3 - 8] ^= 1  # the last element of the weights is the head's
    damaged = Snapshot(0, digest_in(run, last), last.data)
    with pytest.raises(BadMessage, match=r"tied\.token_VD is not the same in stage 1"):
        list(named_weights(run, [first, damaged]))


def digest_in(run: RunConfig, snapshot: Snapshot) -> bytes:
    """The digest of what a snapshot of the last stage holds."""
    flat = FlatParameters(run, stage_blocks(run, run.stages - 1), torch.device("cpu"))
    return digest_of(state_of(snapshot.data, run), flat.spans())


def test_an_average_over_time_is_that_of_the_weights_of_all_steps():
    run = dataclasses.replace(RUN, optimizer=OptimizerConfig(average_decay=0.75))
    found = snapshots(run, 2)

    assert [size.nbytes for size in state_sizes(run)] == [one.data.nbytes for one in found]
    zero, one, two = (dict(named_weights(run, snapshots(run, steps))) for steps in range(3))
    for name, average in named_weights(run, found, average=True):
        expected = 0.75 * (0.75 * zero[name] + 0.25 * one[name]) + 0.25 * two[name]
        assert torch.allclose(average, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("decay", "names"), [(0.0, {"w.st"}), (0.9, {"w.st", "w-average.st"})])
def test_an_average_is_a_file_beside_the_weights(tmp_path, decay, names):
    run = dataclasses.replace(RUN, optimizer=OptimizerConfig(average_decay=decay))

    written = write_run(tmp_path / "w.st", run, snapshots(run, 1))

    assert written.path == tmp_path / "w.st"
    assert {path.name for path in tmp_path.iterdir()} == names
    if decay:
        with safe_open(tmp_path / "w-average.st", "pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for name, average in named_weights(run, snapshots(run, 1), average=True):
            assert torch.equal(found[name], average)


def test_weights_that_nobody_agreed_on_are_refused():
    first, second = snapshots()
    second.data[3] ^= 1

    with pytest.raises(BadMessage, match="stage 1"):
        list(named_weights(RUN, [first, second]))


def test_the_file_holds_every_tensor_under_its_name_and_the_run(tmp_path):
    path = tmp_path / "out" / "weights.safetensors"
    named = dict(named_weights(RUN, snapshots()))

    written = write_weights(path, named.items(), "a run")

    assert (written.path, written.refusals) == (path, ())
    assert written.size_bytes == path.stat().st_size
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"run": "a run"}
        assert set(file.keys()) == named.keys()
        for name, tensor in named.items():
            assert torch.equal(file.get_tensor(name), tensor)


def test_weights_of_a_finished_run_are_never_overwritten_by_those_of_its_restart(tmp_path):
    path = tmp_path / "weights.safetensors"
    trained, untrained = torch.ones(1), torch.zeros(1)

    first = write_weights(path, [("x", trained)], "a run")
    second = write_weights(path, [("x", untrained)], "a run")

    with safe_open(first.path, "pt") as file:
        assert file.get_tensor("x") == 1.0
    assert second.path == tmp_path / "weights-2.safetensors"


def test_the_size_is_known_before_there_are_weights(tmp_path):
    named = dict(named_weights(RUN, snapshots()))

    size = model_size(RUN)

    written = write_weights(tmp_path / "weights", named.items(), run_to_json(RUN).decode())
    assert size.parameters == sum(tensor.numel() for tensor in named.values())
    assert 0.5 * size.file_bytes < written.size_bytes <= size.file_bytes


def test_the_file_may_be_read_by_whom_the_user_allows(tmp_path):
    (tmp_path / "plain").touch()

    write_weights(tmp_path / "weights", [("x", torch.zeros(1))], "")

    assert (tmp_path / "weights").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_weights_whose_place_is_gone_lie_beside_it(tmp_path):
    (tmp_path / "weights").mkdir()

    written = write_weights(tmp_path / "weights", [("x", torch.zeros(1))], "")

    assert written.path == tmp_path / "weights-2"
    with safe_open(written.path, "pt") as file:
        assert file.get_tensor("x") == 0.0


def test_a_disk_that_is_full_is_named_and_nothing_half_written_stays(tmp_path):
    with little_room(), pytest.raises(Unusable, match=r"cannot be written: .*File too large"):
        write_weights(tmp_path / "weights", [("x", torch.zeros(100_000))], "")

    assert list(tmp_path.iterdir()) == []
