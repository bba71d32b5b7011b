"""Which parts of a version a commit saves before it changes them, and when it waits."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.state.version_holds import VersionHolds

PARTS = frozenset((t, k) for t in range(3) for k in range(4))


def copy_of(version, part):
    return memoryview(repr((version, part)).encode())


def test_a_version_that_is_read_before_the_commit_is_not_copied_at_all():
    holds = VersionHolds(PARTS, window=0)
    hold = holds.hold(3)
    assert holds.must_wait

    for part in sorted(PARTS):
        assert holds.read(hold, part) is None  # the memory has it still

    assert not holds.must_wait
    assert holds.to_save() == []


def test_a_commit_waits_until_what_is_unread_fits_into_the_window():
    holds = VersionHolds(PARTS, window=3)
    hold = holds.hold(3)

    read = 0
    for part in sorted(PARTS):
        if not holds.must_wait:
            break
        holds.read(hold, part)
        read += 1

    assert read == len(PARTS) - 3
    assert len(holds.to_save()) == 3


def test_two_readers_of_a_version_share_a_saved_part():
    holds = VersionHolds(PARTS, window=len(PARTS))
    first, second = holds.hold(3), holds.hold(3)

    for part in holds.to_save():
        holds.save(part, copy_of(3, part))
    holds.changed()

    assert not holds.must_wait
    assert holds.read(first, (0, 0)) is holds.read(second, (0, 0)) is not None


def test_saved_parts_of_an_older_version_take_room_of_the_window():
    holds = VersionHolds(PARTS, window=len(PARTS))
    old = holds.hold(3)
    for part in holds.to_save():
        holds.save(part, copy_of(3, part))
    holds.changed()

    new = holds.hold(4)
    assert holds.must_wait
    holds.release(old)
    assert not holds.must_wait
    holds.release(new)
    assert holds.to_save() == []


def test_a_reader_that_is_too_slow_is_broken_and_one_that_has_all_is_not():
    holds = VersionHolds(PARTS, window=1)
    slow, done = holds.hold(3), holds.hold(3)
    for part in PARTS:
        holds.read(done, part)

    holds.break_slow()

    assert slow.broken
    assert not done.broken
    assert not holds.must_wait
    assert holds.to_save() == []


@given(st.data())
def test_whatever_comes_first_a_reader_gets_each_part_of_its_own_version(data):
    """The memory is of one version at a time; copies never exceed the window."""
    window, version, open_holds = data.draw(st.integers(0, 14)), 0, []
    holds = VersionHolds(PARTS, window)
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["hold", "read", "commit", "release"])):
            case "hold" if len(open_holds) < 3:
                open_holds.append(holds.hold(version))
            case "read" if any(h.unread for h in open_holds):
                hold = data.draw(st.sampled_from([h for h in open_holds if h.unread]))
                part = data.draw(st.sampled_from(sorted(hold.unread)))
                if hold.broken:
                    continue
                saved = holds.read(hold, part)
                content = copy_of(version, part) if saved is None else saved
                assert bytes(content) == bytes(copy_of(hold.version, part))
            case "commit":
                if holds.must_wait and data.draw(st.booleans()):
                    holds.break_slow()
                if holds.must_wait:
                    continue
                for part in holds.to_save():
                    holds.save(part, copy_of(version, part))
                holds.changed()
                version += 1
                copies = {id(saved) for h in open_holds for saved in h.saved.values()}
                assert len(copies) <= window
            case "release" if open_holds:
                holds.release(open_holds.pop(data.draw(st.integers(0, len(open_holds) - 1))))
            case _:
                pass
