"""Debian's Chromium, driven by playwright, as a person would see a page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright

CHROMIUM = "chromium"
WIDTH, HEIGHT = 1400, 1000


@contextmanager
def opened_page() -> Iterator[Page]:
    """A fresh page of a fresh browser; what its scripts throw is raised when the body ends."""
    found = shutil.which(CHROMIUM)
    assert found, "there is no chromium here: apt-get install chromium (`make setup-test` does it as root)"
    thrown: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.on("pageerror", lambda error: thrown.append(str(error)))
            yield page
        finally:
            browser.close()
    assert thrown == []
