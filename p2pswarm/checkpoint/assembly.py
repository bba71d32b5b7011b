"""Makes a manifest of what the servers have written, and says so in a message.

Errors:  NotSaved when they do not make a whole checkpoint; BadMessage for a report that is wrong.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from p2pswarm.base.errors import BadMessage, NotSaved
from p2pswarm.base.ids import PeerId
from p2pswarm.checkpoint.digests import DIGEST_BYTES, FileDigest
from p2pswarm.checkpoint.manifest import SavedStage
from p2pswarm.checkpoint.names import stage_file_name
from p2pswarm.run.messages.checkpoint import Saved


def joined(reports: Iterable[SavedStage], cut: Sequence[range]) -> tuple[SavedStage, ...]:
    """The stages of a checkpoint from the reports of all servers that wrote; `cut`: their blocks.

    NotSaved names a stage that nobody has written, or that two have written differently.
    """
    stages: dict[int, SavedStage] = {}
    for report in reports:
        known = stages.get(report.stage)
        if known is None:
            stages[report.stage] = report
            continue
        names = tuple(dict.fromkeys(known.names + report.names))
        both = dataclasses.replace(known, names=names)
        if both != dataclasses.replace(report, names=names):
            raise NotSaved(
                f"two servers of stage {report.stage} wrote different files ({', '.join(names)}): "
                "this checkpoint is not finished; the next one will be"
            )
        stages[report.stage] = both
    for stage, blocks in enumerate(cut):
        saved = stages.get(stage)
        if saved is None:
            raise NotSaved(f"no server has written stage {stage}: this checkpoint is not finished")
        if (saved.stages, saved.first_block, saved.end_block) != (
            len(cut),
            blocks.start,
            blocks.stop,
        ):
            raise NotSaved(f"stage {stage} was written for another cut of the model")
    return tuple(stages[stage] for stage in range(len(cut)))


def report_of(saved: SavedStage, run: bytes, step: int) -> Saved:
    """What a server says to the trainer when its file is whole."""
    digest = saved.digest
    return Saved(
        run,
        step,
        saved.stage,
        saved.first_block,
        saved.end_block,
        saved.state_digest,
        digest.size,
        digest.sha256,
        digest.piece_bytes,
        b"".join(digest.pieces),
    )


def saved_by(report: Saved, peer: PeerId, stages: int) -> SavedStage:
    """What a report of `peer` means; its name is in the file's, so it can name no other file."""
    raw = report.pieces
    pieces = tuple(raw[i : i + DIGEST_BYTES] for i in range(0, len(raw), DIGEST_BYTES))
    try:
        return SavedStage(
            report.stage,
            stages,
            report.first_block,
            report.end_block,
            report.state_digest,
            (stage_file_name(report.stage, stages, peer.short),),
            FileDigest(report.size, report.sha256, report.piece_bytes, pieces),
        )
    except ValueError as error:
        raise BadMessage(f"a stage that was saved: {error}") from error
