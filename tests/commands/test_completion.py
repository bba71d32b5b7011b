"""The shells themselves complete commands, flags and files by what `p2pswarm completion` writes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from p2pswarm.command_line import main
from p2pswarm.commands import completion

ROOT = Path(__file__).parents[2]


def needs(shell):
    return pytest.mark.skipif(not shutil.which(shell), reason=f"{shell} is not installed")


def script(shell: str, capsys) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def said_by(shell: str, program: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [shell, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )
    return done.stdout.split()


def offered_by_bash(words: str, text: str, folder: Path) -> list[str]:
    """What bash offers for the last of these words, by the function that it has for `p2pswarm`."""
    (folder / "completion.bash").write_text(text)
    last = len(words.split(" ")) - 1
    return said_by(
        "bash",
        f"""
        source ./completion.bash
        spec=$(complete -p p2pswarm) || exit 1
        function=$(sed -E 's/.*-F ([^ ]+).*/\\1/' <<< "$spec")
        COMP_WORDS=({words if not words.endswith(" ") else words + "''"}) COMP_CWORD={last}
        COMP_LINE="{words}" COMP_POINT=${{#COMP_LINE}}
        $function p2pswarm "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
        """,
        folder,
    )


@needs("bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("p2pswarm do", {"doctor"}),
        ("p2pswarm re", {"report", "revoke"}),
        ("p2pswarm node --boot", {"--bootstrap"}),
        ("p2pswarm node --role ", {"auto", "bootstrap", "stage", "trainer"}),
        ("p2pswarm completion ", {"bash", "fish", "zsh"}),
        ("p2pswarm node --config ru", {"run.toml", "runs"}),
        ("p2pswarm train ru", {"run.toml", "runs"}),
    ],
)
def test_bash_completes(words, offered, tmp_path, capsys):
    (tmp_path / "run.toml").touch()
    (tmp_path / "runs").mkdir()

    found = offered_by_bash(words, script("bash", capsys), tmp_path)

    assert offered <= set(found)
    prefix = words.rpartition(" ")[2]
    assert [each for each in found if not each.startswith(prefix)] == []


@needs("fish")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("p2pswarm do", {"doctor"}),
        ("p2pswarm node --boot", {"--bootstrap"}),
        ("p2pswarm completion ", {"bash", "fish", "zsh"}),
    ],
)
def test_fish_completes(words, offered, tmp_path, capsys):
    (tmp_path / "p2pswarm.fish").write_text(script("fish", capsys))

    said = said_by("fish", f"source ./p2pswarm.fish; complete -C '{words}' | cut -f1", tmp_path)

    assert offered <= set(said)


ZSH = """
autoload -U compinit && compinit -u -D
compdef _p2pswarm p2pswarm
bindkey '^I' complete-word
zstyle ':completion:*' list-prompt ''
PS1='ready> '
"""


@needs("zsh")
@pytest.mark.parametrize(
    ("words", "whole"),
    [("p2pswarm doct", "p2pswarm doctor"), ("p2pswarm node --bootst", "p2pswarm node --bootstrap")],
)
def test_zsh_completes(words, whole, tmp_path, capsys):
    """zsh completes in its line editor alone, which wants a terminal: its own zpty is one."""
    (tmp_path / "_p2pswarm").write_text(script("zsh", capsys))
    (tmp_path / ".zshrc").write_text(f"fpath=({tmp_path} $fpath)\n{ZSH}")
    keys = words.replace(" ", "\\ ")

    said = subprocess.run(
        [
            "zsh",
            "-fc",
            f"""
            zmodload zsh/zpty
            zpty shell zsh -i
            zpty -r shell begun '*ready> ' || exit 1
            zpty -wn shell {keys}$'\\t'$'\\C-a'echo\\ $'\\n'
            zpty -r shell seen '*{whole}*{whole}*ready> '
            print -r -- "$seen"
            zpty -d shell
            """,
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "ZDOTDIR": str(tmp_path),
            "TERM": "dumb",
        },
    )

    assert whole in said.stdout


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_every_command_is_in_the_script(shell, capsys):
    text = script(shell, capsys)

    assert [
        name for name in ("node", "train", "doctor", "report", "invite") if name not in text
    ] == []


def test_a_missing_library_is_named():
    """As in an installation without dependencies, for a first node."""
    program = (
        "import sys; sys.modules['shtab'] = None\n"
        "from p2pswarm.command_line import main; sys.exit(main(['completion', 'bash']))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=ROOT
    )

    assert done.returncode == 2
    assert done.stderr == "error: completion needs shtab: pip install shtab\n"


def test_another_shell_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["completion", "csh"])

    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("error: argument shell: invalid choice: 'csh'")
