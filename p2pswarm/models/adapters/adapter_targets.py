"""What an adapter is for: modules and parameters of blocks, chosen by the rules of PEFT.

A name is of a module, or is its end behind a dot; of modules that multiply by parameters of their
own, such as a mixture's experts, it may be the parameter's. One regular expression is for whole
names. "all-linear" is every linear layer but the head; of mixtures whose experts once were linear
layers it is their parameters and routers.

A regular expression can keep a processor busy for ever, and manifests are written by strangers. So
a trainer replaces what it was given by the names that it matches, and members take names alone. The
folder of an adapter may be a stranger's too: a pattern has a limited time for each name.

Errors:  Unusable for an entry that matches nothing, or something that has no adapter.
Source:  PEFT 0.21: `check_target_module_exists`, `get_pattern_key`, `_convert_peft_config_moe`.
"""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeVar

import regex
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.adapters.lora_modules import LoraShape
from p2pswarm.settings.adapter_config import ALL_LINEAR, AdapterConfig

FUSED = frozenset({"gate_up_proj"})
"""Parameters of experts that are two matrices in one: PEFT doubles their rank and their alpha."""
GATE = "gate.weight"
OLD_NAMES: Mapping[str, Mapping[str, str]] = {
    "mixtral": {"gate": GATE, "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"},
    "qwen2_moe": {
        "gate": GATE,
        "gate_proj": "gate_up_proj",
        "up_proj": "gate_up_proj",
        "down_proj": "down_proj",
    },
}
"""The names that linear layers of mixtures had, and the parameters that they are now."""
PATTERN_S = 0.2  # of a processor, for a pattern and a name; honest ones take microseconds
SHOWN = 80  # characters of a pattern in an error
V = TypeVar("V")
NEAREST = 0.4  # how alike a name is to be told as the one that was meant


@dataclass(frozen=True, slots=True)
class Target:
    """A module of a block, or a parameter of it, that can have an adapter."""

    name: str
    """In the whole model; of a parameter with its own name."""
    module: nn.Module
    parameter: str = ""
    """The parameter's name in the module; empty: the module's weight."""
    linear: bool = False
    """It is of "all-linear"."""

    @property
    def ends(self) -> list[str]:
        """What may choose it, the shortest first; a parameter is not called "weight" alone."""
        ends = ends_of(self.name)
        return ends[1:] if self.parameter and len(ends) > 1 and ends[0] == "weight" else ends


def settled(
    adapter: AdapterConfig, targets: Sequence[Target], parameters: Iterable[str], kind: str
) -> AdapterConfig:
    """The adapter with names for every pattern; Unusable for one that matches nothing.

    `targets`: all that can have one. `parameters`: the full names of all that the model has.
    `kind`: of the library's models, by which PEFT knows the former names of linear layers.
    """
    _require_trained(adapter.train, list(parameters))
    free = [t for t in targets if not is_trained(t.name, adapter.train, module=not t.parameter)]
    old = OLD_NAMES.get(kind, {})
    chosen, fused = _chosen(adapter, free, old)
    if not chosen:
        raise Unusable(
            "run.adapter.targets: no linear layer is there to have an adapter: name modules or "
            "parameters, as p2pswarm check-model lists them"
        )
    default = (adapter.rank, float(adapter.alpha or adapter.rank))
    names = [target.name for target in chosen]
    own_ranks = _by_pattern("rank_pattern", adapter.rank_pattern, names)
    own_alphas = _by_pattern("alpha_pattern", adapter.alpha_pattern, names)
    shapes: dict[str, tuple[int, float]] = {}
    for name in names:
        rank, alpha = int(own_ranks.get(name, default[0])), own_alphas.get(name, default[1])
        twice = 2 if name in fused and (rank, alpha) == default else 1
        shapes[name] = (rank * twice, alpha * twice)
    ranks = {name: rank for name, (rank, _) in shapes.items() if rank != default[0]}
    alphas = {name: alpha for name, (_, alpha) in shapes.items() if alpha != default[1]}
    return dataclasses.replace(
        adapter,
        alpha=default[1],
        targets=tuple(shortest_ends(dict.fromkeys(shapes, ""), targets)),
        rank_pattern=_entries(ranks, chosen),
        alpha_pattern=_entries(alphas, chosen),
    )


def ends_with(name: str, end: str) -> bool:
    """Return whether `end` is a name, or its end behind a dot."""
    return name == end or name.endswith(f".{end}")


def is_trained(name: str, train: Iterable[str], *, module: bool = False) -> bool:
    """Return whether a parameter, or a `module`, is of those that are trained whole."""
    path = name if module else name.rpartition(".")[0]
    return any(f".{each}." in f".{path}." for each in train)


class LoraShapes:
    """The sizes of a settled adapter's parts; a manifest may name thousands."""

    def __init__(self, adapter: AdapterConfig) -> None:
        self._adapter, self._names = adapter, frozenset(adapter.targets)
        self._ranks, self._alphas = map(_numbers, (adapter.rank_pattern, adapter.alpha_pattern))

    def of(self, target: Target) -> LoraShape | None:
        """The sizes of a target's; None if it has none."""
        adapter, ends = self._adapter, ends_of(target.name)
        if self._names.isdisjoint(ends):
            return None
        rank = int(next((self._ranks[end] for end in ends if end in self._ranks), adapter.rank))
        alpha = next((self._alphas[end] for end in ends if end in self._alphas), adapter.alpha)
        scaling = alpha / rank**0.5 if adapter.rslora else alpha / rank
        return LoraShape(rank, scaling, adapter.dropout)


def _numbers(entries: Sequence[str]) -> dict[str, float]:
    pairs = (entry.rpartition("=") for entry in entries)
    return {name: float(number) for name, _, number in pairs}


def ends_of(name: str) -> list[str]:
    """A name's ends, the shortest first."""
    parts = name.split(".")
    return [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]


def shortest_ends(values: Mapping[str, V], targets: Sequence[Target]) -> dict[str, V]:
    """The shortest ends of names that choose those with a value, and no target without or another.

    `values`: by the names of targets.
    """
    by_end: dict[str, list[str]] = {}
    for target in targets:
        for end in target.ends:
            by_end.setdefault(end, []).append(target.name)
    found: dict[str, V] = {}
    for target in targets:
        if target.name not in values:
            continue
        value = values[target.name]
        for end in target.ends:
            if all(values.get(name, _NONE) == value for name in by_end[end]):
                found[end] = value
                break
    return found


_NONE = object()


def nearest(entry: str, names: Iterable[str]) -> str:
    """A hint at the name that was meant, or empty."""
    leaf = entry.removesuffix(".weight").rpartition(".")[2]
    leaves = {name.removesuffix(".weight").rpartition(".")[2]: name for name in names}
    close = difflib.get_close_matches(leaf, leaves, n=1, cutoff=NEAREST)
    return f"; the nearest name is {close[0]}" if close else ""


def _chosen(
    adapter: AdapterConfig, targets: Sequence[Target], old: Mapping[str, str]
) -> tuple[list[Target], set[str]]:
    """The targets that are chosen, and the names of those that take the place of two layers."""
    entries = (adapter.targets,) if isinstance(adapter.targets, str) else adapter.targets
    parameters: set[str] = set()
    if adapter.targets == ALL_LINEAR:
        parameters.update(old.values())
        chosen = [t for t in targets if t.linear and t.name.rpartition(".")[2] not in old]
    else:
        chosen = []
        mapped = [each for each in entries if each.rpartition(".")[2] in old]
        for each in mapped:
            parameters.add(old[each.rpartition(".")[2]])
        _require_both(mapped, old)
        for each in entries:
            if each not in mapped:
                of_it = list(_matching(adapter, each, targets))
                if not of_it:
                    names = (target.name for target in targets)
                    raise Unusable(
                        f"run.adapter.targets: {each!r} matches nothing{nearest(each, names)}"
                    )
                chosen += of_it
    added = [t for t in targets if t.parameter and any(ends_with(t.name, p) for p in parameters)]
    fused = {t.name for t in added if t.name.rpartition(".")[2] in FUSED}
    return list({t.name: t for t in (*chosen, *added)}.values()), fused


def _matching(adapter: AdapterConfig, entry: str, targets: Sequence[Target]) -> Iterator[Target]:
    if isinstance(adapter.targets, str):
        fits = _pattern("targets", entry)
        yield from (target for target in targets if fits(target.name))
    else:
        yield from (target for target in targets if ends_with(target.name, entry))


def _require_both(entries: Sequence[str], old: Mapping[str, str]) -> None:
    """Raise Unusable for one of two layers that are one parameter now."""
    named = {each.rpartition(".")[2] for each in entries}
    for name in named:
        halves = {other for other, new in old.items() if new == old[name]}
        if lacking := halves - named:
            raise Unusable(
                f"run.adapter.targets: {name} is one parameter with {min(lacking)} now, "
                f"{old[name]}: name both, or that one"
            )


def _require_trained(train: Sequence[str], parameters: Sequence[str]) -> None:
    for each in train:
        if not any(is_trained(name, [each]) for name in parameters):
            modules = {name.rpartition(".")[0] for name in parameters}
            raise Unusable(f"run.adapter.train: {each!r} matches nothing{nearest(each, modules)}")


def _by_pattern(setting: str, entries: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """The number of the first pattern that fits a name or its end, by name; each has to fit one."""
    found: dict[str, float] = {}
    for entry in entries:
        pattern, _, number = entry.rpartition("=")
        fits = _pattern(setting, pattern)
        fitting = [name for name in names if any(map(fits, ends_of(name)))]
        if not fitting:
            raise Unusable(
                f"run.adapter.{setting}: {entry!r:.{SHOWN}} matches no target"
                f"{nearest(pattern, names)}"
            )
        for name in fitting:
            found.setdefault(name, float(number))
    return found


def _pattern(setting: str, text: str) -> Callable[[str], bool]:
    """A test whether a regular expression matches a whole name."""
    shown = f"run.adapter.{setting}: {text!r:.{SHOWN}}"
    try:
        pattern = regex.compile(text)
    except (regex.error, RecursionError) as error:
        raise Unusable(f"{shown} is no regular expression: {error}") from error

    def fits(name: str) -> bool:
        try:
            return pattern.fullmatch(name, timeout=PATTERN_S) is not None
        except TimeoutError as error:
            raise Unusable(f"{shown} takes too long for a name: name modules instead") from error

    return fits


def _entries(values: Mapping[str, float], targets: Sequence[Target]) -> tuple[str, ...]:
    ends = shortest_ends(values, targets)
    return tuple(pattern_entry(end, number) for end, number in ends.items())


def pattern_entry(name: str, number: float) -> str:
    """An entry of `rank_pattern` or `alpha_pattern`, with every digit of its number."""
    number = float(number)
    whole = number.is_integer()
    return f"{name}={int(number) if whole else format(Decimal(repr(number)), 'f')}"
