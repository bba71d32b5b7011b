"""A model whose layers share more than x, in four stages, beside a loop over all of it."""

from dataclasses import replace

import pytest
import torch
from checkpoint.saved_run import CONFIG, SavedRun, corpus, saved_run, virtual
from core import core_of
from models.residual import FAMILY, Whole

from p2pswarm.models.blocks import block_count
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.progress.events import Report
from p2pswarm.run.schedule import learning_rate
from p2pswarm.trainer.reports.reports import MemberLost, StepDone

RUN = replace(
    CONFIG,
    stages=4,
    steps=8,
    model=replace(CONFIG.model, family=FAMILY, layers=4),
    optimizer=replace(CONFIG.optimizer, clip_norm=0.5, decays="all"),
    batch=replace(CONFIG.batch, microbatches=4),
)
ERROR_MAX = 1e-9


def as_whole(name: str) -> str:
    """Where `Whole` has a parameter of the list of blocks, such as 2.layer.qkv.weight."""
    number, _, rest = name.partition(".")
    return rest.replace("layer.", f"layers.{int(number) - 1}.", 1)


def by_name(flat: FlatParameters) -> dict[str, torch.Tensor]:
    """The parameters of some blocks, as `Whole` names them."""
    return {
        as_whole(f"{number}.{name}"): parameter
        for number, block in zip(flat.numbers, flat.blocks, strict=True)
        for name, parameter in block.named_parameters()
    }


def trained_alone() -> dict[str, torch.Tensor]:
    """What torch's AdamW makes of the whole model, from the same first weights."""
    first = FlatParameters(RUN, range(block_count(RUN.model)), torch.device("cpu"))
    first.draw()
    model = Whole(RUN.model).double()
    model.load_state_dict(by_name(first))
    how, size, text = RUN.optimizer, RUN.batch.microbatches, corpus(RUN)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        betas=(how.beta1, how.beta2),
        eps=how.epsilon,
        weight_decay=how.weight_decay,
    )
    clipped = 0
    for step in range(RUN.steps):
        optimizer.zero_grad()
        for number in range(step * size, (step + 1) * size):
            tokens = torch.from_numpy(text.microbatch(number)).long()
            scores = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
            (loss / size).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), how.clip_norm)
        clipped += norm.item() > how.clip_norm
        optimizer.param_groups[0]["lr"] = learning_rate(RUN, step)
        optimizer.step()
    assert clipped  # else a wrong norm would not show
    return dict(model.named_parameters())


def train(target, stage: int) -> SavedRun:
    """Eight servers, of which one of `stage` dies within a step, and one comes in its place."""

    async def story():
        async with saved_run(target, RUN) as run:

            def die(report: Report) -> None:
                if isinstance(report, StepDone) and report.step == 2:
                    lost = run.server_of(stage)
                    run.kill(lost)
                    run.serve(100 + lost)

            run.on_report = die
            for number in range(1, 9):
                run.serve(number)
            ended = await run.trainer.run()
            assert not ended.failed, ended.reason
        return run

    return virtual(story)


@pytest.mark.parametrize("stage", core_of(range(4), [2]))
def test_weights_are_those_of_the_whole_model_whichever_stage_loses_a_server(tmp_path, stage):
    run = train(tmp_path, stage)

    assert run.seen(MemberLost)
    theirs, seen = trained_alone(), set()
    for engine in run.engines.values():
        for name, ours in by_name(engine.weights._flat).items():
            seen.add(name)
            assert (ours - theirs[name]).abs().max() <= ERROR_MAX
    assert seen == set(theirs)
