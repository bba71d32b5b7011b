"""The check that a model which is cut into stages computes what the whole model does.

Units:   differences are relative to the largest value of a gradient.
Shapes:  tokens_BS as `base.py`; N elements in a stage.
Errors:  Unusable for a model that cannot be made, cut or trained, or is too large; Refused for a
         bundle that the next stage would not take.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import dataclasses
import logging
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from p2pswarm.base.errors import Refused, SwarmError, Unusable
from p2pswarm.data.samples.target_marks import BEGIN, NO_TARGET
from p2pswarm.models.adapters.lora_modules import is_of_adapter
from p2pswarm.models.base import Bundle
from p2pswarm.models.base_weights.dense_weights import dense_weights
from p2pswarm.models.blocks import block_costs, cut_into, stage_blocks
from p2pswarm.models.boundary import boundaries
from p2pswarm.models.boundary_block import has_modules
from p2pswarm.models.check.small_copy import parameter_count, shrunken
from p2pswarm.models.compute.autograd_graphs import GraphLimits
from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.models.compute.bundle_spec import boundary_above
from p2pswarm.models.compute.flat_parameters import FlatParameters, named_parameters
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.tokens import ids_of, labels_of, targets_in
from p2pswarm.models.compute.torch_stage import TorchStage
from p2pswarm.models.document_positions import (
    APART,
    KEPT_APART,
    MARKED,
    marked_positions,
    positions_of,
)
from p2pswarm.models.dropout import draws
from p2pswarm.models.formats.weight_formats import DTYPES
from p2pswarm.models.library.foreign_code import foreign, is_foreign, said
from p2pswarm.models.library.hf_library import library_model
from p2pswarm.models.losses.cross_entropy import nats_of
from p2pswarm.models.scope import full_name
from p2pswarm.settings.config import HF, RunConfig

BUILT_IN = "gpt"
CPU = torch.device("cpu")
PARAMETERS_MAX = 100_000_000  # float64 and its gradients, a few times: some GB
TOLERANCE = 1e-9  # of float64: sums of several gradients may round in another order
ALONE_TOLERANCE = 1e-5  # some families sum in float32; a document that is seen makes 1e-3 and more
ROUNDING = 1e-9  # of the largest gradient: a bias of keys has none, and sums leave 1e-17
KEEP_ALL = 1 << 60
SPEC = BackwardSpec(counting=True, returning=True)
CHECKED_KEPT = 64

NOT_FINITE = (
    "its loss or a gradient is not finite with first weights, already as a whole: a block gives "
    "NaN or infinity"
)
OWN_RULE = "a block computes in the dtype and on the device of what it is given, which stays"
LIBRARY_RULE = (
    "its config does not go together, or its layers take more than what the layer before gave: "
    "docs/models.md names families that can be cut"
)
OWN_SIZES = "make its sizes settings of run.model"
LIBRARY_SIZES = (
    "its sizes depend on each other in a way that is not known here: docs/models.md names families "
    "that can be trained"
)
AUTOGRAD = (
    "a stage takes its gradients by torch.autograd.grad and may have its graph made again: "
    "checkpoint with use_reentrant=False, no sparse gradients, shapes that do not depend on numbers"
)
IN_PLACE = "in-place"
"""A part of torch's errors where a tensor was changed where it lies."""
CHANGED_BUFFER = (
    "its forward changes, and machines that hold the same stage would differ: make it a parameter, "
    "or compute it from the input"
)
DRAWN_BUFFER = (
    "is drawn by chance, and machines that hold the same stage would differ: make it a parameter, "
    "or draw it by a torch.Generator with a seed"
)

log = logging.getLogger(__name__)
Gradients = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Computed:
    """The result of one way of computing for the same tokens."""

    loss: float
    gradients: Gradients

    @property
    def finite(self) -> bool:
        """Return whether all of it is."""
        each = (gradient.isfinite().all() for gradient in self.gradients.values())
        return math.isfinite(self.loss) and all(each)


def gradients_of(flats: Sequence[FlatParameters]) -> Gradients:
    """The gradient of each parameter; of a tied one the sum over both ends of the model."""
    found: Gradients = {}
    for flat in flats:
        names = (name for name, _ in named_parameters(flat.numbers, flat.blocks))
        for name, total in zip(names, flat.sums, strict=True):
            found[name] = found[name] + total if name in found else total
    return found


def difference_of(
    one: Computed, other: Computed, tolerance: float = TOLERANCE
) -> tuple[float, str]:
    """The largest relative difference, and the first parameter that differs by too much."""
    worst, problem = 0.0, ""
    largest = max((g.abs().max().item() for g in one.gradients.values()), default=0.0)
    for name, gradient in one.gradients.items():
        theirs = other.gradients[name]
        scale = max(gradient.abs().max().item(), theirs.abs().max().item(), ROUNDING * largest)
        scale = scale or 1.0
        apart = (gradient - theirs).abs().max().item() / scale
        if not apart <= tolerance and not problem:
            problem = f"the gradient of {name} differs by {apart:.1e} of its largest value"
        worst = max(worst, apart)
    off = abs(one.loss - other.loss)
    if not off <= tolerance * max(abs(one.loss), 1.0) and not problem:
        problem = f"the losses differ by {off:.1e}, and no gradient does"
    return worst, problem


def buffers_of(blocks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """A copy of each buffer, by its block and name."""
    return {
        f"{number} ({type(block).__name__}): {name}": buffer.clone()
        for number, block in enumerate(blocks)
        for name, buffer in block.named_buffers()
    }


def require_same(before: dict[str, Tensor], after: dict[str, Tensor], why: str) -> None:
    """Raise Unusable if a buffer is not the same: replicas would differ."""
    for name, buffer in before.items():
        if name not in after or not torch.equal(buffer, after[name]):
            raise Unusable(f"block {name} is a buffer that {why}")


def require_weights(flat: FlatParameters, before_N: Tensor) -> None:
    """Raise Unusable if a forward or a backward has changed a weight."""
    names = (name for name, _ in named_parameters(flat.numbers, flat.blocks))
    for name, place in zip(names, flat.segments, strict=True):
        now, before = (x[place.start : place.stop] for x in (flat.params_N, before_N))
        if not torch.equal(now, before):
            raise Unusable(
                f"a forward changes the weights {name}, and machines that hold the same stage "
                "would differ: only the optimizer may (nn.Embedding: leave max_norm out)"
            )


def require_as_traced(run: RunConfig, stage: int, bundle: Bundle) -> None:
    """Raise Refused for a bundle that the next stage would not take."""
    above = boundary_above(run, stage)
    for each in above.tensors if above else ():
        x = bundle[each.key]
        if (x.dtype, tuple(x.shape)) != (each.dtype, each.shape):
            raise Refused(
                f"stage {stage} gives {each.key} as {x.dtype} {tuple(x.shape)}, and "
                f"{each.dtype} {each.shape} when it is traced: its shape may not depend on numbers"
            )


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The findings of one check.

    A small copy of it (`small_copy.py`) is run as a whole and in stages: forward, backward,
    with graphs that are kept and with graphs that are made again, and all of it twice. A model of
    `transformers` is compared with the library's own, which no cut has touched; where documents
    are to be apart, also with the library's own given one document at a time. A forward may not
    change what a block holds, nor give another bundle than its trace: replicas of a stage hold the
    same weights and constants, and only the optimizer changes them.
    """

    stages: int
    parameters: int
    """How many tensors were compared."""
    apart: float
    """The largest difference of a gradient, relative to the parameter's largest."""
    problem: str
    """The parameter that differs and a possible reason, in one line; empty if all is well."""


class TooLargeToCheck(Unusable):
    """No copy of the model is small enough."""


def check_once(run: RunConfig) -> None:
    """Raise Unusable if a model of others does not compute in stages what the whole does.

    A process checks a model once. The built-in one is checked by its tests. One that is too large
    is not checked, and the log says so: it may be right.
    """
    name = run.model.family
    if name == BUILT_IN:
        return
    try:
        problem = check_stages(run).problem
    except TooLargeToCheck as error:
        log.warning("the model %s is not checked in stages: %s", name, error)
        return
    if problem:
        raise Unusable(f"the model {name} computes wrong in stages: {problem}")


def check_stages(run: RunConfig) -> ModelCheck:
    """Compare a small copy of the run's model, cut into stages, with the whole.

    In float64, where nothing hides in the rounding, if it can; then in the run's own precision.
    """
    small = shrunken(run)
    try:
        found = check_blocks(small)
    except Unusable:  # some models compute in float32 alone, whatever they are given
        model = dataclasses.replace(small.model, dtype=run.model.dtype)
        small = dataclasses.replace(small, model=model)
        found = check_blocks(small)
    if run.precision == "full" or found.problem:
        return found
    model = dataclasses.replace(small.model, dtype=run.model.dtype)
    low = dataclasses.replace(
        small, model=model, precision=run.precision, weight_storage=run.weight_storage
    )
    problem = _low_precision(low)
    return dataclasses.replace(found, problem=problem)


@lru_cache(maxsize=CHECKED_KEPT)
def _low_precision(run: RunConfig) -> str:
    """The problem of a small copy in the run's precision; empty if there is none."""
    try:
        _, problem = difference_of(_blocks(run), _stages(run, 0))
    except (Exception, SystemExit) as error:  # noqa: BLE001  what is our bug is raised again
        what = _said_of(error, SwarmError)
        return f"it cannot be computed in {run.precision}: {what}; set run.precision to full"
    return f"in {run.precision} {problem}" if problem else ""


@lru_cache(maxsize=CHECKED_KEPT)
def check_blocks(run: RunConfig) -> ModelCheck:
    """Compare the stages of `run` itself with the whole."""
    count = parameter_count(run)
    if count > PARAMETERS_MAX:
        library = run.model.family.startswith(HF)
        raise TooLargeToCheck(
            f"the model's small copy has {count:,} parameters, {PARAMETERS_MAX:,} can be checked: "
            f"{LIBRARY_SIZES if library else OWN_SIZES}"
        )
    names, worst = 0, 0.0
    expected = _as_a_whole(run)
    if not expected.finite:
        return ModelCheck(run.stages, names, math.inf, NOT_FINITE)
    for way, reason in WAYS.items():
        try:
            computed = way(run, expected)
        except (Exception, SystemExit) as error:  # noqa: BLE001  what is our bug is raised again
            what = _said_of(error, Refused)
            why = reason if IN_PLACE in str(error) else AUTOGRAD
            problem = f"it cannot be computed so: {what}; {why}"
            return ModelCheck(run.stages, names, math.inf, problem)
        tolerance = ALONE_TOLERANCE if way is _alone else TOLERANCE
        apart, problem = difference_of(expected, computed, tolerance)
        names, worst = len(computed.gradients), max(worst, apart)
        if problem:
            return ModelCheck(run.stages, names, worst, f"{problem}; {reason}")
    return ModelCheck(run.stages, names, worst, "")


def _said_of(error: BaseException, told: type[SwarmError]) -> str:
    """The text of an error of the model's; raises it again if it is neither that nor `told`."""
    if not (isinstance(error, told) or is_foreign(error)):
        raise error
    return said(error)


def check_rows(run: RunConfig) -> None:
    """Raise Unusable for a model whose rows see each other, for a server that splits them.

    A process checks a model once. The built-in one is checked by its tests; one that draws cannot
    be split by rows in any case, and is refused there.
    """
    if run.model.family == BUILT_IN:
        return
    if not _rows_are_apart(cut_into(shrunken(run), 1)):
        raise Unusable(
            f"the model {run.model.family} looks at several rows of a microbatch at once, as a "
            "norm over rows does, so several devices cannot split it by rows: set serve.device to "
            "one of them"
        )


@lru_cache(maxsize=CHECKED_KEPT)
def _rows_are_apart(run: RunConfig) -> bool:
    together, alone = ReferenceTrainer(run, rounded=False), ReferenceTrainer(run, rounded=False)
    if any(map(draws, together.flat.blocks)):
        return True
    tokens_BS = tokens_of(run)
    whole = Computed(together.add(tokens_BS, 0), gradients_of([together.flat]))
    losses = [alone.add(row_1S, 0) for row_1S in torch.split(tokens_BS, 1)]
    parts = Computed(sum(losses) / len(losses), gradients_of([alone.flat]))
    return not difference_of(whole, parts, ALONE_TOLERANCE)[1]


def tokens_of(run: RunConfig) -> Tensor:
    """Tokens by chance for one microbatch; with documents apart, each row has the end of one."""
    generator = torch.Generator().manual_seed(run.seed)
    shape = run.batch.rows, run.model.sequence_length + 1
    tokens_BS = torch.randint(0, run.model.vocabulary, shape, generator=generator)
    if run.model.documents == APART:
        tokens_BS[:, shape[1] // 3] = run.model.document_end
    elif run.model.documents == MARKED:
        tokens_BS[:, shape[1] // 3] |= BEGIN | NO_TARGET
    return tokens_BS


def fill_factors(flat: FlatParameters) -> None:
    """Give numbers to the factors of adapters that begin as zeros: they hide all that is wrong."""
    for name, parameter in named_parameters(flat.numbers, flat.blocks):
        if is_of_adapter(name) and not parameter.any():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            with torch.no_grad():
                drawn = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.copy_(drawn)


def _trainer(run: RunConfig) -> ReferenceTrainer:
    trainer = ReferenceTrainer(run, rounded=False)
    fill_factors(trainer.flat)
    return trainer


def _blocks(run: RunConfig) -> Computed:
    """All blocks in one process, as the plain loop computes."""
    trainer = _trainer(run)
    loss = trainer.add(tokens_of(run), 0)
    return Computed(loss, gradients_of([trainer.flat]))


def _as_a_whole(run: RunConfig) -> Computed:
    """As `_blocks`; Unusable for a model whose own code fails."""
    rule = LIBRARY_RULE if run.model.family.startswith(HF) else OWN_RULE
    with foreign(f"a small copy of the model {run.model.family} cannot be computed", f"; {rule}"):
        try:
            return _blocks(run)
        except (Exception, SystemExit):
            boundaries(run)  # says which block it is, where it fails without numbers, too
            raise


def _blocks_twice(run: RunConfig, first: Computed) -> Computed:
    """The same blocks a second time: nothing may depend on what was computed before."""
    trainer, again = _trainer(run), _trainer(run)
    tokens_BS = tokens_of(run)
    before = buffers_of(trainer.flat.blocks)
    require_same(buffers_of(again.flat.blocks), before, DRAWN_BUFFER)
    weights_N = trainer.flat.params_N.clone()
    trainer.add(tokens_BS, 0)
    require_same(before, buffers_of(trainer.flat.blocks), CHANGED_BUFFER)
    require_weights(trainer.flat, weights_N)
    trainer.flat.sum_N.zero_()
    loss = trainer.add(tokens_BS, 0)
    del first
    return Computed(loss, gradients_of([trainer.flat]))


def _stages(run: RunConfig, graphs: int | GraphLimits) -> Computed:
    flats = [FlatParameters(run, stage_blocks(run, stage), CPU) for stage in range(run.stages)]
    for flat in flats:
        flat.draw()
        fill_factors(flat)
    stages = [TorchStage(run, n, flat, graphs) for n, flat in enumerate(flats)]
    tokens_BS = tokens_of(run)
    bundle: Bundle = {}
    for number, stage in enumerate(stages[:-1]):
        stage.forward((0, 0), tokens_BS.clone(), _sent(bundle))
        # the second time its graph's size is known: so it may run without one
        bundle = stage.forward((1, 0), tokens_BS.clone(), _sent(bundle))
        require_as_traced(run, number, bundle)
    result = stages[-1].finish(tokens_BS.clone(), _sent(bundle), SPEC)
    gradient = result.gradient
    for stage in reversed(stages[:-1]):
        gradient = stage.backward((1, 0), _sent(gradient), SPEC)
    return Computed(result.loss, gradients_of(flats))


def _sent(bundle: Bundle) -> Bundle:
    """A bundle as another machine gets it: in memory of its own."""
    return {key: x.clone() for key, x in bundle.items()}


def _whole(run: RunConfig, first: Computed) -> Computed:
    """The library's own model, with the weights of the blocks; other families have only blocks."""
    if run.model.documents in KEPT_APART:
        return first  # `_alone` compares: not every family's own masks know documents
    return _of_library(run, first, _scores)


def _positions(run: RunConfig, tokens_BT: Tensor) -> Tensor:
    """Of each token in its document."""
    if run.model.documents == MARKED:
        return marked_positions(tokens_BT)
    return positions_of(tokens_BT, run.model.document_end)


def _alone(run: RunConfig, first: Computed) -> Computed:
    """The library's own model, given one document at a time, if they are to be apart."""
    if run.model.documents not in KEPT_APART:
        return first

    def scores(whole: Any, tokens_BT: Tensor) -> Tensor:
        rows = []
        position_BT = _positions(run, tokens_BT)
        for row_T, position_T in zip(ids_of(tokens_BT), position_BT, strict=True):
            begins = (position_T == 0).nonzero().flatten()[1:].tolist()
            documents = row_T.unsqueeze(0).tensor_split(begins, dim=1)
            rows.append(torch.cat([_scores(whole, each) for each in documents], dim=1))
        return torch.cat(rows)

    return _of_library(run, first, scores)


def _scores(whole: Any, tokens_BT: Tensor) -> Tensor:
    scores_BTV: Tensor = whole(input_ids=tokens_BT, use_cache=False).logits
    return scores_BTV


def _of_library(
    run: RunConfig, first: Computed, scores: Callable[[Any, Tensor], Tensor]
) -> Computed:
    if not run.model.family.startswith(HF) or has_modules(run):
        return first
    flat = FlatParameters(run, range(len(block_costs(run.model))), CPU)
    if any(map(draws, flat.blocks)):
        return first  # the library draws in another order
    flat.draw()
    fill_factors(flat)
    dtype = DTYPES[run.model.dtype]
    whole = library_model(run.model, dtype)
    theirs = {name for name, p in whole.named_parameters() if p.requires_grad}
    values = {
        full_name(number, block, name): x
        for number, block in zip(flat.numbers, flat.blocks, strict=True)
        for name, x in dense_weights(block, dtype)
    }
    if theirs != values.keys():
        odd = min(theirs ^ values.keys())
        raise Unusable(f"{run.model.family} cannot be cut: {odd} is not in one block")
    ours = dict(named_parameters(flat.numbers, flat.blocks))
    tokens_BS = tokens_of(run)

    def with_values(**also: Any) -> Any:
        return functional_call(whole, values, (), also)

    nats = nats_of(scores(with_values, tokens_BS[:, :-1]), labels_of(tokens_BS))
    share = nats * run.share_of_token
    found = torch.autograd.grad(share, list(ours.values()), materialize_grads=True)
    mean = nats.item() / targets_in(tokens_BS)
    gradients: Gradients = dict(zip(ours, found, strict=True))
    if run.model.router_loss:
        # the library's own is one over all layers; each layer's comes to what it has without
        plain = dataclasses.replace(run.model, router_loss=False)
        without = _blocks(dataclasses.replace(run, model=plain)).gradients
        gradients = {
            name: x + (first.gradients[name] - without[name]).view(x.shape)
            for name, x in gradients.items()
        }
    return Computed(mean, gradients)


WAYS: dict[Callable[[RunConfig, Computed], Computed], str] = {
    _blocks_twice: "computed twice it gives two results: its forward draws by chance of its "
    "own, or keeps something from call to call (a block that draws says `random = True`)",
    lambda run, _: _stages(run, KEEP_ALL): "one stage after another gives other results than all "
    "blocks in one: a block reads something that is not in its bundle, or changes a tensor that it "
    "was given",
    lambda run, _: _stages(run, 0): "a graph that is made again gives other results: its forward "
    "draws by chance of its own, or keeps something from call to call",
    lambda run, _: _stages(run, GraphLimits(KEEP_ALL, recompute="block")): "a block whose graph is "
    "made again by itself gives other results: it keeps something from call to call, or changes a "
    "tensor that it was given",
    _whole: "the blocks together compute something else than the library's whole model: its "
    "forward does something between layers that the cut does not know",
    _alone: f"documents in one row see each other: this family does not keep them apart: leave "
    f'run.model.documents = "{APART}" out',
}
"""Each way to compute, given what all blocks in one give, and the reason if it gives another."""
