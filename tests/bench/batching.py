"""What length-grouped batches save: `python -m tests.bench.batching [ROWS.jsonl]`. Prints ratios, asserts nothing.

Trains the embedded model for one epoch each way, on the same rows, and compares rows a second and padding.
"""

import sys
import tempfile
import time
from pathlib import Path

from finetune import data
from finetune.model import add_lora
from finetune.reader import load_reader
from finetune.tasks import TASKS
from tests.loading import base_of, trainer_of
from tests.test_train import plan


def measure(dataset: str, batching: str, folder: Path) -> tuple[float, float]:
    """(rows a second, share of padding)"""
    run = plan(
        Path("embedded"), folder, dataset=dataset, batching=batching, train_size=400, max_length=2048,
        per_device_train_batch_size=8, learning_rate=1e-4,
    )  # fmt: skip
    reader = load_reader(run.settings, images=False)
    prepared = data.prepare(TASKS["text-to-sql"], run.settings, reader, train=True)
    trainer, _ = trainer_of(run, add_lora(base_of(run), run.settings), reader, prepared)
    lengths = [len(trainer.train_dataset[index]["input_ids"]) for index in trainer.order]
    padded = sum(
        max(lengths[start : start + 8]) * len(lengths[start : start + 8]) for start in range(0, len(lengths), 8)
    )
    since = time.monotonic()
    trainer.train()
    return len(lengths) / (time.monotonic() - since), 1 - sum(lengths) / padded


def main() -> None:
    dataset = sys.argv[1] if len(sys.argv) > 1 else "embedded"
    with tempfile.TemporaryDirectory() as folder:
        shuffled = measure(dataset, "shuffled", Path(folder))
        grouped = measure(dataset, "length-grouped", Path(folder))
    print(f"{dataset}: length-grouped / shuffled = {grouped[0] / shuffled[0]:.2f} in rows a second")
    print(f"padding: {shuffled[1]:.0%} of the tokens shuffled, {grouped[1]:.0%} length-grouped")


if __name__ == "__main__":
    main()
