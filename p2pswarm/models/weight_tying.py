"""One tensor at both ends of a model: the embedding is the head as well.

The first and the last block each make it, and say which of their parameters it is (`Block.tied`).
Where both blocks are in one stage, it is one parameter that is used twice. Where they are not, each
stage has it, with the same first values, and both average it together (docs/models.md).

Shapes:  as the blocks make them.
Errors:  Unusable for a model whose ends cannot be one.
"""

from collections.abc import Iterable, Sequence

from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import Block
from p2pswarm.models.formats.expert_matrices import MATRIX

UNTIE = "leave run.model.tie out, or set it to false"


def tied_in(block: nn.Module) -> tuple[str, str] | None:
    """The tied parameter of a block, by its name there and in the model; None if it has none."""
    return block.tied if isinstance(block, Block) else None


def require_ends(family: str, blocks: Sequence[nn.Module]) -> None:
    """Raise Unusable unless the first and the last of all `blocks` can have one tensor."""
    ends = [tied_in(blocks[0]), tied_in(blocks[-1])]
    owns = [tied[0] for tied in ends if tied is not None]
    if len(owns) < len(ends) or len(blocks) == 1:
        raise Unusable(
            f"family {family!r} does not say what of its embedding and head could be one tensor: "
            f"{UNTIE}"
        )
    first, last = (
        tuple(block.get_parameter(own).shape)
        for block, own in zip((blocks[0], blocks[-1]), owns, strict=True)
    )
    if first != last or len(first) != MATRIX:
        raise Unusable(
            f"the embedding of {family} is {list(first)} and its head {list(last)}, which cannot "
            f"be one tensor: {UNTIE}"
        )


def join_ends(blocks: Sequence[nn.Module]) -> None:
    """Give the last block the parameter of the first, if both ends of a tied model are here."""
    ends = [(block, tied) for block in blocks if (tied := tied_in(block)) is not None]
    if len(ends) > 1:
        (first, (own, _)), (last, (there, _)) = ends
        owner, _, name = there.rpartition(".")
        setattr(last.get_submodule(owner), name, first.get_parameter(own))


def shared_name(blocks: Iterable[nn.Module]) -> str | None:
    """The full name of the tensor that these blocks have in common with another stage, if any."""
    names = [tied[1] for block in blocks if (tied := tied_in(block)) is not None]
    return names[0] if len(names) == 1 else None
