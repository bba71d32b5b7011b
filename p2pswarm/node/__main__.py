"""The command `python -m p2pswarm.node`, the same as `p2pswarm node`."""

import sys

from p2pswarm.cli import main

if __name__ == "__main__":
    sys.exit(main(["node", *sys.argv[1:]]))
