"""What people see in the Prefect UI, read in a real browser: points, skips, retries, pages, curves, and forms.

Nothing that a model, a file or a name says becomes markup there.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Request

from infra.comparison_index import enter
from infra.model import EvalReport, Sampling, SkippedPoint
from infra.presentation import comparison_markdown, curve_markdown, report_markdown
from infra.records import now
from tests.end_to_end.points import Points, wait_until
from tests.infra.examples import MANIFEST, SKIPPED, report_at
from tests.infra.hostile import HOSTILE
from tests.infra.test_untrusted_text import PICTURE, hostile_report, transcripts
from tests.services.browser import opened_page
from tests.services.stack import RunningStack
from tests.services.waiting import patiently, until
from trainer_integration.outbox import DEPLOYMENT, Delivery
from trainer_integration.prefect_api import PrefectApi

PATIENCE_MS = 20_000
PREFECTS_OWN = re.compile(r"^https://([a-z0-9-]+\.)*(amplitude\.com|prefect\.io)/")


@dataclass(frozen=True)
class Run:
    """Four points: measured, measured after a retry, invalid, and skipped by the trainer. Another run has the same suite."""

    services: RunningStack
    name: str
    flow_runs: dict[int, str]
    word: str

    def point(self, step: int) -> str:
        return f"{self.name} · step {step:06d}"


@pytest.fixture(scope="module")
def run(services: RunningStack, model: Path) -> Run:
    name, url = f"ui-{uuid.uuid4().hex[:6]}", services.file_url("store-ui")
    points = Points(services, model, name, url)
    enter(points.store, f"{name}-other", "suite", [report_at(10, run=f"{name}-other")])
    sampling = Sampling(max_new_tokens=6, temperature=1.0, sampling_seed=1)
    dataset = points.dataset.model_copy(update={"sampling": sampling, "samples_per_prompt": 2, "limit": 20})
    invalid = points.request(30, dataset=dataset)
    weights = Path(invalid.source.path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    word = f"holiday-{name[3:]}"
    made = {40: skipped_by_trainer(points, word), 30: points.submit(invalid)}
    made[10] = points.submit(points.request(10, dataset=dataset))
    made[20] = retried(points, dataset)
    assert isinstance(points.record(10), EvalReport)
    assert isinstance(points.record(30), SkippedPoint)
    wait_until(lambda: all(ended(services, one) for one in made.values()), 300)
    return Run(services, name, made, word)


def retried(points: Points, dataset: Any) -> str:
    """A point whose samples can't be written at first: a file is where their folder will be."""
    request = points.request(20, dataset=dataset)
    path = points.store.local_path(f"runs/{points.run}/points/{request.point.key}/suite/samples")
    assert path is not None
    path.parent.mkdir(parents=True)
    path.touch()
    flow_run = points.submit(request)
    wait_until(lambda: "AwaitingRetry" in states_of_tasks(points.services, flow_run), 300)
    path.unlink()
    assert isinstance(points.record(20), EvalReport)
    return flow_run


def states_of_tasks(services: RunningStack, flow_run: str) -> list[str]:
    tasks = services.post("/task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run]}}})
    return [task["state"]["name"] for task in tasks if task["state"]]


def skipped_by_trainer(points: Points, word: str) -> str:
    """Created in its last state, by whom decides not to evaluate; no process is started for it."""
    request = points.request(40)
    skip = SkippedPoint(
        point=request.point, suite="suite", reason=word, message=HOSTILE[3], export_time_seconds=0.0, finished_at=now()
    )
    api = PrefectApi(points.services.stack.prefect_api_url)
    return patiently(lambda: api.create_flow_run(Delivery.of(request, DEPLOYMENT, skip)))


def ended(services: RunningStack, flow_run: str) -> bool:
    return str(services.asked("GET", f"/flow_runs/{flow_run}").json()["state"]["type"]) == "COMPLETED"


class Reader:
    """Somebody who opens pages and looks for words; what a page asks of other hosts, but for Prefect's own, is remembered."""

    def __init__(self, page: Page, ui_url: str) -> None:
        self.page, self.ui_url = page, ui_url
        self.asked: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", self._note)

    def _note(self, request: Request) -> None:
        if not request.url.startswith((self.ui_url, "data:", "blob:")) and not PREFECTS_OWN.search(request.url):
            self.asked.append(request.url)

    def opens(self, path: str, *words: str) -> None:
        self.page.goto(f"{self.ui_url}/v2{path}", wait_until="domcontentloaded")
        self.reads(*words)

    def reads(self, *words: str) -> None:
        for word in words:
            self.page.get_by_text(word).locator("visible=true").first.wait_for()

    def points(self) -> list[str]:
        """Names of the points that are listed, once the list is there."""
        links = self.page.get_by_role("link", name=re.compile(r"· step \d+$"))
        links.first.wait_for(state="visible")
        return links.all_inner_texts()

    def follows(self, link: str | re.Pattern[str]) -> None:
        self.page.get_by_role("link", name=link).first.click()

    def picture(self) -> Locator:
        """A picture in the page, which the browser could draw."""
        shown = self.page.get_by_test_id("markdown-display").locator("img")
        shown.first.wait_for(state="visible")
        assert shown.first.evaluate("image => image.decode().then(() => image.naturalWidth)") > 300
        return shown


@pytest.fixture(scope="module")
def reader(services: RunningStack) -> Iterator[Reader]:
    """In a page of its own: what the scripts of Prefect's UI throw is not ours."""
    with opened_page() as first:
        browser = first.context.browser
        assert browser is not None
        page = browser.new_page(viewport=first.viewport_size)
        yield Reader(page, services.stack.ui_url)


def test_each_point_is_listed_under_its_name_with_its_tags(run: Run, reader: Reader) -> None:
    reader.opens(f"/runs?tags=run:{run.name}", run.point(10))
    assert set(reader.points()) == {run.point(step) for step in (10, 20, 30, 40)}
    reader.reads(f"run:{run.name}", "suite:suite", "step:10", "step:40", "skipped:ckpt_invalid", f"skipped:{run.word}")


def test_filters_by_state_name_and_by_tag_find_exactly_the_skipped_points(run: Run, reader: Reader) -> None:
    reader.opens(f"/runs?tags=run:{run.name}&state=Skipped", run.point(30))
    assert set(reader.points()) == {run.point(30), run.point(40)}
    reader.opens("/runs", "All run states")
    box = reader.page.get_by_placeholder("All tags").first
    box.fill(f"skipped:{run.word}")
    box.press("Enter")
    reader.page.get_by_text("1 Flow run").first.wait_for()
    until(lambda: reader.points() == [run.point(40)])


def test_why_a_point_was_skipped_is_on_its_page(run: Run, reader: Reader) -> None:
    reader.opens(f"/runs/flow-run/{run.flow_runs[30]}?tab=Details", "Skipped", "ckpt_invalid: model.safetensors has")
    reader.opens(f"/runs/flow-run/{run.flow_runs[40]}?tab=Details", "Skipped", f"{run.word}: {HOSTILE[3]}")
    assert_nothing_was_obeyed(reader)


def test_a_retry_is_visible_on_the_task_that_retried_with_its_cause(run: Run, reader: Reader) -> None:
    reader.opens(f"/runs/flow-run/{run.flow_runs[20]}?tab=TaskRuns", "run rows")
    reader.follows("run rows")
    reader.reads("Run Count", "Retry 1/2 will start", "Not a directory")
    shown = reader.page.locator("body").inner_text()
    assert re.search(r"Run Count\s+[23]\b", shown)
    assert re.search(r"Task run failed with exception: StoreError\(.*Not a directory", shown, re.DOTALL)


def test_the_tasks_of_a_point_have_names_for_people_in_the_order_of_its_life(run: Run, reader: Reader) -> None:
    reader.opens(f"/runs/flow-run/{run.flow_runs[10]}?tab=TaskRuns", "6 Task runs", "export step 10")
    shown = reader.page.locator("body").inner_text().partition("Newest to oldest")[2]
    names = ["retire step 10", "report step 10", "run rows", "pin step 10", "acquire fleet test", "export step 10"]
    assert [name for name in shown.splitlines() if name in names] == names


def test_a_points_page_leads_to_its_report_and_from_there_to_its_curve(run: Run, reader: Reader) -> None:
    reader.opens(f"/runs/flow-run/{run.flow_runs[20]}?tab=Artifacts", f"Scores of {run.point(20)}", f"history-{run.name}")
    reader.page.get_by_text(f"Report of {run.point(20)}").first.click()
    reader.reads("Scores", "vs previous", "Which weights", "read back", "Skipped or failed parts", "Three responses")
    reader.reads("Truncated: rows", "Asked", "Response", "expected", "Time", "acquire fleet", "Where it is")
    reader.reads(f"pinpoint report {run.name} --html report.html --store")
    reader.follows("curve")
    reader.reads("3 points, 1 skipped")
    reader.follows(re.compile("^[0-9a-f]{8}$"))
    reader.reads("Bars are 95% intervals", "Skipped", "ckpt_invalid")
    assert reader.picture().count() == 1


def test_a_runs_history_grows_by_versions_and_shows_the_newest_point_first(run: Run, reader: Reader) -> None:
    reader.opens(
        f"/artifacts/key/history-{run.name}", f"3 points, 1 skipped, newest step 30 · evaluation history of {run.name}"
    )
    versions = reader.page.get_by_role("link", name=re.compile("^[0-9a-f]{8}$"))
    until(lambda: versions.count() >= 3)
    versions.first.click()
    reader.reads("export s", "ckpt_invalid: model.safetensors has")
    cells = reader.page.get_by_test_id("table-display").locator("tbody tr td:first-child")
    assert cells.all_inner_texts() == ["30", "20", "10"]


def test_runs_of_one_suite_are_side_by_side(run: Run, reader: Reader) -> None:
    reader.opens("/artifacts/key/comparison-suite", "runs measured with suite, side by side")
    reader.follows(re.compile("^[0-9a-f]{8}$"))
    reader.reads("Runs measured with suite", f"{run.name}-other", "newest, step", "suite digest")
    reader.page.get_by_role("link", name=run.name, exact=True).first.wait_for()
    assert reader.picture().count() == 1


def assert_nothing_was_obeyed(reader: Reader) -> None:
    """No script ran, nothing was fetched from elsewhere, and no link leads there."""
    assert reader.page.evaluate("window.pwned") is None
    assert reader.asked == []
    hrefs = reader.page.eval_on_selector_all(
        "main a, [data-testid=markdown-display] a", "links => links.map(link => link.href)"
    )
    assert not [href for href in hrefs if not (href.startswith(reader.ui_url) or PREFECTS_OWN.search(href))]
    sources = reader.page.eval_on_selector_all("img", "images => images.map(image => image.src)")
    assert not [source for source in sources if not source.startswith("data:image/png;base64,")]


TOO_WIDE = """shown => [...shown.querySelectorAll('p, li, h1, h2, h3, table')]
    .filter(part => !part.querySelector('code') && part.scrollWidth > shown.clientWidth + 1)
    .map(part => part.innerText.slice(0, 80))"""
PAGES = {
    "report": lambda text: report_markdown(
        hostile_report(text), MANIFEST, transcripts=transcripts(text), store_url="file:///x"
    ),
    "curve": lambda text: curve_markdown("run", [hostile_report(text), SKIPPED], PICTURE, text),
    "comparison": lambda text: comparison_markdown(text, {text: [hostile_report(text)], "run": [SKIPPED]}, PICTURE, note=text),
}


@pytest.mark.parametrize("kind", PAGES)
def test_what_a_model_says_is_read_in_a_page_and_never_obeyed(services: RunningStack, reader: Reader, kind: str) -> None:
    markdown = "\n\n".join(PAGES[kind](text) for text in HOSTILE)
    assert len(markdown) > 10_000
    body = {"type": "markdown", "key": f"hostile-{kind}", "data": markdown}
    made = services.post("/artifacts/", body)
    reader.opens(f"/artifacts/artifact/{made['id']}", "<img src=x onerror=window.pwned=1>", "العربية")
    reader.page.wait_for_timeout(500)  # for what an image that fails would run
    assert_nothing_was_obeyed(reader)
    page = reader.page.get_by_test_id("markdown-display")
    assert page.locator("script, iframe, form, input, svg, h1 h1, del, blockquote").count() == 0
    assert page.evaluate(TOO_WIDE) == []


def test_the_form_of_a_re_evaluation_explains_itself(services: RunningStack, reader: Reader) -> None:
    deployment = services.deployment_id("reevaluate_saved/pinpoint")
    reader.opens(f"/deployments/deployment/{deployment}/run", "folders that checkpoints are saved in, or s3://bucket/prefix")
    reader.reads("regular expression for a checkpoint's path", "newest: the latest step first", "Black Box (Optional)")
    reader.reads("submit nothing, list what would run and what it would cost", "how often a failure that may pass is tried")
    assert reader.page.get_by_text("Field (Optional)").count() == 0


def test_the_form_of_an_evaluation_explains_itself(services: RunningStack, reader: Reader) -> None:
    deployment = services.deployment_id("evaluate_snapshot/pinpoint")
    reader.opens(f"/deployments/deployment/{deployment}/run", "step of the trainer at which these weights were made")
    reader.reads(
        "name of the training run whose history the point joins", "the engines that serve the weights", "Ledger (Optional)"
    )
    assert reader.page.get_by_text("Field (Optional)").count() == 0
