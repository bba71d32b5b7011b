"""Tests of `net/crypto/records.py`."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadFrame, BadRecord
from p2pswarm.net.crypto.records import (
    OVERHEAD_BYTES,
    PLAINTEXT_BYTES_MAX,
    PREFIX_BYTES,
    REKEY_AFTER_S,
    REKEY_FLAG,
    FrameBuffer,
    Opener,
    Sealer,
    ciphertext_bytes,
    derive,
)
from p2pswarm.net.crypto.suite import TAG_BYTES, Suite


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def taken(buffer: FrameBuffer, data: bytes) -> list[tuple[bytes, bytes]]:
    return [(prefix, bytes(body)) for prefix, body in buffer.receive(data)]


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=300), max_size=20),
    cuts=st.lists(st.integers(0, 6000), max_size=40),
)
def test_frames_come_out_whole_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]):
    stream = b"".join(framed(body) for body in bodies)
    buffer = FrameBuffer(4, body_bytes_max=300)

    frames = []
    for start, end in pairwise([0, *sorted(cuts), max(6000, len(stream))]):
        frames += taken(buffer, stream[start:end])

    assert frames == [(framed(body)[:4], body) for body in bodies]


def test_a_frame_that_drips_in_comes_out_with_its_last_byte():
    buffer = FrameBuffer(4, body_bytes_max=300)
    *drops, last = framed(b"drop by drop")

    assert [frame for drop in drops for frame in taken(buffer, bytes([drop]))] == []
    assert taken(buffer, bytes([last])) == [((12).to_bytes(4), b"drop by drop")]


def test_a_body_stays_what_it_was_when_more_comes():
    buffer = FrameBuffer(4, body_bytes_max=300)
    buffer.receive(framed(b"first")[:-1])

    (_, body), *_ = buffer.receive(b"t" + framed(b"second")[:-1])
    buffer.receive(b"d" + framed(b"third"))

    assert body == b"first"


def test_length_over_the_limit_is_refused_before_the_body_comes():
    buffer = FrameBuffer(4, body_bytes_max=100)

    with pytest.raises(BadFrame, match="101"):
        buffer.receive((101).to_bytes(4))


def test_a_bad_length_is_the_error_that_the_owner_chose():
    buffer = FrameBuffer(4, body_bytes_max=100, body_bytes_min=16, error=BadRecord)

    with pytest.raises(BadRecord, match="15 bytes"):
        buffer.receive((15).to_bytes(4))


def test_empty_frame_is_refused():
    """Otherwise four bytes would cost us a round of everything above."""
    buffer = FrameBuffer(4, body_bytes_max=100)

    with pytest.raises(BadFrame, match="0 bytes"):
        buffer.receive(bytes(4))


def test_flags_in_the_prefix_are_no_part_of_the_length():
    buffer = FrameBuffer(4, body_bytes_max=100, flag_bits=1)
    prefix = (3 | 1 << 31).to_bytes(4)

    assert taken(buffer, prefix + b"abc") == [(prefix, b"abc")]


@pytest.mark.parametrize(("prefix_bytes", "most"), [(2, 1), (2, 65535), (1, 255)])
def test_every_length_that_the_prefix_can_tell_may_be_the_limit(prefix_bytes: int, most: int):
    buffer = FrameBuffer(prefix_bytes, body_bytes_max=most)
    prefix = most.to_bytes(prefix_bytes)

    assert taken(buffer, prefix + bytes(most)) == [(prefix, bytes(most))]


@pytest.mark.parametrize(
    ("prefix_bytes", "most", "flag_bits"), [(2, 0, 0), (2, 65536, 0), (1, 256, 0), (1, 128, 1)]
)
def test_limit_that_the_prefix_cannot_tell_is_our_own_mistake(
    prefix_bytes: int, most: int, flag_bits: int
):
    with pytest.raises(ValueError, match=str(most)):
        FrameBuffer(prefix_bytes, most, flag_bits=flag_bits)


KEY = bytes(range(32))
SECRET = b"attack at dawn, bring the large tensors"


def ends(suite: Suite = Suite.AES_GCM) -> tuple[Sealer, Opener]:
    return Sealer(KEY, suite, b"ctl0"), Opener(KEY, suite, b"ctl0")


def opened(opener: Opener, record: bytes) -> bytes:
    return opener.open(record[PREFIX_BYTES:], record[:PREFIX_BYTES])


def opened_into(opener: Opener, record: bytes, room: bytearray) -> int:
    view = memoryview(record)
    return opener.open_into(view[PREFIX_BYTES:], view[:PREFIX_BYTES], memoryview(room))


@pytest.mark.parametrize("suite", list(Suite))
@given(plaintexts=st.lists(st.binary(max_size=300), max_size=8))
def test_records_open_in_the_order_they_were_sealed(suite: Suite, plaintexts: list[bytes]):
    sealer, opener = ends(suite)

    sealed = [sealer.seal(plaintext) for plaintext in plaintexts]

    assert [opened(opener, record) for record in sealed] == plaintexts


def test_sealing_into_memory_gives_the_same_bytes():
    plaintext = random.Random(1).randbytes(5000)
    into, plain = ends()[0], ends()[0]
    room = bytearray(6000)

    length = into.seal_into(memoryview(plaintext), memoryview(room))

    assert room[:length] == plain.seal(plaintext)
    assert length == len(plaintext) + OVERHEAD_BYTES
    assert not any(room[length:])


def test_opening_into_memory_touches_nothing_behind_the_plaintext():
    sealer, opener = ends()
    record = sealer.seal(SECRET)
    room = bytearray(b"\xee" * (len(SECRET) + 3))

    length = opened_into(opener, record, room)

    assert room == SECRET + b"\xee" * 3
    assert length == len(SECRET)


@pytest.mark.parametrize("into_memory", [False, True])
def test_bit_flipped_anywhere_opens_nothing_and_leaves_no_plaintext(into_memory: bool):
    """Every bit of prefix, ciphertext and tag; the cipher itself would leave plaintext behind."""
    texts = set()
    for bit in range((len(SECRET) + OVERHEAD_BYTES) * 8):
        sealer, opener = ends()
        record = bytearray(sealer.seal(SECRET))
        record[bit // 8] ^= 1 << bit % 8
        room = bytearray(PLAINTEXT_BYTES_MAX if bit < 8 * PREFIX_BYTES else len(SECRET))

        with pytest.raises(BadRecord) as caught:
            opened_into(opener, bytes(record), room) if into_memory else opened(
                opener, bytes(record)
            )

        assert not any(room)
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_opener_opens_nothing_more_after_a_failure():
    sealer, opener = ends()
    first, second = sealer.seal(SECRET), sealer.seal(SECRET)
    with pytest.raises(BadRecord):
        opened(opener, first[:-1] + bytes([first[-1] ^ 1]))

    for record in (first, second):  # the second is authentic, and it is its turn
        with pytest.raises(BadRecord):
            opened(opener, record)


def test_records_out_of_order_are_refused():
    sealer, opener = ends()
    sealed = [sealer.seal(SECRET) for _ in range(2)]

    with pytest.raises(BadRecord):
        opened(opener, sealed[1])


def test_record_replayed_is_refused():
    sealer, opener = ends()
    record = sealer.seal(SECRET)
    opened(opener, record)

    with pytest.raises(BadRecord):
        opened(opener, record)


def test_record_left_out_is_noticed():
    sealer, opener = ends()
    sealer.seal(SECRET)

    with pytest.raises(BadRecord):
        opened(opener, sealer.seal(SECRET))


@pytest.mark.parametrize(
    "other",
    [
        Opener(KEY, Suite.AES_GCM, b"ctl1"),
        Opener(bytes(32), Suite.AES_GCM, b"ctl0"),
        Opener(KEY, Suite.CHACHA20_POLY1305, b"ctl0"),
    ],
    ids=["label", "key", "suite"],
)
def test_record_of_another_direction_key_or_suite_is_refused(other: Opener):
    sealer, _ = ends()

    with pytest.raises(BadRecord):
        opened(other, sealer.seal(SECRET))


def test_no_nonce_serves_twice():
    """The same plaintext never gives the same bytes, also over a change of keys."""
    sealer, _ = ends()

    sealed = [sealer.seal(SECRET, now_s=500.0 * i) for i in range(50)]

    assert len({record[PREFIX_BYTES:] for record in sealed}) == 50


@pytest.mark.parametrize("suite", list(Suite))
def test_both_sides_change_keys_together_when_an_hour_has_passed(suite: Suite):
    sealer, opener = ends(suite)
    times_s = [0.0, REKEY_AFTER_S - 1, REKEY_AFTER_S, REKEY_AFTER_S + 1, 2 * REKEY_AFTER_S, 9e9]

    sealed = [sealer.seal(SECRET, now_s=now_s) for now_s in times_s]

    assert [record[0] >> 7 for record in sealed] == [0, 0, 1, 0, 1, 1]
    assert [opened(opener, record) for record in sealed] == [SECRET] * len(times_s)


def test_both_sides_change_keys_together_after_so_many_bytes():
    _, opener = ends()
    sealer = Sealer(KEY, Suite.AES_GCM, b"ctl0", rekey_after_bytes=3 * len(SECRET))
    room, back = bytearray(100), bytearray(len(SECRET))

    flags = []
    for _ in range(10):
        length = sealer.seal_into(SECRET, memoryview(room))
        flags.append(room[0] >> 7)
        opened_into(opener, bytes(room[:length]), back)
        assert back == SECRET

    assert flags == [0, 0, 1, 0, 0, 1, 0, 0, 1, 0]


def test_key_after_a_change_opens_nothing_from_before():
    """Whoever learns today's key cannot read yesterday's records."""
    sealer, opener = ends()
    before = sealer.seal(SECRET)
    opened(opener, before)
    opened(opener, sealer.seal(SECRET, now_s=REKEY_AFTER_S))

    late = Opener(opener._key, Suite.AES_GCM, b"ctl0")

    with pytest.raises(BadRecord):
        opened(late, before)


@pytest.mark.parametrize("length", [0, 1, TAG_BYTES - 1, PLAINTEXT_BYTES_MAX + TAG_BYTES + 1])
@pytest.mark.parametrize("flag", [0, REKEY_FLAG])
def test_prefix_of_no_possible_record_is_refused_before_its_body_comes(length: int, flag: int):
    with pytest.raises(BadRecord):
        ciphertext_bytes((length | flag).to_bytes(PREFIX_BYTES))


@pytest.mark.parametrize("prefix", [b"", b"\0\0\x20", b"\0\0\0\0\x20"])
def test_prefix_of_another_length_is_refused(prefix: bytes):
    with pytest.raises(BadRecord):
        ciphertext_bytes(prefix)


def test_prefix_tells_the_length_with_and_without_the_flag():
    assert ciphertext_bytes((1000).to_bytes(PREFIX_BYTES)) == 1000
    assert ciphertext_bytes((1000 | REKEY_FLAG).to_bytes(PREFIX_BYTES)) == 1000


def test_prefix_that_disagrees_with_the_ciphertext_is_refused():
    sealer, opener = ends()
    record = sealer.seal(SECRET)

    with pytest.raises(BadRecord):
        opener.open(record[PREFIX_BYTES:-1], record[:PREFIX_BYTES])


def test_largest_record_passes_and_a_byte_more_is_our_own_mistake():
    sealer, opener = ends()
    largest = bytes(PLAINTEXT_BYTES_MAX)

    assert opened(opener, sealer.seal(largest)) == largest
    with pytest.raises(ValueError, match="in a record"):
        sealer.seal(largest + b"x")


def test_room_too_small_is_our_own_mistake_and_costs_no_record():
    sealer, opener = ends()
    with pytest.raises(ValueError, match="does not fit"):
        sealer.seal_into(SECRET, memoryview(bytearray(len(SECRET))))
    record = sealer.seal(SECRET)
    with pytest.raises(ValueError, match="does not fit"):
        opened_into(opener, record, bytearray(len(SECRET) - 1))

    assert opened(opener, record) == SECRET


@pytest.mark.parametrize("label", [b"", b"ctl", b"ctl00"])
def test_label_of_another_length_is_refused(label: bytes):
    with pytest.raises(ValueError, match=f"not {len(label)}"):
        Sealer(KEY, Suite.AES_GCM, label)
    with pytest.raises(ValueError, match=f"not {len(label)}"):
        Opener(KEY, Suite.AES_GCM, label)


def test_derived_keys_differ_in_everything_they_are_derived_from():
    usual = (b"e" * 32, b"bulk", b"i" * 16, b"r" * 16, 1)
    others = [
        (b"f" * 32, b"bulk", b"i" * 16, b"r" * 16, 1),
        (b"e" * 32, b"hulk", b"i" * 16, b"r" * 16, 1),
        (b"e" * 32, b"bulk", b"j" * 16, b"r" * 16, 1),
        (b"e" * 32, b"bulk", b"i" * 16, b"s" * 16, 1),
        (b"e" * 32, b"bulk", b"i" * 16, b"r" * 16, 2),
    ]

    keys = [key for one in (usual, *others) for key in derive(*one)]

    assert derive(*usual) == derive(*usual)
    assert len(set(keys)) == len(keys) == 12


def test_nonces_of_two_lengths_are_our_own_mistake():
    """Two lengths would let bytes move from one nonce to the other."""
    with pytest.raises(ValueError, match="16 and 15"):
        derive(b"e" * 32, b"bulk", b"i" * 16, b"r" * 15, 1)
