"""The text-to-SQL task as the rest of the program sees it: rows to examples, completions to a score."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from finetune.tasks import sql_judge, sql_metrics, text_to_sql
from finetune.tasks.base import Example, Metric, Unusable
from finetune.tasks.sql_verdicts import Judgement
from tests.conftest import ROOT

GEOQUERY = ROOT.parent / "shared" / "data" / "geoquery"
SCHEMA = "CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2);"


def example(sql: str = "SELECT a FROM t", schema: str = SCHEMA, row: int = 0) -> Example:
    made = text_to_sql.to_example({"sql_prompt": "Which?", "sql_context": schema, "sql": sql}, row)
    assert isinstance(made, Example)
    return made


def test_a_row_becomes_an_example() -> None:
    made = example(sql=" SELECT a FROM t ", row=7)
    assert (made.row, made.answer, made.context) == (7, "SELECT a FROM t", {"schema": SCHEMA, "question": "Which?"})
    assert [message.role for message in made.prompt] == ["system", "user"]
    assert SCHEMA in made.prompt[1].content
    assert "Which?" in made.prompt[1].content


@pytest.mark.parametrize("column", text_to_sql.COLUMNS)
@pytest.mark.parametrize(("value", "reason"), [(None, "is missing"), (3, "is not text"), ("  ", "is empty")])
def test_a_row_that_lacks_something_is_unusable(column: str, value: object, reason: str) -> None:
    row = {"sql_prompt": "Which?", "sql_context": SCHEMA, "sql": "SELECT 1", column: value}
    assert text_to_sql.to_example(row, 0) == Unusable(f"{column} {reason}")


def test_a_score_has_three_metrics_and_a_verdict_for_each_example() -> None:
    examples = [example() for _ in range(5)] + [example(sql="SELECT a FROM u")]
    completions = ["select A from T", "SELECT 1 UNION SELECT 2", "SELECT 1", "SELECT b FROM t", "1 and 2", "SELECT 1"]
    score = text_to_sql.score(examples, completions)
    assert score.metrics == (
        Metric("execution accuracy", 2 / 5, 5),
        Metric("exact match", 1 / 5, 5),
        Metric("valid SQL", 3 / 5, 5),
    )
    labels = [verdict.label for verdict in score.verdicts]
    assert labels == ["correct", "correct", "wrong result", "does not execute", "not SQL", "unscorable"]
    assert [verdict.detail for verdict in score.verdicts] == [
        "",
        "",
        "1 row instead of 2",
        "no such column: b",
        'near "1": syntax error',
        "the gold does not run: no such table: u",
    ]


@pytest.mark.parametrize("examples", [[], [example(sql="SELECT a FROM u")]])
def test_nothing_scorable_is_no_division_by_zero(examples: list[Example]) -> None:
    score = text_to_sql.score(examples, ["SELECT 1"] * len(examples))
    assert [(metric.value, metric.total) for metric in score.metrics] == [(0.0, 0)] * 3
    assert len(score.verdicts) == len(examples)


def test_a_completion_is_missing_or_too_many() -> None:
    with pytest.raises(ValueError, match="zip"):
        text_to_sql.score([example()], [])


def test_each_completion_is_run_once_for_all_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = []

    def judge(completion: str, gold: str, schema: str) -> Judgement:
        judged.append(completion)
        return Judgement("correct")

    monkeypatch.setattr(sql_judge, "judge", judge)
    monkeypatch.setattr(sql_metrics, "judge", judge)
    text_to_sql.score([example(), example()], ["SELECT 1", "SELECT 2"])
    assert judged == ["SELECT 1", "SELECT 2"]


def test_text_that_arrow_cannot_hold_is_scored_all_the_same() -> None:
    assert text_to_sql.score([example()], ["SELECT '\ud83d\0'"]).verdicts[0].label == "wrong result"


def test_listing_the_task_loads_nothing_slow() -> None:
    code = (
        "import sys, finetune.tasks; print(sorted({'sqlglot', 'evaluate', 'datasets', 'torch'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def geoquery(split: str) -> list[Example]:
    path: Path = GEOQUERY / f"{split}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    examples = [text_to_sql.to_example(row, number) for number, row in enumerate(rows)]
    assert all(isinstance(made, Example) for made in examples)
    return [made for made in examples if isinstance(made, Example)]


def find_something(examples: list[Example]) -> int:
    """How many golds give rows, by sqlite3 alone."""
    found = 0
    for example in examples:
        with contextlib.closing(sqlite3.connect(":memory:")) as database:
            database.executescript(example.context["schema"])
            rows = database.execute(example.answer).fetchall()
            found += any(value is not None for row in rows for value in row)
    return found


@pytest.mark.parametrize(("split", "rows"), [("train", 547), ("test", 277)])
def test_the_gold_answers_of_real_rows_are_all_right(split: str, rows: int) -> None:
    examples = geoquery(split)
    score = text_to_sql.score(examples, [made.answer for made in examples])
    assert score.metrics == tuple(
        Metric(name, 1.0, find_something(examples)) for name in ("execution accuracy", "exact match", "valid SQL")
    )
    assert {verdict.label for verdict in score.verdicts} == {"correct", "unscorable"}
    assert len(score.verdicts) == rows


def test_real_rows_with_spoiled_answers_are_all_wrong() -> None:
    examples = geoquery("test")
    spoiled = {
        "wrong result": lambda sql: f"SELECT * FROM ({sql.rstrip('; ')}) UNION ALL SELECT 'no such thing'",
        "does not execute": lambda sql: f"SELECT nothing FROM ({sql.rstrip('; ')})",
        "not SQL": lambda sql: f"The query is {sql}",
    }
    for label, spoil in spoiled.items():
        score = text_to_sql.score(examples, [spoil(made.answer) for made in examples])
        assert {verdict.label for verdict in score.verdicts} <= {label, "does not execute", "unscorable"}
        assert score.metrics[0] == Metric("execution accuracy", 0.0, find_something(examples))
