"""`p2pswarm invite`, `invitations`, `revoke`, `renew`: what the owner of a run does.

Errors:  Unusable for settings that cannot be used, and for invitations that are not there.
"""

import argparse
import importlib

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.arguments import (
    DAY_S,
    Commands,
    add_bootstrap,
    add_json,
    duration,
    file_path,
    say,
    whole,
)
from p2pswarm.commands.node import given
from p2pswarm.node.stack.addresses import check
from p2pswarm.settings.parser import load

TEXTS = {
    "invite": (
        "let a friend into your run, or do more in it",
        "Prints an invitation: a line to send as you would a password, for p2pswarm node --invite.",
    ),
    "invitations": (
        "who was invited to your run",
        "Lists the invitations to your run: until when each is good, and what is revoked.",
    ),
    "revoke": (
        "take back an invitation",
        "Takes back an invitation, or bars a peer id, and tells the run's trainers, who tell all.",
    ),
    "renew": (
        "let an invitation hold for longer",
        "Lets an invitation hold until so long from now; whoever has it need do nothing.",
    ),
}
USES_MAX = 256
EPILOG = "docs/closed_runs.md says who may do what."


def add(commands: Commands) -> None:
    """Add all four commands."""
    for name, text in TEXTS.items():
        parser = commands.add_parser(name, help=text[0], description=text[1], epilog=EPILOG)
        parser.set_defaults(main=_run)
        parser.add_argument(
            "config", type=file_path, metavar="FILE", help="the run's settings, in TOML"
        )
        if name in ("revoke", "renew"):
            parser.add_argument(
                "whom", metavar="WHOM", help="a name or serial number of p2pswarm invitations"
            )
        if name in ("invite", "renew"):
            parser.add_argument(
                "--for",
                dest="lasts",
                type=duration,
                default=7 * DAY_S,
                metavar="TIME",
                help="for how long: 12h, 7d, 4w; default: 7d",
            )
        if name == "invitations":
            add_json(parser, "one JSON object, for scripts")
        if name == "invite":
            _add_invite_flags(parser)
        add_bootstrap(
            parser, "a node of the run's swarm; default: those of FILE, and where its trainer was"
        )


def _add_invite_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help="under which you revoke or renew it")
    parser.add_argument(
        "--role", choices=("serve", "train", "watch"), default="serve", help="default: serve"
    )
    parser.add_argument(
        "--uses",
        type=whole(1, USES_MAX),
        default=0,
        metavar="N",
        help="at most so many peers may use it; default: no limit",
    )
    parser.add_argument(
        "--peer", metavar="ID", help="for this peer id alone; then the text is no secret"
    )


def _run(flags: argparse.Namespace) -> int:
    """The run's settings are in its file."""
    config = load(flags.config)
    if config.state is None:
        raise Unusable(f"{flags.config} names no `state`: set it to where the owner's key is kept")
    config = given(config, {"bootstrap": tuple(flags.bootstrap or ()), "role": "bootstrap"})
    check(config)
    inviting = importlib.import_module("p2pswarm.commands.owner.invitations")
    code = 0
    match flags.command:
        case "invite":
            say(
                inviting.invite(
                    config,
                    name=flags.name or "",
                    role=flags.role,
                    uses=flags.uses,
                    peer=flags.peer or "",
                    lasts_s=flags.lasts,
                )
            )
        case "revoke":
            code = inviting.revoke(config, flags.whom)
        case "renew":
            code = inviting.renew(config, flags.whom, flags.lasts)
        case _:
            say(inviting.listing(config, as_json=flags.json))
    return code
