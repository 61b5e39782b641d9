"""The shortest path for one's own data: a .jsonl of conversations, images among them, by the real command line."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from finetune.hardware import Machine
from finetune.plan import Launch, Plan
from finetune.settings import Settings
from tests.test_end_to_end import entrypoint, lines, read
from tests.test_fsdp2 import start, two_ranks

pytestmark = pytest.mark.slow
COLOURS = ("red", "green", "blue", "white")


def conversations(folder: Path) -> Path:
    """40 rows in every form that is taken: with images and without, one turn and several; and some that are none."""
    rows: list[dict[str, Any]] = []
    for number in range(40):
        colour = COLOURS[number % 4]
        Image.new("RGB", (32 + number, 32), colour).save(folder / f"{number}.png")
        asked = [{"type": "image", "image": f"{number}.png"}, {"type": "text", "text": f"Colour number {number}?"}]
        shown = [{"role": "user", "content": asked}, {"role": "assistant", "content": colour}]
        further = [{"role": "user", "content": "Again?"}, {"role": "assistant", "content": f"{colour} again"}]
        plain = {"prompt": f"Say {colour} {number}.", "completion": colour}
        rows.append(plain if number % 2 else {"messages": [*shown, *further]})
    rows += [rows[0], {"prompt": "Nothing?", "completion": ""}]
    rows.append({"prompt": "Gone?", "completion": "x", "image": "no.png"})
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def finished(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("chat")
    done = entrypoint(
        "--task", "chat", "--model-id", tiny_model, "--dataset", conversations(folder), "--num-epochs", "20",
        "--batch-size", "4", "--gradient-accumulation-steps", "1", "--learning-rate", "0.01", "--max-new-tokens", "4",
        cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout + done.stderr


def test_it_learns_and_says_so(finished: tuple[Path, str]) -> None:
    folder, said = finished
    metrics = read(folder / "out" / "metrics.json")
    before, after = (metrics[side]["token_loss"] for side in ("before", "after"))
    assert after["low"] < after["value"] < after["high"] < before["low"]
    assert after["unit"] == "nats a token" and list(metrics["after"]) == ["token_loss", "exact_match"]
    assert "| Token loss" in said and "less is better" in said and "nats a token, over" in said
    page = (folder / "out" / "report.html").read_text()
    assert "nats a token" in page and "Token loss" in page
    card = (folder / "out" / "adapter" / "README.md").read_text()
    assert "[your question]" in card and "Token loss" in card


def test_the_data_are_reported_before_training(finished: tuple[Path, str]) -> None:
    folder, said = finished
    data = read(folder / "out" / "run.json")["data"]
    assert data["train"]["read"] == 43
    assert {reason: found["count"] for reason, found in data["train"]["dropped"].items()} == {
        "completion is empty": 1,
        "image file is not there": 1,
    }
    report = data["report"]
    assert report["empty"] == 1 and report["duplicates"]["rows"] + report["leaked"]["rows"] == 1
    assert "tokens a row: " in said and "because something in them is empty" in said
    assert said.index("tokens a row: ") < said.index("> training on")


def test_pictures_and_turns_are_in_the_predictions(finished: tuple[Path, str]) -> None:
    rows = lines(finished[0] / "out" / "predictions-after.jsonl")
    shown = [row for row in rows if row["images"]]
    assert rows and {row["verdict"] for row in rows} <= {"exact", "different"}
    for row in shown:
        assert row["prompt"][0]["content"].startswith("[image]Colour") and row["prompt"][1]["role"] == "assistant"


def test_evaluate_finds_the_same(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    done = entrypoint("evaluate", "--adapter", "out/adapter", "--dataset", "rows.jsonl", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    again, then = read(folder / "out" / "evaluation-test" / "metrics.json"), read(folder / "out" / "metrics.json")
    assert again["after"]["exact_match"] == then["after"]["exact_match"]
    assert again["after"]["token_loss"]["value"] == pytest.approx(then["after"]["token_loss"]["value"], rel=1e-5)


def test_two_ranks_find_what_one_finds(tiny_model: Path, tmp_path: Path) -> None:
    settings = Settings(
        task="chat", model_id=str(tiny_model), dataset=str(conversations(tmp_path)), eval_size=5, max_new_tokens=4,
        lora_dropout=0.0, learning_rate=1e-3, num_train_epochs=1, per_device_train_batch_size=2, max_grad_norm=1.0,
    )  # fmt: skip
    losses = []
    cpu = Launch("cpu.yaml", 1, fsdp=False, use_cpu=True, bf16=False)
    for name, shape, accumulation in (("one", cpu, 4), ("two", two_ranks(tmp_path), 2)):
        told = replace(settings, output_dir=str(tmp_path / name), gradient_accumulation_steps=accumulation)
        plan = Plan("run", told, {}, name, "a test", shape, asdict(Machine(cpu_cores=2)))
        done = start(plan, tmp_path)
        assert done.returncode == 0, done.stderr[-4000:]
        metrics = read(tmp_path / name / "metrics.json")
        losses.append([metrics[side]["token_loss"]["value"] for side in ("before", "after")])
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)
    assert losses[0][1] < losses[0][0]
