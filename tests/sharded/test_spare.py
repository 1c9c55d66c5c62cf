"""Spare memory is filled again only when no process can see it any more, and mapped only where a write to it can't fail."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from infra.staging import free_spare, lock_spare, share_fetched
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


KILLED = """
import os, time
from pathlib import Path
from trainer_integration.sharded.spare import Spare
spare = Spare(Path({folder!r}), leads=True)
forked, tell = os.pipe()
child = os.fork()
if child == 0:
    os.write(tell, b".")  # what is done in a child has been done when fork returns there
    time.sleep(60)
    os._exit(0)
os.read(forked, 1)
print(child, spare.leads, flush=True)
time.sleep(60)
"""
OPENED_MEANWHILE = """
import fcntl, os
from contextlib import suppress
from trainer_integration.sharded.kept import KeptFile
from trainer_integration.sharded.spare import nobody_else_has_open
real = fcntl.fcntl
def opened(descriptor, command, argument):
    result = real(descriptor, command, argument)
    if (command, argument) == (fcntl.F_SETLEASE, fcntl.F_WRLCK):
        with suppress(BlockingIOError):
            os.open({path!r}, os.O_RDONLY | os.O_NONBLOCK)
            print("opened all the same")
    return result
fcntl.fcntl = opened
print("lease", nobody_else_has_open(KeptFile(os.open({path!r}, os.O_RDWR))))
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


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("lost", ["spare", "spare.lock", "spare/.descriptors"])
def test_what_a_clean_up_deletes_is_made_again_at_the_next_export(lost: str, memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True, neighbours=True)
    staged(memory, spare, "one").unlink()
    removed = memory / lost
    shutil.rmtree(removed) if removed.is_dir() else removed.unlink()
    assert found_free(spare) == ({NAME} if lost == "spare.lock" else set())
    assert spare.leads
    staged(memory, spare, "two").unlink()
    descriptor = lending.borrowed(spare.folder, NAME)
    assert descriptor is not None
    os.close(descriptor)
    assert found_free(spare) == {NAME}


def test_memory_whose_lock_was_deleted_and_that_another_process_took_is_left_to_it(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True)
    (memory / "spare.lock").unlink()
    theirs = Spare(memory / "spare", leads=True)
    staged(memory, theirs, "theirs").unlink()
    assert found_free(spare) == set()
    assert not spare.leads
    assert found_free(theirs) == {NAME}


def test_what_is_no_file_of_ours_is_passed_over(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True)
    staged(memory, spare, "one").unlink()
    (spare.folder / "folder").mkdir()
    assert found_free(spare) == {NAME}


@pytest.mark.parametrize("place", ["spare", "spare.lock"])
def test_where_no_memory_can_be_kept_a_warning_says_so_once_and_the_export_goes_on(
    place: str, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if place == "spare":
        (memory / place).write_text("")
    else:
        (memory / place).mkdir()
    spare = Spare(memory / "spare", leads=True, neighbours=True)
    assert [found_free(spare), found_free(spare)] == [set(), set()]
    assert not spare.leads
    filled(spare, created(memory, spare, "one"), b"y")
    assert held(memory) == []
    [warning] = warnings(caplog)
    assert "is not used again" in warning
    (memory / place).unlink() if place == "spare" else (memory / place).rmdir()
    assert found_free(spare) == set()
    assert spare.leads


def test_a_folder_that_cannot_be_listed_is_not_used(
    memory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = Spare(memory / "spare", leads=True)
    staged(memory, spare, "one").unlink()

    def stale(_: Path) -> Iterator[Path]:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "iterdir", stale)
    assert [found_free(spare), found_free(spare)] == [set(), set()]
    monkeypatch.undo()
    assert ["Stale file handle" in warning for warning in warnings(caplog)] == [True]


def test_a_rank_that_maps_a_file_has_one_descriptor_of_it_and_the_one_that_lends_it_two(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True, neighbours=True)
    path = created(memory, spare, "one")
    with neighbour(spare) as rank:
        for name in ("two", "three"):
            told(rank, f"a {path}")
            filled(spare, path, b"y")
            path.unlink()
            path = staged_again(memory, spare, name)
        assert told(rank, f"b {path}") == "Mapped"
        assert (descriptors(memory, rank.pid), descriptors(memory)) == (1, 2)


def descriptors(memory: Path, process: int | str = "self") -> int:
    return sum(line.startswith(str(memory)) for line in held(memory, process))


@contextmanager
def open_files_limit(limit: int) -> Iterator[None]:
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


@pytest.mark.parametrize(("leads", "affordable"), [(True, 32), (False, 64)])
def test_memory_is_not_used_again_at_the_cost_of_the_trainers_own_open_files(
    leads: bool, affordable: int, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leader = Spare(memory / "spare", leads=True, neighbours=True)
    spare = leader if leads else Spare(memory / "spare", leads=False, neighbours=True)
    staged(memory, leader, "one").unlink()
    with open_files_limit(256):
        spare.free([FILE] * affordable)
        assert (spare.leads, spare.borrows, warnings(caplog)) == (leads, not leads, [])
        staged(memory, spare, "two").unlink()
        for _ in range(2):
            spare.free([FILE] * (affordable + 1))
            assert (spare.leads, spare.borrows, spare.free_names) == (False, False, set())
        assert not leads or held(memory) == []
    [warning] = warnings(caplog)
    assert "too many for the limit of 256" in warning
    spare.free([FILE])
    assert (spare.leads, spare.borrows) == (leads, not leads)


def test_a_forked_child_that_outlives_its_parent_keeps_nobody_from_leading(memory: Path) -> None:
    code = KILLED.format(folder=str(memory / "spare"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child, led = parent.stdout.readline().split()
        try:
            own = Spare(memory / "spare", leads=True)
            assert (led, own.leads) == ("True", False)  # that the child closed it did not unlock it
            parent.kill()
            parent.wait()
            os.kill(int(child), 0)
            own.free([FILE])
            assert own.leads
        finally:
            parent.kill()
            os.kill(int(child), signal.SIGKILL)


def test_who_does_not_lead_says_so_once_and_leads_when_the_other_has_ended(
    memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = Spare(memory / "spare", leads=True)
    own = Spare(memory / "spare", leads=True)
    own.free([FILE])
    assert not own.leads
    assert ["another process has it" in warning for warning in warnings(caplog)] == [True]
    del theirs
    own.free([FILE])
    assert own.leads
    staged(memory, own, "one").unlink()
    assert found_free(own) == {NAME}


def test_a_lender_that_ran_out_of_descriptors_lends_again_when_it_has_some(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True, neighbours=True)
    path = created(memory, spare, "one")
    with neighbour(spare) as rank:
        first_free = os.dup(0)
        os.close(first_free)
        with open_files_limit(first_free):
            started = time.monotonic()
            assert told(rank, f"a {path}") == "Descriptor"
            assert time.monotonic() - started < 2.0
        assert held(memory, rank.pid) == []
        descriptor = lending.borrowed(spare.folder, NAME)
        assert descriptor is not None
        os.close(descriptor)


def test_only_the_own_user_is_lent_anything(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True, neighbours=True)
    assert stat.S_IMODE((spare.folder / lending.SOCKET).stat().st_mode) == 0o600


def test_a_reader_that_comes_while_the_kernel_is_asked_does_not_end_the_trainer(memory: Path) -> None:
    (memory / NAME).write_bytes(b"x" * SIZE)
    code = OPENED_MEANWHILE.format(path=str(memory / NAME))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "lease True\n")


def test_a_lock_that_its_last_owner_deletes_in_between_lets_only_one_lead(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = memory / "spare", fcntl.flock
    last, theirs = lock_spare(folder), list[int | None]()
    assert last is not None

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        free_spare(folder, last)
        theirs.append(lock_spare(folder))
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert lock_spare(folder) is None
    [lock] = theirs
    assert lock is not None
    free_spare(folder, lock)


def test_a_lock_that_was_deleted_while_another_waited_for_it_is_not_shared(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = memory / "fetched", fcntl.flock
    last = lock_spare(folder)
    assert last is not None

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        free_spare(folder, last)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    shared = share_fetched(folder)
    assert lock_spare(folder) is None
    free_spare(folder, shared)


def test_a_file_that_is_deleted_once_it_was_found_free_is_made_anew(memory: Path) -> None:
    spare = Spare(memory / "spare", leads=True)
    staged(memory, spare, "one").unlink()
    assert found_free(spare) == {NAME}
    assert not spare.named("another", memory / "another")
    assert spare.named(NAME, memory / "two")
    assert (memory / "two").stat().st_ino == (spare.folder / NAME).stat().st_ino
    shutil.rmtree(spare.folder)
    assert not spare.named(NAME, memory / "three")
    assert not (memory / "three").exists()
