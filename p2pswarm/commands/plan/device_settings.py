"""The file of devices, which `p2pswarm plan` and `p2pswarm simulate` read alike."""

from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.plan.device_file import DeviceFile
from p2pswarm.settings.parser import from_values, read_table


def read_devices(path: Path) -> DeviceFile:
    """The file; Unusable says in one line what is wrong with it."""
    try:
        return from_values(DeviceFile, read_table(path))
    except ValueError as error:
        raise Unusable(f"{path}: {error}") from error
