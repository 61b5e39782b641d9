"""Images, as a user runs it: a folder of photos, some of them bad, through the real entrypoint in NF4; then what is
left, an evaluation of the adapter on other data, and the command line of the published recipe's CPU try-out."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file

from tests.test_end_to_end import entrypoint, lines, read

pytestmark = pytest.mark.slow
COLOURS = {"red_cat": (200, 40, 40), "blue_cat": (40, 40, 200), "Dog": (30, 160, 60)}


def photos(folder: Path, per_class: int) -> Path:
    """A folder of photos by class, of several shapes and kinds."""
    for label, colour in COLOURS.items():
        (folder / label).mkdir(parents=True)
        for number in range(per_class):
            image = Image.new(("RGB", "RGBA", "CMYK")[number % 3], (60 + 40 * number, 90))
            image.paste(Image.new("RGB", image.size, colour).convert(image.mode))
            image.save(folder / label / f"{number}.{'tif' if image.mode == 'CMYK' else 'png'}")
    return folder


@pytest.fixture(scope="module")
def finished(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run's folder (data/ and out/), and what it printed."""
    folder = tmp_path_factory.mktemp("photos")
    photos(folder / "data" / "train", 5)
    photos(folder / "data" / "test", 3)
    (folder / "data/train/Dog/broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut short")
    (folder / "data/train/Dog/empty.png").touch()
    (folder / "data/test/red_cat/page.jpg").write_text("<html>not found</html>")
    done = entrypoint(
        "run", "--task", "pets", "--model-id", tiny_model, "--dataset", "data", "--output-dir", "out",
        "--quantization", "nf4", "--lora-r", "64", "--lora-alpha", "64", "--num-epochs", "2", "--batch-size", "4",
        "--gradient-accumulation-steps", "2", "--learning-rate", "0.01", "--eval-size", "50", "--max-new-tokens", "8",
        "--merge", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout + done.stderr


def test_a_run_on_photos_leaves_everything(finished: tuple[Path, str]) -> None:
    out = finished[0] / "out"
    for name in (
        "run.json", "metrics.json", "predictions-before.jsonl", "predictions-after.jsonl", "report.html",
        "adapter/adapter_model.safetensors", "adapter/classes.json", "adapter/processor_config.json",
        "adapter/README.md", "merged/config.json", "merged/processor_config.json",
    ):  # fmt: skip
        assert (out / name).exists(), name
    assert read(out / "adapter" / "classes.json") == ["blue cat", "Dog", "red cat"]
    assert list((out / "thumbnails").glob("row-*.jpg"))
    assert "data:image/jpeg;base64," in (out / "report.html").read_text()


def test_bad_images_are_counted_by_reason_with_their_names(finished: tuple[Path, str]) -> None:
    data = read(finished[0] / "out" / "run.json")["data"]
    assert (data["train"]["read"], data["train"]["used"]) == (17, 15)
    assert data["train"]["dropped"] == {
        "image is damaged or cut short": {"count": 1, "rows": ["train/Dog/broken.jpg"]},
        "image is empty (0 bytes)": {"count": 1, "rows": ["train/Dog/empty.png"]},
    }
    assert (data["test"]["read"], data["test"]["used"]) == (10, 9)
    assert data["test"]["dropped"] == {
        "image is not in a format that can be read": {"count": 1, "rows": ["test/red_cat/page.jpg"]}
    }


def test_the_adapter_reaches_the_vision_tower_and_is_saved_in_fp32(finished: tuple[Path, str]) -> None:
    run = read(finished[0] / "out" / "run.json")
    assert run["model"]["adapted_by_part"]["vision"] > 0 < run["model"]["adapted_by_part"]["text"]
    assert "uint8" in run["model"]["dtypes"]
    tensors = load_file(finished[0] / "out" / "adapter" / "adapter_model.safetensors")
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"torch.float32"}
    moved = [name for name, tensor in tensors.items() if "lora_B" in name and tensor.abs().sum() > 0]
    assert any("vision_tower" in name for name in moved) and any("language_model" in name for name in moved)


def test_metrics_have_the_classes(finished: tuple[Path, str]) -> None:
    metrics = read(finished[0] / "out" / "metrics.json")
    assert list(metrics["after"]) == ["accuracy", "macro-F1", "unknown rate"]
    assert [entry["rows"] for entry in metrics["per_class"]["after"]] == [3, 3, 3]
    assert sum(pair["rows"] for pair in metrics["confusion"]["after"]) == metrics["rows"] == 9
    rows = lines(finished[0] / "out" / "predictions-after.jsonl")
    assert {name for row in rows for name in row["images"]} >= {"test/Dog/0.png", "test/blue_cat/2.tif"}


def test_the_user_sees_no_noise(finished: tuple[Path, str]) -> None:
    for words in ("Traceback", "Warning", "deprecated"):
        assert words not in finished[1], words
    assert "the merged model's logits are" in finished[1] and "a chat prompt and a picture" in finished[1]


def test_an_adapter_is_evaluated_with_its_own_classes(finished: tuple[Path, str], tmp_path: Path) -> None:
    """On data that lack a class, the prompt still names it, and the task need not be named either."""
    photos(tmp_path / "few", 2)
    for path in (tmp_path / "few" / "Dog").iterdir():
        path.unlink()
    (tmp_path / "few" / "Dog").rmdir()
    done = entrypoint(
        "evaluate", "--adapter", finished[0] / "out/adapter", "--dataset", "few", "--output-dir",
        "out", "--eval-size", "4", "--max-new-tokens", "8", "--split", "train", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = lines(tmp_path / "out" / "evaluation-train" / "predictions-after.jsonl")
    assert rows and all("blue cat\nDog\nred cat" in row["prompt"][0]["content"] for row in rows)


def test_rows_cannot_write_elsewhere_nor_into_the_report(finished: tuple[Path, str], tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    photos(place / "few", 2)
    labels = ("../../outside", "<script>alert(1)</script>", "/tmp/outside-of-the-run")
    named = [
        {"image": f"../few/{path.parent.name}/{path.name}", "label": label}
        for label, path in zip(labels, sorted((place / "few").rglob("*.png")), strict=False)
    ]
    (place / "rows").mkdir()
    for split in ("train", "test"):
        (place / "rows" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in named))
    done = entrypoint(
        "evaluate", "--task", "pets", "--model-id", finished[0] / "out" / "merged", "--dataset", "rows",
        "--output-dir", "out", "--eval-size", "3", "--max-new-tokens", "8", "--split", "train", cwd=place,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.name for path in place.iterdir()} == {"few", "rows", "out"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and not Path("/tmp/outside-of-the-run").exists()
    out = place / "out" / "evaluation-train"
    assert len(list((out / "thumbnails").glob("row-*.jpg"))) == 3
    assert "alert(1)" in (out / "report.html").read_text() and "<script>alert" not in (out / "report.html").read_text()


def test_the_published_cpu_try_out_runs_as_it_stands(tiny_model: Path, tmp_path: Path) -> None:
    """Recipe B's line, its model's name replaced by a folder: no data set is named, and none is downloaded."""
    for more in ([], ["--task", "pets"]):
        done = entrypoint(
            "--model-id", tiny_model, "--device", "cpu", "--train-size", "20", "--num-epochs", "1", *more,
            "--output-dir", "_".join(["out", *more]), "--eval-size", "4", "--max-new-tokens", "4", cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    found: list[Any] = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("out*/run.json"))]
    assert [run["data"]["train"]["used"] for run in found] == [20, 20]
    assert {run["plan"]["settings"]["task"] for run in found} == {"pets", "text-to-sql"}


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_the_toy_learns_to_tell_animals_apart(tmp_path: Path, quantization: str) -> None:
    """`--task pets` on a CPU, from the committed base whose vision tower is random: chance is one in six."""
    done = entrypoint(
        "--task", "pets", "--profile", "cpu", "--quantization", quantization, "--output-dir", "out", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    metrics = read(tmp_path / "out" / "metrics.json")
    assert metrics["before"]["accuracy"]["value"] < 0.3 and metrics["rows"] == 120
    assert metrics["after"]["accuracy"]["value"] >= 0.8, metrics["per_class"]["after"]
