"""Train one transformer on machines that are slow, far apart, and come and go.

    import p2pswarm as ps

Each name below is imported when it is first used. So `import p2pswarm` takes a millisecond, and a
node that others join through never loads torch. `__init__.pyi` has the names for type checkers and
editors; tests/test_public.py checks that both agree.
"""

import importlib

OFFERED = {
    "Address": ("base.ids", "Address"),
    "Contact": ("base.ids", "Contact"),
    "Message": ("net.wire.message", "Message"),
    "Node": ("api.node", "Node"),
    "PeerId": ("base.ids", "PeerId"),
    "Range": ("net.wire.message", "Range"),
    "Run": ("api.run", "Run"),
    "Server": ("api.server", "Server"),
    "Size": ("net.wire.message", "Size"),
    "Trainer": ("api.trainer", "RunTrainer"),
    "cost_events": ("progress.cost_events", ""),
    "data": ("data", ""),
    "errors": ("base.errors", ""),
    "events": ("progress.events", ""),
    "load": ("models.compute.inference", "load_model"),
    "message": ("net.wire.message", "message"),
    "models": ("models", ""),
    "testing": ("testing", ""),
    "train": ("api.one_call", "train"),
}
"""Name -> its module, and its name there; an empty name offers the module itself."""
__all__ = list(OFFERED)


def __getattr__(name: str) -> object:
    if name not in OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place, attribute = OFFERED[name]
    module = importlib.import_module(f"{__name__}.{place}")
    offered: object = getattr(module, attribute) if attribute else module
    globals()[name] = offered
    return offered


def __dir__() -> list[str]:
    return sorted({*globals(), *OFFERED})
