"""The devices that `serve.device` names.

Errors:  Unusable, with what is allowed, for names of which torch has no device.
"""

import torch

from p2pswarm.errors import Unusable

ALL = "cuda:all"
KINDS = ("cuda", "cpu")  # what torch's sharding has collectives for; cpu: to try it


def devices_of(setting: str, gpus: int | None = None) -> tuple[str, ...]:
    """The names in a setting; `gpus`: how many this host has, left out: as torch says.

    Several have to be of one kind, and each GPU is named once.
    """
    gpus = torch.cuda.device_count() if gpus is None else gpus
    if setting == ALL:
        if not gpus:
            raise Unusable(f"serve.device {setting!r}: torch sees no GPU here")
        return tuple(f"cuda:{number}" for number in range(gpus))
    names = tuple(name.strip() for name in setting.split(","))
    if len(names) > 1:
        _check(setting, names, gpus)
    return names


def _check(setting: str, names: tuple[str, ...], gpus: int) -> None:
    """Raise Unusable for several names that cannot compute together."""
    for name in names:
        kind, _, number = name.partition(":")
        if kind not in KINDS or (kind == "cuda") != number.isdecimal():
            raise Unusable(
                f"serve.device {setting!r}: {name!r} cannot share a stage: write {ALL}, or some as "
                "in cuda:0,cuda:1"
            )
        if kind == "cuda" and int(number) >= gpus:
            raise Unusable(f"serve.device {setting!r}: torch sees {gpus} GPUs here, not {name!r}")
        if kind == "cuda" and names.count(name) > 1:
            raise Unusable(f"serve.device {setting!r}: {name} stands there twice")
    if len({name.partition(":")[0] for name in names}) > 1:
        raise Unusable(f"serve.device {setting!r}: devices that share a stage are of one kind")
