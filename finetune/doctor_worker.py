"""The doctor's checks that need torch, and a model's tokenizer: `python -m finetune.doctor_worker PLAN.json ANSWER`.

Real work, small: a product with NF4 weights on the device, a sum over all GPUs, and a few rows of the data as they will
be trained on. Started by doctor.py.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from bitsandbytes import matmul_4bit
from bitsandbytes.functional import quantize_4bit

from finetune import data, sources
from finetune.data import Prepared
from finetune.doctor import BEGIN, END, Check
from finetune.doctor_group import check_group
from finetune.encode import IGNORED
from finetune.errors import FinetuneError
from finetune.plan import Plan
from finetune.reader import Reader, load_reader
from finetune.storage import is_bucket
from finetune.tasks import TASKS

ROWS = 8
SHOWN = 1_200
"""Characters of a row at most: its end, where the answer is."""
NF4_ERROR = 0.2
"""Relative error of a product with NF4 weights, at most: some 0.1 for normally distributed ones."""


def main(plan_path: str, answer: str) -> int:
    """Write the checks of a plan to `answer`."""
    plan = Plan.from_json(Path(plan_path).read_text())
    devices = [torch.device("cuda", 0)] if torch.cuda.is_available() and not plan.launch.use_cpu else []
    checks = [*check_torch(plan), *(check_products(device) for device in devices or [torch.device("cpu")])]
    if plan.launch.processes_per_node > 1 and devices:
        with TemporaryDirectory(prefix="gemma4-doctor-") as folder:
            checks.append(check_group("NCCL", "nccl", plan.launch.processes_per_node, Path(folder)))
    checks += check_rows(plan, Path(answer).parent)
    Path(answer).write_text(json.dumps([asdict(check) for check in checks]))
    return 0


def check_torch(plan: Plan) -> Iterator[Check]:
    """The build of torch against the cards, and NCCL."""
    build = f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}"
    if plan.launch.use_cpu:
        yield Check("torch", "ok", build)
        return
    if not torch.cuda.is_available():
        yield Check("torch", "fail", f"{build}: sees no GPU", "install the locked torch, and see the driver")
        return
    known = torch.cuda.get_arch_list()
    missing = sorted({arch for number in range(torch.cuda.device_count()) if (arch := _arch(number)) not in known})
    without = [arch for arch in missing if not _runs(arch, known)]
    remedy = "install the locked torch: requirements.lock" if without else ""
    found = f"{build}, kernels for {', '.join(known)}" + (f"; none for {', '.join(without)}" if without else "")
    yield Check("torch", "fail" if without else "ok", found, remedy)


def _arch(number: int) -> str:
    major, minor = torch.cuda.get_device_capability(number)
    return f"sm_{major}{minor}"


def _runs(arch: str, known: list[str]) -> bool:
    """A card runs kernels of its own generation that are not newer than it is."""
    kind, minor = arch[:-1], int(arch[-1])
    return any(built[:-1] == kind and built[-1].isdigit() and int(built[-1]) <= minor for built in known)


def check_products(device: torch.device) -> Check:
    """A matrix product with NF4 weights, against the same in fp32."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(256, 512, generator=generator).to(device)
    rows = torch.randn(16, 512, generator=generator).to(device)
    wide = torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    try:
        packed, state = quantize_4bit(weight.to(wide), quant_type="nf4", compress_statistics=True)
        found = matmul_4bit(rows.to(wide), packed.t(), quant_state=state).float()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        remedy = "install the locked bitsandbytes and torch: requirements.lock"
        return Check("NF4", "fail", f"on {device}: {str(error).splitlines()[0]}", remedy)
    right = rows @ weight.T
    off = float((found - right).norm() / right.norm())
    if off < NF4_ERROR:
        return Check("NF4", "ok", f"a product on {device} is {off:.0%} off, as 4 bits are")
    remedy = "bitsandbytes and torch do not fit together: requirements.lock"
    return Check("NF4", "fail", f"a product on {device} is {off:.0%} off", remedy)


def check_rows(plan: Plan, scratch: Path) -> Iterator[Check]:
    """The tokenizer and its template, and the first rows as they will be trained on."""
    settings, task = plan.settings, TASKS[plan.settings.task]
    try:
        if is_bucket(settings.model_id) or (settings.dataset and is_bucket(settings.dataset)):
            local = sources.gather(plan, scratch)
            model = local.model if is_bucket(settings.model_id) else settings.model_id
            settings = replace(settings, model_id=model, dataset=local.dataset or settings.dataset)
        reader = load_reader(settings, task.IMAGES)
        yield Check("chat template", "ok", "opens its own turn, and ends it as Gemma 4 does")
        few = replace(settings, train_size=ROWS, eval_size=0)
        prepared = data.prepare(task, few, reader, train=True)
    except FinetuneError as error:
        yield Check("rows", "fail", error.message, error.hint)
        return
    lengths = [len(ids) for ids in prepared.train["input_ids"]]
    dropped = prepared.record["train"]["dropped"]
    left_out = ", ".join(f"{reason} ({of['count']})" for reason, of in dropped.items())
    found = f"the first {len(lengths)} fit, of {min(lengths)} to {max(lengths)} tokens (--max-length {few.max_length})"
    yield Check("rows", "warn" if dropped else "ok", found + (f"; left out: {left_out}" if dropped else ""))
    yield Check("what is trained on", "ok", shown(prepared, reader))


def shown(prepared: Prepared, reader: Reader) -> str:
    """The first row, decoded, with what is trained on in brackets."""
    row = prepared.train[0]
    pairs = zip(row["input_ids"], row["labels"], strict=True)
    parts = groupby(pairs, key=lambda pair: pair[1] != IGNORED)
    spoken = [(trained, reader.tokenizer.decode([token for token, _ in part])) for trained, part in parts]
    return "".join(f"{BEGIN}{text}{END}" if trained else text[-SHOWN:] for trained, text in spoken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
