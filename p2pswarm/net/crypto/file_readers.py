"""Whether a file's mode bits let other users than this one read or write it.

A group counts as other users, unless the user is alone in it: a group of the user's own name
without other members, as most systems make one for each user. Kubernetes gives all files of a
volume to such a group, `fsGroup`, and sets its bits. A group that the machine has no name for
counts as others: nobody can tell who is in it.
"""

import os
import stat
import sys
from collections.abc import Iterable

if sys.platform == "win32":

    def open_to_others(_status: os.stat_result) -> bool:
        """Return false: a file's folder decides whom Windows lets read it, and no mode bits."""
        return False

else:
    import grp
    import pwd

    ROOT = 0  # it reads all files, whatever their bits say

    def open_to_others(status: os.stat_result) -> bool:
        """Return whether others may read or write the file with this status."""
        for_all, for_group = status.st_mode & stat.S_IRWXO, status.st_mode & stat.S_IRWXG
        return bool(for_all or (for_group and not _is_private(status)))

    def _is_private(status: os.stat_result) -> bool:
        """Return whether the file's group is this user alone, and no third one owns the file."""
        try:
            user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(status.st_gid)
        except KeyError:
            return False
        return status.st_uid in (ROOT, user.pw_uid) and is_alone(user, group, pwd.getpwall())

    def is_alone(
        user: pwd.struct_passwd, group: grp.struct_group, users: Iterable[pwd.struct_passwd]
    ) -> bool:
        """Return whether `user` is alone in its own group; `users`: all that the machine lists.

        A directory service may list no users, and no members for whom a group is the first. So the
        name of the group has to be the user's.
        """
        others = [
            *(name for name in group.gr_mem if name != user.pw_name),
            *(one for one in users if one.pw_gid == group.gr_gid and one.pw_uid != user.pw_uid),
        ]
        return group.gr_name == user.pw_name and not others
