"""Write rewritten models that only are run and then removed; they share one copy of weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

from widthfold_onnx.model.loader import LoadedModel
from widthfold_onnx.model.writer import copy_data, data_path, write_scratch
from widthfold_onnx.rewrite.rewriting import Rewriting

FOLDED = "the folded model"
"""File name of the first model that is there, and the start of the names of others.

Errors of the runtime name it."""


@dataclass(frozen=True)
class Scratch:
    """A temporary folder for models that are made of one model.

    External data are copied into it once, and all models refer to the copy. The original files
    would do only beside the models: the runtime reads nothing outside of a model's folder. A hard
    link to them would make onnx and `model.loader` refuse the original while it exists.

    Attributes:
        original: the model.
        folder: the folder; whoever made it removes it.
    """

    original: LoadedModel
    folder: Path

    @contextlib.contextmanager
    def models(self, rewritings: Iterable[Rewriting]) -> Iterator[list[Path]]:
        """Carry rewritings out, yield the files of the models, and remove them behind the block.

        Raises:
            UsageError: the disk is full, or a model without its external data is larger than a
                protobuf can be.
            InvalidModelError: external data changed since the model was loaded.
        """
        files: list[Path] = []
        try:
            for rewriting in rewritings:
                files.append(self._new_path())
                model = rewriting.carry_out()
                write_scratch(model, files[-1], externalize=rewriting.document.external_names)
            yield files
        finally:
            for path in (path for file in files for path in (file, data_path(file))):
                with contextlib.suppress(OSError):  # a process that hangs may hold it open
                    path.unlink()

    @cached_property
    def _folder_with_data(self) -> Path:
        copy_data(self.original.proto, self.original.folder, self.folder)
        return self.folder

    def _new_path(self) -> Path:
        names = (FOLDED if number == 1 else f"{FOLDED} {number}" for number in count(1))
        paths = (self._folder_with_data / name for name in names)
        return next(path for path in paths if not (path.exists() or data_path(path).exists()))
