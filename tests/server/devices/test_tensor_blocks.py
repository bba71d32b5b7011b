"""What devices exchange, in both directions, against one process that has everything."""

import gc
import weakref

import pytest
import torch
from core import core_of
from server.devices.harness import by_ranks, group_alone
from torch import nn
from torch.nn import functional as F  # noqa: N812  torch's own name for it
from torch.profiler import ProfilerActivity, profile

from p2pswarm.models.losses.cross_entropy import NO_LABEL, nats_of
from p2pswarm.models.tensor_plan import Style, TensorShare
from p2pswarm.server.devices.tensor_blocks import DeviceTensors, shared_blocks
from p2pswarm.server.devices.tensor_split import span_of


def drawn(*shape):
    chance = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(*shape, generator=chance, dtype=torch.float64)


def close(one, other):
    return torch.allclose(one, other, rtol=1e-12, atol=1e-14)


def an_mlp_is_what_it_is_whole(rank, ranks):
    x, up, down = drawn(2, 3, 4), drawn(7, 4), drawn(4, 7)
    whole = [each.clone().requires_grad_() for each in (x, up, down)]
    (F.linear(F.linear(whole[0], whole[1]).relu(), whole[2]) * drawn(4)).sum().backward()
    group = DeviceTensors(rank, ranks)
    start, stop = span_of(rank, ranks, 7)
    own = [x.clone(), up[start:stop].clone(), down[:, start:stop].clone()]
    own = [each.requires_grad_() for each in own]

    made = group.leave(F.linear(F.linear(group.enter(own[0]), own[1]).relu(), own[2]))
    (made * drawn(4)).sum().backward()

    assert close(made, F.linear(F.linear(x, up).relu(), down))
    assert close(own[0].grad, whole[0].grad)
    assert close(own[1].grad, whole[1].grad[start:stop])
    assert close(own[2].grad, whole[2].grad[:, start:stop])


def gathering_and_scattering_are_opposite(rank, ranks):
    group, x, weight = DeviceTensors(rank, ranks), drawn(2, 5), drawn(5)
    own = group.part(x).requires_grad_()
    gathered = group.gather(own, 5)
    (gathered * weight).sum().backward()
    assert torch.equal(gathered, x)
    assert torch.equal(own.grad, group.part(weight.expand(2, 5)))

    whole = x.clone().requires_grad_()
    part = group.scatter(whole)
    (part * group.part(weight)).sum().backward()
    assert torch.equal(part, group.part(x))
    assert torch.equal(whole.grad, weight.expand(2, 5))


def tokens_are_looked_up_and_scored_by_whoever_has_them(rank, ranks):
    group, count = DeviceTensors(rank, ranks), 7
    start, stop = span_of(rank, ranks, count)
    ids = torch.tensor([[0, 6, 3, 3], [2, 5, 1, 4]])
    table = drawn(count, 4).requires_grad_()
    own = table.detach()[start:stop].clone().requires_grad_()
    made = group.look_up(lambda each: F.embedding(each, own), ids, count)
    assert torch.equal(made, F.embedding(ids, table))

    scale, scores = drawn(count, 4), table[ids] @ drawn(count, 4).T * 30
    labels = ids.masked_fill(ids == 3, NO_LABEL)
    expected = nats_of(scores, labels)
    expected.backward()
    nats = group.nats(group.enter(made) @ scale[start:stop].T * 30, labels, count)
    nats.backward()
    assert close(nats, expected)
    assert close(own.grad, table.grad[start:stop])


def scores_of_other_tokens_are_noticed(rank, ranks):
    scores, ids = drawn(1, 2, 9), torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match="scores of 9 tokens"):
        DeviceTensors(rank, ranks).nats(scores, ids, 8)


def experts_that_are_others_are_noticed(rank, ranks):
    group = DeviceTensors(rank, ranks)
    group.require_same(torch.tensor([1, 2]), "experts")
    if rank == 0:
        group.require_same(torch.tensor([1, 2]), "experts")
    else:
        with pytest.raises(ValueError, match="chose other experts"):
            group.require_same(torch.tensor([1, 3]), "experts")


def all_of_it(rank, ranks):
    an_mlp_is_what_it_is_whole(rank, ranks)
    gathering_and_scattering_are_opposite(rank, ranks)
    tokens_are_looked_up_and_scored_by_whoever_has_them(rank, ranks)
    scores_of_other_tokens_are_noticed(rank, ranks)
    experts_that_are_others_are_noticed(rank, ranks)


@pytest.mark.parametrize("ranks", core_of([2, 3], [2]))
def test_devices_compute_together_what_one_does(fork_server, ranks):
    by_ranks(fork_server, ranks, all_of_it)


def test_a_group_of_one_computes_what_it_does_alone(tmp_path):
    with group_alone(tmp_path):
        all_of_it(0, 1)


class Layer(nn.Module):
    """Three layers that take one tensor, as queries, keys and values do."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(4, 4, bias=False) for _ in range(4))

    def forward(self, x):
        normed = F.rms_norm(x, (4,))
        return x + self.out(self.q(normed) * self.k(normed) * self.v(normed))


def test_a_layer_adds_up_once_forward_and_once_backward(tmp_path):
    styles = {"q": Style.COLWISE, "k": Style.COLWISE, "v": Style.COLWISE, "out": Style.ROWWISE}
    layer = Layer()
    layer.tensor_plan = {name: TensorShare(style) for name, style in styles.items()}
    with group_alone(tmp_path):
        group = DeviceTensors(0, 1)
        shared_blocks([layer], group, torch.float32, torch.device("cpu"))
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            layer(torch.ones(1, 2, 4, requires_grad=True)).sum().backward()

    counts = {each.key: each.count for each in seen.key_averages()}
    assert counts["gloo:all_reduce"] == 2


def test_a_group_holds_no_graph_when_it_has_forgotten():
    group, x = DeviceTensors(0, 1), drawn(2, 4).requires_grad_()
    with torch.no_grad():
        assert group.enter(x) is x  # nothing will come back
    entered = weakref.ref(group.enter(x))
    assert group.enter(x) is entered() is not x
    assert group.enter(x * 1) is not entered()

    group.forget()

    gc.collect()
    assert entered() is None
