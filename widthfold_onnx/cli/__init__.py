"""The command line: one file per command; each parses, calls, renders and exits.

Heavy modules are imported inside the commands, and renderers after the work. So `--help` answers at
once, and a file that is no model is refused at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from widthfold_onnx.cli.apply import apply_command
from widthfold_onnx.cli.common import INTERRUPTED
from widthfold_onnx.cli.inspect import inspect_command
from widthfold_onnx.cli.mlir import mlir_command
from widthfold_onnx.cli.optimize import optimize_command
from widthfold_onnx.cli.tune import tune_command
from widthfold_onnx.cli.verify import verify_command
from widthfold_onnx.text import printable


class OneLineErrors(click.Group):
    """Reports wrong arguments on one line, like every other error."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and exit unless `standalone_mode` is off.

        Arguments are passed as they were typed: on Windows click would replace patterns, as those
        of `--nodes`, by file names.
        """
        args = list(sys.argv[1:] if args is None else args)
        extra.setdefault("obj", args)
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode, **extra)
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else "widthfold"
            line = " ".join(error.format_message().split())
            click.echo(f"widthfold: {printable(line, 1000)} (see {command} --help)", err=True)
            sys.exit(error.exit_code)
        except click.Abort:
            click.echo("widthfold: interrupted", err=True)
            sys.exit(INTERRUPTED)
        sys.exit(code or 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; click itself would print an empty line on an interrupt."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None


@click.group(
    cls=OneLineErrors,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 1 a check failed; 2 usage; 3 invalid or unsupported model; "
    "4 could not verify; 5 nothing changed under --require-fold; 70 internal error of widthfold; "
    "130 interrupted.",
)
@click.version_option(package_name="widthfold-onnx", prog_name="widthfold")
@click.pass_context
def main(context: click.Context) -> None:
    """Make the few-channel layers of an ONNX model faster, exactly, and prove it."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(click.UsageError.exit_code)


main.add_command(optimize_command)
main.add_command(apply_command)
main.add_command(verify_command)
main.add_command(inspect_command)
main.add_command(tune_command)
main.add_command(mlir_command)
