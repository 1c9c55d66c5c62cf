"""Rows are the same in whatever format they come, and what can't be read is named with its file and its line or row."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from infra.datasets import load_dataset, load_problems, suite_digest
from infra.errors import ConfigError, DatasetError
from infra.model import DatasetSpec, Suite
from infra.store import Store
from tests.services.s3 import S3Server

ROWS = [{"id": f"r{n}", "prompt": f'{n}+1=\n«{n}», "q"', "answer": str(n + 1)} for n in range(7)]
Row = dict[str, Any]


def as_lines(path: Path, rows: Sequence[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def as_array(path: Path, rows: Sequence[Row]) -> None:
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")


def as_csv(path: Path, rows: Sequence[Row], delimiter: str = ",") -> None:
    with path.open("w", encoding="utf-8-sig", newline="") as text:
        writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def as_tsv(path: Path, rows: Sequence[Row]) -> None:
    as_csv(path, rows, "\t")


def as_parquet(path: Path, rows: Sequence[Row]) -> None:
    pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=3)


def as_arrow_stream(path: Path, rows: Sequence[Row]) -> None:
    table = pa.Table.from_pylist(list(rows))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def as_arrow_file(path: Path, rows: Sequence[Row]) -> None:
    table = pa.Table.from_pylist(list(rows))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


WRITERS: dict[str, tuple[str, Callable[[Path, Sequence[Row]], None]]] = {
    "lines": ("d.jsonl", as_lines),
    "lines of another name": ("d.ndjson", as_lines),
    "lines named json": ("d.json", as_lines),
    "array": ("d.json", as_array),
    "csv": ("d.csv", as_csv),
    "tsv": ("d.TSV", as_tsv),
    "parquet": ("d.parquet", as_parquet),
    "arrow stream": ("d.arrow", as_arrow_stream),
    "arrow file": ("d.arrow", as_arrow_file),
}


def spec_of(source: Path | str, **changes: Any) -> DatasetSpec:
    return DatasetSpec(name="d", source=str(source), **changes)


def digest(spec: DatasetSpec) -> str:
    return suite_digest(Suite(name="s", datasets=(spec,)))


@pytest.mark.parametrize("kind", WRITERS)
def test_problems_and_digest_are_the_same_in_every_format(tmp_path: Path, kind: str) -> None:
    as_lines(tmp_path / "reference.jsonl", ROWS)
    name, write = WRITERS[kind]
    write(tmp_path / name, ROWS)
    assert load_problems(spec_of(tmp_path / name)) == load_problems(spec_of(tmp_path / "reference.jsonl"))
    assert digest(spec_of(tmp_path / name)) == digest(spec_of(tmp_path / "reference.jsonl"))


@pytest.mark.parametrize("kind", ["lines", "array", "parquet", "arrow stream"])
def test_values_that_are_no_texts_and_values_that_are_missing_are_the_same_too(tmp_path: Path, kind: str) -> None:
    rows = [
        {"prompt": "a", "answer": 1, "note": "only here", "kwargs": [{"n": 3}, {}], "deep": {"x": [1.5, 2.0], "y": True}},
        {"prompt": "b", "answer": 2, "kwargs": [{"word": "w"}], "deep": {"x": []}},
    ]
    as_lines(tmp_path / "reference.jsonl", rows)
    name, write = WRITERS[kind]
    write(tmp_path / name, rows)
    assert digest(spec_of(tmp_path / name)) == digest(spec_of(tmp_path / "reference.jsonl"))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_limit_reads_no_further_in_any_format(tmp_path: Path, kind: str) -> None:
    name, write = WRITERS[kind]
    write(tmp_path / name, ROWS)
    assert [problem.id for problem in load_problems(spec_of(tmp_path / name, limit=4))] == ["r0", "r1", "r2", "r3"]


@pytest.mark.parametrize(
    ("name", "text", "place", "named"),
    [
        ("d.json", '[{"prompt": "a", "answer": 1},\n 5]', "line 2", "must be a JSON object, not int"),
        ("d.json", '[{"prompt": "a", "answer": 1},\n\n {"prompt": "b"}]', "line 3", "no 'answer'"),
        ("d.json", '[{"prompt": "a", "answer": 1},\n {"prompt" 1}]', "line 2", "is not JSON: Expecting ':'"),
        ("d.json", '[{"prompt": "a", "answer": 1}\n {"prompt": 1}]', "line 2", "expecting ',' or ']' after a row"),
        ("d.json", '[{"prompt": "a", "answer": 1},\n', "line 2", "is not JSON"),
        ("d.json", '[{"prompt": "a", "answer": 1},\n]', "line 2", "is not JSON"),
        ("d.json", '[{"prompt": "a", "answer": 1}]\n[]', "line 1", "more after the array"),
        ("d.json", '[{"prompt": "a", "answer": 1}] ]', "line 1", "more after the array"),
        ("d.json", '"text"', "line 1", "must be an array of JSON objects, or an object a line"),
        ("d.json", '{"prompt": "a", "answer": 1}\n{"prompt"', "line 2", "is not JSON"),
        ("d.json", " ", "d.json", "holds no rows"),
        ("d.json", "[]", "d.json", "holds no rows"),
        ("d.csv", "prompt,answer\na,1\nb\n", "line 3", "has 1 cells where there are 2 columns"),
        ("d.csv", 'prompt,answer\n"a\nb",1\n\nc,2,3\n', "line 5", "has 3 cells where there are 2 columns"),
        ("d.csv", "prompt,answer\na,\n", "line 2", "no 'answer'; its keys: prompt"),
        ("d.csv", 'prompt,answer\n"a"b,1\n', "line 2", "is not CSV"),
        ("d.csv", 'prompt,answer\na,1\n"b,1\n', "line 3", "is not CSV: unexpected end of data"),
        ("d.csv", "prompt,prompt\na,1\n", "line 1", "two columns named 'prompt'"),
        ("d.csv", "prompt,answer\n", "d.csv", "holds no rows"),
        ("d.csv", "", "d.csv", "holds no rows"),
        ("d.parquet", "no parquet", "d.parquet", "is not a Parquet file"),
        ("d.arrow", "no arrow", "d.arrow", "is not an Arrow file"),
        ("d.arrow", "ARROW1 but no more", "d.arrow", "is not an Arrow file"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(tmp_path: Path, name: str, text: str, place: str, named: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DatasetError) as caught:
        load_problems(spec_of(tmp_path / name))
    message = str(caught.value)
    assert message.startswith(str(tmp_path / name))
    assert place in message
    assert named in message


def test_rows_of_tables_are_counted_as_rows(tmp_path: Path) -> None:
    as_parquet(tmp_path / "d.parquet", [*ROWS, {"id": "bad", "prompt": "no answer"}])
    with pytest.raises(DatasetError, match=r"d\.parquet, row 8: has no 'answer'"):
        load_problems(spec_of(tmp_path / "d.parquet"))
    loaded = load_dataset(spec_of(tmp_path / "d.parquet", on_bad_row="skip"))
    assert (len(loaded.problems), [bad.line for bad in loaded.bad_rows]) == (7, [8])


def test_a_table_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    for name in ("d.csv", "d.json"):
        (tmp_path / name).write_bytes(b"prompt,answer\n\xe9,1\n")
        with pytest.raises(DatasetError, match="is not UTF-8"):
            load_problems(spec_of(tmp_path / name))


def test_without_pyarrow_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_parquet(tmp_path / "d.parquet", ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.ipc", None)
    with pytest.raises(ConfigError, match=r"d\.parquet needs the package pyarrow: pip install 'pinpoint-eval\[tables\]'"):
        load_problems(spec_of(tmp_path / "d.parquet"))


def test_a_pattern_names_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    as_lines(tmp_path / "b" / "2.jsonl", ROWS[2:4])
    as_array(tmp_path / "b" / "1.json", ROWS[:2])
    as_parquet(tmp_path / "b" / "c" / "3.parquet", ROWS[4:])
    assert [p.id for p in load_problems(spec_of(tmp_path / "b" / "*.json*"))] == ["r0", "r1", "r2", "r3"]
    assert len(load_problems(spec_of(tmp_path / "**" / "*.*"))) == 7
    with pytest.raises(DatasetError, match="no file is of this pattern"):
        load_problems(spec_of(tmp_path / "*.csv"))


def test_rows_without_ids_are_counted_over_all_files_and_named_in_their_own(tmp_path: Path) -> None:
    bare = [{key: row[key] for key in ("prompt", "answer")} for row in ROWS]
    as_lines(tmp_path / "1.jsonl", bare[:3])
    as_lines(tmp_path / "2.jsonl", [*bare[3:], {"prompt": "?"}])
    with pytest.raises(DatasetError, match=r"2\.jsonl, line 5"):
        load_problems(spec_of(tmp_path / "*.jsonl"))
    assert [p.id for p in load_problems(spec_of(tmp_path / "*.jsonl", limit=7))] == [str(n) for n in range(1, 8)]


def test_a_path_may_hold_what_looks_like_a_pattern_and_be_a_url(tmp_path: Path) -> None:
    folder = tmp_path / "a [1]*"
    folder.mkdir()
    as_lines(folder / "d.jsonl", ROWS)
    assert len(load_problems(spec_of(folder / "d.jsonl"))) == 7
    (tmp_path / "b [2]").mkdir()
    as_lines(tmp_path / "b [2]" / "d.jsonl", ROWS)
    assert len(load_problems(spec_of(tmp_path / "b [2]" / "*.jsonl"))) == 7
    assert len(load_problems(spec_of((tmp_path / "b [2]" / "d.jsonl").as_uri()))) == 7


def test_a_folder_that_the_package_datasets_saved_is_read_in_its_order(tmp_path: Path) -> None:
    import datasets

    made = datasets.Dataset.from_list(ROWS)
    made.save_to_disk(tmp_path / "whole", num_shards=3)
    as_lines(tmp_path / "reference.jsonl", ROWS)
    assert digest(spec_of(tmp_path / "whole")) == digest(spec_of(tmp_path / "reference.jsonl"))
    made.select([5, 1]).save_to_disk(tmp_path / "chosen")
    assert [p.id for p in load_problems(spec_of(tmp_path / "chosen"))] == ["r5", "r1"]
    parts = datasets.DatasetDict({"train": made.select([0]), "test": made.select([2, 3])})
    parts.save_to_disk(tmp_path / "parts")
    assert [p.id for p in load_problems(spec_of(tmp_path / "parts", split="test"))] == ["r2", "r3"]
    datasets.DatasetDict({"only": made}).save_to_disk(tmp_path / "one")
    assert len(load_problems(spec_of(tmp_path / "one"))) == 7


def test_a_folder_that_cannot_be_read_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DatasetError, match="choose one with 'split': it has train, test"):
        load_problems(spec_of(tmp_path / "parts"))
    with pytest.raises(DatasetError, match="there is no split 'tests': it has train, test"):
        load_problems(spec_of(tmp_path / "parts", split="tests"))
    with pytest.raises(DatasetError, match="not one that `save_to_disk` of the package datasets wrote"):
        load_problems(spec_of(tmp_path))
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data-0.arrow"}]}')
    with pytest.raises(DatasetError, match="lacks data-0.arrow, which its state.json names"):
        load_problems(spec_of(tmp_path))
    with pytest.raises(DatasetError, match="has no splits, so none named 'test'"):
        load_problems(spec_of(tmp_path, split="test"))
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(DatasetError, match="its state.json is not JSON"):
        load_problems(spec_of(tmp_path))
    as_lines(tmp_path / "d.jsonl", ROWS)
    with pytest.raises(DatasetError, match="is a file, so it has no split 'test'"):
        load_problems(spec_of(tmp_path / "d.jsonl", split="test"))


@pytest.mark.slow
def test_object_storage_is_read_like_a_disk(s3: S3Server, tmp_path: Path) -> None:
    import datasets

    url = f"s3://{s3.bucket}/data"
    store = Store(url)
    for name, rows in (("a/1.jsonl", ROWS[:2]), ("a/2.parquet", ROWS[2:]), ("a/deep/3.jsonl", ROWS[:1])):
        local = tmp_path / Path(name).name
        (as_parquet if name.endswith("parquet") else as_lines)(local, rows)
        store.upload(local, name)
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=2)
    for file in (tmp_path / "saved").iterdir():
        store.upload(file, f"saved/{file.name}")
    as_lines(tmp_path / "reference.jsonl", ROWS)
    reference = digest(spec_of(tmp_path / "reference.jsonl"))
    assert digest(spec_of(f"{url}/a/*.*")) == reference
    assert digest(spec_of(f"{url}/saved")) == reference
    assert [p.id for p in load_problems(spec_of(f"{url}/a/1.jsonl"))] == ["r0", "r1"]
    assert [p.id for p in load_problems(spec_of(f"{url}/**/3.jsonl"))] == ["r0"]
    store.write("a/bad.jsonl", b"{}\n")
    with pytest.raises(DatasetError, match=f"{url}/a/bad.jsonl, line 1"):
        load_problems(spec_of(f"{url}/a/bad.jsonl"))
    for missing, named in (("gone.jsonl", "there is no such object"), ("a/*.csv", "no object is of this pattern")):
        with pytest.raises(DatasetError, match=named):
            load_problems(spec_of(f"{url}/{missing}"))
    with pytest.raises(DatasetError, match="the bucket can't be a pattern"):
        load_problems(spec_of("s3://*/d.jsonl"))
