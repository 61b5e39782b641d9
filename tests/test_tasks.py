"""Every task of the table keeps the contract of tasks/base.py."""

from typing import Any

import pytest

from finetune.chat import render
from finetune.embedded import ROWS
from finetune.settings import DEFAULTS, OPTIONS
from finetune.tasks import TASKS
from finetune.tasks.base import Example, Unusable

EVERY_TASK = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def test_the_default_task_is_in_the_table() -> None:
    assert DEFAULTS["task"] in TASKS


@EVERY_TASK
def test_names_defaults_and_verdicts_hold_together(task: Any) -> None:
    assert TASKS[task.NAME] is task
    assert task.DESCRIPTION and all(task.LAYOUTS)
    assert any(set(layout) <= task.PLACEHOLDERS.keys() for layout in task.LAYOUTS)
    assert task.DEFAULTS.keys() <= OPTIONS.keys()
    assert task.UNSCORABLE is None or task.UNSCORABLE in task.VERDICTS[1:]
    assert task.NAME in ROWS, "a newcomer can try it without a data set"
    assert task.SOURCE.train_size + task.SOURCE.eval_size <= task.SOURCE.rows


@EVERY_TASK
def test_gold_answers_are_all_right_and_nonsense_is_not(task: Any, tokenizer: Any) -> None:
    rows = ROWS[task.NAME]("test", 30, 5)
    survey = task.survey(rows)
    examples = [task.to_example(row, number, survey) for number, row in enumerate(rows, start=1)]
    assert all(bool(example.images) is bool(task.IMAGES) for example in examples)
    assert all(isinstance(example, Example) for example in examples)
    gold = task.score(examples, [example.answer for example in examples])
    assert {verdict.label for verdict in gold.verdicts} <= {task.VERDICTS[0], task.UNSCORABLE}
    assert gold.metrics[0].value == 1.0 and gold.metrics[0].total > 20
    nonsense = task.score(examples, ["", "I do not know."] * 15)
    assert nonsense.metrics[0].value == 0.0 and nonsense.metrics[0].total == gold.metrics[0].total
    for score in (gold, nonsense):
        assert len(score.verdicts) == 30
        assert {verdict.label for verdict in score.verdicts} <= set(task.VERDICTS)
        assert all(0 <= metric.value <= 1 for metric in score.metrics)
    assert all(render(tokenizer, example).prompt for example in examples)


@EVERY_TASK
@pytest.mark.parametrize("spoiled", [None, "", "   ", 3, ["x"]])
def test_a_spoiled_column_makes_a_row_unusable_for_a_reason_that_names_it(task: Any, spoiled: Any) -> None:
    rows = ROWS[task.NAME]("test", 6, 5)
    survey, row = task.survey(rows), rows[0]
    for column in task.LAYOUTS[0][1:] if task.IMAGES else task.LAYOUTS[0]:
        for bad in ({**row, column: spoiled}, {name: value for name, value in row.items() if name != column}):
            made = task.to_example(bad, 1, survey)
            assert isinstance(made, Unusable) and made.reason.startswith(column)
