"""Plan -> the text that a user reads before anything runs. Plain, narrow enough for a terminal."""

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from finetune.forecast import spoken
from finetune.hardware import ASSUMED, Gpu, Machine
from finetune.launch import command
from finetune.nodes import ALONE, Nodes
from finetune.plan import BY_USER, Launch, Plan
from finetune.settings import DEFAULTS, OPTIONS

WIDTH = 100
INDENT = 14
KEPT_TOGETHER = "\u00a0"
BAR = 20
"""Characters of a GPU's memory."""
TITLES = {"run": "fine-tune"}
SHOWN_ELSEWHERE = ("task", "model_id", "dataset", "output_dir")


def describe(plan: Plan, plan_path: str = "plan.json", nodes: Nodes = ALONE) -> str:
    """What the plan does and why, section by section; then the values that are not the defaults."""
    lines = [f"gemma4-finetune: {TITLES.get(plan.command, plan.command)}, task {plan.settings.task}", ""]
    for title, text in _sections(plan, plan_path, nodes):
        lines += _block(title, text)
    settings = _settings(plan)
    heading = ["", "settings that differ from the defaults (value, from where):"]
    return "\n".join([*lines, *(heading if settings else []), *settings]) + "\n"


def _sections(plan: Plan, plan_path: str, nodes: Nodes) -> Iterator[tuple[str, str]]:
    yield "machine", _machine(plan)
    yield "profile", f"{plan.profile}: {plan.reason}"
    yield "model", _model(plan)
    if plan.command == "run":
        yield "trains", _trains(plan)
        yield "batch", _batch(plan)
    if plan.memory is not None:
        yield from _memory(plan.memory)
    if plan.command != "merge":
        yield "data", _data(plan)
        yield "measures", _measures(plan)
    if plan.command != "merge":
        yield from _time(plan)
    yield "leaves", _leaves(plan)
    yield "launch", " ".join(command(plan, plan_path, "python", nodes))
    for note in plan.notes:
        yield "note", note


def _block(title: str, text: str) -> list[str]:
    pad = " " * INDENT
    body = wrap(text, WIDTH, initial_indent=pad, subsequent_indent=pad, break_on_hyphens=False, break_long_words=False)
    body = [line.replace(KEPT_TOGETHER, " ") for line in body]
    return [title.ljust(INDENT) + body[0].strip(), *body[1:]]


def _machine(plan: Plan) -> str:
    facts = {**plan.machine, "gpus": tuple(Gpu(**gpu) for gpu in plan.machine["gpus"])}
    machine = Machine(**facts)
    kinds: dict[str, list[Gpu]] = {}
    for gpu in machine.gpus:
        memory = "split with MIG" if gpu.mig and not gpu.memory_gib else f"{gpu.memory_gib or '?'} GiB each"
        kinds.setdefault(f"{gpu.name} ({memory})", []).append(gpu)
    parts = [f"{len(gpus)} x {kind}" for kind, gpus in kinds.items()] or ["no GPU"]
    parts += [f"driver {machine.driver}"] if machine.driver else []
    if machine.note != ASSUMED:
        parts += [f"{machine.cpu_cores} CPU cores"] + ([f"{machine.ram_gib} GiB RAM"] if machine.ram_gib else [])
    return ", ".join(parts) + (f" ({machine.note})" if machine.note else "")


def _model(plan: Plan) -> str:
    if plan.command == "merge":
        return f"{plan.settings.model_id}, in its own precision, and the adapter {plan.adapter_path}"
    precision = "NF4" if plan.settings.quantization == "nf4" else "bf16" if plan.launch.bf16 else "fp32"
    where = "on the CPU" if plan.launch.use_cpu else _sharding(plan.launch) if plan.launch.fsdp else "on one GPU"
    adapter = f", with the adapter {plan.adapter_path}" if plan.adapter_path else ""
    return f"{plan.settings.model_id} in {precision}, {where}{adapter}"


def _sharding(launch: Launch) -> str:
    if launch.num_nodes > 1 and launch.processes_per_node > 1:
        return f"sharded over the {launch.processes_per_node} GPUs of each of {launch.num_nodes} nodes"
    nodes = f" of {launch.num_nodes} nodes" if launch.num_nodes > 1 else ""
    return f"sharded over {launch.num_processes} GPUs{nodes}"


def _memory(memory: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A bar for each stage: what is wanted of what is there, on each GPU."""
    there = memory["there_gib"]
    for place, (stage, parts) in enumerate(memory["stages_gib"].items()):
        wanted = sum(parts.values())
        shown = ", ".join(f"{name}{KEPT_TOGETHER}{size:.1f}" for name, size in parts.items() if size >= 0.05)
        if there:
            filled = min(BAR, round(BAR * wanted / there))
            bar = f"[{'#' * filled}{'.' * (BAR - filled)}] {wanted:.1f} of {there:.1f} GiB"
        else:
            bar = f"{wanted:.1f} GiB"
        padded = stage.ljust(9, KEPT_TOGETHER)
        yield "memory" if place == 0 else "", f"{padded} {bar}: {shown}"


def _trains(plan: Plan) -> str:
    settings = plan.settings
    how = f"a LoRA adapter (r {settings.lora_r}, alpha {settings.lora_alpha}) "
    if settings.lora_targets == "text":
        how += "on the text projections (the vision tower is never adapted)"
    else:
        how += "on every linear layer, vision tower included"
    if plan.adapter is None:
        return how + "; the model's config.json is not here yet, so its size is told when it has been loaded"
    parts = ", ".join(
        f"{part}: {plan.adapter['modules'][part]} modules, {plan.adapter['parameters'][part]:,} parameters"
        for part in plan.adapter["modules"]
    )
    return f"{how}; {parts}"


def _batch(plan: Plan) -> str:
    settings, unit = plan.settings, "process" if plan.launch.use_cpu else "GPU"
    processes = f"{plan.launch.num_processes} {unit}{'' if plan.launch.num_processes == 1 else 's'}"
    length = f"{settings.max_steps} steps" if settings.max_steps else f"{settings.num_train_epochs:g} epoch(s)"
    return (
        f"{settings.per_device_train_batch_size} a {unit} x {settings.gradient_accumulation_steps} micro-batches"
        f" x {processes} = {plan.rows_per_step} rows a step; "
        f"{length}, learning rate {settings.learning_rate:g} {settings.lr_scheduler_type}"
    )


def _data(plan: Plan) -> str:
    settings, found = plan.settings, plan.data
    if plan.command == "evaluate":
        return f"{settings.dataset}, {plan.split} rows"
    if found is None:
        return f"{settings.dataset}: not looked at yet; its rows are counted when the run starts"
    divided = f" ({found['undivided']:,} rows in one table, divided by the seed)" if found["undivided"] else ""
    images = f" and {_number(found['images'])} image(s)" if found["images"] else ""
    return (
        f"{settings.dataset}: {found['train']:,} rows to train on, {found['test']:,} held out{divided}; a row has about"
        f" {found['prompt'] + found['answer']:,.0f} tokens, {found['answer']:,.0f} of them trained on{images}"
        f" ({found['how']})"
    )


def _number(value: float) -> str:
    return f"{value:.2g}"


def _time(plan: Plan) -> Iterator[tuple[str, str]]:
    """Hours and money, with what they rest on."""
    time = plan.time
    if time is None:
        what = "model" if plan.memory is None and not plan.launch.use_cpu else "data or the GPU"
        yield "time", f"not estimated: the {what} is not known here yet; told once the first steps are measured"
        return
    stages = ", ".join(
        f"{name}{KEPT_TOGETHER}{_spoken(took)}" for name, took in time["seconds"].items() if name != "total"
    )
    count = time["tokens"]
    tokens = f"{count / 1e6:,.3g} M" if count >= 1e6 else f"{count:,}"
    trained = f"{time['steps']:,} steps, {tokens} tokens: " if time["steps"] else ""
    peak = time["peak_tflops"]
    each = f" of {peak / plan.launch.num_processes:,.0f} TFLOP/s a GPU" if peak else " of what the CPU could do"
    assumed = f"assuming {time['share_of_peak']:.0%}{each}; the first steps correct it"
    yield "time", f"{trained}about {_spoken(time['seconds']['total'])} ({stages}), {assumed}"
    if time["dollars"] is not None:
        yield "cost", f"about ${time['dollars']:,.2f}, at ${time['dollars_an_hour']:,.2f} an hour ({time['price']})"
    elif peak:
        yield "cost", "no list price is known for this machine; write --price-per-hour DOLLARS to see it"


def _spoken(seconds: float) -> str:
    return spoken(seconds).replace(" ", KEPT_TOGETHER)


def _measures(plan: Plan) -> str:
    settings = plan.settings
    if not settings.eval_size:
        return "nothing (eval_size 0)"
    measured = settings.eval_size if plan.data is None else plan.data["measured"]
    if not measured:
        return f"nothing: the data has no {plan.split} rows"
    rows = f"{measured} rows" + (", before and after training" if plan.command == "run" else "")
    return f"{rows}, answers of up to {settings.max_new_tokens} tokens"


def _leaves(plan: Plan) -> str:
    settings = plan.settings
    also = (
        ("a merged model", settings.merge and plan.command == "run"),
        (f"metrics in {settings.results_file}", settings.results_file and plan.command == "run"),
        ("the adapter on the hub", settings.push_to_hub),
        (f"a copy in {settings.gcs_output_path}", settings.gcs_output_path),
    )
    what = "report.html, metrics.json, predictions"
    if plan.command == "run":
        what = f"adapter, {what}"
    left = [f"{plan.place}/merged/: the model"] if plan.command == "merge" else [f"{plan.place}/: {what}"]
    return ", ".join([*left, *(text for text, wanted in also if wanted)])


def _settings(plan: Plan) -> list[str]:
    """Two columns of `name value (source)`, for values that the user gave or that are not the defaults."""
    values = vars(plan.settings)
    cells = [
        f"{name} {_value(values[name])} ({plan.sources[name]})"
        for name in OPTIONS
        if name not in SHOWN_ELSEWHERE
        and plan.sources[name] != "default"
        and (plan.sources[name] in BY_USER or (values[name] != DEFAULTS[name] and plan.command != "merge"))
    ]
    half = (len(cells) + 1) // 2
    width = max((len(cell) for cell in cells[:half]), default=0) + 3
    rows = [(cells[i], cells[i + half] if i + half < len(cells) else "") for i in range(half)]
    return [f"  {left.ljust(width)}{right}".rstrip() for left, right in rows]


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
