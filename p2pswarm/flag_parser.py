"""The flags of every command, with the texts of `--help`.

Errors:  SystemExit with one line for flags that cannot be read, as argparse does.
"""

import argparse
from pathlib import Path
from typing import NoReturn

from p2pswarm.config import LOG_LEVELS, ROLES
from p2pswarm.demo.options import Options
from p2pswarm.flag_types import DAY_S, duration, whole
from p2pswarm.ids import PORT_MAX
from p2pswarm.version import VERSION

STAGES_MAX, REPLICAS_MAX = 8, 16  # processes on one machine
STEPS_MAX = 10**6
SEED_MAX = 2**32 - 1
USAGE_CODE = 2
NODE_TEXT = (
    "Runs a node of a swarm. Without flags it starts a swarm; with --bootstrap it joins one "
    "and serves the stage that needs it most."
)
TRAIN_TEXT = (
    "Starts a training run on your text, waits for servers, and writes the weights at the end: to "
    "the file that train.weights names, with the run's name and step added, such as "
    "weights-my-run-step-2000.safetensors. A file that is there is never overwritten."
)
VERIFY_TEXT = (
    "Reads every byte of a checkpoint, and compares it with what the run's trainer signed. A line "
    "for each stage says what is there."
)
ASKING_TEXTS = {
    "status": (
        "how the runs of a swarm stand",
        "Asks the trainers of a swarm how their runs stand: steps, servers, microbatches.",
    ),
    "explain": (
        "which stage limits a run, and why servers move or stay",
        "Asks trainers what each stage can do, who has moved to another one, and why others stay.",
    ),
}
DOCTOR_TEXT = (
    "Finds out whether others can dial this machine, and what slows training down here, and says "
    "what to change. Run it while no node runs here: then it tests the port that a node will have."
)
PLAN_TEXT = (
    "Finds out which device should serve which stage, so that an iteration takes least, and says "
    "how good its answer is at least. FILE.json has latency_s and gbps, a row of numbers for each "
    "device, then stages, pipelines, gradient_gbit, activation_gbit; access_gbps may bound each "
    "device's own line. The cost is that of Decentralized Training of Foundation Models in "
    "Heterogeneous Environments (Yuan et al., 2022)."
)
DEMO_TEXT = (
    "Trains a byte-level transformer with several processes on this machine, kills a server on "
    "the way, and draws what was learnt."
)


INVITE_HELP = "the invitation to a closed run: the line of p2pswarm invite, or a file that has it"
OWNER_TEXTS = {
    "invite": (
        "let a friend into your closed run",
        "Prints an invitation: a line to send as you would a password, for p2pswarm node --invite.",
    ),
    "invitations": (
        "who was invited to your closed run",
        "Lists the invitations to your closed run: until when each is good, and what is revoked.",
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
CLOSED_EPILOG = "docs/closed_runs.md says how closed runs work."


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with one line on stderr, as all commands do."""
        self.exit(USAGE_CODE, f"error: {message}; see --help\n")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = OneLineParser(
        prog="p2pswarm",
        description="Trains one transformer on any machines you can get.",
        epilog="p2pswarm COMMAND --help explains a command; python -m p2pswarm is the same.",
    )
    parser.add_argument("--version", action="version", version=f"p2pswarm {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    node = commands.add_parser(
        "node",
        help="join a swarm, or start one",
        description=NODE_TEXT,
        epilog="python -m p2pswarm.node is the same.",
    )
    node.set_defaults(resume=None, standby=False, new=False, closed=False)
    node.add_argument(
        "--role", choices=ROLES, help="default: stage with --bootstrap, else bootstrap"
    )
    node.add_argument("--config", type=Path, metavar="FILE", help="settings; see --example")
    node.add_argument(
        "--example",
        choices=[role for role in ROLES if role != "auto"],
        help="print a commented settings file for this role, and exit",
    )
    _add_node_flags(node)
    _add_train_flags(commands)
    for name, text in ASKING_TEXTS.items():
        _add_asking_flags(commands.add_parser(name, help=text[0], description=text[1]))
    _add_doctor_flags(
        commands.add_parser(
            "doctor", help="what is wrong with this machine's network", description=DOCTOR_TEXT
        )
    )
    _add_commands_on_files(commands)
    _add_owner_commands(commands)
    _add_demo_flags(
        commands.add_parser(
            "demo", help="train a small transformer on this machine alone", description=DEMO_TEXT
        )
    )
    return parser


def _add_train_flags(commands: "argparse._SubParsersAction[OneLineParser]") -> None:
    """Add the command that starts a run."""
    train = commands.add_parser(
        "train",
        help="train on your text, with the servers that join",
        description=TRAIN_TEXT,
        epilog="p2pswarm node --example trainer prints a file to begin with.",
    )
    train.add_argument("config", type=Path, metavar="FILE", help="the run's settings, in TOML")
    train.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="TARGET",
        help="go on from a checkpoint: TARGET is one, or a folder or URL that has some, of which "
        "the newest good one is taken; default: checkpoint.target of FILE",
    )
    train.add_argument(
        "--standby",
        action="store_true",
        help="found no run: stand by for this one, and lead it when its trainer is gone",
    )
    train.add_argument(
        "--new",
        action="store_true",
        help="begin another run, though the folder of `state` holds one that is not finished",
    )
    train.add_argument(
        "--closed",
        action="store_true",
        help="only who is invited takes part: see p2pswarm invite, and docs/closed_runs.md",
    )
    train.set_defaults(role="trainer")
    _add_node_flags(train)


def _add_owner_commands(commands: "argparse._SubParsersAction[OneLineParser]") -> None:
    """Add what the owner of a closed run does."""
    for name, text in OWNER_TEXTS.items():
        parser = commands.add_parser(name, help=text[0], description=text[1], epilog=CLOSED_EPILOG)
        parser.add_argument("config", type=Path, metavar="FILE", help="the run's settings, in TOML")
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
            parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")
        if name == "invite":
            _add_invite_flags(parser)
        parser.add_argument(
            "--bootstrap",
            action="append",
            metavar="HOST:PORT",
            help="a node of the run's swarm; default: those of FILE, and where its trainer was",
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


def _add_node_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every node."""
    parser.add_argument(
        "--bootstrap",
        action="append",
        metavar="HOST:PORT",
        help="join through this node of the swarm; may be given several times",
    )
    parser.add_argument(
        "--listen",
        metavar="[HOST]:PORT",
        help="default: every address of this machine, port 4000 or any free one",
    )
    parser.add_argument(
        "--announce",
        metavar="HOST:PORT",
        help="what others dial, if it is not this machine's own address",
    )
    port = whole(1, PORT_MAX)
    parser.add_argument(
        "--relay",
        action="append",
        dest="relays",
        metavar="HOST:PORT",
        help="others cannot dial this machine: let them reach it through this node of the swarm; "
        "may be given several times",
    )
    parser.add_argument(
        "--relay-port",
        type=port,
        metavar="PORT",
        help="listen on this port, too; 443 passes most firewalls",
    )
    parser.add_argument(
        "--relay-web",
        type=port,
        metavar="PORT",
        help="take connections over WebSocket here, from hosts that have only the web",
    )
    parser.add_argument(
        "--identity",
        type=Path,
        metavar="FILE",
        help="keep this node's id in this file; the file is made if it is not there",
    )
    parser.add_argument("--invite", metavar="TEXT", help=INVITE_HELP)
    parser.add_argument("--log-level", choices=LOG_LEVELS, help="default: warning")
    parser.add_argument("--check", action="store_true", help="say what the settings mean, and exit")


def _add_asking_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap",
        action="append",
        metavar="HOST:PORT",
        help="ask through this node of the swarm; may be given several times",
    )
    parser.add_argument("--invite", metavar="TEXT", help=INVITE_HELP)
    parser.add_argument("--run", default="", metavar="NAME", help="default: every run")
    parser.add_argument("--json", action="store_true", help="one line of JSON, for scripts")


def _add_commands_on_files(commands: "argparse._SubParsersAction[OneLineParser]") -> None:
    """Add the commands that need no network."""
    _add_verify_flags(
        commands.add_parser(
            "verify",
            help="prove that a checkpoint is whole",
            description=VERIFY_TEXT,
            epilog="Exit code: 0 if it is whole, 1 if it is not, 2 if there is none.",
        )
    )
    _add_plan_flags(
        commands.add_parser(
            "plan", help="which device should serve which stage", description=PLAN_TEXT
        )
    )


def _add_plan_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--objective",
        choices=["dtfm"],
        default="dtfm",
        help="what an iteration costs; dtfm: averaging, then a pipeline of which no part overlaps",
    )
    parser.add_argument(
        "--matrix", type=Path, required=True, metavar="FILE.json", help="the links and the task"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="how long to search; default: 60"
    )
    parser.add_argument(
        "--seed", type=whole(0, SEED_MAX), default=0, metavar="N", help="of its chance; default: 0"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the plan here, for scripts")


def _add_doctor_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap",
        action="append",
        metavar="HOST:PORT",
        help="a node that tries to dial this machine, with its swarm; may be given several times",
    )
    parser.add_argument(
        "--listen", metavar="[HOST]:PORT", help="what to test; default: as of p2pswarm node"
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON, for scripts")


def _add_verify_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="PATH",
        help="a checkpoint, or a folder or URL (s3://...) with checkpoints: then the newest",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")


def _add_demo_flags(parser: argparse.ArgumentParser) -> None:
    base = Options()
    stages, replicas, steps = whole(1, STAGES_MAX), whole(1, REPLICAS_MAX), whole(1, STEPS_MAX)
    parser.add_argument(
        "--stages",
        type=stages,
        default=base.stages,
        metavar="S",
        help="parts of the model; default: %(default)s",
    )
    parser.add_argument(
        "--replicas",
        type=replicas,
        default=base.replicas,
        metavar="R",
        help="servers of each stage; default: %(default)s",
    )
    parser.add_argument(
        "--steps", type=steps, default=base.steps, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--kill-every",
        type=whole(0, STEPS_MAX),
        metavar="STEPS",
        help="kill a server each time after this many steps; 0: never; default: once, half way",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument(
        "--plot",
        type=Path,
        default=base.plot,
        metavar="FILE",
        help="draw the loss here, in the format of the suffix; default: %(default)s",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE_OR_FOLDER",
        help="text to learn; default: the sources of Python's standard library",
    )
