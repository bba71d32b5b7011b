"""AdapterConfig: the matrices of low rank that a run trains beside frozen weights."""

import re
from dataclasses import dataclass
from typing import Annotated

from p2pswarm.settings.limits import NAMES_MAX, PATTERNS_MAX, Between, check_patterns

MODULE_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
WHOLE = re.compile("[0-9]{1,7}")
DECIMAL = re.compile(r"[0-9]{1,7}(\.[0-9]{1,30})?")  # every float64 from 1e-13 on
ADAPTER_MOST = 4_096  # the greatest rank, or alpha of a pattern
ALL_LINEAR = "all-linear"
"""The targets of an adapter that are every linear layer but the head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterConfig:
    """Low-rank matrices beside frozen ones: y = Wx + s B(A x), with the conventions of PEFT.

    Source:  Hu et al., "LoRA" (arXiv 2106.09685); rslora: arXiv 2312.03732.
    """

    rank: Annotated[int, Between(1, 4_096)] = 16
    alpha: Annotated[float, Between(0.0, 1e6)] = 0.0
    """s is alpha / rank; 0: s is 1."""
    targets: str | tuple[str, ...] = ALL_LINEAR
    """Names of modules or their ends, or one regular expression for whole names; of a mixture of
    experts also names of their parameters."""
    rslora: bool = False
    """s is alpha / sqrt(rank)."""
    dropout: Annotated[float, Between(0.0, 0.99)] = 0.0
    """Of what A is given."""
    rank_pattern: tuple[str, ...] = ()
    """Other ranks for some targets: PATTERN=RANK, a regular expression for a name or its end."""
    alpha_pattern: tuple[str, ...] = ()
    """The same for alpha."""
    train: tuple[str, ...] = ()
    """Modules that are trained whole beside the adapters, such as "lm_head"."""

    def __post_init__(self) -> None:
        lists = {
            "targets": (self.targets,) if isinstance(self.targets, str) else self.targets,
            "rank_pattern": self.rank_pattern,
            "alpha_pattern": self.alpha_pattern,
            "train": self.train,
        }
        for name, entries in lists.items():
            check_patterns(name, entries, PATTERNS_MAX if name == "train" else NAMES_MAX)
        if not lists["targets"]:
            raise ValueError(f'targets has no entry: name some, or set it to "{ALL_LINEAR}"')
        for name, least in (("rank_pattern", 1), ("alpha_pattern", 0)):
            for entry in lists[name]:
                pattern, _, number = entry.rpartition("=")
                allowed = WHOLE if name == "rank_pattern" else DECIMAL
                if (
                    not pattern
                    or not allowed.fullmatch(number)
                    or not least <= float(number) <= ADAPTER_MOST
                ):
                    raise ValueError(
                        f"{name}: {entry!r} is not PATTERN=NUMBER, the number {least} to "
                        f"{ADAPTER_MOST:,}"
                    )

    @property
    def settled(self) -> bool:
        """True if it has names alone, as a manifest may; patterns of others are not run."""
        entries = (*self.rank_pattern, *self.alpha_pattern)
        names = (*self.targets, *self.train, *(each.rpartition("=")[0] for each in entries))
        return not isinstance(self.targets, str) and all(map(MODULE_NAME.fullmatch, names))
