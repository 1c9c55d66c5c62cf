"""A plain training loop with a fake exporter that is killed (SIGKILL) at a named place of step 10, or goes on to its end.

`python -m tests.services.dying_trainer HOME PREFECT_API PLACE [RUN]`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from infra.config import Settings
from infra.model import Suite
from tests.infra.checkpoints import make_checkpoint
from tests.infra.examples import dataset
from trainer_integration.dispatcher import DispatchSettings, EvalDispatcher
from trainer_integration.outbox import Delivery, Outbox

PLACES = ("waiting for room", "exporting", "exported", "putting", "put", "intent unlinked", "last step")
LAST = 10


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Exporter:
    def __init__(self, place: str) -> None:
        self.place = place

    def __call__(self, folder: Path) -> None:
        (folder / "half").write_text("half of the model")
        if self.place == "exporting":
            die()
        if self.place == "alive":
            (folder.parents[3] / "exporting").touch()
            time.sleep(60)
        (folder / "half").unlink()
        make_checkpoint(folder / "made")


class DyingOutbox(Outbox):
    place = ""

    def put(self, delivery: Delivery, stem: str | None = None) -> Path:
        if self.place == "exported":
            die()
        if self.place == "putting":
            (self.folder / f"{stem}.partial").write_text(delivery.model_dump_json()[:20])
            die()
        file = super().put(delivery, stem)
        if self.place == "put":
            die()
        return file


def die_after_unlinking(suffix: str) -> None:
    unlink = Path.unlink

    def dying(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        if path.suffix == suffix:
            die()

    Path.unlink = dying  # type: ignore[method-assign,assignment]


def main(home: Path, api_url: str, place: str, run: str = "run") -> None:
    settings = Settings(home=home, staging_dir=home / "staging", prefect_api_url=api_url)
    dispatch = DispatchSettings(run=run, suite=Suite(name="suite", datasets=(dataset(),)), every=5, max_in_flight=1)
    dispatcher = EvalDispatcher(dispatch, settings, Exporter(place))
    outbox = DyingOutbox(home / "outbox")
    outbox.place = place
    outbox.files.prepare()
    time.sleep(0.1)  # its blank files are made, as they are long before a due step
    dispatcher.desk.submitter.outbox = outbox
    if place == "waiting for room":
        dispatcher.desk.submitter.watch.wait = lambda *_: die() or True  # type: ignore[method-assign,func-returns-value]
    if place == "intent unlinked":
        die_after_unlinking(".intent")
    dispatcher.on_step(LAST, final=True)
    if place == "last step":
        die()
    dispatcher.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
