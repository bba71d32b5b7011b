"""The file of prepared text: whole or not there, whoever was killed while writing it."""

from pathlib import Path

from p2pswarm.data.token_file import PreparedDocument, open_prepared, prepare

MARK = bytes(32)


def document(text: bytes, *, held_out: bool = False) -> PreparedDocument:
    return PreparedDocument(held_out, text, len(text))


def test_what_a_killed_writer_left_is_deleted(tmp_path: Path):
    path = tmp_path / "abc.prepared"
    (tmp_path / "abcxyz.part").write_bytes(b"half")
    (tmp_path / "other.part").write_bytes(b"of another text")

    prepare(path, [document(b"one")], MARK)

    assert {file.name for file in tmp_path.iterdir()} == {"abc.prepared", "other.part"}


def test_who_writes_the_same_text_meanwhile_loses_nothing(tmp_path: Path):
    path = tmp_path / "abc.prepared"

    def documents():
        yield document(b"one")
        prepare(path, [document(b"two")], MARK)  # as another trainer on this machine
        yield document(b"out", held_out=True)

    prepare(path, documents(), MARK)

    texts = open_prepared(path, MARK)
    assert texts is not None
    assert [bytes(text[0:3]) for text in texts] == [b"one", b"out"]
    assert not list(tmp_path.glob("*.part"))
