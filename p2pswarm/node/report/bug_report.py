"""A bug report as a value, and the archive that is made of it.

The archive is a zip whose files people read before they attach it. Equal reports give equal bytes.
"""

import dataclasses
import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from p2pswarm.node.report.redaction import PEER_KEYS, PEER_SHORT, Redaction
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.plain_settings import plain_settings, set_texts

EVENTS_MAX = 1_000
LOG_LINES_MAX = 1_000
LINE_CHARS_MAX = 4_000  # of the log and of stacks
EVENT_CHARS_MAX = 100_000  # some 200 servers with all their figures
FILE_CHARS_MAX = 4 << 20  # the newest stay; trackers of bugs take files of 10 MB or more
MADE = (1980, 1, 1, 0, 0, 0)  # the first time that a zip has: equal reports are equal bytes
UNIX, MODE = 3, 0o600  # the system and the mode of each file, wherever the archive is made
IS_SET = "(set)"
READ_ME = """\
A report of a node of p2pswarm, for those who look for a bug. Read it before you attach it.

settings.json  numbers, truth values and named choices; a text or a path is "(set)"
events.jsonl   the newest events of the run
doctor.json    what p2pswarm doctor found
machine.json   versions of the program, of Python and of libraries; sizes of the machine
stacks.txt     where the process was in its code
log.txt        the newest lines of the log

In texts, words stay that stand in the program's own source; all else is an ellipsis. Addresses are
networks, ids of peers are short. There is no key, invitation, environment, text of the training,
or path of a user.
"""


@dataclass(frozen=True, kw_only=True)
class BugReport:
    """All that a report is made of; what is not known is empty."""

    settings: NodeConfig | None = None
    events: Sequence[str] = ()
    """Lines of JSON, the newest last."""
    log: Sequence[str] = ()
    """Lines, the newest last."""
    stacks: Sequence[str] = ()
    """Lines, of all threads and tasks of a process."""
    findings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """The answer of `p2pswarm doctor --json`."""
    machine: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """From `machine.py`, which allows each value; they are not redacted again."""


def archive(report: BugReport, redaction: Redaction) -> bytes:
    """The zip of a report; what `redaction` does not allow is not in it."""
    if report.settings is not None:
        texts = {text for each in set_texts(report.settings).values() for text in each}
        redaction = dataclasses.replace(redaction, secrets=redaction.secrets | texts)
    events = [_event(line) for line in report.events[-EVENTS_MAX:]]
    known = [each for each in events if each is not None]
    redaction = dataclasses.replace(redaction, peers=redaction.peers | _peers(known))
    files = {
        "README.txt": READ_ME,
        "settings.json": _json(_settings(report.settings)),
        "events.jsonl": _newest(_line(redaction.value(each)) for each in known),
        "doctor.json": _json(redaction.value(report.findings)),
        "machine.json": _json(report.machine),
        "stacks.txt": _redacted(report.stacks, redaction),
        "log.txt": _redacted(report.log[-LOG_LINES_MAX:], redaction),
    }
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name, MADE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system, entry.external_attr = UNIX, MODE << 16
            zipped.writestr(entry, text)
    return written.getvalue()


def _settings(config: NodeConfig | None) -> dict[str, object]:
    if config is None:
        return {}
    return {**plain_settings(config), **dict.fromkeys(set_texts(config), IS_SET)}


def _event(line: str) -> Mapping[str, object] | None:
    """The fields of an event; None for a line that is none, as when a log is torn."""
    if len(line) > EVENT_CHARS_MAX:
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("event"), str) else None


def _peers(value: object) -> frozenset[str]:
    """The short ids of peers that events name, two tables deep at most."""
    found: set[str] = set()
    _find_peers(value, found, 0)
    return frozenset(found)


def _find_peers(value: object, found: set[str], depth: int) -> None:
    if depth > 4:  # noqa: PLR2004  a list of events, each with a list of tables
        return
    if isinstance(value, list):
        for each in value:
            _find_peers(each, found, depth + 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key in PEER_KEYS and isinstance(each, str) and PEER_SHORT.fullmatch(each):
                found.add(each)
            _find_peers(each, found, depth + 1)


def _redacted(lines: Sequence[str], redaction: Redaction) -> str:
    return _newest(redaction.text(line[:LINE_CHARS_MAX]) for line in lines)


def _newest(lines: Iterable[str]) -> str:
    """Lines as one text, of which the newest stay."""
    kept, chars = [], 0
    for line in reversed(list(lines)):
        chars += len(line) + 1
        if chars > FILE_CHARS_MAX:
            break
        kept.append(line)
    return "".join(f"{line}\n" for line in reversed(kept))


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
