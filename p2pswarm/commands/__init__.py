"""What each command of `p2pswarm` is: its flags, what they mean, and what is done.

A command is a module. `add` gives the parser its flags and names the function that makes a value of
them; the value's `run` does the work, and returns the exit code. Heavy modules are imported by name
when a command runs, so that `--help` answers at once. Entrances: `parse` and `main` in `run.py`,
used by `cli.py`.
"""
