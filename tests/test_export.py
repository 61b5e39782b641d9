"""What is delivered after training: a merged model that equals base + adapter; failures that fail no run."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMultimodalLM, AutoProcessor

from finetune import export
from finetune.checkpoint import save_adapter
from finetune.model import add_lora, load_base
from finetune.plan import Plan
from tests.test_train import plan

IDS = {"input_ids": torch.tensor([[2, 5, 9, 11, 30, 7]])}


@pytest.fixture
def finished(tiny_model: Path, tmp_path: Path) -> tuple[Plan, Any]:
    """A run with an adapter that matters, and the model that has it."""
    run = plan(tiny_model, tmp_path / "out")
    net = add_lora(load_base(run, torch.device("cpu")), run.settings)
    torch.manual_seed(1)
    for name, parameter in net.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    save_adapter(net, run.run_dir / "adapter")
    (run.run_dir / "metrics.json").write_text("{}")
    return run, net.eval()


def deliver(run: Plan, **changes: Any) -> list[str]:
    said: list[str] = []
    export.deliver(replace(run, settings=replace(run.settings, **changes)), run.run_dir, said.append)
    return said


def test_the_merged_model_is_base_and_adapter(finished: tuple[Plan, Any], tiny_model: Path) -> None:
    run, tuned = finished
    deliver(run, merge=True)
    folder = run.run_dir / "merged"
    merged = AutoModelForMultimodalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected, found = tuned(**IDS).logits, merged(**IDS).logits
        with tuned.disable_adapter():
            base = tuned(**IDS).logits
    off = (found - expected).norm() / expected.norm()
    moved = (expected - base).norm() / expected.norm()
    assert off < 0.02 < 0.1 < moved, "bf16 rounding apart, they are one; and not the base"
    assert load_file(folder / "model.safetensors").keys() == load_file(tiny_model / "model.safetensors").keys()
    assert AutoProcessor.from_pretrained(folder).tokenizer.chat_template


def test_results_are_copied_to_where_the_user_wants_them(finished: tuple[Plan, Any], tmp_path: Path) -> None:
    deliver(finished[0], results_file=str(tmp_path / "deep" / "results.json"))
    assert (tmp_path / "deep" / "results.json").read_text() == "{}"


class NothingHere(BaseHTTPRequestHandler):
    """A storage service without buckets."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(404)
        self.end_headers()

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def empty_storage() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), NothingHere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("changes", "warning", "hint"),
    [
        ({"push_to_hub": True, "hub_repo": "me/mine"}, "not pushed to the hub", "hf upload me/mine"),
        ({"gcs_output_path": "gs://no-such-bucket/x"}, "not copied to gs://no-such-bucket/x", "gcloud storage cp -r"),
    ],
)
def test_a_failed_delivery_is_told_with_how_to_repeat_it(
    finished: tuple[Plan, Any],
    empty_storage: str,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    warning: str,
    hint: str,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", empty_storage)
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # a look-up over gRPC that takes a minute
    said = "\n".join(deliver(finished[0], **changes))
    assert warning in said and hint in said
