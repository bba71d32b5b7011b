import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.data.samples.target_marks import NO_TARGET, NUMBER_TOKENS, with_number
from p2pswarm.models.compute.tokens import (
    checked_tokens,
    ids_of,
    labels_of,
    numbers_in,
    targets_in,
)
from p2pswarm.models.losses.cross_entropy import NO_LABEL, nats_of
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.objective import REFERENCE_TOKENS, ObjectiveConfig

CPU = torch.device("cpu")


def checked(*tokens: int, vocabulary: int = 300, marked: bool = True, dtype=torch.int32):
    batch = BatchConfig(samples="whole" if marked else "drawn")
    run = RunConfig(model=ModelConfig(vocabulary=vocabulary), batch=batch)
    return checked_tokens(torch.tensor([tokens], dtype=dtype), CPU, run)


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


DPO_RUN = RunConfig(
    model=ModelConfig(vocabulary=300),
    batch=BatchConfig(samples="whole"),
    objective=ObjectiveConfig(name="dpo"),
)
ROW = np.array([7, 8, 9, NO_TARGET | 299] * 3, dtype=np.int32)


@given(st.floats(-1e9, 1e9))
def test_a_row_carries_a_number_bit_for_bit_and_its_tokens_are_what_they_were(number: float):
    row = torch.from_numpy(with_number(ROW, number))

    tokens = checked_tokens(row[None], CPU, DPO_RUN)

    assert numbers_in(tokens).numpy().tobytes() == np.float64(number).tobytes()
    assert ids_of(tokens).tolist() == [[7, 8, 9, 299] * 3]
    assert labels_of(tokens).tolist() == [[8, 9, NO_LABEL, *[7, 8, 9, NO_LABEL] * 2]]
    assert NUMBER_TOKENS == REFERENCE_TOKENS


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e10, -1e10])
def test_a_reference_that_is_no_number_is_refused(number: float):
    row = torch.from_numpy(with_number(ROW, number))

    with pytest.raises(BadMessage, match="references of"):
        checked_tokens(row[None], CPU, DPO_RUN)


@pytest.mark.parametrize(("place", "bit"), [(10, 24), (11, 30), (9, 25), (9, 30)])
def test_bits_that_are_no_reference_are_refused(place: int, bit: int):
    row = with_number(ROW, -1.5)
    row[place] |= 1 << bit

    with pytest.raises(BadMessage, match="bits that are no reference"):
        checked_tokens(torch.from_numpy(row)[None], CPU, DPO_RUN)
    with pytest.raises(BadMessage, match="the vocabulary has 300"):
        checked(*with_number(ROW, -1.5).tolist())
