"""The page of a run in a real browser: it opens from disk, asks for nothing, draws its curves, and runs no other script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from typer.testing import CliRunner

from flows.cli import app
from infra.store import Store
from tests.infra.measured_runs import SCRIPTS, hostile_run
from tests.services.browser import opened_page

pytestmark = pytest.mark.slow
POINTS = 3 * 2  # measured points x datasets


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    store = Store((folder / "store").as_uri())
    hostile_run(store)
    settings = ["--store", store.url, "--html", str(folder / "out.html")]
    done = CliRunner().invoke(app, ["report", "run", *settings], env={"PINPOINT_HOME": str(folder / "home")})
    assert done.exit_code == 0, done.output
    return folder / "out.html"


@pytest.fixture
def asked() -> list[str]:
    """Every address that the page asked for."""
    return []


@pytest.fixture
def page(file: Path, asked: list[str]) -> Iterator[Page]:
    with opened_page() as page:
        page.context.set_offline(True)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        expect(page.locator("#curve .mark-symbol.role-mark").first).to_be_attached()
        yield page


VALUES = "#curve .concat_0_group path[aria-roledescription=point]"
CROSSES = "#curve .gaps_group path[aria-roledescription=point]"


def values(page: Page) -> list[str]:
    return [mark.get_attribute("aria-label") or "" for mark in page.locator(VALUES).all()]


def test_the_curve_has_a_mark_for_every_value_and_every_gap(page: Page) -> None:
    labels = values(page)
    assert len(labels) == POINTS
    for step, *scores in ((0, "0.400 [0.30, 0.50]", "0.300 [0.20, 0.40]"), (60, "0.750 [0.65, 0.85]", "0.650 [0.55, 0.75]")):
        at_step = [label for label in labels if f"step: {step};" in label]
        assert len(at_step) == 2
        assert all(f"score [95% interval]: {score};" in label for label, score in zip(at_step, scores, strict=True))
    crosses = [mark.get_attribute("aria-label") or "" for mark in page.locator(CROSSES).all()]
    assert [label.partition(";")[0] for label in crosses] == ["step: 40", "step: 80"]
    assert "reason: busy" in crosses[0]
    assert page.locator("#curve .mark-rule.role-mark line").count() == POINTS + 2
    expect(page.locator("#phases path[aria-roledescription=bar]")).to_have_count(3 * 5)


def test_pointing_at_a_mark_shows_its_numbers(page: Page) -> None:
    page.locator(VALUES).first.hover()
    tooltip = page.locator("#vg-tooltip-element.visible")
    expect(tooltip).to_contain_text("0.400 [0.30, 0.50]")
    expect(tooltip).to_contain_text("20 prompts, 20 samples")
    page.locator(CROSSES).first.hover()
    expect(tooltip).to_contain_text("2 in flight")


def test_a_click_on_the_legend_leaves_the_others_in_the_background(page: Page) -> None:
    page.locator("#curve .role-legend-entry text", has_text="words").click()
    faint = page.locator(f"{VALUES}[opacity='0.08']")
    expect(faint).to_have_count(POINTS // 2)


def test_dragging_moves_the_steps_of_both_panels(page: Page) -> None:
    def ticks() -> list[str]:
        return page.locator("#curve .role-axis-label text").all_text_contents()

    before, box = ticks(), page.locator("#curve .concat_0_group .background").first.bounding_box()
    assert box
    page.mouse.move(box["x"] + 300, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 100, steps=5)
    page.mouse.up()
    assert ticks() != before


def test_the_wheel_goes_on_scrolling_the_page(page: Page) -> None:
    page.locator("#curve svg.marks").hover()
    page.mouse.wheel(0, 400)
    expect(page.locator("h1")).not_to_be_in_viewport()


def test_nothing_is_asked_of_the_network(page: Page, asked: list[str], file: Path) -> None:
    page.locator("details.point").last.locator("summary").first.click()
    assert asked[0] == file.as_uri()
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
    refused_by = """new Promise(done => {
        document.addEventListener("securitypolicyviolation", event => done(event.effectiveDirective));
        fetch("http://127.0.0.1:9/").catch(() => setTimeout(() => done("nobody"), 500));
    })"""
    assert page.evaluate(refused_by) == "connect-src"


def test_markup_in_names_reasons_and_samples_is_text(page: Page) -> None:
    for summary in page.locator("summary").all():
        summary.evaluate("summary => summary.parentElement.open = true")
    page.locator(CROSSES).last.hover()
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0
    assert page.locator("body > script").count() == 2
    expect(page.locator("pre", has_text="</script><script>window.pwned = 1</script>").first).to_be_visible()
    expect(page.locator("pre", has_text=SCRIPTS).first).to_be_visible()
    expect(page.locator("td.skipped", has_text="<img src=x onerror=").first).to_be_visible()


def test_a_script_that_got_in_all_the_same_would_not_run(page: Page) -> None:
    page.evaluate(
        """() => {
            const added = document.createElement("script");
            added.textContent = "window.pwned = 1";
            document.body.append(added);
            document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.pwned = 1'>");
        }"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.pwned") is None


def test_samples_are_opened_without_a_script(page: Page) -> None:
    newest_measured = page.locator("details.point", has_text="engine-0").first
    newest_measured.locator("summary").first.click()
    dataset = newest_measured.locator("details.dataset").first
    expect(dataset.locator("summary").first).to_contain_text(
        "15 right, 2 partly right, 3 wrong, 1 truncated, 1 not graded; 10 shown, 12 left out"
    )
    dataset.locator("summary").first.click()
    sample = dataset.locator("details.sample", has_text="right").first
    sample.locator("summary").click()
    expect(sample.locator("pre").first).to_be_visible()
    expect(sample.locator("pre").first).to_contain_text("What is")


def test_a_step_of_the_table_leads_to_its_point(page: Page) -> None:
    page.locator("#points a", has_text="20").first.click()
    opened = page.locator("details.point", has_text="Step 20,")
    expect(opened.locator("dl").first).to_be_in_viewport()


def test_a_browser_without_scripts_shows_the_picture(file: Path) -> None:
    with opened_page() as page:
        browser = page.context.browser
        assert browser
        still = browser.new_context(java_script_enabled=False).new_page()
        still.goto(file.as_uri())
        picture = still.locator("noscript img")
        expect(picture).to_be_visible()
        box = picture.bounding_box()
        assert box
        assert box["width"] > 500


@pytest.mark.parametrize("width", [480, 1400])
def test_the_page_is_no_wider_than_its_window(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for summary in page.locator("summary").all():
        summary.evaluate("summary => summary.parentElement.open = true")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
