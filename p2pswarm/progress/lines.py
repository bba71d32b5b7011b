"""LineFormat: a run as lines for a log file, with a line for a step only every few seconds.

Units:   seconds since the first step.
"""

from p2pswarm.progress.events import (
    Checkpointed,
    Ended,
    Event,
    HeldOut,
    Note,
    Peers,
    Relocated,
    Started,
    Stepped,
    Waiting,
    checkpoint_text,
    relocated_text,
)

STEP_EVERY_S = 5.0  # one line in this time is enough for a run of minutes or days


class LineFormat:
    """Chooses the events to print, and formats them."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def told(self, event: Event) -> str | None:
        """The line for an event, or None if it is to be left out."""
        match event:
            case Peers():
                return None
            case Stepped(seconds=seconds) if seconds < self._next_s:
                return None
            case Stepped(seconds=seconds):
                self._next_s = seconds + STEP_EVERY_S
        return f"{event.seconds:8.1f} s  {_text(event)}"


def _text(event: Event) -> str:
    match event:
        case Waiting(stages=stages):
            which = ", ".join(str(stage) for stage in stages)
            text = f"waiting for a server of stage {which}" if which else "every stage is served"
        case Started(parameters=parameters):
            text = f"training begins: {parameters:,} parameters"
        case Stepped():
            text = (
                f"step {event.step:5}  loss {event.loss:.4f}  {event.tokens_per_s:7.0f} tokens/s"
                f"  counted {event.counts.counted}  replayed {event.counts.replayed}"
            )
        case HeldOut():
            text = f"step {event.step:5}  held-out loss {event.nats_per_token:.4f} nats/token"
        case Note():
            text = event.text
        case Checkpointed():
            text = checkpoint_text(event)
        case Relocated():
            text = relocated_text(event)
        case Ended():
            how = "failed" if event.failed else "done"
            text = (
                f"{how} after {event.step} steps: {event.reason}"
                f"  {event.tokens_per_s:7.0f} tokens/s"
                f"  counted {event.counts.counted}  replayed {event.counts.replayed}"
            )
        case Peers():
            text = f"{len(event.peers)} servers"
    return text
