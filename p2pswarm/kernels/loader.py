"""Loads compiled loops where numba is here and compiles them; else torch's functions do the same.

Loading takes half a second, and some ten of a processor where nobody has compiled them before: call
it in a thread, and before there is work.
"""

import functools
import importlib
import logging
from types import ModuleType

log = logging.getLogger(__name__)


@functools.cache
def kernels(name: str) -> ModuleType | None:
    """The module of that name in this folder, compiled; None where that fails."""
    try:
        return importlib.import_module(f"p2pswarm.kernels.{name}")
    except ModuleNotFoundError as error:
        log.info("no %s: %s run by torch; pip install '.[fast]' is faster", error.name, name)
    except Exception as error:  # noqa: BLE001  whatever a compiler raises, torch computes the same
        reason = str(error).strip().partition("\n")[0]
        log.warning(
            "numba compiles no %s, torch runs them, slower (NUMBA_CACHE_DIR names a folder that it "
            "can write to): %s",
            name,
            reason,
        )
    return None
