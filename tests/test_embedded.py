"""The embedded data set and the embedded base model: real enough to learn from, and honest about it."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from hypothesis import example, given, settings
from hypothesis import strategies as st

from finetune.chat import check_template, render
from finetune.embedded import EMBEDDED, ROWS, base_dir
from finetune.embedded.query import Aggregate, Filter, Join, Order, Query
from finetune.embedded.sql_rows import COLUMNS, Asked, questions, rows, split_of
from finetune.tasks import text_to_sql
from finetune.tasks.base import Example

TRAIN = rows("train", 200, seed=0)
TEST = rows("test", 200, seed=0)


def result(row: dict[str, str]) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(row["sql_context"])
        return database.execute(row["sql"]).fetchall()


def some_questions(count: int) -> Iterator[Asked]:
    return islice(chain.from_iterable(questions("train", 1, per_schema=1)), count)


# -- the data set ---------------------------------------------------------------------------------


def test_same_seed_same_rows() -> None:
    assert rows("train", 50, seed=3) == rows("train", 50, seed=3)
    assert rows("train", 50, seed=3) != rows("train", 50, seed=4)
    assert rows("train", 60, seed=3)[:50] == rows("train", 50, seed=3)


def test_rows_do_not_depend_on_the_process() -> None:
    code = "from finetune.embedded.sql_rows import rows; import json; print(json.dumps(rows('test', 5, seed=0)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == TEST[:5]


def test_rows_have_the_columns_of_the_task() -> None:
    assert COLUMNS == text_to_sql.COLUMNS
    for number, row in enumerate(TRAIN + TEST):
        assert tuple(row) == COLUMNS
        assert isinstance(text_to_sql.to_example(row, number), Example)


def test_every_gold_gives_a_result() -> None:
    for row in TRAIN + TEST:
        assert result(row), row


def test_no_question_of_the_test_split_is_in_train() -> None:
    train, test = rows("train", 1000, seed=0), TEST
    assert not {row["sql_prompt"].lower() for row in train} & {row["sql_prompt"].lower() for row in test}
    assert not {row["sql_context"] for row in train} & {row["sql_context"] for row in test}
    assert len({(row["sql_prompt"], row["sql_context"]) for row in train}) == len(train)


def test_split_ignores_case_and_punctuation() -> None:
    assert split_of("Count the cities.") == split_of("count the cities")


def test_near_misses_are_told_apart() -> None:
    for asked in some_questions(100):
        gold = {"sql_context": asked.context, "sql": asked.query.to_sql()}
        numbers = tuple(column.name for column in asked.tables[0].of_kind("number"))
        for mistaken in asked.query.near_misses(numbers):
            assert sorted(result({**gold, "sql": mistaken.to_sql()}), key=repr) != sorted(result(gold), key=repr)


def test_questions_about_one_schema_share_it() -> None:
    group = next(questions("train", 0, per_schema=3))
    assert len({asked.context for asked in group}) == 1
    assert len({asked.question for asked in group}) == 3


QUERIES = [
    (
        Query("t", select=("a", "b"), filters=(Filter("c", ">", 3), Filter("d", "=", "x"))),
        "SELECT a, b FROM t WHERE c > 3 AND d = 'x'",
        "from t | filter c > 3 && d == 'x' | select {a, b}",
        "(SELECT (a b) (FROM t) (WHERE (> c 3) (= d 'x')))",
    ),
    (
        Query("t", aggregate=Aggregate("count"), filters=(Filter("c", "between", 3, 9),)),
        "SELECT COUNT(*) FROM t WHERE c BETWEEN 3 AND 9",
        "from t | filter c in 3..9 | aggregate {count this}",
        "(SELECT ((COUNT *)) (FROM t) (WHERE (BETWEEN c 3 9)))",
    ),
    (
        Query("t", aggregate=Aggregate("count distinct", "a")),
        "SELECT COUNT(DISTINCT a) FROM t",
        "from t | aggregate {count_distinct a}",
        "(SELECT ((COUNT DISTINCT a)) (FROM t))",
    ),
    (
        Query("t", aggregate=Aggregate("avg", "a"), group="g"),
        "SELECT g, AVG(a) FROM t GROUP BY g",
        "from t | group {g} (aggregate {average a})",
        "(SELECT (g (AVG a)) (FROM t) (GROUP g))",
    ),
    (
        Query("t", select=("a",), order=Order("b", descending=True, limit=2)),
        "SELECT a FROM t ORDER BY b DESC LIMIT 2",
        "from t | sort {-b} | take 2 | select {a}",
        "(SELECT (a) (FROM t) (ORDER b DESC) (LIMIT 2))",
    ),
    (
        Query("t", select=("a",), distinct=True),
        "SELECT DISTINCT a FROM t",
        "from t | select {a} | unique",
        "(SELECT DISTINCT (a) (FROM t))",
    ),
    (
        Query("t", select=("t.a",), filters=(Filter("u.b", "!=", "x"),), join=Join("u", "t.u_id", "u.id")),
        "SELECT t.a FROM t JOIN u ON t.u_id = u.id WHERE u.b != 'x'",
        "from t | join u (t.u_id == u.id) | filter u.b != 'x' | select {t.a}",
        "(SELECT (t.a) (FROM t) (JOIN u (= t.u_id u.id)) (WHERE (!= u.b 'x')))",
    ),
]


@pytest.mark.parametrize(("query", "sql", "pipeline", "lisp"), QUERIES)
def test_dialects(query: Query, sql: str, pipeline: str, lisp: str) -> None:
    assert query.to_sql() == sql
    assert query.to_pipeline() == pipeline
    assert query.to_lisp() == lisp


@pytest.mark.parametrize("dialect", [None, "sqlite", "mysql", "postgres", "bigquery", "duckdb"])
def test_the_dialects_of_the_base_are_not_sql(dialect: str | None) -> None:
    for asked in some_questions(100):
        for answer in (asked.query.to_pipeline(), asked.query.to_lisp()):
            with pytest.raises(sqlglot.errors.SqlglotError):
                sqlglot.parse_one(answer, read=dialect)


def test_rows_need_no_torch() -> None:
    code = "import sys, finetune.embedded; sys.exit(bool({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- the base model -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processor() -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(base_dir())


def test_base_is_small_and_described() -> None:
    assert EMBEDDED == "embedded"
    assert sum(file.stat().st_size for file in base_dir().iterdir()) < 10_000_000
    assert "toy" in (base_dir() / "README.md").read_text().lower()


def test_processor_loads(processor: Any) -> None:
    assert type(processor).__name__ == "Gemma4Processor"
    assert processor.image_processor.max_soft_tokens == 70
    check_template(processor)
    check_template(processor.tokenizer)


def test_template_writes_gemma_turns_with_images(processor: Any) -> None:
    content = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    assert processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False) == (
        "<bos><|turn>system\nBe brief.<turn|>\n<|turn>user\n<|image|>What is it?<turn|>\n<|turn>model\n"
    )


def test_embedded_rows_are_short(processor: Any) -> None:
    for number, row in enumerate(TRAIN):
        rendered = render(processor, text_to_sql.to_example(row, number))
        ids = processor.tokenizer(rendered.prompt + rendered.completion, add_special_tokens=False)["input_ids"]
        assert len(ids) <= 160
        assert processor.tokenizer.unk_token_id not in ids
        assert ids.count(processor.tokenizer.bos_token_id) == 1


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
@example(text="  Zoë's café\r\n\t– 100 % 🎉 ▁<0x41> SELECT\u00a0* ")
@example(text="")
def test_tokenizer_round_trips_any_text(processor: Any, text: str) -> None:
    ids = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert processor.tokenizer.decode(ids) == text


def test_base_loads_and_stops_at_the_end_of_a_turn(processor: Any) -> None:
    import torch
    from transformers import AutoModelForMultimodalLM, Gemma4ForConditionalGeneration

    model = AutoModelForMultimodalLM.from_pretrained(base_dir(), dtype=torch.float32)
    assert isinstance(model, Gemma4ForConditionalGeneration)
    assert model.model.vision_tower is not None
    assert set(model.config.text_config.layer_types) == {"sliding_attention", "full_attention"}
    assert processor.tokenizer.convert_tokens_to_ids("<turn|>") in model.generation_config.eos_token_id
    assert len(processor.tokenizer) == model.get_input_embeddings().num_embeddings


def test_images_reach_the_text_model_apart_though_the_vision_tower_is_random(processor: Any) -> None:
    """Else an adapter would have to learn to see before it could learn what it sees."""
    import torch
    from transformers import AutoModelForMultimodalLM

    model = AutoModelForMultimodalLM.from_pretrained(base_dir(), dtype=torch.float32)
    images = [row["image"].open() for row in ROWS["pets"]("train", 12, 0)]
    inputs = processor.image_processor(images=images, return_tensors="pt")
    with torch.no_grad():
        features = model.get_image_features(inputs["pixel_values"], inputs["image_position_ids"]).pooler_output
    by_image = torch.stack(features)  # [images, tokens, hidden]
    differ = by_image.std(0).square().mean() / by_image.square().mean()
    assert differ > 0.2, f"{differ:.0%} of what the text model is shown tells one image from another"


def test_base_answers_in_its_own_dialect_only(processor: Any) -> None:
    import torch
    from transformers import AutoModelForMultimodalLM

    from finetune.embedded.build import exact_match

    model = AutoModelForMultimodalLM.from_pretrained(base_dir(), dtype=torch.float32)
    held_out = list(islice(chain.from_iterable(questions("test", 5, per_schema=1)), 25))
    assert exact_match(model, processor.tokenizer, held_out) >= 0.9


def test_sharing_a_schema_changes_nothing(processor: Any, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForMultimodalLM

    from finetune.embedded.build import batches
    from finetune.embedded.tiny import make_tiny

    window = 16  # smaller than any prompt, so that both kinds of mask matter
    model = AutoModelForMultimodalLM.from_pretrained(make_tiny(tmp_path / "tiny", sliding_window=window))
    text_model = model.model.language_model
    batch = next(batches(processor.tokenizer))
    with torch.no_grad():
        together = text_model(
            input_ids=batch.input_ids, position_ids=batch.position_ids, attention_mask=batch.attention_masks(window)
        ).last_hidden_state
        for branch in range(1, int(batch.branches[0].max()) + 1):
            of_branch = (batch.branches[0] == 0) | (batch.branches[0] == branch)
            alone = text_model(input_ids=batch.input_ids[:1, of_branch]).last_hidden_state[0]
            torch.testing.assert_close(together[0, of_branch], alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"hidden_size_per_layer_input": 8},
        {
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,  # as in E2B and E4B: transformers does not take the one without the other
        },
    ],
)
def test_tiny_models_read_text_and_images(tmp_path: Path, overrides: dict[str, object]) -> None:
    from PIL import Image
    from transformers import AutoModelForMultimodalLM, AutoProcessor

    from finetune.embedded.tiny import make_tiny

    folder = make_tiny(tmp_path / "tiny", **overrides)
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForMultimodalLM.from_pretrained(folder)
    assert sum(parameter.numel() for parameter in model.parameters()) < 300_000
    inputs = processor(text=["<bos><|image|>What is it?"], images=[[Image.new("RGB", (64, 48))]], return_tensors="pt")
    logits = model(**inputs).logits
    assert logits.shape == (*inputs["input_ids"].shape, len(processor.tokenizer))


def test_tiny_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    from finetune.embedded.tiny import make_tiny

    first, again, other = (make_tiny(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, again, other)]
    assert weights[0] == weights[1] != weights[2]
