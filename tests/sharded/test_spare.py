"""Spare memory is filled again only when no process can see it any more, and mapped only where a write to it can't fail."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from trainer_integration.sharded import lending
from trainer_integration.sharded.files import ShardFile
from trainer_integration.sharded.sinks import Descriptor, Mapped, Sink, on_tmpfs
from trainer_integration.sharded.spare import Spare

NAME, SIZE = "model.safetensors", 8192
FILE = ShardFile(name=NAME, node="node", header=b"", begins={}, n_bytes=SIZE)
OPEN = "file = open({path!r}, 'rb')"
MAP = "import mmap, os; fd = os.open({path!r}, os.O_RDONLY); m = mmap.mmap(fd, 0, prot=mmap.PROT_READ); os.close(fd)"
READ = "\nprint((file.read() if 'file' in globals() else m[:]).hex(), flush=True)"
NEIGHBOUR = """
import sys
from contextlib import ExitStack
from pathlib import Path
from trainer_integration.sharded.spare import Spare
spare = Spare(Path({folder!r}), leads=False, neighbours=True)
def write(path, byte):
    with ExitStack() as closing:
        sink = spare.sink({name!r}, Path(path), closing)
        sink.write_rows(memoryview(byte * 4), 0, 4, 4)
        spare.keep(Path(path).parent, [])
    print(type(sink).__name__, flush=True)
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    write(rest, word.encode()) if rest else (spare.forget(), print(flush=True))
"""


@pytest.fixture
def memory() -> Iterator[Path]:
    if not Path("/dev/shm").is_dir():
        pytest.skip("needs a tmpfs")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@contextmanager
def another_process(code: str) -> Iterator[subprocess.Popen[str]]:
    """What it prints at its end is on its output then."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def reader(code: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    with another_process(f"{code.format(path=str(path))}\nprint(flush=True)\ninput(){READ}") as process:
        yield process


@contextmanager
def neighbour(spare: Spare) -> Iterator[subprocess.Popen[str]]:
    """The rank beside this one."""
    code = NEIGHBOUR.format(folder=str(spare.folder), name=NAME)
    with another_process(f"print(flush=True)\n{code}") as process:
        yield process


def told(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def created(place: Path, spare: Spare, name: str) -> Path:
    """A new file that is being written."""
    folder = place / name
    folder.mkdir()
    descriptor = os.open(folder / NAME, os.O_CREAT | os.O_RDWR)
    os.write(descriptor, b"x" * SIZE)
    spare.made(NAME, descriptor)
    os.close(descriptor)
    return folder / NAME


def staged(place: Path, spare: Spare, name: str) -> Path:
    """A snapshot that was exported and kept."""
    path = created(place, spare, name)
    spare.keep(path.parent, [NAME])
    return path


def staged_again(place: Path, spare: Spare, name: str) -> Path:
    """Another snapshot in the memory of the last, as far as the exporter has come before it writes."""
    assert found_free(spare) == {NAME}
    (place / name).mkdir()
    os.link(spare.folder / NAME, place / name / NAME)
    return place / name / NAME


def found_free(spare: Spare) -> set[str]:
    spare.free([FILE])
    spare.forget()
    return spare.free_names


def lenders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pinpoint-lend"]


def filled(spare: Spare, path: Path, byte: bytes) -> Sink:
    with ExitStack() as closing:
        sink = spare.sink(NAME, path, closing)
        sink.write_rows(memoryview(byte * SIZE), 0, SIZE, SIZE)
    spare.keep(path.parent, [NAME])
    return sink


def held(memory: Path, process: int | str = "self") -> list[str]:
    """Descriptors and mappings of weights that a process has, whatever their names were or are."""
    about = Path("/proc") / str(process)
    found = [os.readlink(number) for number in (about / "fd").iterdir() if os.path.lexists(number)]
    found += (about / "maps").read_text().splitlines()
    return [line for line in found if str(memory) in line and NAME in line]


@pytest.mark.parametrize("again", [False, True], ids=["written once", "mapped by us"])
@pytest.mark.parametrize("code", [OPEN, MAP], ids=["open", "mapped"])
def test_what_another_process_still_reads_is_given_up_and_stays_as_it_was(code: str, again: bool, memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True)
    path = staged(memory, spare, "one")
    if again:
        path.unlink()
        path = staged_again(memory, spare, "two")
        assert isinstance(filled(spare, path, b"x"), Mapped)
    with reader(code, path) as process:
        path.unlink()  # as a trainer does that waited long enough
        assert found_free(spare) == set()
        assert list(spare.folder.iterdir()) == []
        filled(spare, created(memory, spare, "next"), b"y")
        assert bytes.fromhex(told(process, "")) == b"x" * SIZE


def test_what_nobody_reads_any_more_is_filled_again_also_while_we_have_it_mapped(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True)
    path = staged(memory, spare, "one")
    with reader(OPEN, path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    path.unlink()
    path = staged_again(memory, spare, "two")
    with ExitStack() as closing:
        sink = spare.sink(NAME, path, closing)
        assert isinstance(sink, Mapped)
        sink.write_rows(memoryview(b"y" * 5000), 100, 5000, 5000)
        sink.write_rows(memoryview(b"zz"), 6000, 1, 2)
    assert path.read_bytes() == b"x" * 100 + b"y" * 5000 + b"x" * 900 + b"zxz" + b"x" * (SIZE - 6003)
    path.unlink()
    path = staged_again(memory, spare, "three")
    assert filled(spare, path, b"w") is sink
    assert path.read_bytes() == b"w" * SIZE


def test_what_is_on_its_way_is_not_filled_again(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True)
    staged(memory, spare, "one")
    assert found_free(spare) == set()


def test_where_there_are_no_leases_nothing_is_filled_again(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spare = Spare(memory / "spare", leads=True)
    staged(memory, spare, "one").unlink()

    def none(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", none)
    assert found_free(spare) == set()


def test_memory_that_was_given_up_is_kept_by_no_rank(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True)
    path = staged(memory, spare, "one")
    path.unlink()
    path = staged_again(memory, spare, "two")
    filled(spare, path, b"y")
    assert held(memory) != []
    assert found_free(spare) == set()  # it is on its way
    assert held(memory) == []


def test_a_new_file_of_an_export_that_failed_is_kept_by_no_rank(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True)
    path = created(memory, spare, "one")
    assert held(memory) != []
    path.unlink()
    spare.forget()
    assert held(memory) == []


def test_memory_of_a_trainer_that_was_killed_is_taken_over_and_mapped_once_it_was_filled(memory: Path) -> None:
    (memory / "spare").mkdir()
    (memory / "spare" / NAME).write_bytes(b"x" * SIZE)
    spare = Spare(memory / "spare", leads=True)
    path = staged_again(memory, spare, "one")
    assert isinstance(filled(spare, path, b"y"), Descriptor)
    path.unlink()
    assert isinstance(filled(spare, staged_again(memory, spare, "two"), b"y"), Mapped)


def test_a_file_that_is_not_in_memory_is_written_and_not_mapped(tmp_path: Path) -> None:
    with (tmp_path / "probe").open("wb") as file:
        if on_tmpfs(file.fileno()):
            pytest.skip("the temporary folder is in memory")
    spare = Spare(tmp_path / "spare", leads=True)
    staged(tmp_path, spare, "one").unlink()
    assert isinstance(filled(spare, staged_again(tmp_path, spare, "two"), b"y"), Descriptor)


def test_the_mapping_of_a_rank_in_another_process_does_not_count_as_somebody_else(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True, neighbours=True)
    path = created(memory, spare, "one")
    with neighbour(spare) as rank:
        assert told(rank, f"a {path}") == "Descriptor"
        spare.keep(path.parent, [NAME])
        path.unlink()
        for name in ("two", "three"):
            path = staged_again(memory, spare, name)
            assert told(rank, f"b {path}") == "Mapped"
            assert path.read_bytes()[:4] == b"bbbb"
            with reader(OPEN, path):
                assert told(rank, f"c {path}") == "Mapped"
            path.unlink()
        assert found_free(spare) == {NAME}


def test_a_late_reader_is_seen_though_another_rank_has_the_file_mapped(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True, neighbours=True)
    path = created(memory, spare, "one")
    with neighbour(spare) as rank, reader(MAP, path) as process:
        told(rank, f"a {path}")
        spare.keep(path.parent, [NAME])
        path.unlink()
        assert found_free(spare) == set()
        assert held(memory, rank.pid) != []
        told(rank, "forget")
        assert held(memory, rank.pid) == []
        path = created(memory, spare, "two")
        assert told(rank, f"b {path}") == "Descriptor"
        assert path.read_bytes()[:4] == b"bbbb"
        assert bytes.fromhex(told(process, ""))[:5] == b"aaaax"


def test_a_rank_that_is_lent_nothing_writes_all_the_same_and_its_file_is_filled_again(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True)
    path = staged(memory, spare, "one")
    with neighbour(spare) as rank:
        assert told(rank, f"a {path}") == "Descriptor"
        assert path.read_bytes()[:4] == b"aaaa"
        path.unlink()
        assert found_free(spare) == {NAME}


def test_the_file_of_another_exporter_under_the_same_name_is_not_written(memory: Path) -> None:
    theirs = Spare(memory / "spare", leads=True, neighbours=True)
    file = staged(memory, theirs, "theirs")
    own = Spare(memory / "spare", leads=True, neighbours=True)
    assert not own.leads
    path = created(memory, own, "ours")
    with neighbour(own) as rank:
        assert told(rank, f"a {path}") == "Descriptor"
    assert (path.read_bytes()[:4], file.read_bytes()) == (b"aaaa", b"x" * SIZE)


def test_a_lender_ends_with_its_exporter(memory: Path) -> None:
    before = lenders()
    spare = Spare(memory / "spare", leads=True, neighbours=True)
    staged(memory, spare, "one")
    descriptor = lending.borrowed(spare.folder, NAME)
    assert descriptor is not None
    os.close(descriptor)
    assert lending.borrowed(spare.folder, "nothing of this name") is None
    folder, threads = spare.folder, [thread for thread in lenders() if thread not in before]
    del spare
    assert not folder.exists()
    for thread in threads:
        thread.join(5)
    assert [thread.is_alive() for thread in threads] == [False]


def test_a_forked_child_keeps_no_memory_and_deletes_none(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True, neighbours=True)
    path = staged(memory, spare, "one")
    path.unlink()
    path = staged_again(memory, spare, "two")
    filled(spare, path, b"y")
    child = os.fork()
    if child == 0:
        clean = held(memory) == []
        del spare
        os._exit(0 if clean else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    path.unlink()
    assert found_free(spare) == {NAME}
