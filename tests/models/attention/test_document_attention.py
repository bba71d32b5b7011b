"""Attention document by document is attention under a dense mask, without the mask."""
# ruff: noqa: N803, N806  shapes are written at the end of names

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from p2pswarm.base.errors import Unusable
from p2pswarm.models.attention.band_attention import Band, band_attention
from p2pswarm.models.attention.document_attention import (
    SHORT,
    WHOLE_ROWS,
    AttentionRule,
    lengths_of,
)

ROWS = [[3, 70, 1, 1, 5, 130, 66, 12], [288], [1] * 100 + [SHORT - 1, SHORT, 61]]
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
RULES = {
    "causal": AttentionRule(),
    "scaled": AttentionRule(scale=0.7),
    "window": AttentionRule(window=9),
    "a window longer than every document": AttentionRule(window=300),
    "chunk": AttentionRule(chunk=7),
    "soft cap": AttentionRule(softcap=1.5),
    "sinks": AttentionRule(sinks_H=SINKS),
    "all": AttentionRule(window=90, softcap=2.0, sinks_H=SINKS, scale=0.3),
}


def positions(rows):
    return torch.stack([torch.cat([torch.arange(n, dtype=torch.int32) for n in r]) for r in rows])


def drawn(rows, groups=2, width=6, values=6, dtype=torch.float64):
    generator = torch.Generator().manual_seed(2)
    tokens = sum(rows[0])
    shapes = ((4, width), (groups, width), (groups, values))
    return [
        torch.randn(len(rows), heads, tokens, features, generator=generator, dtype=torch.float64)
        .to(dtype)
        .requires_grad_()
        for heads, features in shapes
    ]


def dense(q_BHTK, k_BGTK, v_BGTV, position_BT, rule):
    """The same with a mask of T x T, as a formula."""
    repeat = q_BHTK.shape[1] // k_BGTK.shape[1]
    k_BHTK, v_BHTV = (x.repeat_interleave(repeat, 1) for x in (k_BGTK, v_BGTV))
    number_BT = (position_BT == 0).cumsum(1)
    apart_BTT = (position_BT.unsqueeze(2) - position_BT.unsqueeze(1)).unsqueeze(1)
    seen = (number_BT.unsqueeze(2) == number_BT.unsqueeze(1)).unsqueeze(1) & (apart_BTT >= 0)
    if rule.window:
        seen = seen & (apart_BTT < rule.window)
    if rule.chunk:
        chunk_BT = position_BT // rule.chunk
        seen = seen & (chunk_BT.unsqueeze(2) == chunk_BT.unsqueeze(1)).unsqueeze(1)
    scores = q_BHTK @ k_BHTK.mT * (rule.scale or q_BHTK.shape[-1] ** -0.5)
    scores = rule.softcap * (scores / rule.softcap).tanh() if rule.softcap else scores
    scores = scores.masked_fill(~seen, -torch.inf)
    if rule.sinks_H is not None:
        sinks = rule.sinks_H.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sinks), -1)
    weights = scores.softmax(-1)
    return weights[..., : q_BHTK.shape[2]] @ v_BHTV


def gradients(made, tensors):
    generator = torch.Generator().manual_seed(3)
    back = torch.randn(made.shape, generator=generator, dtype=torch.float64).to(made.dtype)
    return torch.autograd.grad(made, tensors, back)


def apart(ours, theirs):
    pairs = zip(ours, theirs, strict=True)
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


@pytest.mark.parametrize("name", RULES)
def test_values_and_gradients_are_those_of_a_dense_mask(name):
    rule, tensors, position_BT = RULES[name], drawn(ROWS), positions(ROWS)
    if rule.sinks_H is not None:
        rule = replace(rule, sinks_H=rule.sinks_H.clone().requires_grad_())
        tensors.append(rule.sinks_H)

    ours = WHOLE_ROWS.attend(*tensors[:3], position_BT, rule)
    theirs = dense(*tensors[:3], position_BT, rule)

    assert apart([ours], [theirs]) < 1e-14
    assert apart(gradients(ours, tensors), gradients(theirs, tensors)) < 1e-13


@pytest.mark.parametrize(("width", "values"), [(10, 6), (6, 10)])
def test_keys_and_values_may_have_other_widths(width, values):
    tensors, position_BT = drawn(ROWS, 4, width, values), positions(ROWS)

    ours = WHOLE_ROWS.attend(*tensors, position_BT, AttentionRule())
    theirs = dense(*tensors, position_BT, AttentionRule())

    assert ours.shape[-1] == values
    assert apart(gradients(ours, tensors), gradients(theirs, tensors)) < 1e-13


@pytest.mark.parametrize("name", ["causal", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_whatever_lies_beside_it(name, dtype):
    rule = RULES[name]
    tensors, position_BT = drawn(ROWS, dtype=dtype), positions(ROWS)
    made = WHOLE_ROWS.attend(*tensors, position_BT, rule)
    found = gradients(made, tensors)

    for number in range(len(ROWS)):
        own = [x.detach()[number : number + 1].requires_grad_() for x in tensors]
        alone = WHOLE_ROWS.attend(*own, position_BT[number : number + 1], rule)
        generator = torch.Generator().manual_seed(3)
        back = torch.randn(made.shape, generator=generator, dtype=torch.float64).to(dtype)
        alone_found = torch.autograd.grad(alone, own, back[number : number + 1])

        assert torch.equal(alone[0], made[number])
        assert all(torch.equal(a[0], b[number]) for a, b in zip(alone_found, found, strict=True))


class Largest(TorchDispatchMode):
    """The largest tensor that is made inside."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor):
                self.numbers = max(self.numbers, each.numel())
        return made


@pytest.mark.parametrize("rule", [AttentionRule(), AttentionRule(window=40, softcap=1.0)])
def test_nothing_of_a_row_by_itself_squared_is_ever_made(rule):
    rows = [[500] * 8]  # 4,000 tokens: a mask has 16 million places
    tensors, position_BT = drawn(rows, dtype=torch.float32), positions(rows)

    with Largest() as largest:
        gradients(WHOLE_ROWS.attend(*tensors, position_BT, rule), tensors)

    assert tensors[0].numel() <= largest.numbers < 1_000_000


def test_the_graph_of_a_band_holds_what_it_was_given_and_no_scores():
    rows = [[512]]
    tensors = drawn(rows)
    held = {}

    def note(x):
        held[x.data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        WHOLE_ROWS.attend(*tensors, positions(rows), RULES["soft cap"])

    given = sum(x.numel() for x in tensors)
    assert sum(held.values()) == given + tensors[0].numel() + 4 * 512


def test_queries_may_be_the_last_of_their_keys():
    """As where a document is split: keys of the part before come from elsewhere."""
    q, k, v = drawn([[300]])
    whole = dense(q, k, v, positions([[300]]), AttentionRule())

    low_T = torch.zeros(100, dtype=torch.int64)
    part = band_attention(q[:, :, 200:], k, v, Band(low_T, first=200), q.shape[-1] ** -0.5)

    assert apart([part], [whole[:, :, 200:]]) < 1e-14


def test_in_autocast_attention_is_computed_as_the_library_does():
    tensors, position_BT = drawn(ROWS, dtype=torch.float32), positions(ROWS)

    with torch.autocast("cpu", torch.bfloat16):
        made = WHOLE_ROWS.attend(*tensors, position_BT, AttentionRule())

    assert made.dtype == torch.bfloat16
    low = [x.to(torch.bfloat16) for x in tensors]
    assert torch.equal(made, WHOLE_ROWS.attend(*low, position_BT, AttentionRule()))


def test_a_mask_of_the_models_own_is_cut_by_document():
    rows = [[3, 20, 7]]
    tensors, position_BT = drawn(rows), positions(rows)
    earlier = torch.ones(30, 30, dtype=torch.bool).tril().triu(-4).view(1, 1, 30, 30)

    ours = WHOLE_ROWS.attend(*tensors, position_BT, AttentionRule(mask_BHTT=earlier))
    theirs = dense(*tensors, position_BT, AttentionRule(window=5))

    assert apart([ours], [theirs]) < 1e-14
    capped = AttentionRule(mask_BHTT=earlier, softcap=1.0)
    with pytest.raises(Unusable, match="a mask of its own beside a soft cap"):
        WHOLE_ROWS.attend(*tensors, position_BT, capped)


def test_dropout_is_of_a_kernel_only():
    rows = [[SHORT, SHORT]]
    tensors, position_BT = drawn(rows), positions(rows)

    torch.manual_seed(1)
    once = WHOLE_ROWS.attend(*tensors, position_BT, AttentionRule(dropout=0.5))
    torch.manual_seed(1)
    again = WHOLE_ROWS.attend(*tensors, position_BT, AttentionRule(dropout=0.5))

    assert torch.equal(once, again)
    assert not torch.equal(once, WHOLE_ROWS.attend(*tensors, position_BT, AttentionRule()))
    with pytest.raises(Unusable, match="set attention_dropout to 0"):
        WHOLE_ROWS.attend(*tensors, position_BT, AttentionRule(dropout=0.5, window=3))


def test_documents_begin_where_positions_do_and_where_a_row_does():
    position_BT = torch.tensor([[4, 5, 0, 1, 0, 0], [0, 1, 2, 3, 4, 5]])

    assert lengths_of(position_BT) == [[2, 2, 1, 1], [6]]
    assert lengths_of(position_BT) is lengths_of(position_BT)
