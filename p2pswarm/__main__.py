"""`python -m p2pswarm`, the same as the command `p2pswarm`."""

import sys

from p2pswarm.cli import main

if __name__ == "__main__":
    sys.exit(main())
