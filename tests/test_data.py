"""What is trained on, decoded; what is left out, counted; what the other ranks read, unchanged."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune import data
from finetune.chat import END_OF_TURN, render
from finetune.data import prepare
from finetune.encode import IGNORED, take
from finetune.errors import DataError, ModelError
from finetune.reader import Reader, check_tokenizer
from finetune.selection import SplitCounts, select
from finetune.settings import Settings
from finetune.tasks import TASKS, text_to_sql
from finetune.tasks.base import Example

TASK = TASKS["text-to-sql"]
ROW = {"sql_prompt": "How many birds?", "sql_context": "CREATE TABLE birds (name TEXT);", "sql": "SELECT 1"}


def setting(dataset: Path | str, **changes: Any) -> Settings:
    return replace(Settings(dataset=str(dataset), eval_size=5), **changes)


def supervised(row: dict[str, Any]) -> list[int]:
    return [label for label in row["labels"] if label != IGNORED]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_training_row_is_prompt_then_answer(task: Any, reader: Reader, image_reader: Reader) -> None:
    inputs, tokenizer = image_reader if task.IMAGES else reader, reader.tokenizer
    prepared = prepare(task, setting("embedded", train_size=20), inputs, train=True)
    selected = {example.row: example for example in select(task, setting("embedded", train_size=20)).train}
    assert len(prepared.train) == 20
    for row in prepared.train:
        example = selected[row["row"]]
        text = render(tokenizer, example)
        assert tokenizer.decode(without_images(row["input_ids"], tokenizer)) == text.prompt + text.completion
        said = [message.content for message in example.prompt if message.role == "assistant"] + [example.answer]
        assert tokenizer.decode(supervised(row)) == "".join(answer + END_OF_TURN for answer in said)
        prompt = tokenizer(text.prompt, add_special_tokens=False)["input_ids"]
        assert without_images(row["input_ids"], tokenizer)[: len(prompt)] == prompt, (
            "the generation prompt is a prefix, token for token"
        )
        assert row["input_ids"].count(tokenizer.bos_token_id) == 1
        assert tokenizer.eos_token_id not in row["input_ids"]
        assert tokenizer.image_token_id not in supervised(row)


def without_images(ids: list[int], tokenizer: Any) -> list[int]:
    """The ids with one placeholder in place of each image's tokens."""
    begin, image, end = (getattr(tokenizer, f"{name}_token_id") for name in ("boi", "image", "eoi"))
    kept = [token for token, before in zip(ids, [None, *ids], strict=False) if not token == before == image]
    return [token for token in kept if token not in (begin, end)]


@settings(max_examples=50, deadline=None)
@given(answer=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip))
def test_any_answer_is_supervised_to_the_letter(reader: Reader, answer: str) -> None:
    example = text_to_sql.to_example({**ROW, "sql": answer}, 1)
    assert isinstance(example, Example)
    (encoded,) = take([example], 1, reader, 10_000, SplitCounts(1))
    assert reader.tokenizer.decode(encoded.completion) == answer.strip() + END_OF_TURN


def test_bad_rows_are_counted_by_reason(write_jsonl: Callable[..., Path], reader: Reader) -> None:
    good = [{**ROW, "sql": f"SELECT {number}"} for number in range(10)]
    bad: list[Any] = [{**ROW, "sql": ""}, {**ROW, "sql": None}, {"sql": "SELECT 1"}, {**ROW, "sql": 5}, "{oops"]
    train = write_jsonl("train.jsonl", [*bad, *good, {**ROW, "sql": "SELECT " + "1 + " * 2000 + "1"}])
    write_jsonl("test.jsonl", good[:3])
    prepared = prepare(TASK, setting(train.parent), reader, train=True)
    assert prepared.record["train"] == {
        "read": 16,
        "used": 10,
        "dropped": {
            "sql is empty": {"count": 1, "rows": [1]},
            "sql is missing": {"count": 1, "rows": [2]},
            "sql_prompt is missing": {"count": 1, "rows": [3]},
            "sql is not text": {"count": 1, "rows": [4]},
            "not valid JSON": {"count": 1, "rows": [5]},
            "longer than --max-length 1024": {"count": 1, "rows": [16]},
        },
    }
    assert prepared.record["test"] == {"read": 3, "used": 3, "dropped": {}}
    assert not any("wanted" in note for note in prepared.record["notes"])
    asked = prepare(TASK, setting(train.parent, train_size=50), reader, train=True)
    assert "50 training rows wanted, 11 there: all are used" in asked.record["notes"]


def test_answers_that_cannot_be_given_are_counted(write_jsonl: Callable[..., Path], reader: Reader) -> None:
    answers = ["SELECT 1", "SELECT 1 + 2 + 3 + 4", "SELECT 2"]
    sizes = [len(ids) for ids in reader.tokenizer(answers, add_special_tokens=False)["input_ids"]]
    train = write_jsonl("train.jsonl", [{**ROW, "sql": answer} for answer in answers])
    write_jsonl("test.jsonl", [{**ROW, "sql": answer} for answer in answers])
    for limit, told in ((sizes[1] - 1, True), (sizes[1], False)):
        settings = setting(train.parent, max_new_tokens=limit)
        notes = prepare(TASK, settings, reader, train=True).record["notes"]
        text = f"1 of the 3 rows to measure on have an answer longer than --max-new-tokens {limit}"
        assert any(note.startswith(text) for note in notes) is told, notes


def test_no_row_is_ever_cut(write_jsonl: Callable[..., Path], reader: Reader) -> None:
    rows = [{**ROW, "sql": "SELECT " + "+".join("1" * count)} for count in range(1, 60)]
    path = write_jsonl("train.jsonl", rows)
    prepared = prepare(TASK, setting(path, max_length=100), reader, train=True)
    assert 0 < len(prepared.train) < 47
    for row in prepared.train:
        assert len(row["input_ids"]) <= 100
        assert reader.tokenizer.decode(supervised(row)).endswith(END_OF_TURN)


def test_nothing_left_is_an_error_that_says_why(write_jsonl: Callable[..., Path], reader: Reader) -> None:
    path = write_jsonl("train.jsonl", [{**ROW, "sql": ""}] * 7)
    with pytest.raises(
        DataError, match=r"no row is left to train on: 7 rows: sql is empty \(rows 1, 2, 3, 4, 5, \.\.\.\)"
    ):
        prepare(TASK, setting(path), reader, train=True)


def test_one_table_is_split_without_overlap_and_the_same_for_evaluate(
    write_jsonl: Callable[..., Path], reader: Reader
) -> None:
    path = write_jsonl("rows.jsonl", [{**ROW, "sql_prompt": f"question {number}"} for number in range(50)])
    run = prepare(TASK, setting(path), reader, train=True)
    train, test = set(run.train["row"]), {example.row for example in select(TASK, setting(path)).test}
    assert (len(train), len(test), train & test) == (40, 10, set())
    again = prepare(TASK, setting(path, eval_size=10), reader, train=False)
    assert {example.row for example in again.test} == test
    on_train = prepare(TASK, setting(path, eval_size=40), reader, train=False, split="train")
    assert {example.row for example in on_train.test} == train


def test_other_ranks_read_what_the_first_wrote(tmp_path: Path, reader: Reader) -> None:
    prepared = prepare(TASK, setting("embedded", train_size=10), reader, train=True)
    data.save(prepared, tmp_path / "shared")
    found = data.load(tmp_path / "shared")
    assert found.train.to_list() == prepared.train.to_list()
    assert (found.prompts, found.pictures) == (prepared.prompts, prepared.pictures)


def test_a_tokenizer_without_end_of_turn_is_refused(reader: Reader) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    check_tokenizer(reader.tokenizer)
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<bos>", eos_token="<eos>")
    with pytest.raises(ModelError, match="no end-of-turn token"):
        check_tokenizer(other)
