"""The bundles that cross between stages, derived from what a model's blocks give.

Errors:  Unusable for tensors that cannot travel; NotServing for a step whose codecs are not known.
"""

from collections.abc import Sequence

import torch

from p2pswarm.base.errors import BadMessage, NotServing, Unusable
from p2pswarm.models.base import trains
from p2pswarm.models.blocks import block_count, make_blocks, stage_blocks
from p2pswarm.models.boundary import Boundary, boundaries
from p2pswarm.models.dropout import draws
from p2pswarm.run.messages.step import STEPS_TOLD_MAX, NearbyCodecs
from p2pswarm.settings.codec_ladder import allowed_codes, codecs_of
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.codecs.base import DTYPES, TensorUse
from p2pswarm.tensors.codecs.bundle import BundleKey, BundleSpec
from p2pswarm.tensors.codecs.edge_codecs import EdgeCodecs, edge_codecs
from p2pswarm.tensors.codecs.meta import TensorLayout

STEPS_KNOWN_MAX = STEPS_TOLD_MAX + 2  # with a commit, and what is under way of the last two


def boundary_above(run: RunConfig, stage: int) -> Boundary | None:
    """The boundary from `stage` to the next one; None above the last and below the first."""
    if not 0 <= stage < run.stages - 1:
        return None
    return boundaries(run)[stage_blocks(run, stage).stop - 1]


def bundle_spec(boundary: Boundary | None) -> BundleSpec:
    """The bundle that crosses `boundary`; an empty one at the ends of the model."""
    if boundary is None:
        return BundleSpec()
    keys = []
    for tensor in boundary.tensors:
        dtype = DTYPES.get(tensor.dtype)
        if dtype is None:
            known = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
            raise Unusable(
                f"{tensor.key!r} crosses between stages as {tensor.dtype}: convert it to one of "
                f"{known}"
            )
        keys.append(BundleKey(tensor.key, TensorLayout(dtype, tensor.shape), tensor.differentiable))
    return BundleSpec(tuple(keys))


def engine_bundles(run: RunConfig, stage: int) -> tuple[BundleSpec, BundleSpec]:
    """The bundles that a stage takes and gives."""
    return bundle_spec(boundary_above(run, stage - 1)), bundle_spec(boundary_above(run, stage))


def check_model(run: RunConfig) -> None:
    """Raise Unusable for a run whose stages cannot be cut, traced or joined.

    Also for codecs of single tensors that cross nowhere, whatever the cut.
    """
    with torch.device("meta"):
        blocks = make_blocks(run, range(block_count(run.model)))
    drawing = any(map(draws, blocks))
    if drawing and run.spot_check_share:
        raise Unusable(
            "the model has dropout, which differs between kinds of processors: set its dropout or "
            "run.spot_check_share to 0"
        )
    for stage in range(run.stages):
        stage_blocks(run, stage)
        boundary = boundary_above(run, stage)
        boundary_codecs(run, stage, bundle_spec(boundary))
        learns = any(map(trains, blocks[: stage_blocks(run, stage).stop]))
        if boundary is not None and learns and not boundary.differentiable:
            raise Unusable(
                "nothing that crosses between two stages depends on weights, so the blocks below "
                "could not learn: a block gives whole numbers only, or detaches what it gives"
            )
    _check_keys(run)


def _check_keys(run: RunConfig) -> None:
    """Raise Unusable for a codec of a tensor that no block gives to the next one."""
    tensors = [each for boundary in boundaries(run)[:-1] for each in boundary.tensors]
    for setting, entries, crossing in (
        ("activation_keys", run.codecs.activation_keys, tensors),
        ("gradient_keys", run.codecs.gradient_keys, [x for x in tensors if x.differentiable]),
    ):
        known = dict.fromkeys(each.key for each in crossing)
        for entry in entries:
            key = entry.partition("=")[0]
            if key not in known:
                raise Unusable(
                    f"run.codecs.{setting} names {key!r}, and what crosses between blocks is "
                    f"{', '.join(known) or 'nothing'}: correct the name, or leave the entry out"
                )


def boundary_codecs(
    run: RunConfig, stage: int, bundle: BundleSpec, codes: bytes = b""
) -> tuple[EdgeCodecs, EdgeCodecs]:
    """The codecs of what goes up from `stage` and of what comes down; `codes`: as a record says."""
    chosen = codecs_of(run.codecs, codes)
    where, gradient, set_for = (block_above(run, stage), run.seed), bundle.gradient(), run.codecs
    return (
        edge_codecs(bundle, chosen.activation, set_for.activation_of, TensorUse.ACTIVATION, *where),
        edge_codecs(gradient, chosen.gradient, set_for.gradient_of, TensorUse.GRADIENT, *where),
    )


class StageCodecs:
    """The codecs at both boundaries of a stage, as they hold in each step.

    With `codecs.choice = "fixed"` they are the manifest's. Otherwise the coordinator tells them
    from one step to the next, and what it has not told is not known.
    """

    def __init__(self, run: RunConfig, stage: int, takes: BundleSpec, gives: BundleSpec) -> None:
        self._run = run
        self._stage = stage
        self._bundles = takes, gives
        self._allowed = allowed_codes(run.codecs, run.stages)
        self._told: dict[int, NearbyCodecs] = {}
        self._made: dict[tuple[bool, bytes], tuple[EdgeCodecs, EdgeCodecs]] = {}

    def on_codecs(self, first: int, told: Sequence[NearbyCodecs]) -> None:
        """The coordinator says what holds in some steps from `first` on; BadMessage if it may not.

        A record has been checked for that, but this comes from the coordinator alone.
        """
        for nearby in told:
            for stage, codes in ((self._stage - 1, nearby.below), (self._stage, nearby.above)):
                if codes and not (self._allowed and stage >= 0 and codes in self._allowed[stage]):
                    raise BadMessage(f"codecs {codes.hex()} above stage {stage}, never allowed")
        self._told.update(enumerate(told, first))
        while len(self._told) > STEPS_KNOWN_MAX:
            del self._told[min(self._told)]

    @property
    def usual(self) -> tuple[EdgeCodecs, EdgeCodecs]:
        """The manifest's: of gradients to the stage below, and of activations to the one above."""
        return self._at(below=True, codes=b"")[1], self._at(below=False, codes=b"")[0]

    def takes(self, step: int) -> EdgeCodecs:
        """Of activations from the stage below."""
        return self._in_force(step, below=True)[0]

    def returns(self, step: int) -> EdgeCodecs:
        """Of gradients to the stage below."""
        return self._in_force(step, below=True)[1]

    def gives(self, step: int) -> EdgeCodecs:
        """Of activations to the stage above."""
        return self._in_force(step, below=False)[0]

    def gradient(self, step: int) -> EdgeCodecs:
        """Of gradients from the stage above."""
        return self._in_force(step, below=False)[1]

    def _in_force(self, step: int, *, below: bool) -> tuple[EdgeCodecs, EdgeCodecs]:
        if not self._allowed:
            return self._at(below=below, codes=b"")
        nearby = self._told.get(step)
        if nearby is None:
            raise NotServing(f"the codecs of step {step} are not known here yet")
        return self._at(below=below, codes=nearby.below if below else nearby.above)

    def _at(self, *, below: bool, codes: bytes) -> tuple[EdgeCodecs, EdgeCodecs]:
        made = self._made.get((below, codes))
        if made is None:
            bundle, stage = self._bundles[not below], self._stage - below
            made = boundary_codecs(self._run, stage, bundle, codes)
            self._made[below, codes] = made
        return made


def block_above(run: RunConfig, stage: int) -> int:
    """The number of the first block above the boundary that `stage` gives; 0 below the first."""
    return stage_blocks(run, stage).stop if stage >= 0 else 0
