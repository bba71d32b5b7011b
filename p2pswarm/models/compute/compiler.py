"""Blocks by `torch.compile`: some operations become one, so that less memory is read and written.

What is compiled is tried out before the stage is served, on numbers of chance: it takes up to a
minute or two, and what comes of it is compared with what the blocks compute by themselves.
Blocks that draw are not compiled: compiled dropout would draw otherwise when a graph is made
again.

Compiled blocks add in another order, so their last bits differ from those of other servers. That
harms nothing: each microbatch is computed by one server of a stage, and counted once.

Errors:  Unusable, with the remedy, where nothing can be compiled, or something wrong comes of
  it.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.attention.document_attention import WholeRows
from p2pswarm.models.base import Value, bundle_of
from p2pswarm.models.compute.bundle_spec import boundary_above
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.precision import Precision, precision_of
from p2pswarm.models.compute.tokens import beside_blocks
from p2pswarm.models.compute.torch_device import first_line, place_for
from p2pswarm.models.dropout import draws
from p2pswarm.settings.config import RunConfig

# ruff: noqa: N803  shapes are written at the end of names


VARIANTS_MAX = 64  # of one piece of code: kinds of layers, with and without a graph; torch allows 8
DIFFERENCE_MAX = 0.05  # of all numbers' length: bfloat16 rounds, and a token may change its expert
SPREAD = 0.02  # of the weights that it is tried out with, as large as first weights usually are

F = TypeVar("F", bound=Callable[..., Value])


def compiled(call: F) -> F:
    """A function of a block and what it is given, compiled but for blocks that draw."""
    fast = torch.compile(call, dynamic=False)
    torch._dynamo.config.recompile_limit = VARIANTS_MAX  # noqa: SLF001  there is no other place

    # each row has other documents, and would be compiled again; said here and not where it is
    # defined, which would load the compiler for everybody
    if not hasattr(WholeRows.attend, "_torchdynamo_disable"):
        kept: Any = torch.compiler.disable
        WholeRows.attend = kept(WholeRows.attend)  # type: ignore[method-assign]

    def choose(block: nn.Module, *given: object) -> Value:
        return call(block, *given) if draws(block) else fast(block, *given)

    return cast("F", choose)


def compiled_precision(run: RunConfig, stage: int, flat: FlatParameters) -> Precision:
    """A stage's compiled blocks, tried out before it has weights, which are zeros afterwards."""
    plain, fast = precision_of(run, flat), precision_of(run, flat, compiled)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(run.seed)
            flat.params_N.copy_(SPREAD * torch.randn(flat.params_N.shape))
            given = _given(run, stage)
        expected = _computed(plain, given, flat.params_N.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own code
            # a second time, because blocks may keep what they made the first time
            for _ in range(2):
                found = _computed(fast, given, flat.params_N.device)
                with torch.no_grad():
                    fast.run(_there(given, flat.params_N.device), None)
    except RuntimeError as error:  # all of torch's compiling are
        raise Unusable(
            "serve.compiled: torch compiles nothing here, leave it out, or install a C++ compiler "
            f"(apt install g++): {first_line(error)}"
        ) from error
    finally:
        with torch.no_grad():
            flat.params_N.zero_()
    off = _difference(expected, found)
    if not off <= DIFFERENCE_MAX:
        raise Unusable(
            f"serve.compiled: compiled blocks of stage {stage} compute something else, by "
            f"{off:.0%}: leave it out"
        )
    return fast


def _given(run: RunConfig, stage: int) -> Value:
    """Something that the stage might be given; tokens for the first one."""
    below = boundary_above(run, stage - 1)
    shape = run.batch.rows, run.model.sequence_length
    tokens = torch.randint(0, run.model.vocabulary, shape)
    if below is None:
        return tokens
    given = {each.key: _tensor(each.shape, each.dtype) for each in below.tensors}
    return below.value(given, beside_blocks(tokens, run.model))


def _tensor(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    make = torch.randn if dtype.is_floating_point else torch.zeros
    return make(*shape, dtype=dtype)


def _there(given: Value, device: torch.device) -> Value:
    """The same value on the device; numbers that are not counts are leaves of a graph."""
    if isinstance(given, Tensor):
        return _leaf(given, device)
    return {key: _leaf(x, device) for key, x in given.items()}


def _leaf(x: Tensor, device: torch.device) -> Tensor:
    return x.detach().to(device).requires_grad_(x.is_floating_point())


def _computed(precision: Precision, given: Value, device: torch.device) -> Tensor:
    """The numbers that the blocks give, and the gradients of the weights, in one row."""
    made = bundle_of(precision.run(_there(given, device), None)).values()
    ends = [x for x in made if x.requires_grad]
    gradients = torch.autograd.grad(
        ends, precision.parameters, [torch.ones_like(x) for x in ends], materialize_grads=True
    )
    there = place_for(device, torch.float64)
    return torch.cat([x.detach().to(there).double().flatten() for x in (*ends, *gradients)])


def _difference(one_N: Tensor, other_N: Tensor) -> float:
    length = max(one_N.norm().item(), other_N.norm().item()) or 1.0
    off = (one_N - other_N).norm().item() / length
    return off if math.isfinite(off) else math.inf
