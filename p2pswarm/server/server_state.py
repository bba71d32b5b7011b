"""Where a stage server is between its start and its end, and what may follow what."""

from enum import Enum


class ServerState(Enum):
    """Where a server is between its start and its end."""

    OUT = "is not in the run, and will join"
    JOINING = "has asked the trainer for a stage"
    PREPARING = "makes memory for its stage"
    LOADING = "gets its weights"
    SERVING = "computes"
    STAYING = "was asked to leave, and computes until another server has its stage's weights"
    FINISHING = "leaves after this step: it takes no new microbatch"
    LEAVING = "says goodbye"
    OVER = "will not join again"


S = ServerState
MOVES: dict[ServerState, tuple[ServerState, ...]] = {
    S.OUT: (S.JOINING, S.OVER),
    S.JOINING: (S.PREPARING, S.OUT, S.OVER),
    S.PREPARING: (S.LOADING, S.LEAVING, S.OUT, S.OVER),
    S.LOADING: (S.SERVING, S.LEAVING, S.OUT, S.OVER),
    S.SERVING: (S.STAYING, S.FINISHING, S.OUT, S.OVER),
    S.STAYING: (S.FINISHING, S.LEAVING, S.OVER),
    S.FINISHING: (S.STAYING, S.LEAVING, S.OVER),
    S.LEAVING: (S.OVER,),
    S.OVER: (),
}
