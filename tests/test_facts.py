"""facts.py and samples.py: what is looked up before planning, and what is said when it is wrong."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from finetune.adapter_facts import adapter_base
from finetune.facts import Facts, gather
from finetune.settings import DEFAULTS

Write = Callable[[str, Any], Path]
ROW = {"sql_prompt": "How many?", "sql_context": "CREATE TABLE t (a INT);", "sql": "SELECT count(*) FROM t"}


def look(environ: Mapping[str, str] | None = None, adapter: Path | None = None, **values: Any) -> Facts:
    known = {**DEFAULTS, "dataset": "embedded", "output_dir": "/tmp/out", **values}
    return gather(known, str(adapter) if adapter else None, environ or {"HF_HOME": "/nonexistent"})


def only_trouble(found: Facts) -> tuple[str, str]:
    [trouble] = found.troubles
    return trouble.message, trouble.hint


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may break."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def test_a_folder_is_read(model: Path) -> None:
    found = look(model_id=str(model))
    assert found.troubles == ()
    assert (found.model.kind, found.model.name) == ("folder", str(model))
    assert found.model.config is not None and found.model.config["model_type"] == "gemma4"


def test_the_embedded_model_is_looked_up_too() -> None:
    found = look()
    assert found.troubles == ()
    assert (found.model.kind, found.model.name) == ("embedded", "embedded")
    assert found.model.config is not None


def test_a_hub_id_needs_no_network() -> None:
    found = look(model_id="google/gemma-4-31B-it")
    assert (found.model.kind, found.troubles) == ("hub", ())
    assert found.model.config is not None
    assert look(model_id="someone/gemma-4-tuned").model.config is None


def test_an_earlier_download_tells_the_shape(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--someone--gemma-4-tuned"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc\n")
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "snapshots" / "abc" / "config.json").write_text('{"model_type": "gemma4"}')
    assert look({"HF_HOME": str(tmp_path)}, model_id="someone/gemma-4-tuned").model.config == {"model_type": "gemma4"}


def test_a_local_folder_wins_over_the_hub_and_is_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent.parent)
    name = f"{model.parent.name}/model"
    found = look(model_id=name)
    assert found.model.name == str(model)
    assert found.notes == (f"model {name}: the local folder of that name is used, not the hub's model",)


def without_config(model: Path) -> None:
    (model / "config.json").unlink()


def adapter_only(model: Path) -> None:
    without_config(model)
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "google/gemma-4-31B-it"}')


def other_model(model: Path) -> None:
    (model / "config.json").write_text('{"model_type": "llama"}')


def broken_config(model: Path) -> None:
    (model / "config.json").write_text("{")


def list_config(model: Path) -> None:
    (model / "config.json").write_text("[]")


def no_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def lost_shard(model: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def broken_index(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text("{}")


def short_shard(model: Path) -> None:
    data = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(data[:-1])


def pointer(model: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 62500000000\n"
    (model / "model.safetensors").write_text(text)


def no_shard(model: Path) -> None:
    (model / "model.safetensors").write_text("<html>")


def no_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("break_it", "message", "hint"),
    [
        (without_config, "has no config.json", "save_pretrained"),
        (adapter_only, "is a LoRA adapter, not a model", "--model-id google/gemma-4-31B-it"),
        (other_model, "config.json says model_type 'llama'; expected a Gemma 4", "google/gemma-4-31B-it"),
        (broken_config, "config.json cannot be read", "download"),
        (list_config, "config.json says model_type None", "Gemma 4"),
        (no_weights, "has no model.safetensors, and no model.safetensors.index.json", "download"),
        (lost_shard, "1 weight file is missing, such as model-00002-of-00002.safetensors, which", "download"),
        (broken_index, "model.safetensors.index.json cannot be read", "download"),
        (short_shard, "model.safetensors is not whole: ", "download"),
        (pointer, "is a pointer to the weights, not the weights (", "git lfs pull"),
        (no_shard, "is not a safetensors file", "download"),
        (no_tokenizer, "has no tokenizer (tokenizer.json or tokenizer.model)", "copy"),
    ],
)
def test_folders_that_are_no_model(model: Path, break_it: Callable[[Path], None], message: str, hint: str) -> None:
    break_it(model)
    found_message, found_hint = only_trouble(look(model_id=str(model)))
    assert message in found_message
    assert hint in found_hint


@pytest.mark.parametrize("name", ["no-such-folder", "/no/such/folder", "./models/x"])
def test_what_is_neither_a_folder_nor_a_hub_id(name: str) -> None:
    assert "no such folder, and not a hub id either" in only_trouble(look(model_id=name))[0]


def test_a_model_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("x")
    assert "is a file; expected a model's folder" in only_trouble(look(model_id=str(tmp_path / "model.gguf")))[0]


def test_a_good_data_set_is_named_absolutely(write_jsonl: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl("rows.jsonl", [ROW])
    monkeypatch.chdir(path.parent)
    found = look(dataset="rows.jsonl")
    assert (found.dataset, found.troubles) == (str(path), ())


def test_rows_may_differ_and_single_bad_lines_are_left_to_the_run(write_jsonl: Write) -> None:
    path = write_jsonl("rows.jsonl", ["not json", "", {"sql": "x"}, ROW])
    assert look(dataset=str(path)).troubles == ()


@pytest.mark.parametrize(
    ("name", "lines", "message", "hint"),
    [
        (
            "a.jsonl",
            ["", {**ROW, "sql_prmpt": "x", "sql_prompt": None}, {"sql_context": "", "sql": ""}],
            None,
            None,
        ),
        (
            "a.jsonl",
            [{"sql_prmpt": "", "sql_context": "", "sql": ""}],
            "a.jsonl:1: no column sql_prompt; found sql_prmpt",
            "rename sql_prmpt to sql_prompt",
        ),
        (
            "a.jsonl",
            [{"q": "", "a": ""}],
            "no column sql_prompt, sql_context, sql; found q, a",
            "needs the columns sql_prompt",
        ),
        ("a.jsonl", ["{", "x"], "a.jsonl:1: is not JSON", "one object a line"),
        ("a.jsonl", ["", "[1]"], "a.jsonl:2: is not an object but list", "one object a line"),
        ("a.jsonl", [], "a.jsonl: is empty", "rows"),
        ("a.csv", ["sql_prompt,sql_contxt,sql", "a,b,c"], "a.csv:1: no column sql_context", "rename sql_contxt"),
        ("a.csv", ["sql_prompt,sql_context,sql", "a,b,c"], None, None),
        ("a.xlsx", ["x"], "a file of unknown kind", ".jsonl"),
        ("data/train.jsonl", [ROW], None, None),
        ("data/train.jsonl", [{"q": ""}], "train.jsonl:1: no column", "needs the columns"),
        ("data/notes.txt", ["x"], "no data file", "train.jsonl and test.jsonl"),
    ],
)
def test_columns(write_jsonl: Write, name: str, lines: list[Any], message: str | None, hint: str | None) -> None:
    path = write_jsonl(name, lines)
    found = look(dataset=str(path if path.parent.name != "data" else path.parent))
    if message is None or hint is None:
        assert found.troubles == ()
        return
    found_message, found_hint = only_trouble(found)
    assert message in found_message
    assert hint in found_hint


def test_a_folder_without_a_train_file(write_jsonl: Write) -> None:
    write_jsonl("data/a.jsonl", [ROW])
    folder = write_jsonl("data/b.jsonl", [ROW]).parent
    assert "no train file among a.jsonl, b.jsonl" in only_trouble(look(dataset=str(folder)))[0]


def test_text_in_another_encoding(tmp_path: Path) -> None:
    for name in ("a.csv", "a.jsonl"):
        (tmp_path / name).write_bytes(b'{"sql": "\xe9"}\n')
        assert "is not UTF-8 text" in only_trouble(look(dataset=str(tmp_path / name)))[0]


@pytest.mark.parametrize(("task", "other"), [("pets", "text-to-sql"), ("text-to-sql", "pets")])
def test_data_of_another_task_are_recognised(write_jsonl: Write, tmp_path: Path, task: str, other: str) -> None:
    rows = {"text-to-sql": ROW, "pets": {"image": "a.png", "label": "cat"}}
    path = write_jsonl("rows.jsonl", [rows[other]])
    message, hint = only_trouble(look(dataset=str(path), task=task))
    assert message.startswith(f"{path}:1: no column ")
    assert hint == f"the data fits another task: write --task {other}"
    assert look(dataset=str(path), task=other).troubles == ()


def test_the_users_columns_are_looked_for(write_jsonl: Write) -> None:
    path = write_jsonl("rows.jsonl", [{"photo": "a.png", "breed": "pug"}])
    columns = {"image_column": "photo", "label_column": "breed"}
    assert look(dataset=str(path), task="pets", **columns).troubles == ()
    message, hint = only_trouble(look(dataset=str(path), task="pets", image_column="photo"))
    assert (message, hint) == (f"{path}:1: no column label; found photo, breed", "write --label-column NAME")


def test_a_missing_data_set() -> None:
    assert only_trouble(look(dataset="rows.jsonl"))[0] == "rows.jsonl: no such file or folder"
    assert look(dataset="someone/rows").troubles == ()  # may be on the hub


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is a file; expected a folder" in only_trouble(look(output_dir=str(tmp_path / "file" / "out")))[0]
    assert "is a folder; expected a file" in only_trouble(look(results_file=str(tmp_path)))[0]
    assert "cannot be written to" in only_trouble(look(results_file=str(tmp_path / "file" / "a.json")))[0]
    assert look(output_dir=str(tmp_path / "a" / "b"), results_file=str(tmp_path / "c" / "m.json")).troubles == ()


def test_a_tilde_is_written_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert look(output_dir="~/out").outputs == {"output_dir": f"{tmp_path}/out"}
    assert look(output_dir="out", results_file="~/m.json").outputs["results_file"] == f"{tmp_path}/m.json"


def test_adapters(tmp_path: Path) -> None:
    assert "nothing is there" in only_trouble(look(adapter=tmp_path / "no"))[0]
    (tmp_path / "README.md").touch()
    assert "has no adapter_config.json" in only_trouble(look(adapter=tmp_path))[0]
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "a/b"}')
    assert "has no adapter_model.safetensors" in only_trouble(look(adapter=tmp_path))[0]
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\2" + bytes(7) + b"{")
    assert "adapter_model.safetensors is not a safetensors file" in only_trouble(look(adapter=tmp_path))[0]
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")
    assert look(adapter=tmp_path).adapter == str(tmp_path)


def test_the_base_of_an_adapter(tmp_path: Path) -> None:
    from finetune.embedded import base_dir

    assert adapter_base(str(tmp_path)) is None
    for base, told in (("a/b", "a/b"), (str(base_dir()), "embedded"), ("", None)):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        assert adapter_base(str(tmp_path)) == told
    (tmp_path / "adapter_config.json").write_text("[]")
    assert adapter_base(str(tmp_path)) is None


def test_the_hub_token_is_noticed_and_not_kept(tmp_path: Path) -> None:
    assert not look().has_token
    found = look({"HF_TOKEN": "secret-value", "HF_HOME": "/nonexistent"})
    assert found.has_token
    assert "secret-value" not in repr(found)
    (tmp_path / "token").write_text("secret-value")
    assert look({"HF_HOME": str(tmp_path)}).has_token
