"""A Ray cluster of this machine alone, in a process of its own: Ray takes over the signals of the process that starts it.

`python -m flows.ray_node FOLDER` writes the cluster's address to FOLDER/address when it is up, and ends it on SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path


def main(folder: Path) -> None:
    import ray

    context = ray.init(
        namespace="pinpoint",
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=str(folder),
        _node_ip_address="127.0.0.1",
    )
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    partial = folder / "address.partial"
    partial.write_text(str(context.address_info["gcs_address"]))
    partial.rename(folder / "address")
    ended.wait()
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
