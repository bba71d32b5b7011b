import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.data.samples.target_marks import NO_TARGET
from p2pswarm.models.compute.tokens import checked_tokens, ids_of, labels_of, targets_in
from p2pswarm.models.losses.cross_entropy import NO_LABEL, nats_of

CPU = torch.device("cpu")


def checked(*tokens: int, vocabulary: int = 300, marked: bool = True, dtype=torch.int32):
    return checked_tokens(torch.tensor([tokens], dtype=dtype), CPU, vocabulary, marked=marked)


def test_marks_are_taken_off_ids_and_become_labels_that_nobody_predicts():
    tokens = checked(7, NO_TARGET | 8, 9, NO_TARGET | 299)

    assert ids_of(tokens).tolist() == [[7, 8, 9, 299]]
    assert labels_of(tokens).tolist() == [[NO_LABEL, 9, NO_LABEL]]
    assert targets_in(tokens) == 1


@given(st.integers(-(2**31), 2**31 - 1), st.booleans())
def test_a_token_beyond_the_vocabulary_is_refused_whatever_its_marks(token: int, marked: bool):
    good = 0 <= token < 300 or (marked and 0 <= token - NO_TARGET < 300)

    if good:
        assert ids_of(checked(1, token, marked=marked)).tolist() == [[1, token % NO_TARGET]]
    else:
        with pytest.raises(BadMessage, match="the vocabulary has 300"):
            checked(1, token, marked=marked)


def test_bytes_have_no_marks_and_are_all_targets():
    tokens = checked(7, 255, 9, vocabulary=256, dtype=torch.uint8)

    assert labels_of(tokens).tolist() == [[255, 9]]
    assert targets_in(torch.tensor([[7, 255, 9]], dtype=torch.uint8)) == 2


def test_rows_without_a_target_lose_nothing_and_have_a_gradient_of_zeros():
    scores = torch.randn(1, 3, 5, requires_grad=True)

    nats = nats_of(scores, torch.full((1, 3), NO_LABEL))
    nats.backward()

    assert nats.item() == 0.0
    assert torch.equal(scores.grad, torch.zeros_like(scores))
