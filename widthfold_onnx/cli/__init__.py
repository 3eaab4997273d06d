"""The command line: one file per command; each parses, calls, renders and exits.

Heavy modules are imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import click

from widthfold_onnx.cli.inspect import inspect_command
from widthfold_onnx.cli.optimize import optimize_command
from widthfold_onnx.cli.verify import verify_command


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 1 a check failed; 2 usage; 3 invalid or unsupported model; "
    "4 could not verify; 5 nothing folded under --require-fold; 70 a fault of widthfold; "
    "130 interrupted.",
)
@click.version_option(package_name="widthfold-onnx", prog_name="widthfold")
def main() -> None:
    """Fold the layers of an ONNX model that have few channels, exactly, and prove it."""


main.add_command(optimize_command)
main.add_command(verify_command)
main.add_command(inspect_command)
