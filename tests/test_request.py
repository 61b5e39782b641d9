"""request.py: environment and config file, their order, and what is said of a mistake."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from finetune.request import Raw, from_config, from_environment, merge, unknown_flag


def config(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    in_file, _ = from_config(config(tmp_path, "lora_r: 1\nlora_alpha: 1\nseed: 1\n"))
    in_environment, _ = from_environment({"FINETUNE_LORA_R": "2", "FINETUNE_LORA_ALPHA": "2", "PATH": "/bin"})
    given, problems = merge({"lora_r": Raw("3", "flag", "--lora-r")}, in_environment, in_file)
    assert problems == []
    assert {name: (item.value, item.origin) for name, item in given.items()} == {
        "lora_r": (3, "flag"),
        "lora_alpha": (2, "env"),
        "seed": (1, "config"),
    }
    assert given["seed"].where == f"{tmp_path}/run.yaml:3: seed"


def test_both_recipes_names_work_everywhere(tmp_path: Path) -> None:
    in_file, problems = from_config(config(tmp_path, "num-epochs: 1\nbatch_size: 4\nDataset_Name: a.jsonl\n"))
    assert problems == []
    assert {name: raw.text for name, raw in in_file.items()} == {
        "num_train_epochs": "1",
        "per_device_train_batch_size": "4",
        "dataset": "a.jsonl",
    }
    in_environment, problems = from_environment({"FINETUNE_CHECKPOINT_STRATEGY": "epoch"})
    assert problems == []
    assert in_environment["save_strategy"].where == "FINETUNE_CHECKPOINT_STRATEGY"


def test_yaml_types_are_read_as_they_are_written(tmp_path: Path) -> None:
    text = "learning_rate: 1e-5\nmerge: yes\nlora_r: '8'\nhub_repo: 123\ndataset:\nresults_file: null\nprofile: cpu\n"
    given, problems = merge(from_config(config(tmp_path, text))[0])
    assert problems == []
    assert {name: item.value for name, item in given.items()} == {
        "learning_rate": 1e-5,
        "merge": True,
        "lora_r": 8,
        "hub_repo": "123",
        "profile": "cpu",
    }


def test_an_empty_file_and_an_empty_variable_set_nothing(tmp_path: Path) -> None:
    assert from_config(config(tmp_path, "# nothing\n")) == ({}, [])
    assert from_environment({"FINETUNE_HUB_REPO": ""}) == ({}, [])


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("learnin_rate: 1\n", "run.yaml:1: learnin_rate: no such setting", "did you mean learning_rate?"),
        ("seed: 1\n\nSEED: 2\n", "run.yaml:3: SEED: given twice, first on line 1", "keep one"),
        ("model: a/b\nmodel_id: a/b\n", "run.yaml:2: model_id: given twice, first on line 1", "keep one"),
        ("lora_r: [1, 2]\n", "run.yaml:1: lora_r: expected one value, found a list", "write lora_r: 16"),
        ("lora_r:\n  a: 1\n", "run.yaml:1: lora_r: expected one value", "write lora_r: 16"),
        ("- lora_r\n", "run.yaml:1: expected `name: value` lines, found a list", "lora_r: 16"),
        ("lora_r\n", "run.yaml:1: expected `name: value` lines, found text", "lora_r: 16"),
        ("a: b: c\n", "run.yaml:1: is not YAML: mapping values are not allowed here", "one `name: value` a line"),
        ("a: 'b\n", "is not YAML", "one `name: value` a line"),
        ("a: 1\n---\nb: 1\n", "is not YAML: but found another document", "one `name: value` a line"),
        ("a: \x01\n", "is not YAML", "one `name: value` a line"),
        ("? [a, b]\n: 1\n", "run.yaml:1: ", "run --help"),
        ("hf_token: secret-value\n", "run.yaml:1: hf_token: not a setting", "HF_TOKEN"),
        ("a: *b\n", "is not YAML: found undefined alias", "one `name: value` a line"),
    ],
)
def test_mistakes_in_a_file_are_told_by_line(tmp_path: Path, text: str, message: str, hint: str) -> None:
    found, [problem] = from_config(config(tmp_path, text))
    assert message in problem.message
    assert hint in problem.hint
    assert "secret-value" not in str(problem)
    assert set(found) <= {"seed", "model_id"}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"task: \xe9\n")
    for name, message in (("no.yaml", "no such file"), (".", "is a folder"), ("latin.yaml", "is not UTF-8 text")):
        _, [problem] = from_config(tmp_path / name)
        assert message in problem.message


@pytest.mark.parametrize(
    ("environ", "message", "hint"),
    [
        (
            {"FINETUNE_LERNING_RATE": "1"},
            "FINETUNE_LERNING_RATE: no such setting",
            "did you mean FINETUNE_LEARNING_RATE?",
        ),
        ({"FINETUNE_ZZZ": "1"}, "FINETUNE_ZZZ: no such setting", "entrypoint.py run --help"),
        ({"FINETUNE_HF_TOKEN": "secret-value"}, "FINETUNE_HF_TOKEN: not a setting", "set HF_TOKEN=..."),
    ],
)
def test_unknown_variables(environ: Mapping[str, str], message: str, hint: str) -> None:
    _, [problem] = from_environment(environ)
    assert message in problem.message
    assert hint in problem.hint
    assert "secret-value" not in str(problem)


@pytest.mark.parametrize(
    ("raw", "message", "hint"),
    [
        (Raw("x", "flag", "--lora_r"), "--lora_r: 'x' is not a whole number", "write --lora-r 16"),
        (Raw("x", "env", "FINETUNE_LORA_R"), "FINETUNE_LORA_R: 'x'", "write FINETUNE_LORA_R=16"),
        (Raw("x", "config", "run.yaml:2: lora_r"), "run.yaml:2: lora_r: 'x'", "write lora_r: 16"),
        (Raw("", "flag", "--lora-r"), "--lora-r: needs a value", "write --lora-r 16"),
        (Raw("--merge", "flag", "--lora-r"), "--lora-r: needs a value, found the flag --merge", "write --lora-r 16"),
    ],
)
def test_a_bad_value_is_told_in_the_words_of_its_place(raw: Raw, message: str, hint: str) -> None:
    given, [problem] = merge({"lora_r": raw})
    assert given == {}
    assert message in problem.message
    assert problem.hint == hint


def test_the_nearest_choice_is_named() -> None:
    _, [problem] = merge({"task": Raw("text-to-sq", "flag", "--task")})
    assert problem.message == "--task: 'text-to-sq' is not known; expected text-to-sql, pets or chat"
    assert problem.hint == "did you mean --task text-to-sql?"


def test_the_nearest_flag_is_named_in_either_spelling() -> None:
    assert unknown_flag("--leraning_rate=3").hint == "did you mean --learning-rate?"
    assert unknown_flag("--adaptor", ["adapter"]).hint == "did you mean --adapter?"
