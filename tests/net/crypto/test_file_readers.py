"""Who may read a file: its mode bits, and groups in which a user is alone."""

import os

import pytest

grp = pytest.importorskip("grp", reason="needs POSIX")
pwd = pytest.importorskip("pwd", reason="needs POSIX")

from p2pswarm.net.crypto.file_readers import is_alone, open_to_others  # noqa: E402


def user(name: str, uid: int, gid: int):
    return pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh"))


def group(name: str, gid: int, *members: str):
    return grp.struct_group((name, "x", gid, list(members)))


NODE = user("node", 10_001, 10_001)
ROOT = user("root", 0, 0)
ANNA = user("anna", 1_000, 10_001)


def status(mode: int, uid: int | None = None, gid: int | None = None) -> os.stat_result:
    mine, ours = os.geteuid(), os.getegid()
    owner, owners = mine if uid is None else uid, ours if gid is None else gid
    return os.stat_result((0o100000 | mode, 1, 1, 1, owner, owners, 32, 0, 0, 0))


@pytest.mark.parametrize("members", [(), ("node",)])
def test_a_user_is_alone_in_a_group_of_its_name(members):
    assert is_alone(NODE, group("node", 10_001, *members), [ROOT, NODE])


@pytest.mark.parametrize(
    ("theirs", "users"),
    [
        (group("users", 100), [ROOT, NODE]),  # a directory service tells no members
        (group("node", 10_001, "anna"), [ROOT, NODE]),
        (group("node", 10_001), [ROOT, NODE, ANNA]),  # whose first group it is
        (group("root", 0), [ROOT, NODE]),
    ],
)
def test_in_any_other_group_there_may_be_others(theirs, users):
    assert not is_alone(NODE, theirs, users)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_file_without_bits_for_others_is_open_to_nobody(mode):
    assert not open_to_others(status(mode))


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o666, 0o644])
def test_a_file_for_everybody_is_open(mode):
    assert open_to_others(status(mode))


def test_a_group_without_a_name_counts_as_others():
    known = {each.gr_gid for each in grp.getgrall()}
    unknown = next(gid for gid in range(54_321, 60_000) if gid not in known)

    assert open_to_others(status(0o640, gid=unknown))


@pytest.mark.parametrize("mode", [0o440, 0o660])
def test_the_bits_of_fsgroup_are_no_others_where_the_group_is_the_users_own(mode):
    """As Kubernetes sets them on a volume, and on a Secret, whose files are root's."""
    me = pwd.getpwuid(os.geteuid())
    mine = [each for each in grp.getgrall() if is_alone(me, each, pwd.getpwall())]
    if not mine:
        pytest.skip("this user has no group of its own name")

    own, roots, strangers = (status(mode, uid, mine[0].gr_gid) for uid in (me.pw_uid, 0, 54_321))

    assert not open_to_others(own)
    assert not open_to_others(roots)
    assert open_to_others(strangers)
