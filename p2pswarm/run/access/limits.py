"""The limits of closed runs; docs/closed_runs.md argues each.

Units:   seconds, bytes, characters.
Errors:  none.
"""

CLOCK_TOLERANCE_S = 300  # clocks may differ by so much
GRANT_MAX_S = 10 * 366 * 86_400  # a typing error is no eternity
TIME_MAX_S = (1 << 40) - 1  # five bytes in an invitation
USES_MAX = 256
PROVEN_MAX = 4_096  # peers whose tokens are remembered
SIGNED_MAX = 1_024  # grants whose signature was checked already
REVOKED_SERIALS_MAX = 1_024
REVOKED_PEERS_MAX = 512
EXTENDED_MAX = 512
SERIAL_BYTES = 8
REFUSAL_CHARS = 200  # one line
INVITATION_CHARS_MAX = 1_024
ADDRESSES_MAX = 4  # in an invitation
WARN_BEFORE_S = 86_400  # a member says so long before that its invitation expires
