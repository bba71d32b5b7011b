"""In the home of `router.py`: `p2pswarm doctor`, with three nodes in the world to ask.

Two of them have to confirm what it finds; the third may be slow.
"""

import subprocess
import sys

from reach.nat.node_probe import NODE, WORLDS, start
from reach.nat.router import ENV

nodes = [
    start("ip", "netns", "exec", "world", *NODE, "--listen", f"{host}:4000") for host in WORLDS
]
for node in nodes:
    assert node.stdout is not None
    node.stdout.readline()
through = [word for host in WORLDS for word in ("--bootstrap", f"{host}:4000")]
doctor = [sys.executable, "-m", "p2pswarm", "doctor", "--json", *through]
done = subprocess.run(doctor, capture_output=True, text=True, env=ENV, check=False)
for node in nodes:
    node.terminate()
    node.communicate()
sys.stderr.write(done.stderr)
print(done.stdout)
