"""The names of checkpoints and of their files; only what has such a name is ever deleted.

Units:   ids and hashes in bytes, hexadecimal in names.
Errors:  ValueError for values that cannot be in a name.
"""

import re
from dataclasses import dataclass

MANIFEST_NAME = "manifest.json"
CHAIN_NAME = "chain.records"
PART_SUFFIX = ".part"  # after the writer's name, at the end of a file that is not whole yet
RUN_HEX, HEAD_HEX = 12, 8  # digits in a name; the manifest has all of them
SLUG_CHARS_MAX = 40  # the user's name for the run; a file system allows 255 in all
STAGES_MAX = 256

CHECKPOINT = re.compile(
    r"(?P<slug>[A-Za-z0-9][A-Za-z0-9_-]{0,39})\.(?P<run>[0-9a-f]{12})"
    r"\.step-(?P<step>[0-9]{9,15})(?:\.(?P<head>[0-9a-f]{8}))?",
)
STAGE_FILE = re.compile(
    r"stage-(?P<stage>[0-9]{3})-of-(?P<stages>[0-9]{3})\.(?P<writer>[a-z2-7]{8})\.safetensors",
)
PART = re.compile(r"(?P<whole>.+)\.[a-z2-7]{8}\.part")
WRITER = re.compile(r"[a-z2-7]{8}")


@dataclass(frozen=True, slots=True)
class CheckpointId:
    """What a checkpoint is of: a step of a run."""

    run_name: str
    run: bytes
    """The run's id."""
    step: int
    """Commits so far: the version of the weights."""
    head: bytes = b""
    """The hash of the chain's newest record; empty if the run keeps no chain."""

    @property
    def folder(self) -> str:
        """The name of the checkpoint's folder."""
        head = f".{self.head.hex()[:HEAD_HEX]}" if self.head else ""
        return f"{slug(self.run_name)}.{self.run.hex()[:RUN_HEX]}.step-{self.step:09d}{head}"


@dataclass(frozen=True, slots=True, order=True)
class FolderName:
    """What the name of a checkpoint's folder tells; names sort by step."""

    step: int
    text: str
    """The whole name."""
    run_prefix: str
    """The first digits of the run's id."""

    @property
    def of_run(self) -> str:
        """The part of the name that all checkpoints of its run have."""
        return self.text.rpartition(".step-")[0]

    def is_of(self, run: bytes) -> bool:
        """Return whether it can be a checkpoint of this run."""
        return run.hex().startswith(self.run_prefix)


def slug(run_name: str) -> str:
    """The run's name in characters that every file system and object store takes."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", run_name)[:SLUG_CHARS_MAX].strip("-_")
    return plain or "run"


def parse_folder(name: str) -> FolderName | None:
    """Read a folder's name; None if it is not a checkpoint's."""
    found = CHECKPOINT.fullmatch(name)
    if found is None or found["step"] != f"{int(found['step']):09d}":
        return None  # there is one way to write a step
    return FolderName(int(found["step"]), name, found["run"])


def stage_file_name(stage: int, stages: int, writer: str) -> str:
    """The name of a stage's file; `writer` is the short form of the writing peer's id."""
    if not 0 <= stage < stages <= STAGES_MAX:
        raise ValueError(f"stage {stage} of {stages}")
    if WRITER.fullmatch(writer) is None:
        raise ValueError(f"{writer!r} is not the short form of a peer id")
    return f"stage-{stage:03d}-of-{stages:03d}.{writer}.safetensors"


def is_stage_file(name: str, stage: int, stages: int) -> bool:
    """Whether it is the name of a file of this stage; no other name is ever opened for it."""
    found = STAGE_FILE.fullmatch(name)
    return found is not None and (int(found["stage"]), int(found["stages"])) == (stage, stages)


def part_name(name: str, writer: str) -> str:
    """The name of a file of `writer` that is not whole yet."""
    return f"{name}.{writer}{PART_SUFFIX}"


def is_ours(name: str) -> bool:
    """Return whether a checkpoint may hold a file of this name, whole or in part."""
    part = PART.fullmatch(name)
    whole = part["whole"] if part else name
    return whole in (MANIFEST_NAME, CHAIN_NAME) or STAGE_FILE.fullmatch(whole) is not None
