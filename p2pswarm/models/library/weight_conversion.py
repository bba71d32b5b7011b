"""The parameters that a published model's tensors make, by the library's own conversion.

Files name and cut weights as the model's authors did: a mixture has a tensor for each expert, some
models have one for queries, keys and values. The library renames, stacks and splits them when it
loads a model, and does the reverse when it saves one. Here its own rules say which tensors of the
files make which parameter, and its own operations make it. So a stage reads what its parameters are
made of and nothing else.

Source:  `convert_and_load_state_dict_in_model` of transformers, which does the same for a whole
         model at once.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from p2pswarm.models.library.foreign_code import foreign
from p2pswarm.models.library.hf_library import library_module, requirement


@dataclass(frozen=True, slots=True)
class Conversion:
    """Tensors of the files, and the parameters of the whole model that they make."""

    names: tuple[str, ...]
    """The parameters' names in the whole model."""
    sources: tuple[str, ...]
    """The tensors' names in the files, in the library's order."""
    patterns: tuple[str, ...]
    """For each source, the place that it takes in the library's operations."""
    transform: Any
    """The library's; empty, since it keeps what it is given."""

    @property
    def renames(self) -> bool:
        """True if the one source is the parameter, whatever its name."""
        return not hasattr(self.transform, "operations")

    def made(self, whole: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters by name, made of all sources; of shapes alone on the meta device."""
        name = self.names[0]
        if self.renames:
            return {name: tensors[self.sources[0]]}
        transform = copy.deepcopy(self.transform)
        for source, pattern in zip(self.sources, self.patterns, strict=True):
            transform.add_tensor(name, source, pattern, tensors[source])
        with foreign(f"{requirement()} cannot make {name} of the files' tensors"):
            found = transform.convert(name, model=whole, config=whole.config)
            return {key: one[0] if isinstance(one, list) else one for key, one in found.items()}


@dataclass(frozen=True, slots=True)
class PublishedTensors:
    """What the tensors of a published model are."""

    conversions: Mapping[str, Conversion]
    """By the name that a parameter, or a stored constant, has in the whole model."""
    unknown: tuple[str, ...]
    """Tensors of the files that make nothing of the model."""


def published_tensors(whole: Any, files: Iterable[str]) -> PublishedTensors:
    """Return what the tensors `files`, by their names, make of the library's `whole` model."""
    with foreign(f"{requirement()} does not say how it reads this model's files"):
        return _published(whole, files)


def _published(whole: Any, files: Iterable[str]) -> PublishedTensors:
    loading = library_module("core_model_loading")
    mapping = library_module("conversion_mapping").get_model_conversion_mapping(whole)
    renamings = [each for each in mapping if isinstance(each, loading.WeightRenaming)]
    converters = [each for each in mapping if isinstance(each, loading.WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    state, prefix = whole.state_dict(), whole.base_model_prefix
    found: dict[str, list[tuple[str, str | None]]] = {}
    unknown = []
    for file in sorted(files, key=loading.dot_natural_key):  # in this order experts are stacked
        name, pattern = loading.rename_source_key(file, renamings, converters, prefix, state)
        if name not in state and file in state:
            name, pattern = file, None
        if name in state:
            found.setdefault(name, []).append((file, pattern))
        else:
            unknown.append(file)
    conversions: dict[str, Conversion] = {}
    for name, sources in found.items():
        names, patterns = tuple(each for each, _ in sources), [each for _, each in sources]
        converter = by_pattern.get(patterns[0]) if patterns[0] is not None else None
        made = _made_names(name, converter.target_patterns if converter else [name])
        transform = converter or loading.WeightRenaming(names[0], name)
        taken = tuple(each or names[0] for each in patterns)
        conversion = Conversion(made, names, taken, transform)
        conversions |= dict.fromkeys(made, conversion)
    return PublishedTensors(conversions, tuple(unknown))


def _made_names(name: str, patterns: list[str]) -> tuple[str, ...]:
    """The names of all that is made where `name` is the first, as the library makes them."""
    return tuple(name.replace(patterns[0], each) for each in patterns)
