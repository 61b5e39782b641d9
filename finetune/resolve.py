"""Request + Machine + Facts -> Plan: every value with its source, every problem at once. Pure.

`draft` names what has to be looked up (facts.py) before `resolve` can settle the rest.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, cast

from finetune.checks import Proposal, find_earlier_problems, find_merge_notes, find_notes, find_problems
from finetune.earlier import Decision, Earlier, decide
from finetune.embedded import EMBEDDED
from finetune.errors import FinetuneError, UsageError, UsageErrors
from finetune.facts import Facts
from finetune.fit import judge, memory_of
from finetune.forecast import Place, forecast_data, forecast_time
from finetune.hardware import ASSUMED, Gpu, Machine
from finetune.known_models import known_config
from finetune.memory import Work, estimate
from finetune.plan import BY_USER, Launch, Plan, Source
from finetune.profiles import (
    BY_NAME,
    EMBEDDED_DATA,
    EMBEDDED_MODEL,
    EMBEDDED_TASKS,
    Match,
    Setup,
    accepts,
    alike,
    count,
    match,
    set_up,
)
from finetune.request import PROFILE, Request
from finetune.settings import DEFAULTS, Settings
from finetune.shapes import TEXT_LAYER_CLASS, adapter_size
from finetune.tasks import TASKS
from finetune.tasks.base import Task

FSDP_CONFIG = "fsdp2.yaml"


def draft(request: Request, machine: Machine) -> dict[str, Any]:
    """The values of a run as far as they are known before anything is looked up."""
    if request.saved:
        return {**asdict(request.saved.settings), **_given(request)}
    matched, _, _ = _choose(request, machine)
    return _layer(request, matched, None)[0]


def resolve(request: Request, machine: Machine, facts: Facts) -> Plan:
    """Settle a run. Raises UsageErrors with every problem found."""
    problems = list(request.problems)
    matched, machine, found = _repeat(request, machine) if request.saved else _choose(request, machine)
    problems += found
    values, sources, gpus, setup_note = _layer(request, matched, facts)
    values |= {"model_id": facts.model.name, "dataset": facts.dataset, **facts.outputs}
    values["grace_seconds"] = values["grace_seconds"] or facts.grace_seconds
    notes = [setup_note] if setup_note else []
    if values["max_new_tokens"] >= values["max_length"] and sources["max_new_tokens"] not in BY_USER:
        values["max_new_tokens"] = max(1, values["max_length"] // 2)
        notes.append(
            f"max_new_tokens is lowered to {values['max_new_tokens']}, to fit into max_length {values['max_length']}"
        )
    merges = request.command == "merge"
    if merges:  # one process, which sees every GPU; how the machine would train is no matter
        values["merge"], gpus, notes = True, gpus[:1], []
    nodes = request.nodes.count
    alone = values["gradient_accumulation_steps"]
    shared = max(1, round(alone / nodes))
    if shared < alone and gpus and not request.saved and sources["gradient_accumulation_steps"] not in BY_USER:
        values["gradient_accumulation_steps"] = shared
        notes.append(f"gradient_accumulation_steps is {shared}, not {alone}: {nodes} nodes share the rows of a step")
    proposal = Proposal(request, values, facts, machine, max(1, len(gpus)) * nodes, len(matched.gpus))
    problems += find_problems(proposal)
    memory, too_much = _memory(request, facts, values, gpus)
    if memory and not memory["fits"] and not request.what_if:
        told, _, hint = too_much.partition("; ")
        problems.append(UsageError(f"{request.where('model_id')}: {told}", hint))
    notes += [too_much] if too_much else []
    published = matched.profile.published if values["task"] == "text-to-sql" and not request.saved else ""
    notes += [published] if published else []
    notes += [_without_bf16(gpus[0])] if gpus and not gpus[0].bf16 else []
    data = None if merges else forecast_data(TASKS[values["task"]], values, facts.sample, request.split)
    threads = 1 if facts.model.kind == "embedded" else machine.cpu_cores
    place = Place(gpus, machine.gpus if gpus else (), nodes, threads)
    plan = Plan(
        command=request.command,
        settings=Settings(**values),
        sources=cast("dict[str, Source]", sources),
        profile=matched.profile.name,
        reason=matched.reason,
        launch=_launch(matched.profile.accel_config, gpus, nodes, machine, facts, all_visible=merges),
        machine=asdict(machine),
        notes=(*notes, *(find_merge_notes if merges else find_notes)(proposal)),
        adapter=_adapter(facts, values) if request.command == "run" else None,
        memory=memory,
        data=data,
        time=forecast_time(facts.model.config, values, data, place, trains=request.command == "run"),
        adapter_path=facts.adapter,
        split=request.split,
    )
    decision = decide(plan, facts.earlier) if request.command == "run" else Decision("new")
    problems += find_earlier_problems(request, facts.earlier, decision, values["output_dir"])
    if problems:
        raise UsageErrors(problems)
    return replace(plan, start=decision.start, notes=(*plan.notes, *_earlier_notes(facts.earlier, decision)))


def _earlier_notes(earlier: Earlier, decision: Decision) -> list[str]:
    """What a user should know of an earlier run in the same place."""
    refused = [f"a run there would be refused: {'; '.join(decision.differs)}"] if decision.differs else []
    skipped = [f"{name} does not count: {reason}" for name, reason in earlier.skipped.items()]
    return [*([decision.note] if decision.note else []), *refused, *skipped]


def _given(request: Request) -> dict[str, Any]:
    return {name: item.value for name, item in request.given.items() if name != PROFILE}


def _choose(request: Request, machine: Machine) -> tuple[Match, Machine, list[FinetuneError]]:
    """The profile: the user's, the CPU's if they ask for it, else the machine's own. With the problems of that."""
    device = request.given["device"].value if "device" in request.given else "auto"
    named = request.given.get(PROFILE)
    if named and device == "cpu" and named.value != "cpu":
        hint = "leave one of them out"
        return (
            match(machine),
            machine,
            [UsageError(f"{named.where}: {named.value} needs a GPU, but --device says cpu", hint)],
        )
    if device == "cpu" or (named and named.value == "cpu"):
        asked = named.where if named else request.where("device")
        return Match(BY_NAME["cpu"], (), f"asked for by {asked}"), machine, []
    if named:
        return _named(request, machine)
    matched = match(machine)
    if device == "cuda" and not matched.gpus:
        hint = "write --device cpu, or see why nvidia-smi shows no GPU"
        return matched, machine, [UsageError(f"{request.where('device')}: no GPU to use: {machine.note}", hint)]
    return matched, machine, []


def _named(request: Request, machine: Machine) -> tuple[Match, Machine, list[FinetuneError]]:
    """A profile by name: on this machine if it can run it, on an assumed one for a plan, else a problem."""
    named = request.given[PROFILE]
    profile = BY_NAME[named.value]
    gpus, _ = alike(machine.gpus)
    if accepts(profile, gpus):
        return Match(profile, gpus, f"asked for by {named.where}; found {count(gpus)}"), machine, []
    wanted, found = count(profile.assumes), count(gpus)
    reason = f"asked for by {named.where}: what would run on {wanted}; this machine has {found}"
    assumed = replace(machine, gpus=profile.assumes, driver=None, note=ASSUMED)
    if request.what_if:
        return Match(profile, profile.assumes, reason), assumed, []
    general = "a GPU" if profile.max_gpus else f"{profile.min_gpus} GPUs or more"
    needs = f"{profile.min_gpus} x {profile.gpu}" if profile.gpu else general
    own = match(machine).profile.name
    hint = f"leave it out ({own} fits this machine), or only look: entrypoint.py plan --profile {profile.name}"
    problem = UsageError(f"{named.where}: {profile.name} needs {needs}; this machine has {found}", hint)
    return Match(profile, profile.assumes, reason), assumed, [problem]


def _repeat(request: Request, machine: Machine) -> tuple[Match, Machine, list[FinetuneError]]:
    """The saved plan's profile on this machine's GPUs, if it has as many, as large, as the plan was made for."""
    saved = cast(Plan, request.saved)
    profile = BY_NAME.get(saved.profile, BY_NAME["cpu"])
    problems: list[FinetuneError] = [
        UsageError(f"{request.where(name)}: cannot be changed with --plan", "leave one of them out, and plan anew")
        for name in (PROFILE, "device")
        if name in request.given
    ]
    reason = f"repeats a saved plan ({saved.profile}: {saved.reason})"
    if saved.launch.num_nodes != request.nodes.count:
        message = f"--plan: made for {saved.launch.num_nodes} node(s); NUM_NODES says {request.nodes.count}"
        problems.append(UsageError(message, f"set NUM_NODES={saved.launch.num_nodes}, or plan anew"))
    if saved.launch.use_cpu:
        return Match(profile, (), reason), machine, problems
    gpus, _ = alike(machine.gpus)
    wanted = saved.launch.processes_per_node
    there = gpus[:wanted]
    planned = [Gpu(**gpu) for gpu in saved.machine["gpus"]][:wanted]
    least = min((gpu.memory_gib or 0.0 for gpu in planned), default=0.0)
    smallest = min((gpu.memory_gib or least for gpu in there), default=0.0)
    if len(there) < wanted or smallest < 0.95 * least:
        told = f"{count(gpus)}" + (f" of {smallest:.0f} GiB" if there else "")
        message = f"--plan: made for {count(tuple(planned))} of {least:.0f} GiB; this machine has {told}"
        problems.append(UsageError(message, "plan anew for this machine: entrypoint.py plan"))
        return Match(profile, tuple(planned), reason), machine, problems
    return Match(profile, there, reason), machine, problems


def _layer(
    request: Request, matched: Match, facts: Facts | None
) -> tuple[dict[str, Any], dict[str, str], tuple[Gpu, ...], str]:
    """Values, their sources, the GPUs that get a process, and a note: defaults, profile, task, model, user."""
    given = _given(request)
    if request.saved:
        sources: dict[str, str] = dict(request.saved.sources)
        sources |= {name: request.given[name].origin for name in given}
        changed = ", ".join(request.given[name].where for name in given)
        note = f"changed from the saved plan by {changed}" if changed else ""
        return {**asdict(request.saved.settings), **given}, sources, matched.gpus, note
    model_id = given.get("model_id") or request.adapter_base
    task = TASKS[{**DEFAULTS, **matched.profile.settings, **request.adapter_settings, **given}["task"]]
    chosen = {**request.adapter_settings, **given, **({"model_id": model_id} if model_id else {})}
    config = facts.model.config if facts else known_config(model_id or "")
    setup = set_up(matched, chosen, task.DEFAULTS, _has_images(task, facts), config)
    model_id = model_id or setup.settings["model_id"]
    own_data = EMBEDDED if EMBEDDED in (model_id, setup.settings.get("dataset")) else task.SOURCE.dataset
    toy_data = given.get("dataset", own_data) == EMBEDDED
    layers: list[tuple[str, Mapping[str, Any]]] = [
        ("default", DEFAULTS),
        ("profile", setup.settings),
        ("task", {"dataset": task.SOURCE.dataset, **task.DEFAULTS, **_shared_step(task, setup, given)}),
        ("adapter", {**request.adapter_settings, "model_id": request.adapter_base} if request.adapter_base else {}),
        ("model", {**EMBEDDED_MODEL, **EMBEDDED_TASKS.get(task.NAME, {})} if model_id == EMBEDDED else {}),
        (
            "model" if model_id == EMBEDDED else "profile",
            {**EMBEDDED_DATA[task.NAME], "dataset": EMBEDDED} if toy_data else {},
        ),
    ]
    values = {name: value for _, layer in layers for name, value in layer.items()} | given
    sources = {name: source for source, layer in layers for name in layer}
    sources |= {name: request.given[name].origin for name in given}
    return values, sources, setup.gpus, setup.note


def _has_images(task: Task, facts: Facts | None) -> bool:
    """Whether rows have images: as the task says, or else as the data do, as far as they are known."""
    if task.IMAGES is not None:
        return task.IMAGES
    return bool(facts and facts.sample and facts.sample.images)


def _shared_step(task: Task, setup: Setup, given: Mapping[str, Any]) -> dict[str, int]:
    """The accumulation that makes a step of as many rows as the task wants, over the GPUs that there are."""
    if task.ROWS_PER_STEP is None:
        return {}
    size = given.get("per_device_train_batch_size", setup.settings["per_device_train_batch_size"])
    rows = size * max(1, len(setup.gpus))
    return {"gradient_accumulation_steps": max(1, round(task.ROWS_PER_STEP / rows))}


def _launch(
    accel_config: str, gpus: tuple[Gpu, ...], nodes: int, machine: Machine, facts: Facts, *, all_visible: bool = False
) -> Launch:
    here = max(1, len(gpus))
    fsdp = here * nodes > 1
    return Launch(
        accel_config=FSDP_CONFIG if fsdp else "gpu1.yaml" if gpus else accel_config,
        num_processes=here * nodes,
        fsdp=fsdp,
        use_cpu=not gpus,
        bf16=bool(gpus) and all(gpu.bf16 for gpu in gpus),
        fsdp_layer_class=_layer_class(facts) if fsdp else None,
        gpus=tuple(gpu.index for gpu in gpus) if 0 < len(gpus) < len(machine.gpus) and not all_visible else None,
        # The toy's matrices are too small to share out: on a busy machine, threads that wait for each other are
        # some fifty times slower than one.
        threads_per_process=1 if facts.model.kind == "embedded" else max(1, machine.cpu_cores // here),
        num_nodes=nodes,
    )


def _layer_class(facts: Facts) -> str:
    kind = facts.model.config["model_type"] if facts.model.config else "gemma4"
    return TEXT_LAYER_CLASS.get(kind, TEXT_LAYER_CLASS["gemma4"])


def _memory(
    request: Request, facts: Facts, values: Mapping[str, Any], gpus: tuple[Gpu, ...]
) -> tuple[dict[str, Any] | None, str]:
    """What each GPU has and needs, and what to say if that is too little."""
    config, there = facts.model.config, memory_of(gpus)
    if not gpus or config is None or request.command == "merge":
        return None, ""
    bf16, images = all(gpu.bf16 for gpu in gpus), _has_images(TASKS[values["task"]], facts)
    work = Work.of(values, images, len(gpus), bf16, trains=request.command == "run")
    found = estimate(config, work)
    too_much, worth_a_try = judge(config, work, there) if there else ("", True)
    told = {"there_gib": there, "stages_gib": found.stages, "host_gib": round(found.host, 1), "fits": worth_a_try}
    return told, too_much


def _without_bf16(gpu: Gpu) -> str:
    return (
        f"{gpu.name} has no bf16 (compute capability {gpu.compute_capability}; 8.0 and later have it): the model is in "
        "fp32, which takes twice the memory and many times as long"
    )


def _adapter(facts: Facts, values: Mapping[str, Any]) -> dict[str, Any] | None:
    if facts.model.config is None:
        return None
    return asdict(adapter_size(facts.model.config, values["lora_targets"], values["lora_r"]))
