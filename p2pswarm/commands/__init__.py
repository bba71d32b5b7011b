"""The commands of `p2pswarm`: flags, their meaning, and what is done.

`add` of a module gives the parser the flags of its commands, and the function that takes them, does
the work, and returns the exit code. Heavy modules are imported by name when a command runs, so that
`--help` answers at once. Entrance: `main` in `command_line.py`.
"""
