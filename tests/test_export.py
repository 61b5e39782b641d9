"""What is delivered after training: merged model, hub, bucket; what failed is told, and fails no run. And `merge`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMultimodalLM

from finetune import bucket, export
from finetune.checkpoint import save_adapter
from finetune.errors import DeliveryError
from finetune.hardware import Machine
from finetune.model import add_lora
from finetune.plan import Plan
from tests import bucket as fake_bucket
from tests import hub as fake_hub
from tests.conftest import ROOT
from tests.loading import base_of
from tests.test_merge import stir
from tests.test_train import plan

pytest_plugins = ("tests.command_line",)
Run = Callable[..., tuple[int, str, str]]
TOKEN = "hf_MARKERTOKENthatMustNotLeak"
PUSH = """
import json, sys
from pathlib import Path
from finetune import hub
from finetune.errors import DeliveryError
from finetune.settings import Settings
hub.PAUSES_S = (0.05, 0.1)
run_dir, settings = Path(sys.argv[1]), Settings(model_id="google/gemma-4-31B-it", **json.loads(sys.argv[2]))
for upload in hub.uploads(settings, run_dir / "adapter", run_dir / "merged" if settings.merge else None):
    try:
        hub.push(upload, settings.hub_private_repo, print)
    except DeliveryError as error:
        print(error)
"""
"""hub.py as a run uses it, with shorter pauses. In a process of its own: huggingface_hub reads HF_ENDPOINT once."""


def make_run(model: Path, run_dir: Path, **changes: Any) -> Plan:
    """A finished run: an adapter that matters, its card, metrics.json, and rows that must not be published."""
    run = plan(model, run_dir, lora_targets="all-linear", task="text-to-sql", **changes)
    run = replace(run, machine={**vars(Machine(cpu_cores=2))}, sources=dict.fromkeys(vars(run.settings), "flag"))
    net = add_lora(base_of(run), run.settings)
    stir(net)
    save_adapter(net, run_dir / "adapter")
    for name, text in (("metrics.json", "{}"), ("plan.json", run.to_json()), ("predictions-after.jsonl", "a row")):
        (run_dir / name).write_text(text)
    (run_dir / "adapter" / "README.md").write_text("---\nlibrary_name: peft\n---\n# A card\n")
    return run


@pytest.fixture
def finished(tiny_model: Path, tmp_path: Path) -> Plan:
    return make_run(tiny_model, tmp_path / "out")


@pytest.fixture
def hub() -> Iterator[fake_hub.Hub]:
    with fake_hub.serve() as hub:
        yield hub


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_bucket.Storage]:
    with fake_bucket.serve("results") as storage:
        for name, value in storage.environment().items():
            monkeypatch.setenv(name, value)
        yield storage


def deliver(run: Plan, **changes: Any) -> str:
    said: list[str] = []
    scratch = run.run_dir.parent / "scratch"
    export.deliver(replace(run, settings=replace(run.settings, **changes)), run.run_dir, scratch, said.append)
    return "\n".join(said)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_run_says_how_far_the_merged_model_is_from_both(finished: Plan) -> None:
    said = deliver(finished, merge=True)
    assert re.search(
        r"logits are 0 % from those of base \+ adapter, \d\d+ % from the base's \(.* and a picture\)", said
    )
    assert "keys, dtypes, tokenizer and configuration are the base's" in said and "warning" not in said
    card = (finished.run_dir / "merged" / "README.md").read_text()
    assert str(finished.settings.model_id) not in card, "a folder's path is private"


def test_an_adapter_that_is_all_zero_is_told_as_such(tiny_model: Path, tmp_path: Path) -> None:
    run = plan(tiny_model, tmp_path / "out")
    save_adapter(add_lora(base_of(run), run.settings), run.run_dir / "adapter")
    said = deliver(run, merge=True)
    assert "warning: the adapter is all zero, so the merged model is the base" in said


def test_a_merge_that_fails_fails_no_run(finished: Plan) -> None:
    said = deliver(finished, merge=True, model_id=str(finished.run_dir / "adapter"), push_to_hub=True)
    assert "warning: not merged: " in said and "entrypoint.py merge --output-dir" in said
    assert "warning: the adapter was not pushed to the hub" in said, "the rest is done all the same"


@pytest.mark.parametrize("step", ["merge", "compare"])
def test_a_full_disk_or_memory_is_told_in_a_line(finished: Plan, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no space") if step == "merge" else torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(export, step, fails)
    what = {"merge": "could not be written: no space", "compare": "was written, but could not be compared: CUDA out"}
    assert f"warning: not merged: {finished.run_dir / 'merged'} {what[step]}" in deliver(finished, merge=True)
    with pytest.raises(DeliveryError, match=what[step]):
        export.merge_run(replace(finished, command="merge"), finished.run_dir, Path("unused"), print)


def test_a_merge_that_is_not_clearly_right_is_told_and_not_published(
    finished: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = export.compare
    monkeypatch.setattr(export, "compare", lambda base, adapter, _, **rest: whole(base, adapter, base, **rest))
    said = deliver(finished, merge=True, push_to_hub=True)
    assert "warning: the merged model is not clearly closer to base + adapter than to the base" in said
    assert "pushing the adapter" in said and "pushing the merged model" not in said


def test_results_are_copied_to_where_the_user_wants_them(finished: Plan, tmp_path: Path) -> None:
    deliver(finished, results_file=str(tmp_path / "deep" / "results.json"))
    assert (tmp_path / "deep" / "results.json").read_text() == "{}"
    assert "was not written" in deliver(finished, results_file=str(tmp_path / "deep" / "results.json" / "x.json"))


def push(hub: fake_hub.Hub, run_dir: Path, **settings: Any) -> str:
    argv = [sys.executable, "-c", PUSH, str(run_dir), json.dumps(settings)]
    environment = hub.environment(PYTHONPATH=str(ROOT), HF_TOKEN=TOKEN)
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    return done.stdout


def test_adapter_card_and_metrics_are_one_commit_the_merged_model_another(finished: Plan, hub: fake_hub.Hub) -> None:
    deliver(finished, merge=True)
    said = push(hub, finished.run_dir, merge=True)
    adapter, merged = "me/gemma-4-31B-it-text-to-sql-lora", "me/gemma-4-31B-it-text-to-sql-merged"
    assert hub.repositories == {
        adapter: {**files(finished.run_dir / "adapter"), "metrics.json": b"{}"},
        merged: files(finished.run_dir / "merged"),
    }
    assert hub.commits == {adapter: 1, merged: 1} and hub.private == {adapter: True, merged: True}
    assert f"{hub.url}/{adapter} (private); rows stay here" in said
    assert hub.tokens <= {f"Bearer {TOKEN}", None}
    push(hub, finished.run_dir, merge=True)  # into repositories that are there


def test_a_public_repository_only_where_it_is_wanted(finished: Plan, hub: fake_hub.Hub) -> None:
    push(hub, finished.run_dir, hub_repo="org/open", hub_private_repo=False)
    assert hub.private == {"org/open": False}
    hub.repositories["org/open"].clear()
    said = push(hub, finished.run_dir, hub_repo="org/open")
    assert "org/open is public, and --hub-private-repo wants it private" in said
    assert not hub.repositories["org/open"]


def test_a_hub_that_is_busy_is_asked_again(finished: Plan, hub: fake_hub.Hub) -> None:
    hub.failures = {"create": [503, 0], "preupload": [502], "/large/": [500], "commit": [429]}
    said = push(hub, finished.run_dir, hub_repo="org/x")
    assert said.count("trying again in") == 3, "huggingface_hub repeats preupload and upload by itself"
    assert sorted(hub.repositories["org/x"]) == sorted([*files(finished.run_dir / "adapter"), "metrics.json"])
    assert hub.commits["org/x"] == 1


@pytest.mark.parametrize(
    ("status", "reason", "tries"),
    [(401, "it does not know the token", 1), (403, "the token may not write there", 1), (503, "busy", 3)],
)
def test_what_the_hub_refuses_is_told_with_commands_that_push_it_again(
    finished: Plan, hub: fake_hub.Hub, status: int, reason: str, tries: int
) -> None:
    deliver(finished, merge=True)
    hub.failures = {"create": [status] * 9, "api/models": [status] * 9}
    said = push(hub, finished.run_dir, hub_repo="org/x", merge=True)
    assert f"the adapter was not pushed to the hub: {status}: {reason}" in said
    assert f"the merged model was not pushed to the hub: {status}: {reason}" in said
    assert hub.requests.count("POST /api/repos/create") == 2 * tries
    hub.failures = {}
    commands = re.findall("`(hf [^`]*)`", said)
    assert len(commands) == 2
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        subprocess.run(command, shell=True, check=True, env=hub.environment(PATH=path), capture_output=True)
    assert hub.repositories["org/x"] == {**files(finished.run_dir / "adapter"), "metrics.json": b"{}"}
    assert hub.repositories["org/x-merged"] == files(finished.run_dir / "merged")
    assert set(hub.private.values()) == {True}


def test_all_results_are_copied_to_the_bucket(finished: Plan, storage: fake_bucket.Storage) -> None:
    (finished.run_dir / "logs").mkdir()
    (finished.run_dir / "logs" / "large").write_bytes(os.urandom(6 * 2**20))  # a resumable upload
    expected = {f"results/deep/run/{name}": content for name, content in files(finished.run_dir).items()}
    (finished.run_dir / "checkpoints" / "step-3").mkdir(parents=True)
    for name in (".hidden", "half.tmp", "checkpoints/step-3/optimizer.safetensors"):
        (finished.run_dir / name).write_text("not a result")
    storage.failures = [503, 429]
    said = deliver(finished, gcs_output_path="gs://results/deep/run/")
    assert storage.objects == expected
    assert f"{len(expected)} files are in gs://results/deep/run/" in said and "warning" not in said


def test_a_file_that_did_not_arrive_is_noticed(finished: Plan, storage: fake_bucket.Storage) -> None:
    storage.loses = "metrics.json"
    with pytest.raises(DeliveryError, match=r"\d of \d files arrived; not results/x/metrics.json"):
        bucket.copy(finished.run_dir, "gs://results/x", print)


@pytest.mark.parametrize(
    ("changes", "warning", "hint"),
    [
        ({"push_to_hub": True, "hub_repo": "me/mine"}, "not pushed to the hub: ", "`hf upload me/mine"),
        ({"gcs_output_path": "gs://none/x"}, "not copied to gs://none/x: there is no such bucket", "gcloud storage"),
    ],
)
def test_a_failed_delivery_is_told_with_how_to_repeat_it(
    finished: Plan, storage: fake_bucket.Storage, changes: dict[str, Any], warning: str, hint: str
) -> None:
    said = deliver(finished, **changes)  # HF_HUB_OFFLINE=1 in this process
    assert warning in said and hint in said


# arguments, what to do to the run in out/, words that the message has
MISTAKES: list[tuple[str, Callable[[Path], Any], tuple[str, ...]]] = [
    ("merge --adapter none", lambda _: None, ("--adapter: none: nothing is there", "such as out/adapter")),
    ("merge --output-dir other", lambda _: None, ("--adapter: other/adapter: nothing is there",)),
    ("merge --no-merge", lambda _: None, ("--no-merge: the command is to merge",)),
    ("merge --split train", lambda _: None, ("--split: not a flag of this command", "entrypoint.py evaluate")),
    ("merge --push-to-hub", lambda _: None, ("--push-to-hub: there is no token for the hub",)),
    ("mrge", lambda _: None, ("mrge: no such command", "did you mean merge?")),
    ("run --adapter x", lambda _: None, ("--adapter: not a flag of this command", "evaluate, merge")),
    (
        "merge",
        lambda run: (run / "merged").mkdir() or (run / "merged" / "config.json").write_text("{}"),
        ("--output-dir: out holds a merged model already", "--overwrite"),
    ),
    (
        "merge",
        lambda run: (run / "plan.json").write_text((run / "plan.json").read_text().replace("/model", "/gone")),
        ("/gone: no such folder, and not a hub id either",),
    ),
    (
        "merge",
        lambda run: (run / "plan.json").unlink() or (run / "adapter" / "adapter_config.json").write_text("{}"),
        ("does not say what it was trained on", "--model-id google/gemma-4-31B-it"),
    ),
]


@pytest.mark.parametrize(("arguments", "spoil", "words"), MISTAKES)
def test_mistakes_of_the_command(
    run: Run, started: list[Any], finished: Plan, arguments: str, spoil: Callable[[Path], Any], words: tuple[str, ...]
) -> None:
    spoil(finished.run_dir)
    code, out, err = run(*arguments.split())
    assert (code, out, started) == (2, "", [])
    for part in words:
        assert part in err


def test_the_command_plans_with_what_the_run_was_told(
    run: Run, started: list[Any], tiny_model: Path, tmp_path: Path
) -> None:
    told = make_run(tiny_model, tmp_path / "out", hub_repo="org/x", hub_private_repo=False)
    (tmp_path / "out" / "merged").mkdir()
    kept = (tmp_path / "out" / "plan.json").read_text()
    assert run("merge", "--dry-run")[0] == 0 and not started
    code, out, err = run("merge", "--overwrite", "--seed", "7")
    assert (code, err) == (0, "")
    made = Plan.from_json((tmp_path / "out" / "plan-merge.json").read_text())
    assert (made.command, made.adapter_path, made.run_dir) == ("merge", str(tmp_path / "out" / "adapter"), Path("out"))
    assert made.settings.merge and made.settings.model_id == told.settings.model_id
    assert (made.settings.hub_repo, made.settings.hub_private_repo) == ("org/x", False)
    assert made.launch.num_processes == 1 and made.launch.gpus is None
    assert (tmp_path / "out" / "plan.json").read_text() == kept
    words = " ".join(out.split())
    assert "out/merged/: the model" in words and "seed 7 (flag)" in words and "batch" not in words


def entrypoint(*words: str, cwd: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / "entrypoint.py"), *words]
    return subprocess.run(argv, cwd=cwd, env=dict(environment), capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_the_command_from_end_to_end(
    finished: Plan, tmp_path: Path, hub: fake_hub.Hub, storage: fake_bucket.Storage
) -> None:
    run_dir = finished.run_dir
    words = ("merge", "--output-dir", "out", "--push-to-hub", "--hub-repo", "me/x", "--gcs-output-path", "gs://results")
    done = entrypoint(*words, cwd=tmp_path, environment=hub.environment(HF_TOKEN=TOKEN))
    assert done.returncode == 0, done.stderr
    assert "% from the base's" in done.stderr and "Traceback" not in done.stderr
    assert AutoModelForMultimodalLM.from_pretrained(run_dir / "merged").num_parameters() > 0
    assert hub.repositories["me/x-merged"] == files(run_dir / "merged")
    assert storage.objects == {f"results/{name}": content for name, content in files(run_dir).items()}
    assert TOKEN not in done.stdout + done.stderr
    assert not [name for name, content in files(run_dir).items() if TOKEN.encode() in content]
    hub.refusal = 403
    done = entrypoint(*words, "--overwrite", cwd=tmp_path, environment=hub.environment(HF_TOKEN=TOKEN))
    assert done.returncode == DeliveryError.exit_code and "hf upload me/x-merged out/merged . --private" in done.stderr


@pytest.mark.slow
def test_a_run_ends_well_though_the_hub_refuses_its_results(
    tiny_model: Path, tmp_path: Path, hub: fake_hub.Hub
) -> None:
    hub.refusal = 403
    done = entrypoint(
        "run", "--model-id", str(tiny_model), "--dataset", "embedded", "--train-size", "8", "--eval-size", "0",
        "--max-steps", "2", "--warmup-ratio", "0", "--learning-rate", "0.05", "--lora-targets", "all-linear",
        "--merge", "--push-to-hub", "--output-dir", "out", cwd=tmp_path, environment=hub.environment(HF_TOKEN=TOKEN),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "% from the base's" in done.stderr
    assert done.stderr.count("was not pushed to the hub: 403") == 2 and "`hf upload " in done.stderr
    assert (tmp_path / "out" / "run.json").is_file() and (tmp_path / "out" / "merged" / "config.json").is_file()
    assert TOKEN not in done.stdout + done.stderr
