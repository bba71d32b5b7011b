"""`p2pswarm completion`: what a shell needs to complete commands, flags and files.

Errors:  Unusable where the library that writes it is missing.
"""

import argparse
import importlib
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.arguments import Commands, file_path, write

SHELLS = ("bash", "zsh", "fish")
LIBRARY = "shtab"
EPILOG = """\
bash:  p2pswarm completion bash > ~/.local/share/bash-completion/completions/p2pswarm
zsh:   p2pswarm completion zsh > "${fpath[1]}/_p2pswarm"
fish:  p2pswarm completion fish > ~/.config/fish/completions/p2pswarm.fish
"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "completion",
        help="what your shell needs to complete commands and flags",
        description="Writes a script that lets a shell complete commands, flags and files.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(main=_run)
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def _run(flags: argparse.Namespace) -> int:
    try:
        library = importlib.import_module(LIBRARY)
    except ImportError as error:
        raise Unusable(f"completion needs {LIBRARY}: pip install {LIBRARY}") from error
    parser = importlib.import_module("p2pswarm.command_line").make_parser()
    mark_files(parser, library.FILE)
    write(library.complete(parser, shell=flags.shell) + "\n")
    return 0


def mark_files(parser: argparse.ArgumentParser, mark: object) -> None:
    """Tell the library which values are paths; others get no names of files."""
    for action in parser._actions:  # noqa: SLF001  argparse has no other list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for each in action.choices.values():
                mark_files(each, mark)
        elif action.type in (Path, file_path):
            vars(action)["complete"] = mark  # where the library looks for it
