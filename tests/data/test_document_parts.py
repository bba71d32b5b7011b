"""Parts of documents: nothing is lost, and characters stay whole."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.data.document_parts import parts_of


@given(st.text().map(str.encode), st.integers(4, 12))
def test_parts_are_the_document_and_each_is_text(document: bytes, bytes_max: int):
    parts = list(parts_of(document, bytes_max))

    assert b"".join(parts) == document
    assert all(len(part) <= bytes_max for part in parts)
    assert "".join(part.decode() for part in parts) == document.decode()


@given(st.binary(max_size=60), st.integers(4, 12))
def test_bytes_that_are_no_text_are_cut_too(document: bytes, bytes_max: int):
    parts = list(parts_of(document, bytes_max))

    assert b"".join(parts) == document
    assert all(0 < len(part) <= bytes_max for part in parts) or document == b""
