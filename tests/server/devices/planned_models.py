"""Models of a package whose blocks say how devices share them, rightly and wrongly."""

import torch
from torch import nn

from p2pswarm.models.base import Block
from p2pswarm.models.tensor_plan import Style, TensorShare, TensorSplit

RIGHT = {
    "up": TensorShare(Style.COLWISE),
    "down": TensorShare(Style.ROWWISE),
    "own": TensorSplit(0),
}


class Table(Block):
    """Tokens to vectors, whole on every device."""

    def __init__(self, model):
        super().__init__()
        self.tensor_plan = {}
        self.table = nn.Embedding(model.vocabulary, 8)

    def draw(self, generator):
        self.table.weight.normal_(generator=generator)

    def forward(self, tokens):
        return self.table(tokens)


class Wide(Block):
    """Two linear layers, and a parameter that the block multiplies by itself."""

    def __init__(self, vocabulary, plan):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 12), nn.LayerNorm(8), nn.Linear(12, 8)
        self.own = nn.Parameter(torch.empty(12))
        self.head = nn.Linear(8, vocabulary)
        self.tensor_plan = plan

    def draw(self, generator):
        for each in self.parameters():
            each.data.normal_(generator=generator)

    def forward(self, x):
        return self.head(self.norm(x + self.down(self.up(x).tanh() * self.own)))


class Choosy(Block):
    """A row goes through one of two layers, so that some rows use only one of them."""

    def __init__(self, vocabulary):
        super().__init__()
        self.one, self.other = nn.Linear(8, vocabulary), nn.Linear(8, vocabulary)

    def draw(self, generator):
        for each in self.parameters():
            each.data.normal_(generator=generator)

    def forward(self, x):
        rows = [(self.one if row[0, 2] > 0 else self.other)(row) for row in x]
        return torch.stack(rows)

    def trace(self, x):
        return self.one(x)


def right(model):
    """Two blocks with a plan that computes what they do whole."""
    return [Table(model), Wide(model.vocabulary, RIGHT)]


def wrong(model):
    """A norm that all devices compute alike is added up as if each had its own features."""
    return [Table(model), Wide(model.vocabulary, RIGHT | {"norm": TensorShare(Style.OWN_FEATURES)})]
