"""The path of an input is short: how many files it enters, printed and held.

`python -m pytest tests/test_paths.py -q -s` prints a line for each.
"""

from entered import files_entered


def show(capsys, name: str, entered: list[str]) -> None:
    """Print the number, past pytest's capture, as scripts read it."""
    with capsys.disabled():
        print(f"\n{name}: {len(entered)} files")


def test_a_function_of_another_file_is_seen():
    from p2pswarm.base.ids import PeerId  # noqa: PLC0415 - the subject of the test

    assert files_entered(lambda: PeerId(b"\1" * 32).__str__()) == ["base/ids.py"]
