"""New runs from the weights and moments of another: other settings, a plain loop's bits."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint.saved_run import CONFIG, SavedRun, corpus, saved_run, virtual
from checkpoint.test_tied_runs import named, train

from p2pswarm.base.errors import OtherCheckpoint, Unusable
from p2pswarm.checkpoint.catalogue import open_checkpoint
from p2pswarm.checkpoint.targets import open_store
from p2pswarm.checkpoint.verification import verify
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.model_source import resolved
from p2pswarm.node.run.resume import begun_from, check_records
from p2pswarm.run.schedule import learning_rate
from p2pswarm.server.member_session import SavingLimits
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.reports.reports import MemberLost, StepDone

PARENT = replace(CONFIG, steps=4)
CHILD = replace(
    PARENT,
    stages=3,
    seed=7,
    optimizer=replace(
        PARENT.optimizer,
        learning_rate=3e-3,
        warmup_steps=1,
        decay_steps=6,
        average_decay=0.5,
        clip_norm=0.05,
    ),
    batch=replace(PARENT.batch, microbatches=4, rows=3),
)
"""Another cut, seed, rate, schedule and batch, and an average; its steps begin with 0."""
LONGER = replace(CHILD, steps=6, stages=2)
GRANDCHILD = replace(LONGER, steps=3, optimizer=replace(CHILD.optimizer, beta2=0.99))


def plainly(loop: ReferenceTrainer, config: RunConfig) -> ReferenceTrainer:
    size, text = config.batch.microbatches, corpus(config)
    for step in range(config.steps):
        numbers = range(step * size, (step + 1) * size)
        loop.add_all([torch.from_numpy(text.microbatch(number)) for number in numbers])
        loop.commit(learning_rate(config, step))
    return loop


def plain_line(*configs: RunConfig, moments: bool = True) -> dict[str, torch.Tensor]:
    """The weights of loops of which each begins from the one before."""
    loop = plainly(ReferenceTrainer(configs[0]), configs[0])
    for config in configs[1:]:
        following = ReferenceTrainer(config)
        following.begin_from(loop, moments=moments)
        loop = plainly(following, config)
    return named(loop.flat)


def assert_weights(run: SavedRun, theirs: dict[str, torch.Tensor], most: float = 1e-13) -> None:
    for engine in run.engines.values():
        for name, ours in named(engine.weights._flat).items():
            assert (ours - theirs[name]).abs().max() <= most * theirs[name].abs().max()


def newest(target, run: SavedRun) -> str:
    """The last checkpoint of a run."""
    digits = run.identity.run.hex()[:12]
    return str(max(path for path in target.iterdir() if f".{digits}." in path.name))


def begun(target, parent: SavedRun, config: RunConfig, servers=range(10, 13), **more) -> SavedRun:
    place = newest(parent.target, parent)
    return train(target, config, servers, begin_from=place, nonce=b"n" * 16, **more)


@pytest.fixture(scope="module")
def parent(tmp_path_factory) -> SavedRun:
    return train(tmp_path_factory.mktemp("parent"), PARENT, range(1, 3), every_steps=4)


def test_a_new_run_goes_on_with_weights_moments_and_their_count(tmp_path, parent):
    """Two servers die; the run goes on from a checkpoint of its own, and begins a third."""
    child = begun(tmp_path, parent, CHILD, range(10, 16), deaths={1: 0, 2: 2})
    longer = train(tmp_path, LONGER, range(20, 22), resume=True, nonce=b"r" * 16, every_steps=6)
    grandchild = begun(tmp_path, longer, GRANDCHILD, range(30, 32), every_steps=3)

    assert len(child.seen(MemberLost)) >= 2
    assert [one.step for one in child.seen(StepDone)] == list(range(CHILD.steps))
    assert [one.step for one in longer.seen(StepDone)] == [4, 5]
    assert_weights(child, plain_line(PARENT, CHILD))
    assert_weights(longer, plain_line(PARENT, LONGER))
    assert_weights(grandchild, plain_line(PARENT, LONGER, GRANDCHILD))
    assert (longer.identity.origin.begins, longer.identity.origin.before) == (4, 4)
    origin = grandchild.identity.origin
    assert (origin.run, origin.begins, origin.before) == (longer.identity.run, 0, 10)
    said: list[str] = []
    place = newest(tmp_path, grandchild)
    assert verify(place, said.append, check_records).ok
    assert f"the run: {origin.text}" in "".join(said)
    saved = open_checkpoint(open_store(place), "").manifest
    assert (saved.step, saved.cursor.optimizer_step, saved.origin) == (3, 13, origin)
    chain = (Path(place) / "chain.records").read_bytes()
    other = replace(saved, origin=replace(origin, checkpoint=b"x" * 32))
    with pytest.raises(Unusable, match="does not begin with the checkpoint"):
        check_records([chain], other)


def test_a_grid_is_read_from_the_moments_of_a_former_run_by_their_count(tmp_path):
    """Its steps would be several times as coarse if moments counted as new: the bits tell."""
    first, second = (
        replace(
            each,
            model=replace(each.model, dtype="float32"),
            codecs=replace(each.codecs, averaging="int-grid"),
        )
        for each in (PARENT, CHILD)
    )
    parent = train(tmp_path, first, range(1, 3), every_steps=4)

    run = begun(tmp_path, parent, second, range(10, 16), deaths={1: 0})

    assert_weights(run, plain_line(first, second), 0.0)


def test_moments_are_left_behind_and_weights_begin_as_first_ones_do(tmp_path, parent):
    """Another optimizer, whose moments are others; no server may open the checkpoint."""
    config = replace(CHILD, optimizer=replace(CHILD.optimizer, name="muon"))

    async def story():
        more = {"begin_from": newest(parent.target, parent), "nonce": b"n" * 16}
        async with saved_run(tmp_path, config, fresh=True, **more) as run:
            for number in range(10, 13):
                run.serve(number, SavingLimits())
            ended = await run.trainer.run()
            assert not ended.failed, ended.reason
        return run

    run = virtual(story)

    assert run.identity.origin.fresh
    assert_weights(run, plain_line(PARENT, config, moments=False), 1e-11)


def test_the_moments_of_an_adapter_go_on_beside_the_same_base(tmp_path):
    adapted = resolved(replace(PARENT, base="nf4", adapter=AdapterConfig(rank=2)))
    child = replace(CHILD, seed=adapted.seed, base="nf4", adapter=adapted.adapter)
    first = train(tmp_path, adapted, range(1, 3), every_steps=4)

    run = begun(tmp_path, first, child)

    assert_weights(run, plain_line(adapted, child), 1e-11)
    with pytest.raises(OtherCheckpoint, match=r"run\.seed is 1 .* and 7 here: set it back"):
        begun_from(newest(tmp_path, first), replace(child, seed=7), b"", print, fresh=False)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model": replace(PARENT.model, layers=3)}, r"run\.model\.layers is 2 .* 3 here: set it"),
        ({"model": replace(PARENT.model, tokenizer="ab")}, r"run\.model\.tokenizer is not set"),
        ({"adapter": AdapterConfig(targets=("qkv",))}, r"run\.adapter is not set .* a table here"),
        ({"frozen": ("blocks.1*",)}, r"run\.frozen is \[\] in the checkpoint"),
        ({"optimizer": replace(PARENT.optimizer, name="muon")}, "name is adamw .*--fresh-moments"),
        ({"delay": 1}, "run.delay is 0 .*--fresh-moments"),
    ],
)
def test_what_a_new_run_cannot_have_of_these_weights_is_a_line(parent, changes, line):
    place, here = newest(parent.target, parent), replace(PARENT, **changes)

    with pytest.raises(OtherCheckpoint, match=line) as caught:
        begun_from(place, here, b"", print, fresh=False)

    assert "\n" not in str(caught.value)
    if "--fresh-moments" in line:
        assert begun_from(place, here, b"", print, fresh=True).origin.fresh


def test_a_place_without_a_checkpoint_is_a_line(tmp_path):
    with pytest.raises(Unusable, match="there is no checkpoint to go on from"):
        begun_from(str(tmp_path), PARENT, b"", print, fresh=False)


def test_samples_that_come_again_are_told(parent):
    place, text = newest(parent.target, parent), corpus(PARENT).digest()
    said: list[str] = []

    begun_from(place, PARENT, text, said.append, fresh=False)
    begun_from(place, replace(PARENT, seed=2), text, print, fresh=False)

    assert len(said) == 1
    assert "the same samples come again: --set run.seed=NUMBER" in said[0]
