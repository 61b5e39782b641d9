"""Text-to-SQL: a question and a schema in, one SQL statement out, judged by running it in SQLite."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from finetune.tasks import sql_verdicts
from finetune.tasks.base import DataSource, Example, Message, Metric, Row, Score, Unusable, Verdict

NAME = "text-to-sql"
DESCRIPTION = "question + schema -> one SQL statement, judged by running it"
SOURCE = DataSource(
    "philschmid/gretel-synthetic-text-to-sql",
    rows=12_500,
    train_size=10_000,
    eval_size=2_500,
    prompt_tokens=220,
    answer_tokens=45,
)
COLUMNS: tuple[str, ...] = ("sql_prompt", "sql_context", "sql")
LAYOUTS: tuple[tuple[str, ...], ...] = (COLUMNS,)
PLACEHOLDERS: Row = {column: f"[{column}]" for column in COLUMNS}
DEFAULTS: Mapping[str, Any] = {"lora_targets": "text"}
VERDICTS: tuple[str, ...] = sql_verdicts.VERDICTS
UNSCORABLE: str | None = sql_verdicts.UNSCORABLE
ROWS_PER_STEP: int | None = None
IMAGES: bool | None = False
STRATIFIED = False
TOKEN_LOSS = False

SYSTEM = (
    "You translate questions into SQL. The user gives a database schema and a question about it. "
    "Write the one SQL statement that answers the question, using only the tables and columns of the "
    "schema. Reply with the SQL statement and nothing else."
)


def user_prompt(schema: str, question: str) -> str:
    """The user turn: the schema and the question in tagged blocks."""
    return f"<SCHEMA>\n{schema}\n</SCHEMA>\n<QUESTION>\n{question}\n</QUESTION>"


def survey(rows: Iterable[Row]) -> None:
    """Each row stands alone."""


def to_example(row: Row, number: int, survey: None = None) -> Example | Unusable:
    """One row of the gretel layout -> Example. Rows with a missing, non-text or empty column are unusable."""
    values = []
    for column in COLUMNS:
        value = row.get(column)
        if value is None:
            return Unusable(f"{column} is missing")
        if not isinstance(value, str):
            return Unusable(f"{column} is not text")
        if not value.strip():
            return Unusable(f"{column} is empty")
        values.append(value.strip())
    question, schema, sql = values
    prompt = (Message("system", SYSTEM), Message("user", user_prompt(schema, question)))
    return Example(number, prompt, sql, context={"schema": schema, "question": question})


def score(examples: Sequence[Example], completions: Sequence[str]) -> Score:
    """Judge each completion by running it and the gold on the example's schema (sql_judge.py has the rules).

    The metrics are shares of the scorable examples; with none of those they are 0 of 0.
    """
    # Imported late: sqlglot and evaluate are slow to load, and whoever only lists tasks needs neither.
    from finetune.tasks.sql_judge import judge
    from finetune.tasks.sql_metrics import METRICS
    from finetune.tasks.sqlite_sandbox import readable

    predictions = [readable(completion) for completion in completions]
    references = [
        {"sql": readable(example.answer), "schema": readable(example.context["schema"])} for example in examples
    ]
    pairs = zip(predictions, references, strict=True)
    judgements = [judge(prediction, gold["sql"], gold["schema"]) for prediction, gold in pairs]
    metrics = []
    for metric in (kind() for kind in METRICS):
        result = metric.compute(predictions=predictions, references=references, judgements=judgements)
        metrics.append(Metric(metric.title, result[metric.name], result["total"]))
    return Score(tuple(metrics), tuple(Verdict(judgement.label, judgement.detail) for judgement in judgements))
