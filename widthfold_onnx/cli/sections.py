"""Lists the options of a command in sections of `--help`, first those that are needed first."""

from __future__ import annotations

import click

SECTIONS = {
    "Start with": "factor input-shape provider threads check",
    "Which layers": "nodes skip max-channels max-flops-growth max-bytes-growth",
    "How they are folded": "form axis layout ragged guard-shapes mix-samples nonfinite companion",
    "How models run": "provider-option session-option inputs seeds",
    "What is measured": "effort time-budget streams no-timing store target no-measure jobs dask",
    "What has to hold": (
        "rtol atol truth-budget baseline fail-under require-fold no-verify freeze-weights"
    ),
    "What is printed": "report format exact shared debug help",
}
"""Names of options by section; a command lists those that it has."""


class Sectioned(click.Command):
    """A command whose options are all in `SECTIONS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options section by section."""
        records = {p.opts[-1]: p.get_help_record(ctx) for p in self.get_params(ctx)}
        for title, names in SECTIONS.items():
            found = [records.get(f"--{name}") for name in names.split()]
            if any(found):
                with formatter.section(title):
                    formatter.write_dl([record for record in found if record])
