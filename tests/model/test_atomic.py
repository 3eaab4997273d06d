"""A file appears complete or not at all, and only where nothing of the user's is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from widthfold_onnx.errors import UsageError
from widthfold_onnx.model import atomic
from widthfold_onnx.model.atomic import (
    TEMPORARY_PREFIX,
    check_own_target,
    check_target,
    pieces,
    place,
    temporary,
)

OLD = b"what the user had"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(OLD)
    return path


def test_a_file_is_replaced_in_one_step(target: Path) -> None:
    with temporary(target) as file:
        file.write(b"new ")
        file.write(memoryview(b"content"))
        assert target.read_bytes() == OLD
        assert not file.is_published()
        file.finish()
        file.publish()
        assert file.is_published()
    assert target.read_bytes() == b"new content"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt(), ValueError("ours")])
def test_whatever_goes_wrong_before_leaves_the_old_file_and_nothing_else(
    target: Path, error: BaseException
) -> None:
    def fail() -> None:
        with temporary(target) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert target.read_bytes() == OLD
    assert list(target.parent.iterdir()) == [target]


def test_a_name_that_is_known_at_the_end_is_taken_then(target: Path) -> None:
    with temporary(target) as file:
        assert file.path.name.startswith(TEMPORARY_PREFIX)
        assert file.path.suffix == ".onnx"
        file.write(b"data")
        file.finish()
        file.publish(target.with_name("by_digest.bin"))
    assert target.read_bytes() == OLD
    assert target.with_name("by_digest.bin").read_bytes() == b"data"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="a user whom modes hold")
def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with (
        pytest.raises(UsageError, match=r"cannot write .*model\.onnx"),
        temporary(tmp_path / "model.onnx"),
    ):
        pass


def test_a_part_of_a_file_is_read_in_pieces(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(atomic, "CHUNK_BYTES", 7)
    path = tmp_path / "data"
    path.write_bytes(bytes(range(40)))
    with path.open("rb", buffering=0) as file:
        file.seek(3)
        parts = [bytes(part) for part in pieces(file, 31)]
    assert b"".join(parts) == bytes(range(3, 34))
    assert [len(part) for part in parts] == [7, 7, 7, 7, 3]


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"12345")
    with path.open("rb", buffering=0) as file, pytest.raises(OSError, match="became shorter"):
        list(pieces(file, 6))


def test_an_output_may_be_new_or_a_regular_file(target: Path) -> None:
    check_target(target, [])
    check_target(target.with_name("new.onnx"), [target])


def test_an_output_is_no_link_no_folder_no_pipe_and_no_input(target: Path) -> None:
    folder = target.parent
    link, pipe, hard = folder / "link", folder / "pipe", folder / "hard"
    link.symlink_to(target)
    os.mkfifo(pipe)
    hard.hardlink_to(target)
    planned = folder / "planned.onnx"
    refused = {
        link: "is a symbolic link",
        folder: "is not a regular file",
        pipe: "is not a regular file",
        target: "is an input or another output",
        hard: "is an input or another output",
        planned: "is an input or another output",
        folder / "missing" / "out.onnx": "its folder does not exist",
        Path("/"): "names no file",
    }
    for path, message in refused.items():
        with pytest.raises(UsageError, match=message):
            check_target(path, [target, planned])


def test_the_same_file_by_another_folder_is_the_same_place(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "folder")
    assert place(tmp_path / "alias" / "x") == place(tmp_path / "folder" / "x")
    with pytest.raises(UsageError, match="another output"):
        check_target(tmp_path / "alias" / "x", [tmp_path / "folder" / "x"])


@pytest.mark.parametrize(
    ("content", "kind", "fits"),
    [
        (b"", "plan", True),
        (b'{"schema": "widthfold.plan/1"', "plan", True),
        (b'{"schema": "widthfold.plan/1"', "report", False),
        (b'{"schema": "widthfold.verify/1"', "report", True),
        (b"<!-- widthfold.optimize/1 -->", "report", True),
        (b"my notes", "report", False),
        (b" " * 500 + b'{"schema": "widthfold.plan/1"', "plan", False),
    ],
)
def test_a_report_replaces_only_a_report(
    tmp_path: Path, content: bytes, kind: str, fits: bool
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    if fits:
        check_own_target(path, [], kind)
        return
    with pytest.raises(UsageError, match=f"exists and is no {kind}; choose another name"):
        check_own_target(path, [], kind)
