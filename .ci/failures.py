"""Says once more, after all that services print as they end, which tests failed: `failures.py JUNIT_XML`."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

LINES = 12  # of each failure, its last
MOST = 30  # failures


def main(results: Path) -> None:
    if not results.exists():
        print("no test run was completed: see the output above")
        return
    cases = ElementTree.parse(results).iter("testcase")
    failed = [(case, told) for case in cases for told in case if told.tag in ("failure", "error")]
    for case, told in failed[:MOST]:
        print(f"\n{told.tag}: {case.get('classname')}::{case.get('name')} after {float(case.get('time', 0)):.0f} s")
        print("\n".join((told.text or told.get("message") or "").splitlines()[-LINES:]))
    print(f"\n{len(failed)} failed" + (f", {MOST} shown" if len(failed) > MOST else ""))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
