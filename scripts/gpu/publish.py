"""Part 7: table.md and pictures beside the results, and the tables on the terminal."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu.results import read
from gpu.tables import Section, sections
from gpu.verdict import verdict


def publish(folder: Path) -> None:
    """Make them of what is there, also of a run that was cut off behind its first row."""
    rows = read(folder)
    made = [*sections(rows), *verdict(rows)]
    (folder / "table.md").write_text(
        "\n".join(section.markdown() for section in made), encoding="utf-8"
    )
    _show(made)
    if importlib.util.find_spec("matplotlib") is None:
        print("gpu_bench: no pictures without matplotlib", file=sys.stderr)
        return
    from gpu.plots import draw

    draw(rows, folder)


def _show(made: Sequence[Section]) -> None:
    if importlib.util.find_spec("rich") is None:
        for section in made:
            print(section.markdown())
        return
    from rich.console import Console
    from rich.table import Table

    # Lines are not wrapped where nobody looks at them: a log is searched by line.
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    for section in made:
        table = Table(*section.head, title=section.title, title_justify="left")
        for row in section.body:
            table.add_row(*row)
        console.print(table if section.body else section.title)
        for note in section.notes:
            console.print(note, markup=False)
