"""The first values of parameters: the same bits on every processor.

Replicas of a stage compare the digests of their weights from version 0 on, so all must draw the
same bits. torch's normals do not allow that: where a processor has AVX2 they come from other
approximations of logarithm and cosine than where it has none. Here every value comes from integers
by operations that IEEE 754 rounds exactly once:

* Philox, a counter-based generator, gives 64-bit integers; its key is a hash of the run's seed and
  of the block's number and the parameter's name. Value i depends on nothing else, so neither the
  cut into stages nor the order of drawing matters.
* 52 of the bits make p = (2k + 1) / 2**53, strictly between 0 and 1 and exact.
* A normal is the inverse of the normal distribution at p, by Wichura's AS 241: polynomials, one
  division, and in the tails a square root and a logarithm. The logarithm is made of the number's
  exponent and a series (`_log`). Each addition, multiplication, division and root is one call for a
  whole array, so no compiler joins two of them into a fused one.
* The only other rounding is the one to the parameter's dtype.

Source:  Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), for Philox;
         Wichura, Algorithm AS 241, Applied Statistics 37 (1988), for the inverse, whose relative
         error is about 1e-16.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from p2pswarm.models.base import WholeBlock
from p2pswarm.models.weight_tying import tied_in

Floats = npt.NDArray[np.float64]

TAG = "p2pswarm-init-2"  # another method of drawing is another tag
CHUNK = 1 << 14  # values at a time: what they need stays in the second cache
CENTRAL = 0.425  # |p - 1/2| up to which the central approximation holds
CENTER_SHIFT, TAIL_SHIFT, FAR_SHIFT = 0.180625, 1.6, 5.0  # as in AS 241
LN_2 = 0.693147180559945309417
SERIES = tuple(2.0 / (2 * k + 1) for k in range(11, -1, -1))  # the rest is below 1e-17 here

# AS 241, PPND16: numerator and denominator of each region, highest power first.
CENTER = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
TAIL = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)
FAR_TAIL = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e0,
        5.46378491116411436990e0,
        6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ),
)


def _empty(size: Sequence[int], **also: Any) -> Tensor:
    return torch.empty(tuple(size), **{k: v for k, v in also.items() if k != "pin_memory"})


_UNIFORM = {torch.ops.aten.rand.default, torch.ops.aten.rand_like.default}
_EMPTY: dict[Callable[..., Any], Callable[..., Tensor]] = {
    torch.ops.aten.rand.default: _empty,
    torch.ops.aten.randn.default: _empty,
    torch.ops.aten.rand_like.default: torch.empty_like,
    torch.ops.aten.randn_like.default: torch.empty_like,
}
"""What draws a new tensor, and what makes it."""


class PortableDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, torch's `normal_`, `uniform_`, `rand` and `randn` draw portably for one block."""

    def __init__(self, seed: int, number: int, block: nn.Module) -> None:
        """`seed`: of the run; `number`: of the block in the model."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._tag = seed, f"{TAG}:{seed}:{number}"
        self._block = block  # while it is there no other tensor lies where its parameters do
        self._names = {parameter.data_ptr(): name for name, parameter in block.named_parameters()}
        self._name_in_model = block.draw_name if isinstance(block, WholeBlock) else None
        self._tied = tied_in(block)
        self._draws: dict[str, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing compiles this: else torch loads its compiler, for a second, to keep it out."""
        return False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Do one operation of torch, or draw in its place."""
        del types
        also = kwargs or {}
        empty = _EMPTY.get(func)
        if empty is not None:  # it makes the tensor that it fills
            made = empty(*args, **also)
            return self._uniform(made) if func in _UNIFORM else self._normal(made)
        if func is torch.ops.aten.normal_.default:
            return self._normal(*args, **also)
        if func is torch.ops.aten.uniform_.default:
            return self._uniform(*args, **also)
        return func(*args, **also)

    def _normal(
        self, tensor: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: object = None
    ) -> Tensor:
        del generator
        return self._fill(tensor, lambda p: normals(p) * std + mean)

    def _uniform(
        self, tensor: Tensor, low: float = 0.0, high: float = 1.0, *, generator: object = None
    ) -> Tensor:
        del generator
        width = high - low
        return self._fill(tensor, lambda p: p * width + low)

    def _fill(self, tensor: Tensor, values: Callable[[Floats], Floats]) -> Tensor:
        """Fill a parameter, or another tensor; every time it gets other values."""
        name = self._names.get(tensor.data_ptr(), "")
        count = self._draws[name] = self._draws.get(name, 0) + 1
        key = hashlib.sha256(f"{self._place(name)}:{count}".encode()).digest()[:16]
        generator = np.random.Philox(key=int.from_bytes(key))
        drawn = torch.empty(tensor.shape, dtype=tensor.dtype)
        for part in torch.split(drawn.view(-1), CHUNK):
            part.copy_(torch.from_numpy(values(_between_0_and_1(generator, part.numel()))))
        return tensor.copy_(drawn)

    def _place(self, name: str) -> str:
        """The text that a parameter's values depend on, besides how often it was drawn."""
        if name and self._name_in_model is not None:
            return f"{TAG}:{self._seed}:{self._name_in_model(name)}"
        if self._tied is not None and name == self._tied[0]:
            return f"{TAG}:{self._seed}:{self._tied[1]}"
        return f"{self._tag}:{name}"


def standard_normals(key: bytes, count: int) -> Floats:
    """So many standard normals of a key of 16 bytes."""
    generator = np.random.Philox(key=int.from_bytes(key))
    sizes = [min(CHUNK, count - start) for start in range(0, count, CHUNK)]
    return np.concatenate([normals(_between_0_and_1(generator, size)) for size in sizes])


def normals(p: Floats) -> Floats:
    """The standard normals that are greater than a standard normal with probability `p`."""
    centered = p - 0.5
    central = CENTER_SHIFT - centered * centered
    values = centered * _ratio(central, CENTER)
    (tails,) = np.nonzero(np.abs(centered) > CENTRAL)
    values[tails] = np.copysign(_tail(np.minimum(p[tails], 1.0 - p[tails])), centered[tails])
    return values


def _tail(p: Floats) -> Floats:
    """The absolute value of the normal whose tail has probability `p`, below 0.075."""
    root = np.sqrt(-_log(p))
    near = _ratio(root - TAIL_SHIFT, TAIL)
    return np.where(root <= FAR_SHIFT, near, _ratio(root - FAR_SHIFT, FAR_TAIL))


def _log(x: Floats) -> Floats:
    """The natural logarithm of positive normal numbers, to a few units in the last place.

    x = m * 2**e with m in [sqrt(1/2), sqrt(2)), and log m = 2 (s + s**3 / 3 + s**5 / 5 + ...) for
    s = (m - 1) / (m + 1), which is at most 0.172.
    """
    half, exponent = np.frexp(x)
    small = half < 0.7071067811865476  # noqa: PLR2004  the root of 1/2
    mantissa = np.where(small, half + half, half)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    return (exponent - small) * LN_2 + s * _polynomial(s * s, SERIES)


def _ratio(x: Floats, both: tuple[tuple[float, ...], tuple[float, ...]]) -> Floats:
    above, below = both
    return _polynomial(x, above) / _polynomial(x, below)


def _polynomial(x: Floats, coefficients: tuple[float, ...]) -> Floats:
    """Horner's rule, highest power first: one multiplication and one addition at a time."""
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        np.multiply(total, x, out=total)
        np.add(total, coefficient, out=total)
    return total


def _between_0_and_1(generator: np.random.Philox, count: int) -> Floats:
    """Odd multiples of 2**-53, all equally likely."""
    odd = (generator.random_raw(count) >> np.uint64(12)) * np.uint64(2) + np.uint64(1)
    return odd.astype(np.float64) * 2.0**-53
