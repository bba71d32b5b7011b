"""The first lines that a node prints: its id and address, and what others type to join it."""

from p2pswarm.base.ids import Contact
from p2pswarm.settings.config import HF, RunConfig
from p2pswarm.settings.node_config import NodeConfig


def greeting(config: NodeConfig, own: Contact, ready_s: float) -> list[str]:
    """The lines, in order; `own`: our peer id and the address that others dial."""
    assert own.peer is not None, "we know our own id"
    lines = [f"peer {own.peer.short} at {own.address}, ready after {ready_s:.3f} s"]
    if config.role == "trainer":
        lines.append(f"run {config.run.name!r} {_needs(config)}")
        if config.train.closed or config.run.closed:
            return [*lines, "  p2pswarm node --invite TEXT, the line of p2pswarm invite FILE"]
    elif not config.bootstrap:
        lines.append("a swarm of one; others join it with")
    else:
        return lines
    through = config.bootstrap[0] if config.bootstrap else own.address
    command = f"  python -m p2pswarm.node --bootstrap {through}"
    needed = _serve_settings(config.run) if config.role == "trainer" else []
    if not needed:
        return [*lines, command]
    return [*lines, f"{command} --config serve.toml", "where serve.toml says", "  [serve]", *needed]


def page_line(config: NodeConfig, own: Contact, page: str) -> str:
    """The line of a node's page; a trainer's says how its run is watched from elsewhere."""
    if config.role != "trainer":
        return page
    through = config.bootstrap[0] if config.bootstrap else own.address
    afar = f"p2pswarm watch --bootstrap {through}"
    if config.train.closed or config.run.closed:
        afar += " --invite TEXT"
    return f"run {config.run.name!r}: {page}   (also from afar: {afar})"


def _serve_settings(run: RunConfig) -> list[str]:
    """Return what a server has to say in its own settings, since no manifest may say it."""
    model = run.model
    if run.start == "pretrained" and model.folder is not None:
        there = model.folder.is_dir() or not model.hub
        name = model.folder.name if there else f"{HF}{model.hub}"
        return [f'  pretrained = "{name}"  # or a folder with the same weights']
    if ":" in model.family and not model.family.startswith(HF):
        package = model.family.partition(":")[0].partition(".")[0]
        return [f'  packages = ["{package}"]  # if it is trusted']
    return []


def _needs(config: NodeConfig) -> str:
    """Return how many servers the first step waits for, and what comes next."""
    if config.train.alone:
        return "is served in this process, too; machines that help it run"
    run = config.run
    count = run.stages * run.min_replicas
    each = f", {run.min_replicas} a stage" if run.min_replicas > 1 and run.stages > 1 else ""
    return f"needs {count} server{'s' if count > 1 else ''} or more{each}; on each such machine run"
