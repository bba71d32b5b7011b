"""What a push to this stage must announce: tokens of the run's shape and the model's bundle.

Errors:  BadMessage for any other announcement, before memory is set aside for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage
from p2pswarm.models.base import Bundle
from p2pswarm.models.compute.base import Engine
from p2pswarm.run.messages.types import Work
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.codecs.base import Tensor
from p2pswarm.tensors.codecs.bundle import BundleSpec
from p2pswarm.tensors.codecs.meta import Dtype, TensorMeta

TOKENS = frozenset({Dtype.UINT8, Dtype.INT32, Dtype.INT64})


@dataclass(frozen=True, slots=True)
class WorkInputs:
    """The tensors of one push."""

    tokens: Tensor | None
    """None for a gradient: the stage has kept them."""
    bundle: Bundle


@dataclass(frozen=True, slots=True)
class ExpectedTensors:
    """The tensors of every push to one stage."""

    tokens_shape: tuple[int, int]
    """Rows, and one token more than the sequence length."""
    takes: BundleSpec
    gradient: BundleSpec
    """The gradient of what the stage gives."""

    def check(self, work: Work, metas: Sequence[TensorMeta]) -> None:
        """Raise BadMessage unless `metas` announce what `work` needs."""
        if work is Work.BACKWARD:
            self.gradient.check(metas)
            return
        if not metas:
            raise BadMessage("nothing announced where tokens are due")
        tokens = metas[0]
        if tokens.dtype not in TOKENS or tokens.shape != self.tokens_shape:
            raise BadMessage(
                f"tokens of dtype {tokens.dtype} and shape {tokens.shape} where whole numbers of "
                f"{self.tokens_shape} are due"
            )
        self.takes.check(metas[1:])

    def inputs(self, work: Work, tensors: Sequence[Tensor]) -> WorkInputs:
        """Name the tensors of a push that was checked."""
        if work is Work.BACKWARD:
            return WorkInputs(None, dict(zip(self.gradient.names, tensors, strict=True)))
        return WorkInputs(tensors[0], dict(zip(self.takes.names, tensors[1:], strict=True)))


def expected_tensors(run: RunConfig, engine: Engine) -> ExpectedTensors:
    """What pushes to the stage of `engine` announce."""
    shape = run.batch.rows, run.model.sequence_length + 1
    return ExpectedTensors(shape, engine.takes, engine.gives.gradient())
