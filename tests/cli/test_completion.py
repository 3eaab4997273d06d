"""The shells complete what docs/install.md says, with the scripts that the command prints."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.tool import COMMAND
from tests.shared import ROOT
from widthfold_onnx.cli import main

PAGE = (ROOT / "docs" / "install.md").read_text()
BASH = shutil.which("bash") or "bash"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_page_names_a_variable_that_prints_a_script(shell: str) -> None:
    (variable,) = re.findall(rf"(\w+)={shell}_source widthfold", PAGE)
    printed = CliRunner().invoke(main, prog_name="widthfold", env={variable: f"{shell}_source"})
    assert printed.exit_code == 0
    assert f"{variable}={shell}_complete" in printed.output


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["opt"], ["optimize"]),
        (["verify", "--fail"], ["--fail-under"]),
        (["optimize", "--effort", ""], ["quick", "default", "thorough"]),
    ],
)
def test_bash_completes(words: list[str], completed: list[str], tmp_path: Path) -> None:
    tool = tmp_path / "widthfold"
    tool.write_text(f'#!{BASH}\nexec {COMMAND[0]} -c "{COMMAND[2]}" "$@"\n')
    tool.chmod(0o755)
    (line,) = re.findall(r"`(eval .*bash_source widthfold\)\")`", PAGE)
    script = f"""PATH={tmp_path}:$PATH
{line}
COMP_WORDS=(widthfold "$@") COMP_CWORD=$#
$(complete -p widthfold | sed 's/.*-F \\([^ ]*\\) .*/\\1/') widthfold
printf '%s\\n' "${{COMPREPLY[@]}}" """
    command = [BASH, "--norc", "-c", script, "bash", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == completed, done.stderr
