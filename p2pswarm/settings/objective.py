"""The objective of a run: the loss of tokens, or of pairs of answers of which one is preferred."""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.settings.limits import Between, Text

TOKENS, DPO, ORPO, SIMPO = "tokens", "dpo", "orpo", "simpo"
PREFERENCES = DPO, ORPO, SIMPO
BETAS = {DPO: 0.1, ORPO: 0.1, SIMPO: 2.0}
"""The usual ones: TRL's of dpo and orpo, the paper's of simpo."""
GAMMA = 1.0
PAIR_ROWS_MAX = 4_096  # of a microbatch: a note to the trainer has a number for each
REFERENCE_TOKENS = 10  # as many as a number of a row stands in; a test compares
WRITING = "it learns from answers that the model writes meanwhile, and servers here only train"
BATCH_WIDE = "it compares each answer with a mean over the batch, which no server knows"
REFUSED = {"kto": BATCH_WIDE} | dict.fromkeys(
    ("ppo", "grpo", "rloo", "gspo", "dapo", "reinforce", "online-dpo", "nash-md", "xpo"), WRITING
)
"""Other names that people know, and why each is none of ours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveConfig:
    """What is made small: the loss of target tokens, or that of pairs (docs/preferences.md).

    Source:  DPO: Rafailov et al., arXiv 2305.18290; ORPO: Hong et al., arXiv 2403.07691; SimPO:
             Meng et al., arXiv 2405.14734.
    """

    name: Annotated[str, Text(32)] = TOKENS
    """tokens; or, of rows with `chosen` and `rejected`: dpo, orpo, simpo."""
    beta: Annotated[float, Between(0.0, 1e3)] = 0.0
    """How much a difference of a pair's log probabilities counts; of orpo the weight of its odds;
    0: 0.1, of simpo 2."""
    gamma: Annotated[float, Between(0.0, 1e3)] = GAMMA
    """Of simpo: by how much beta times that difference is to be above 0."""

    @property
    def prefers(self) -> bool:
        """True if pairs are trained on: two rows of a microbatch, first the chosen answer."""
        return self.name in PREFERENCES

    @property
    def refers(self) -> bool:
        """True if answers are compared with what the first weights thought of them."""
        return self.name == DPO

    @property
    def strength(self) -> float:
        """The beta that holds."""
        return self.beta or BETAS.get(self.name, 0.0)

    def __post_init__(self) -> None:
        if why := REFUSED.get(self.name.lower()):
            raise ValueError(f'"{self.name}" is not supported, {why}: choose dpo, orpo or simpo')
        if self.name not in (TOKENS, *PREFERENCES):
            raise ValueError(
                f'name is one of {", ".join((TOKENS, *PREFERENCES))}, not "{self.name}"'
            )
        if self.gamma != GAMMA and self.name != SIMPO:
            raise ValueError(f'gamma is of simpo, and name is "{self.name}": leave it out')
        if self.beta and not self.prefers:
            raise ValueError(
                f'beta is for pairs, and name is "{self.name}": choose dpo, orpo or simpo'
            )
