"""The command `python -m p2pswarm.node`, the same as `p2pswarm node`.

Errors:  as `command_line.py`.
"""

import sys

from p2pswarm.cli import main

if __name__ == "__main__":
    sys.exit(main(["node", *sys.argv[1:]]))
