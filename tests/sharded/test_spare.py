"""Spare memory is filled again only when no process can see it any more, and mapped only where a write to it can't fail."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from trainer_integration.sharded.files import ShardFile
from trainer_integration.sharded.spare import Descriptor, Mapped, Sink, Spare, on_tmpfs

NAME, SIZE = "model.safetensors", 8192
FILE = ShardFile(name=NAME, node="node", header=b"", begins={}, n_bytes=SIZE)
OPEN = "file = open({path!r}, 'rb')"
MAP = "import mmap, os; fd = os.open({path!r}, os.O_RDONLY); m = mmap.mmap(fd, 0, prot=mmap.PROT_READ); os.close(fd)"


@pytest.fixture
def memory() -> Iterator[Path]:
    if not Path("/dev/shm").is_dir():
        pytest.skip("needs a tmpfs")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@contextmanager
def another_process(code: str) -> Iterator[None]:
    command = [sys.executable, "-c", f"{code}\nprint(flush=True)\ninput()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.communicate("\n", timeout=10)


def staged(place: Path, spare: Spare, name: str) -> Path:
    """A snapshot that was exported and kept."""
    folder = place / name
    folder.mkdir()
    (folder / NAME).write_bytes(b"x" * SIZE)
    spare.keep(folder, [NAME], {NAME: (folder / NAME).stat().st_ino})
    return folder / NAME


def opened(spare: Spare, path: Path, closing: ExitStack) -> Sink:
    descriptor = os.open(path, os.O_RDWR)
    closing.callback(os.close, descriptor)
    return spare.sink(NAME, descriptor, closing)


@pytest.mark.parametrize("code", [OPEN, MAP], ids=["open", "mapped"])
def test_what_another_process_still_reads_is_given_up_and_stays_as_it_was(code: str, memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True)
    path = staged(memory, spare, "one")
    with another_process(code.format(path=str(path))):
        path.unlink()  # as a trainer does that waited long enough
        assert spare.free([FILE]) == set()
        assert list(spare.folder.iterdir()) == []


def test_what_nobody_reads_any_more_is_filled_again_also_after_we_have_mapped_it(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True)
    path = staged(memory, spare, "one")
    with another_process(OPEN.format(path=str(path))):
        pass
    with ExitStack() as closing:
        sink = opened(spare, path, closing)
        assert isinstance(sink, Mapped)
        sink.write_rows(memoryview(b"y" * 5000), 100, 5000, 5000)
        sink.write_rows(memoryview(b"zz"), 6000, 1, 2)
    assert path.read_bytes() == b"x" * 100 + b"y" * 5000 + b"x" * 900 + b"zxz" + b"x" * (SIZE - 6003)
    path.unlink()
    assert spare.free([FILE]) == {NAME}


def test_a_file_that_is_not_in_memory_is_written_and_not_mapped(tmp_path: Path) -> None:
    with (tmp_path / "probe").open("wb") as file:
        if on_tmpfs(file.fileno()):
            pytest.skip("the temporary folder is in memory")
    spare = Spare(tmp_path / "spare", leads=True)
    path = staged(tmp_path, spare, "one")
    with ExitStack() as closing:
        assert isinstance(opened(spare, path, closing), Descriptor)
