"""Samples as a Parquet file: text is exact, memory does not grow with their number, older and newer files are told apart."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra import sample_files
from infra.model import Sample, SampleOutcome
from tests.infra.examples import sample

UNGRADED = sample("q", 1, None, detail="engine a: refused", weight_versions=("v1", "v2"))


def written(folder: Path, *samples: Sample) -> Path:
    sample_files.write(folder / "samples.parquet", samples)
    return folder / "samples.parquet"


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    given = [sample(), UNGRADED, sample(outcome=SampleOutcome.TRUNCATED, weight_versions=(), reward=0.25)]
    found = list(sample_files.read(written(tmp_path, *given)))
    assert found == given
    assert isinstance(found[0].outcome, SampleOutcome)


@pytest.mark.parametrize("text", ["", "a\0b", "line\nbreak\r\n", "Ω 中 🙂", "half a pair \ud800", "\udfff\ud800", '"\\ud800"'])
def test_text_is_exact_in_every_field_that_has_some(tmp_path: Path, text: str) -> None:
    given = sample(problem=text, prompt=text, response=text, answer=text, engine=text, detail=text, weight_versions=(text, "v"))
    assert list(sample_files.read(written(tmp_path, sample(), given, sample()))) == [sample(), given, sample()]


def test_text_that_parquet_can_not_hold_is_legible_to_other_readers(tmp_path: Path) -> None:
    table = pq.read_table(written(tmp_path, sample(response="half \ud800"), sample()))
    assert table.column("response").to_pylist() == ["half ?", "2"]
    assert table.column("exact").null_count == 1


def test_every_field_has_a_column_of_its_own(tmp_path: Path) -> None:
    assert pq.read_schema(written(tmp_path, sample())).names == [*(field.name for field in fields(Sample)), "exact"]


def test_a_dataset_without_samples_is_a_file_too(tmp_path: Path) -> None:
    assert list(sample_files.read(written(tmp_path))) == []


@pytest.mark.parametrize("rows", [7, 50])
def test_row_groups_are_bounded_by_their_text_and_by_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(sample_files, "GROUP_ROWS", rows)
    monkeypatch.setattr(sample_files, "GROUP_CHARACTERS", 20 * 1000)
    path = written(tmp_path, *(sample(f"p{i}", response="x" * 1000) for i in range(100)))
    with pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert max(sizes) == min(rows, 20)
    assert [one.problem_id for one in sample_files.read(path)] == [f"p{i}" for i in range(100)]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_samples(tmp_path: Path) -> None:
    """100,000 samples of 2,000 characters, 200 MB of text, that compress badly."""

    def many(n: int) -> Iterator[Sample]:
        for i in range(n):
            yield replace(UNGRADED, problem_id=f"p{i}", response=f"{i * 7919:x}-" * 200)

    usual, pool = pa.default_memory_pool(), pa.system_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    before = pool.bytes_allocated()
    sample_files.write(tmp_path / "samples.parquet", many(100_000))
    count = sum(1 for _ in sample_files.read(tmp_path / "samples.parquet"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    pa.set_memory_pool(usual)
    assert count == 100_000
    assert peak < 64 * 2**20
    assert pool.max_memory() - before < 96 * 2**20


def with_metadata(path: Path, metadata: dict[bytes, bytes]) -> Path:
    pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
    return path


@pytest.mark.parametrize("metadata", [{sample_files.FORMAT_KEY: b"2"}, {}])
def test_a_file_of_another_format_is_refused_with_the_remedy(tmp_path: Path, metadata: dict[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="upgrade"):
        list(sample_files.read(with_metadata(written(tmp_path, sample()), metadata)))


def test_columns_that_were_added_within_the_format_are_no_hindrance(tmp_path: Path) -> None:
    path = written(tmp_path, UNGRADED)
    table = pq.read_table(path)
    pq.write_table(table.append_column("more", pa.array([1])).drop_columns(["detail"]), path)
    assert list(sample_files.read(path)) == [replace(UNGRADED, detail="")]


def test_a_torn_file_is_a_value_error(tmp_path: Path) -> None:
    path = written(tmp_path, sample())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="Parquet"):
        list(sample_files.read(path))
