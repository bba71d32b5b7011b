"""A run goes on from a checkpoint only if it then computes the same bits."""

import dataclasses

import pytest
from checkpoint.harness import CORPUS, RUN, RUN_ID, TRAINER, checkpoint_id, manifest_of
from checkpoint.test_checkpoint_manifest import stages

from p2pswarm.base.errors import OtherCheckpoint
from p2pswarm.checkpoint.checkpoint_manifest import SignedManifest
from p2pswarm.checkpoint.compatibility import Wanted, check
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import CodecConfig
from p2pswarm.settings.objective import ObjectiveConfig

SIMPO = ObjectiveConfig(name="simpo")
ADAPTER = AdapterConfig(rank=4, alpha=4.0, targets=("qkv",))
SIGNED = SignedManifest(manifest_of(stages()), TRAINER.peer_id)


def replaced(table: str, **values):
    return dataclasses.replace(RUN, **{table: dataclasses.replace(getattr(RUN, table), **values)})


@pytest.mark.parametrize(
    "run",
    [
        RUN,
        dataclasses.replace(RUN, stages=4),
        dataclasses.replace(RUN, steps=5, min_replicas=3, name="another name"),
        dataclasses.replace(RUN, codecs=CodecConfig(activation="raw")),
        replaced("batch", window=3, evaluate_every=0),
        replaced("model", hub=f"owner/name@{'0' * 40}"),
    ],
)
def test_another_cut_and_other_codecs_go_on(run):
    check(SIGNED, Wanted(config=run, run=RUN_ID, corpus=CORPUS, signer=TRAINER.peer_id))


@pytest.mark.parametrize(
    ("run", "part"),
    [
        (dataclasses.replace(RUN, seed=2), "run.seed is 1 in the checkpoint and 2 here"),
        (dataclasses.replace(RUN, emulated=True), "run.emulated is False in the checkpoint"),
        (replaced("model", d_model=8), "run.model.d_model is 4 in the checkpoint and 8 here"),
        (replaced("model", tie=True), "run.model.tie is not set in the checkpoint and True here"),
        (replaced("model", dtype="float64"), "run.model.dtype is float32"),
        (replaced("optimizer", beta2=0.9), "run.optimizer.beta2 is 0.95"),
        (replaced("batch", microbatches=9), "run.batch.microbatches is 8"),
        (replaced("optimizer", decay_steps=0), "run.optimizer.decay_steps is 100"),
        (dataclasses.replace(RUN, frozen=("blocks.0.*",)), "run.frozen is [] in the checkpoint"),
        (dataclasses.replace(RUN, adapter=ADAPTER), "run.adapter is not set in the checkpoint"),
        (
            dataclasses.replace(RUN, objective=SIMPO),
            "run.objective.name is tokens in the checkpoint",
        ),
    ],
)
def test_what_decides_the_bits_is_named(run, part):
    with pytest.raises(OtherCheckpoint, match="set it back, or begin a new run") as caught:
        check(SIGNED, Wanted(config=run))

    assert part in str(caught.value)


def test_an_adapter_has_the_numbers_that_it_began_with():
    run = dataclasses.replace(RUN, adapter=ADAPTER, base="nf4")
    signed = SignedManifest(manifest_of(stages(), run=run), TRAINER.peer_id)
    check(signed, Wanted(config=run))
    alpha = dataclasses.replace(ADAPTER, alpha=2.0)
    for other, said in (
        (dataclasses.replace(run, base="bf16"), "run.base is nf4 in the checkpoint and bf16 here"),
        (dataclasses.replace(run, adapter=alpha), "run.adapter.alpha is 4.0 in the checkpoint"),
        (dataclasses.replace(run, adapter=None, base="full", frozen=("x",)), "run.base is nf4"),
    ):
        with pytest.raises(OtherCheckpoint, match="set it back, or begin a new run") as caught:
            check(signed, Wanted(config=other))
        assert said in str(caught.value)


def test_modules_at_cuts_hold_the_cut():
    run = replaced("model", boundary="resbm")
    signed = SignedManifest(manifest_of(stages(), run=run), TRAINER.peer_id)
    check(signed, Wanted(config=run))

    for other, what in (({"stages": 1}, "1 stage here"), ({"cut": (1, 3)}, "run.cut [1, 3] here")):
        with pytest.raises(OtherCheckpoint, match="set it back, or begin a new run") as caught:
            check(signed, Wanted(config=dataclasses.replace(run, **other)))
        assert what in str(caught.value)
        assert "run.model.boundary has modules where the run is cut" in str(caught.value)


def test_with_a_delay_sums_come_on_a_grid_only_where_the_state_has_it():
    raw = dataclasses.replace(RUN, delay=1, codecs=CodecConfig(averaging="raw"))
    grid = dataclasses.replace(raw, codecs=CodecConfig(averaging="int-grid"))
    of_raw, of_grid = (
        SignedManifest(manifest_of(stages(), run=run), TRAINER.peer_id) for run in (raw, grid)
    )

    check(of_grid, Wanted(config=raw))
    check(of_grid, Wanted(config=grid))

    told = "run.codecs.averaging is raw in the checkpoint and int-grid here: set it back"
    with pytest.raises(OtherCheckpoint, match=told):
        check(of_raw, Wanted(config=grid))


def test_factors_of_low_rank_hold_rank_and_names_and_with_a_list_the_cut():
    low = dataclasses.replace(RUN, codecs=CodecConfig(averaging="powersgd"))
    each = dataclasses.replace(RUN, codecs=CodecConfig(averaging=("powersgd", "raw")))
    of_low, of_each = (
        SignedManifest(manifest_of(stages(), run=run), TRAINER.peer_id) for run in (low, each)
    )

    check(of_low, Wanted(config=dataclasses.replace(low, stages=1)))
    check(of_each, Wanted(config=each))

    rank = dataclasses.replace(low, codecs=CodecConfig(averaging="powersgd", averaging_rank=4))
    cut = dataclasses.replace(each, cut=(1, 3))
    for signed, other, told in (
        (of_low, RUN, r"codecs.averaging is powersgd in the checkpoint and raw here"),
        (of_low, each, r"powersgd in the checkpoint and \['powersgd', 'raw'\] here"),
        (of_low, rank, r"codecs.averaging_rank is 8 in the checkpoint and 4 here"),
        (of_each, cut, r"averaging has names for single stages, 2 stages in .* \[1, 3\] here"),
    ):
        with pytest.raises(OtherCheckpoint, match=told):
            check(signed, Wanted(config=other))


def test_a_constant_rate_holds_no_length():
    run = replaced("optimizer", decay_steps=0, schedule="constant")
    signed = SignedManifest(manifest_of(stages(), run=run), TRAINER.peer_id)

    check(signed, Wanted(config=dataclasses.replace(run, steps=500)))


def test_a_schedule_that_ends_with_the_run_holds_its_length():
    run = replaced("optimizer", decay_steps=0)
    signed = SignedManifest(manifest_of(stages(), run=run), TRAINER.peer_id)

    check(signed, Wanted(config=run))
    with pytest.raises(OtherCheckpoint, match=r"run\.steps is 1000 in the checkpoint and 500"):
        check(signed, Wanted(config=dataclasses.replace(run, steps=500)))


def test_a_program_with_another_schedule_is_noticed():
    cursor = dataclasses.replace(SIGNED.manifest.cursor, next_learning_rate=0.25)
    signed = dataclasses.replace(
        SIGNED, manifest=dataclasses.replace(SIGNED.manifest, cursor=cursor)
    )

    with pytest.raises(
        OtherCheckpoint, match=r"next learning rate is 0\.25; .*install the release"
    ):
        check(signed, Wanted(config=RUN))


@pytest.mark.parametrize(
    ("wanted", "part"),
    [
        (Wanted(run=b"0" * 16), "of run 'my run'"),
        (Wanted(corpus=b"0" * 32), "on another text: name the text"),
        (Wanted(signer=Identity.generate(b"x").peer_id), "signed by"),
    ],
)
def test_another_run_text_or_signer_is_named(wanted, part):
    with pytest.raises(OtherCheckpoint) as caught:
        check(SIGNED, wanted)

    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert checkpoint_id().run == RUN_ID


def test_another_tokenizer_is_named_before_the_tokens_that_it_made():
    other = replaced("model", tokenizer="ab" * 32)

    with pytest.raises(
        OtherCheckpoint, match=r"run\.model\.tokenizer is not set in the checkpoint and abab"
    ):
        check(SIGNED, Wanted(config=other, corpus=b"0" * 32))
