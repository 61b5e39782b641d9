"""settings.py: the table of settings, and reading a value as a user writes it."""

from dataclasses import fields

import pytest

from finetune.settings import DEFAULTS, FLAGS, GROUPS, OPTIONS, Settings, expected, flag, kind, markdown_table, parse

FLAGS_OF_A = (
    "model_id trust_remote use_fast dataset_name output_dir lora_r lora_alpha lora_dropout max_length "
    "num_train_epochs per_device_train_batch_size gradient_accumulation_steps learning_rate logging_steps "
    "save_strategy save_steps push_to_hub hub_private_repo"
)
RECIPE_A = FLAGS_OF_A.split()
FLAGS_OF_B = (
    "train-size eval-size num-epochs learning-rate batch-size gradient-accumulation-steps eval-batch-size "
    "lora-r lora-alpha lora-dropout model-id device output-dir results-file gcs-output-path merge "
    "checkpoint-strategy save-steps save-total-limit"
)
RECIPE_B = FLAGS_OF_B.split()


@pytest.mark.parametrize("name", RECIPE_A + RECIPE_B)
def test_both_recipes_names_are_known(name: str) -> None:
    assert name.replace("_", "-") in FLAGS


def test_the_options_are_these() -> None:
    """A setting that is added, renamed or dropped changes everyone's command lines: on purpose, or not at all."""
    assert " ".join(OPTIONS) == (
        "task model_id output_dir overwrite device price_per_hour seed dataset image_column label_column train_size "
        "max_length quantization lora_r lora_alpha lora_dropout lora_targets attn_implementation trust_remote "
        "use_fast num_train_epochs max_steps per_device_train_batch_size gradient_accumulation_steps "
        "learning_rate lr_scheduler_type warmup_ratio weight_decay max_grad_norm batching activation_checkpointing "
        "logging_steps eval_size eval_batch_size max_new_tokens save_strategy save_steps save_minutes save_total_limit "
        "resume_from resume_anyway restart grace_seconds results_file merge push_to_hub hub_repo hub_private_repo "
        "gcs_output_path"
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_each_row_of_the_table_holds_together(name: str) -> None:
    option = OPTIONS[name]
    assert option.group in GROUPS
    assert option.help and not option.help.endswith(".")
    assert kind(name) in (str, int, float, bool)
    if DEFAULTS[name] is not None:
        assert parse(name, str(DEFAULTS[name])) == DEFAULTS[name]
        assert type(DEFAULTS[name]) is kind(name)
    assert flag(name)[2:] in FLAGS


def test_no_two_settings_share_a_flag() -> None:
    spellings = [spelling for name, item in OPTIONS.items() for spelling in (name.replace("_", "-"), *item.aliases)]
    assert len(spellings) == len(set(spellings)) == len(FLAGS)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("learning_rate", "1e-5", 1e-5),
        ("learning_rate", " 0.001 ", 0.001),
        ("num_train_epochs", "3", 3.0),
        ("lora_r", "64", 64),
        ("merge", "true", True),
        ("merge", "No", False),
        ("merge", "on", True),
        ("merge", "0", False),
        ("device", "cpu", "cpu"),
        ("dataset", "a b.jsonl", "a b.jsonl"),
        ("eval_size", "0", 0),
    ],
)
def test_parse(name: str, text: str, value: object) -> None:
    assert parse(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("learning_rate", "fast", "'fast' is not a number, above 0, at most 1"),
        ("learning_rate", "0", "0 is out of range; expected a number, above 0, at most 1"),
        ("learning_rate", "nan", "'nan' is not a number"),
        ("learning_rate", "inf", "'inf' is not a number"),
        ("lora_r", "2.5", "'2.5' is not a whole number, at least 1"),
        ("lora_r", "0", "0 is out of range"),
        ("lora_dropout", "1", "1 is out of range; expected a number, at least 0, at most 0.9"),
        ("merge", "maybe", "'maybe' is not true or false"),
        ("device", "gpu", "'gpu' is not known; expected auto, cuda or cpu"),
    ],
)
def test_parse_says_what_was_expected(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"expected|is not") as raised:
        parse(name, text)
    assert message in str(raised.value)
    assert expected(name) in str(raised.value)


def test_the_markdown_table_has_every_flag_once() -> None:
    table = markdown_table()
    for item in fields(Settings):
        assert table.count(f"| `{flag(item.name)}` |") == 1
    assert all(f"**{title}**" in table for title in GROUPS.values())
