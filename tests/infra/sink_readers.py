"""What trackers hold, read back as a person's tools would read it: (step, value) of one metric, in the order kept."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Numbers = list[tuple[int, float]]


def of_jsonl(home: Path, run: str, metric: str) -> Numbers:
    return [(line["step"], line["metrics"][metric]) for line in lines_of_jsonl(home, run) if metric in line["metrics"]]


def lines_of_jsonl(home: Path, run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / "sinks" / "jsonl" / f"{run}.jsonl").read_text().splitlines()]


def of_tensorboard(home: Path, run: str, metric: str) -> Numbers:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(home / "sinks" / "tensorboard" / run)).Reload()
    if metric not in read.Tags()["scalars"]:
        return []
    return [(event.step, round(event.value, 6)) for event in read.Scalars(metric)]


def of_mlflow(home: Path, run: str, metric: str) -> Numbers:
    """From the server or database that MLflow's own variable names, or else the one in `home`."""
    from mlflow import MlflowClient

    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home / 'sinks' / 'mlflow.db'}")
    experiments = [found.experiment_id for found in client.search_experiments()]
    runs = client.search_runs(experiments, filter_string=f"tags.`pinpoint.run` = '{run}'")
    return [(kept.step, kept.value) for one in runs for kept in client.get_metric_history(one.info.run_id, metric)]


def of_wandb(home: Path, run: str, metric: str) -> Numbers:
    """By `eval/step`, the axis; of all offline sessions of the W&B run, whose own steps must rise from one to the next."""
    found = sorted(wandb_history(home / "sinks", f"{run}-eval"), key=lambda row: row["_step"])
    assert [row["_step"] for row in found] == sorted({row["_step"] for row in found})
    return [(int(row["eval/step"]), row[metric]) for row in found if metric in row]


def wandb_history(folder: Path, run_id: str) -> list[dict[str, Any]]:
    rows = []
    for file in folder.glob(f"wandb/offline-run-*/run-{run_id}.wandb"):
        for record in wandb_records(file):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of a W&B transaction log: LevelDB's log format behind 7 bytes of its own.

    Source: https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, block, parts = file.read_bytes(), 7, 32768, b""
    while at < len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""
