"""A data set's size and lengths before a run: what is counted is what the run will find."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from finetune import data
from finetune.embedded import base_dir
from finetune.reader import Reader, load_reader
from finetune.sampling import ROWS_READ, look
from finetune.settings import DEFAULTS, Settings
from finetune.tasks import TASKS

ROW = {"sql_prompt": "How many birds?", "sql_context": "CREATE TABLE birds (name TEXT);", "sql": "SELECT 1"}
SQL = TASKS["text-to-sql"]


def glance(path: Path | str, task: Any = SQL, **changes: Any) -> Any:
    return look(task, {**DEFAULTS, **changes}, str(path), base_dir())


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_lengths_are_those_of_the_run(task: Any) -> None:
    settings = Settings(dataset="embedded", task=task.NAME, train_size=100, eval_size=0)
    prepared = data.prepare(task, settings, load_reader(settings, task.IMAGES), train=True)
    found = glance("embedded", task, train_size=100)
    images = 70 * found.images  # the embedded model's soft tokens an image, at most
    assert found.train == 100 and found.looked_at == 100 and found.tokenised
    assert prepared.record["tokens"] / 100 == pytest.approx(found.prompt + found.answer + images, rel=0.05)
    assert prepared.record["supervised_tokens"] / 100 == pytest.approx(found.answer, rel=0.05)


def test_rows_are_counted_in_every_format(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    rows = [{**ROW, "sql": f"SELECT {number}"} for number in range(1_000)]
    paths = [write_jsonl("a.jsonl", [*rows[:500], "", "{oops", *rows[500:]]), tmp_path / "b.json"]
    paths[1].write_text(json.dumps(rows))
    paths += [tmp_path / "c.csv", tmp_path / "d.parquet"]
    lines = [",".join(f'"{value}"' for value in row.values()) for row in rows]
    paths[2].write_text("\n".join(["sql_prompt,sql_context,sql", *lines]))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), paths[3])
    found = [glance(path) for path in paths]
    assert [one.train for one in found] == [1_001, 1_000, 1_000, 1_000], "a broken line is a row that will be dropped"
    assert all(one.test is None and one.looked_at <= ROWS_READ + 1 for one in found)
    assert len({round(one.prompt) for one in found}) == 1


def test_both_splits_of_a_folder_are_counted(write_jsonl: Callable[..., Path]) -> None:
    write_jsonl("set/train-0.jsonl", [ROW] * 30)
    write_jsonl("set/train-1.jsonl", [ROW] * 20)
    path = write_jsonl("set/test.jsonl", [ROW] * 7)
    found = glance(path.parent)
    assert (found.train, found.test) == (50, 7)


def test_without_a_tokenizer_characters_are_counted(write_jsonl: Callable[..., Path], reader: Reader) -> None:
    path = write_jsonl("rows.jsonl", [{**ROW, "sql": "x" * 350}])
    found = look(SQL, DEFAULTS, str(path), None)
    assert found and not found.tokenised and found.answer == pytest.approx(102)


def test_where_nothing_can_be_looked_at_nothing_is_said(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    assert glance("someone/rows") is None and glance("gs://bucket/rows") is None
    assert glance(write_jsonl("bad.jsonl", ["{oops", "[1]"])) is None
    assert glance(write_jsonl("other.jsonl", [{"a": 1}])) is None
    broken = tmp_path / "model"
    broken.mkdir()
    (broken / "tokenizer.json").write_text('{"version": ')
    found = look(SQL, DEFAULTS, str(write_jsonl("rows.jsonl", [ROW])), broken)
    assert found and not found.tokenised


def test_conversations_count_every_assistant_turn(write_jsonl: Callable[..., Path]) -> None:
    said = {"role": "assistant", "content": "four " * 10}
    turns = [{"role": "user", "content": "Two and two?"}, said] * 3
    path = write_jsonl("chat.jsonl", [{"messages": turns}])
    once = write_jsonl("once.jsonl", [{"messages": turns[:2]}])
    chat = TASKS["chat"]
    assert glance(path, chat).answer > 2.4 * glance(once, chat).answer
