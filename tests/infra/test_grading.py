"""From a response to a reward: an answer is found in it, never in its reasoning, and each grader says right, wrong or none."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from infra.datasets import load_problems, suite_digest
from infra.errors import ConfigError
from infra.grading.answers import extract, opened_by_prompt, without_thinking
from infra.grading.choices import letter_of
from infra.grading.failed_share import too_many_failed
from infra.grading.registry import GRADERS, Grader
from infra.grading.text_matches import f1_of, words_of
from infra.grading.versions import version_of
from infra.grading.work import grade
from infra.model import DatasetSpec, Problem, Suite
from infra.model.graders import GRADER_NAMES, SETTINGS, CustomGrader, MathGrader
from tests.infra.examples import dataset, jsonl
from tests.infra.graders import GYM, PROBLEM, custom

MARKERS = ("<think>", "</think>")
POINT_SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
NONE = None


def graded(grader: str | dict[str, Any], answer: str, response: str, **entry: Any) -> float | None:
    """The reward, or None if the response holds no answer."""
    made = grade(dataset(grader=grader), Problem(id="p", prompt="?", answer=answer, entry=entry), response)
    assert made.answer is not None or made.reward == 0.0
    return None if made.answer is None else made.reward


@pytest.mark.parametrize(
    ("grader", "answer", "response", "reward"),
    [
        ("exact", "7", " 7\n", 1.0),
        ("exact", "7", "7.", 0.0),
        ("exact", "a", "A", 0.0),
        ("exact", "7", " \n", NONE),
        ("contains", "Seven", "it is seven, yes", 1.0),
        ("contains", "7", "8", 0.0),
        ("normalised", "The  Eiffel Tower", "eiffel tower.", 1.0),
        ("normalised", "Eiffel Tower", "the tower", 0.0),
        ("normalised", "+", "+", 1.0),
        ("normalised", "+", "-", 0.0),
        ("f1", "the cat sat", "cat sat", 1.0),
        ("f1", "a b c d", "b c", 0.8),
        ("f1", "cat", "dog", 0.0),
        ("numeric", "7", "7.0", 1.0),
        ("numeric", "1,234.5", "1234.50", 1.0),
        ("numeric", "7", "7.0000001", 0.0),
        ("numeric", "0", "-0.0", 1.0),
        ("numeric", "7", "seven", 0.0),
        ("numeric", "7", "nan", 0.0),
        ("numeric", "7", "inf", 0.0),
        ("numeric", "7", "-1e999", 0.0),
        ({"name": "numeric", "rel_tol": 0.01}, "200", "201.9", 1.0),
        ({"name": "numeric", "rel_tol": 0.01}, "200", "202.1", 0.0),
        ({"name": "numeric", "abs_tol": 0.5}, "-3", "-2.5", 1.0),
        ({"name": "regex", "pattern": r"\b7\b"}, "", "it is 7.", 1.0),
        ({"name": "regex", "pattern": r"\b7\b"}, "", "it is 77", 0.0),
        ({"name": "regex", "pattern": "yes", "whole": True}, "", "yes it is", 0.0),
        ({"name": "regex", "ignore_case": True}, "p.ris", "In PARIS", 1.0),
        ("regex", "p.ris", "In PARIS", 0.0),
        ("multiple_choice", "B", "The answer is (B).", 1.0),
        ("multiple_choice", "(b)", "Answer: C", 0.0),
        ("multiple_choice", "B", "I can't say", NONE),
        ("json_schema", json.dumps(POINT_SCHEMA), '{"x": 3}', 1.0),
        ({"name": "json_schema", "definition": POINT_SCHEMA}, "", '{"x": "3"}', 0.0),
        ({"name": "json_schema", "definition": POINT_SCHEMA}, "", '```json\n{"x": 3}\n```', 1.0),
        ({"name": "json_schema", "definition": POINT_SCHEMA}, "", "x is 3", 0.0),
        ({"name": "json_schema", "definition": {"type": "number"}}, "", "NaN", 0.0),
        ({"name": "json_schema", "definition": {"type": "number"}}, "", " ", NONE),
    ],
)
def test_an_answer_is_graded_right_or_wrong(
    grader: str | dict[str, Any], answer: str, response: str, reward: float | None
) -> None:
    assert graded(grader, answer, response) == (reward if reward is None else pytest.approx(reward))


COLUMN = r"\begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}"
SQUARE = r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"


@pytest.mark.parametrize(
    ("answer", "response", "reward"),
    [
        ("1/2", r"so it is \boxed{\frac{1}{2}}", 1.0),
        (r"\frac{1}{2}", "The answer is 0.5", 1.0),
        ("$x^2+x$", r"$x(x+1)$", 1.0),
        ("1,234", "it is 1234", 1.0),
        (r"3\sqrt{2}", "$3$", 0.0),
        ("(1,2)", "$(1,2)$", 1.0),
        ("(1,2)", "$2$", 0.0),
        ("7", r"At first \boxed{6}. After a check it is \boxed{7}.", 1.0),
        (r"\{1,2\}", r"\boxed{\{2,1\}}", 1.0),
        (COLUMN, rf"\boxed{{{COLUMN}}}", 1.0),
        (COLUMN, f"${COLUMN}$", 1.0),
        (COLUMN, r"\boxed{-7}", 0.0),
        (COLUMN, rf"\boxed{{{COLUMN.replace('14', '15')}}}", 0.0),
        (SQUARE, rf"\boxed{{{SQUARE}}}", 1.0),
        (r"\$36", "36", 1.0),
        (r"\$36", r"\boxed{\$36}", 1.0),
        (r"\$36", r"\boxed{37}", 0.0),
        (r"\$32,348", r"\boxed{\$32{,}348}", 1.0),
        ("$36$", "36", 1.0),
        ("7", "I do not know", NONE),
        ("7", r"\boxed{}", NONE),
    ],
)
def test_mathematics_is_compared_by_value(answer: str, response: str, reward: float | None) -> None:
    assert graded("math", answer, response) == reward


@pytest.mark.parametrize(
    ("grader", "answer", "response"),
    [
        ("numeric", "seven", "7"),
        ("numeric", "nan", "nan"),
        ("multiple_choice", "E", "A"),
        ("multiple_choice", "", "A"),
        ("regex", "(", "("),
        ("regex", "", "the row's answer is empty"),
        ("contains", " ", "the row's answer is empty"),
        ("json_schema", "no schema", "{}"),
        ("json_schema", '{"type": "nonsense"}', "{}"),
        ({"name": "json_schema", "definition": {"$ref": "http://127.0.0.1:9/x"}}, "", "{}"),
        ("math", "$", "7"),
    ],
)
def test_a_row_that_cannot_be_graded_is_an_error_and_not_a_wrong_answer(
    grader: str | dict[str, Any], answer: str, response: str
) -> None:
    with pytest.raises(Exception, match="."):
        graded(grader, answer, response)


def test_a_reasoning_gym_problem_is_graded_by_its_own_family() -> None:
    problem, other = load_problems(GYM)
    assert grade(GYM, problem, problem.answer).reward == 1.0
    assert grade(GYM, problem, other.answer + "1").reward < 1.0
    assert grade(GYM, problem, "").answer is None


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("B", "B"),
        ("b.", "B"),
        ("**C**", "C"),
        ("(D)", "D"),
        ("A) because it rains", "A"),
        ("A cat is not a dog, and I am sure", None),
        ("Answer: D", "D"),
        ("the correct option is c", "C"),
        ("The answer is A. No, wait: the answer is B.", "B"),
        (r"so \boxed{\text{C}}, although (A) is near", "C"),
        ("Of (A) and (B) the first", "B"),
        ("I think I'd go home", None),
        ("the answer is E", None),
        ("**Answer:** B", "B"),
        ("Final answer: $B$", "B"),
        (r"The answer is \text{B}.", "B"),
        (r"The answer is \(\mathrm{(B)}\)", "B"),
        (r"**Answer: $\boxed{\textbf{D}}$**", "D"),
        ("answer: `B`", "B"),
        ("the correct option is: (b)", "B"),
        ("The correct answer is option C.", "C"),
        ("The answer is (B), since option C is false.", "B"),
        ("Answer: B\nOption A is tempting but wrong.", "B"),
        ("Option A is wrong. Option C is wrong. So the right one is (B).", "B"),
        ("The best answer: A detailed look shows that it is (C)", "C"),
        ("The answer is a bit of a surprise: (D)", "D"),
        ("The answer is A because it rains.", "A"),
        ("I choose option B.", "B"),
        ("Answer: B is correct.", "B"),
        ("The answer is B in this case.", "B"),
        ("Answer: B mitochondria", "B"),
        ("Answer: A is correct.", "A"),
        ("(A) is too small. So the answer is D by elimination.", "D"),
        ("Option (A) is wrong. The answer is C when x > 0.", "C"),
        ("The answer is **B** with the value (C) excluded", "B"),
        ("This one: C looks odd, so (D)", "D"),
        ("answer C because it is", "C"),
        ("(A) is too small.\n(C) is too big.\nSo the answer is \\boxed{B) 12 cm}.", "B"),
        (r"(A) is too small. The answer is \boxed{\text{B. 12 cm}}", "B"),
        (r"\boxed{B. Paris}", "B"),
        (r"\boxed{A dog}, so (C)", "C"),
        ("After ruling out (A) and (B), I choose D.", "D"),
        ("If I choose A it is too small. So (C).", "C"),
        ("Suppose we pick B as origin. The force is 3 N. (C)", "C"),
        ("we choose A = 3, then det = 2.\n\n(D)", "D"),
        ("When I choose A, it fails. So (C).", "C"),
        ("Should I choose A? No: (C)", "C"),
        ("I would choose A if the sign were reversed, but it is (B).", "B"),
        ("I choose D because (A) is wrong.", "D"),
        ("So I pick (D)", "D"),
        (r"\boxed{A, B, C}", None),
        (r"The two possibilities are \boxed{A, C}. Final: (C)", "C"),
        ("(A) and (B) and (C) are wrong. The final answer is therefore D.", "D"),
        ("The answer is [D].", "D"),
        ('Answer: "B"', "B"),
        ("", None),
    ],
)
def test_a_choice_is_the_letter_that_the_answer_settles_on(response: str, letter: str | None) -> None:
    assert letter_of(response, "ABCD") == letter


def test_a_response_of_nothing_but_new_lines_is_read_at_once() -> None:
    """What reads it in quadratic time would not come to an end."""
    assert letter_of("\n" * 1_000_000, "ABCD") is None


@pytest.mark.parametrize(
    ("function", "reward"),
    [
        ("right", 1.0),
        ("half", 0.5),
        ("mapped", 1.0),
        ("later", 1.0),
        ("later_mapped", 1.0),
        ("careful", 1.0),
        ("unanswered", NONE),
    ],
)
def test_a_function_of_ones_own_gives_a_number_a_bool_a_mapping_or_none_now_or_later(
    function: str, reward: float | None
) -> None:
    made = grade(custom(function), PROBLEM, "7")
    assert (made.reward, made.answer) == ((reward, "7") if reward is not None else (0.0, None))


def test_the_key_of_a_mapping_is_the_suites_to_choose() -> None:
    assert grade(custom("mapped", reward_key="score"), PROBLEM, "8").reward == 0.25
    with pytest.raises(KeyError, match="no 'points'; its keys: score, reward"):
        grade(custom("mapped", reward_key="points"), PROBLEM, "8")
    with pytest.raises(TypeError, match="not str: '1.0'"):
        grade(custom("wordy"), PROBLEM, "8")


@pytest.fixture
def sentences(tmp_path: Path) -> Iterator[None]:
    """What `python -m nltk.downloader punkt_tab` would fetch, trained on a few sentences."""
    nltk = pytest.importorskip("nltk")
    from nltk.tokenize import punkt

    folder = tmp_path / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    nltk.data.path.insert(0, str(tmp_path))
    trainer = punkt.PunktTrainer()
    trainer.train("Hello there. How are you? Dr. Smith came. He left. " * 20)
    punkt.save_punkt_params(trainer.get_params(), str(folder))
    yield
    nltk.data.path.remove(str(tmp_path))


ASKED = {
    "prompt": "Write two sentences without commas.",
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_sentences"],
    "kwargs": [{}, {"relation": "at least", "num_sentences": 2}],
}


@pytest.mark.parametrize(
    ("settings", "response", "reward"),
    [
        ({}, "This is one. This is two.", 1.0),
        ({}, "This is one, and only one.", 0.0),
        ({"share": True}, "This is only one.", 0.5),
        ({}, "Sure, here you are:\nThis is one. This is two.", 0.0),
        ({"strict": False}, "Sure, here you are:\nThis is one. This is two.", 1.0),
        ({}, "", NONE),
    ],
)
@pytest.mark.slow
@pytest.mark.usefixtures("sentences")
def test_a_response_follows_its_instructions_or_does_not(settings: dict[str, Any], response: str, reward: float | None) -> None:
    assert graded({"name": "instructions", **settings}, "", response, **ASKED) == reward


@pytest.mark.slow
def test_without_its_sentence_data_the_instructions_grader_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [])
    with pytest.raises(ConfigError, match="needs NLTK's punkt_tab: pip install 'lm-eval.ifeval.'"):
        graded("instructions", "", "x", **ASKED)


@pytest.mark.parametrize(
    ("pattern", "response", "answer"),
    [
        (None, " all of it ", "all of it"),
        (None, "  ", None),
        (r"\d+", "x 12 34", "12"),
        (r"= (\d+)", "x = 5", "5"),
        (r"\d+", "none", None),
        (r"a(b)?", "a", None),
        (r"\d+", "<think>12, no, 34</think> it is 56", "56"),
        (r"\d+", "<think>12", None),
        (None, "<think>12", None),
        (r"\d+", "12, no, 34</think> it is 56", "56"),
        (r"\d+", "it is 7 <think>or 8", "7"),
        (None, "<think>", None),
    ],
)
def test_the_answer_is_what_the_pattern_finds_first_outside_of_reasoning(
    pattern: str | None, response: str, answer: str | None
) -> None:
    assert extract(dataset(answer_pattern=pattern), response) == answer


def test_markers_of_reasoning_can_be_others_or_none() -> None:
    response = "[THINK]12[/THINK]<think>34</think>56"
    assert extract(dataset(think_markers=("[THINK]", "[/THINK]")), response) == "<think>34</think>56"
    assert extract(dataset(think_markers=None), response) == response
    with pytest.raises(ValueError, match="must be two different texts"):
        dataset(think_markers=("x", "x"))


def test_a_block_that_the_prompt_opened_and_the_response_never_closed_is_not_searched() -> None:
    spec = dataset(answer_pattern=r"\d+")
    assert extract(spec, opened_by_prompt("user: ?\nassistant: <think>\n", "is it 12 or", MARKERS)) is None
    assert extract(spec, opened_by_prompt("user: ?\nassistant: <think>\n", "12?</think>34", MARKERS)) == "34"
    assert extract(spec, opened_by_prompt("user: <think> is a tag\nassistant: ", "12", MARKERS)) == "12"
    assert opened_by_prompt("<think>", "12", None) == "12"


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "a", "7", "<", "think>", " "]), max_size=12).map("".join)


@given(PIECES)
def test_nothing_of_an_open_block_is_ever_said(text: str) -> None:
    said = without_thinking(f"before<think>SECRET{text.replace('</think>', '')}", MARKERS)
    assert "SECRET" not in said
    assert said.startswith("before")


@given(PIECES.filter(lambda text: "<think>" not in text and "</think>" not in text))
def test_a_response_without_markers_is_all_said(text: str) -> None:
    assert without_thinking(text, MARKERS) == text


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_f1_is_symmetric_between_0_and_1_and_1_only_for_the_same_words(one: list[str], other: list[str]) -> None:
    assert f1_of(one, other) == pytest.approx(f1_of(other, one))
    assert 0 <= f1_of(one, other) <= 1
    assert (f1_of(one, other) == 1.0) == (sorted(one) == sorted(other))


@given(st.text(max_size=40))
def test_normalising_twice_is_normalising_once(text: str) -> None:
    assert words_of(" ".join(words_of(text))) == words_of(text)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 0.5))
def test_a_number_is_right_within_its_tolerance_and_wrong_beyond(number: float, tolerance: float) -> None:
    grader = {"name": "numeric", "rel_tol": tolerance, "abs_tol": 0}
    assert graded(grader, repr(number), repr(number)) == 1.0
    assert graded(grader, repr(number), repr(number + 2 * tolerance * abs(number) + 1)) in (
        0.0,
        1.0 if abs(number) > 1e15 else 0.0,
    )


@pytest.mark.parametrize(
    ("outcomes", "share", "said"),
    [
        ({"ok": 95, "grader_timeout": 5}, 0.05, None),
        ({"ok": 94, "grader_timeout": 5, "infra_error": 1}, 0.05, "6 of 100 samples .* (5 grader_timeout, 1 infra_error)"),
        ({"ok": 9, "grader_error": 1}, 0.0, "1 of 10"),
        ({"ok": 1, "truncated": 50, "no_answer": 49}, 0.0, None),
        ({"infra_error": 10}, 1.0, None),
        ({}, 0.0, None),
    ],
)
def test_too_many_that_failed_leave_no_score_and_the_counts_say_why(
    outcomes: dict[str, int], share: float, said: str | None
) -> None:
    reason = too_many_failed(outcomes, share)
    if said is None:
        assert reason is None
    else:
        assert reason is not None
        assert said.replace(".* ", "got no answer or no grade ") in reason


def test_every_grader_that_a_suite_can_name_is_there_and_has_a_version() -> None:
    assert tuple(GRADERS) == GRADER_NAMES
    settings = [dataset(grader=name).grader for name in ("exact", "math", "json_schema", "f1")]
    assert len({version_of(each) for each in settings}) == 4


def test_a_version_names_the_packages_that_decide_and_follows_a_users_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert version_of(MathGrader()).startswith("math 2, math-verify 0.")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_own_grader.py").write_text("def f(response): return 1\n")
    settings = CustomGrader(function="my_own_grader:f")
    before = version_of(settings)
    (tmp_path / "my_own_grader.py").write_text("def f(response): return 0\n")
    assert version_of(settings) != before
    with pytest.raises(ConfigError, match="there is no module not_there_at_all"):
        version_of(CustomGrader(function="not_there_at_all:f"))


def test_the_page_on_suites_has_every_grader_and_setting_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "suites.md").read_text()
    table = page.partition("| grader | reward is 1 if |")[2].partition("\n\n")[0]
    rows = {found[1]: found[2] for found in re.finditer(r"^\| `(\w+)` \|.*\|(.*)\|$", table, re.MULTILINE)}
    shared = page.partition("### Graders over HTTP")[2].partition("### Notes")[0]
    assert tuple(rows) == GRADER_NAMES
    for kind in SETTINGS:
        fields = {name: field for name, field in kind.model_fields.items() if name != "name"}
        row = rows[kind.model_fields["name"].default]
        assert set(re.findall(r"`(\w+)` \(", row)) <= set(fields), f"{kind.__name__} has no such setting"
        for name, field in fields.items():
            listed = row if f"`{name}`" in row else shared
            assert f"`{name}`" in listed, f"{kind.__name__}.{name} is not on the page"
            if isinstance(field.default, int | float) and not isinstance(field.default, bool):
                assert re.search(rf"`{name}` (?:\(|\| ){field.default:g}\b", listed.replace("1e-9", "1e-09")), name


def test_the_digest_of_a_suite_follows_its_graders_settings_version_and_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = jsonl(tmp_path / "d.jsonl", '{"prompt": "1+1=", "answer": 2}')
    monkeypatch.syspath_prepend(str(tmp_path))
    code = tmp_path / "a_grader_that_changes.py"
    code.write_text("def f(response): return 1\n")

    def digest(grader: Any) -> str:
        return suite_digest(Suite(name="s", datasets=(dataset(source=source, grader=grader),)))

    own = {"name": "custom", "function": "a_grader_that_changes:f"}
    before = [digest(own), digest("math"), digest({"name": "math", "digits": 2}), digest("numeric")]
    assert len(set(before)) == 4
    code.write_text("def f(response): return 0\n")
    monkeypatch.setitem(GRADERS, "numeric", Grader(factory="numbers:numeric", revision=2))
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "99")
    after = [digest(own), digest("math"), digest({"name": "math", "digits": 2}), digest("numeric")]
    assert not set(before) & set(after)


def test_the_spec_says_which_grader_whatever_way_it_was_named() -> None:
    assert dataset(grader="math") == dataset(grader={"name": "math"}) == dataset(grader=MathGrader())
    spec = dataset(grader={"name": "numeric", "rel_tol": 0.1})
    for grader, allowed in (("math", True), (spec.model_dump(mode="json")["grader"], True), ("maths", False)):
        given = {"name": "a", "source": "b", "grader": grader}
        assert Draft202012Validator(DatasetSpec.model_json_schema()).is_valid(given) is allowed
    assert DatasetSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "judge", "model": "m"}, "url"),
        ({"name": "judge", "url": "ftp://x", "model": "m"}, "url"),
        ({"name": "judge", "url": "http://user:pass@x", "model": "m"}, "url"),
        ({"name": "judge", "url": "http://x", "model": "m", "prompt": "{question} {response}"}, "has {question}"),
        ({"name": "judge", "url": "http://x", "model": "m", "prompt": "{response.__class__}"}, "has {response.__class__}"),
        ({"name": "judge", "url": "http://x", "model": "m", "prompt": "{prompt}"}, "has no {response}"),
        ({"name": "judge", "url": "http://x", "model": "m", "verdict_pattern": "yes"}, "needs a group"),
        ({"name": "judge", "url": "http://x", "model": "m", "api_key_variable": "sk-123"}, "api_key_variable"),
        ({"name": "reward_model", "url": "http://x", "lowest": 1, "highest": 1}, "must be below highest"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("{", r"\{")):
        dataset(grader=settings)
