"""The open files that the limits of the transport take, and limits that fit into fewer.

Each connection is an open file, and many systems allow a process 1,024 of them. A node that
strangers drive to that limit can neither accept nor dial, nor open its own files.
"""

from dataclasses import replace

from p2pswarm.net.config import TransportConfig

FILES_SPARE = 256  # for checkpoints, text, state, the log, and what a program has open besides
DIAL_FILES = 2  # a name with several addresses is tried at two of them at once
FILES_LEAST = 256  # half of them for a run's own files, and the other half for 17 peers
WATCHED_SPARE = 12  # sockets of the loop itself, of three ports, and towards the router
FEW_SILENT, FEW_ANSWERED, FEW_DIALS = 20, 40, 20
"""Strangers and dials where few sockets can be watched: 100 of them, and the rest is for links."""
WEB_FILES = 4  # that a connection over a WebSocket takes beside its own: two pairs of sockets


def files_wanted(config: TransportConfig) -> int:
    """Return how many files a node with these limits may have open, its own included."""
    return _connections(config) + FILES_SPARE


def fitted(config: TransportConfig, files: int, beside: int = 0) -> TransportConfig:
    """The same settings with limits, all smaller in one proportion, that fit into `files`.

    `beside`: how many files something else wants; it is to take less in the same proportion.
    """
    wanted = files_wanted(config)
    files = files * wanted // (wanted + beside)
    if files >= wanted:
        return config
    share = (files - min(FILES_SPARE, files // 2)) / _connections(config)

    def part(most: int) -> int:
        return max(1, int(most * share))

    return replace(
        config,
        silent_max=part(config.silent_max),
        answered_max=part(config.answered_max),
        upgrading_max=part(config.upgrading_max),
        dials_max=part(config.dials_max),
        links_max=part(config.links_max),
        bulk_joined_max=part(config.bulk_joined_max),
    )


def within_select(config: TransportConfig, sockets: int, beside: int = 0) -> TransportConfig:
    """The same settings with limits under which a loop watches at most `sockets`.

    Bulk sockets are not watched: they have threads. `beside`: sockets that relaying wants watched;
    they are to be fewer in the proportion of the links.
    """
    few = replace(
        config,
        silent_max=min(config.silent_max, FEW_SILENT),
        answered_max=min(config.answered_max, FEW_ANSWERED),
        dials_max=min(config.dials_max, FEW_DIALS),
    )
    strangers = few.silent_max + few.answered_max + DIAL_FILES * few.dials_max
    share = (sockets - WATCHED_SPARE - strangers) / (config.links_max + beside)
    if share >= 1:
        return few
    return replace(
        few,
        upgrading_max=max(1, int(config.upgrading_max * share)),
        links_max=max(1, int(config.links_max * share)),
        bulk_joined_max=max(1, int(config.bulk_joined_max * share)),
    )


def refusal(files: int, config: TransportConfig, beside: int = 0) -> str:
    """Return why a node cannot live with `files`, in a line; empty if it can."""
    if files >= FILES_LEAST:
        return ""
    return (
        f"this process may open {files} files, and a node in a run takes at least {FILES_LEAST}:"
        f" `ulimit -n {files_wanted(config) + beside}` before it starts lets it, or, where that is"
        " not allowed, a larger limit in /etc/security/limits.conf, or of its service or container"
    )


def web_files(config: TransportConfig) -> int:
    """Return how many files more a node takes that listens for WebSockets."""
    return (1 + WEB_FILES) * config.upgrading_max + WEB_FILES * config.links_max


def shortage(files: int, config: TransportConfig, beside: int = 0) -> str:
    """Return what to tell the user, in a line, where `files` are fewer than `config` wants."""
    wanted = files_wanted(config) + beside
    return (
        f"this process may open {files} files, so it serves at most"
        f" {fitted(config, files, beside).links_max} peers at once; `ulimit -n {wanted}` before it"
        f" starts lets it serve {config.links_max}"
    )


def _connections(config: TransportConfig) -> int:
    ours = max(config.bulk_connections, config.bulk_connections_far)
    return (
        config.silent_max
        + config.answered_max
        + DIAL_FILES * config.dials_max
        + config.links_max * (1 + ours)
        + config.bulk_joined_max
    )
