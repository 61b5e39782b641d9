"""The order of the modules, read from the files themselves: each imports only what stands before it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

BEFORE = (
    "finetune",
    "finetune.errors",
    "finetune.settings",
    "finetune.nodes",
    "finetune.hardware",
    "finetune.known_gpus",
    "finetune.gcs",
    "finetune.storage",
    "finetune.commits",
    "finetune.shards",
    "finetune.tasks",
    "finetune.pictures",
    "finetune.embedded",
    "finetune.chat",
    "finetune.rows",
    "finetune.image_rows",
    "finetune.chat_rows",
    "finetune.shapes",
    "finetune.known_models",
    "finetune.parameters",
    "finetune.memory",
    "finetune.duration",
    "finetune.fit",
    "finetune.profiles",
    "finetune.plan",
    "finetune.identity",
    "finetune.earlier",
    "finetune.request",
    "finetune.samples",
    "finetune.sampling",
    "finetune.model_facts",
    "finetune.adapter_facts",
    "finetune.hub_cache",
    "finetune.facts",
    "finetune.checks",
    "finetune.forecast",
    "finetune.resolve",
    "finetune.launch",
    "finetune.describe",
    "finetune.doctor",
    "finetune.cli",
    "entrypoint",
)
"""Left of the process boundary: what the command line may load. No torch here."""
AFTER = (
    "finetune.launcher",
    "finetune.embedded.tokenizer",
    "finetune.embedded.tiny",
    "finetune.embedded.build",
    "finetune.reader",
    "finetune.hub",
    "finetune.hub_files",
    "finetune.sources",
    "finetune.weights",
    "finetune.selection",
    "finetune.encode",
    "finetune.data_report",
    "finetune.data",
    "finetune.model",
    "finetune.stopping",
    "finetune.journal",
    "finetune.checkpoint",
    "finetune.evaluate",
    "finetune.token_loss",
    "finetune.order",
    "finetune.training_log",
    "finetune.train",
    "finetune.lora",
    "finetune.merge",
    "finetune.merge_check",
    "finetune.bucket",
    "finetune.stage",
    "finetune.export",
    "finetune.report",
    "finetune.report_numbers",
    "finetune.report_charts",
    "finetune.report_classes",
    "finetune.report_examples",
    "finetune.report_images",
    "finetune.report_text",
    "finetune.report_html",
    "finetune.workplace",
    "finetune.run_stages",
    "finetune.doctor_group",
    "finetune.doctor_worker",
    "finetune.worker",
)
"""Right of it: what runs in the processes that accelerate starts."""
ORDER = (*BEFORE, *AFTER)
LAZY = ("finetune.tasks.sql_", "finetune.tasks.class_metrics")
"""Parts of tasks that score: imported inside functions, by the worker. They may load what they need."""
HEAVY = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "datasets",
    "accelerate",
    "huggingface_hub",
    "bitsandbytes",
    "evaluate",
)
SLOW = ("numpy", "pandas", "pyarrow", "sqlglot", "jinja2", "PIL", "tokenizers", "safetensors")
FILES = [ROOT / "entrypoint.py", *sorted((ROOT / "finetune").rglob("*.py"))]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def rank(module: str) -> int:
    """Place in ORDER of the longest entry that the module is, or lies in."""
    matches = [entry for entry in ORDER if module == entry or module.startswith(f"{entry}.")]
    own = [entry for entry in matches if entry != "finetune" or module == "finetune"]
    if not own:
        raise LookupError(f"{module} has no place: add it to ORDER in {Path(__file__).name}")
    return ORDER.index(max(own, key=len))


def imports(tree: ast.AST, at_module_level: bool) -> Iterator[str]:
    """Names of imported modules. `from finetune import x` names finetune.x where that is a module."""
    skip = (ast.FunctionDef, ast.AsyncFunctionDef) if at_module_level else ()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if exists(name) else node.module for name in modules)
        elif not isinstance(node, skip) and not (at_module_level and for_types_alone(node)):
            yield from imports(node, at_module_level)


def for_types_alone(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def exists(module: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_module_imports_only_what_stands_before_it(path: Path) -> None:
    own = rank(module_of(path))
    for name in imports(ast.parse(path.read_text()), at_module_level=False):
        if name.startswith("finetune"):
            assert rank(name) <= own, f"{module_of(path)} imports {name}, which stands after it"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_nothing_before_the_boundary_imports_the_heavy_libraries(path: Path) -> None:
    module = module_of(path)
    if rank(module) >= len(BEFORE) or module.startswith(LAZY):
        return
    for name in imports(ast.parse(path.read_text()), at_module_level=True):
        assert name.split(".")[0] not in HEAVY + SLOW, f"{module} imports {name} at module level"
        assert not name.startswith(LAZY) or name == "finetune.tasks.sql_verdicts", f"{module} imports {name}"


def test_the_files_are_found() -> None:
    assert len(FILES) >= 30
    assert {rank(module_of(path)) for path in FILES} >= {ORDER.index("entrypoint"), ORDER.index("finetune.worker")}


def test_the_order_is_the_designs() -> None:
    designed = (
        "errors hardware storage tasks chat profiles plan launch model checkpoint evaluate train export report worker"
    )
    places = [ORDER.index(f"finetune.{name}") for name in designed.split()]
    assert places == sorted(places)


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_files_are_short_and_catch_what_they_can_handle(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    assert path.name not in ("utils.py", "helpers.py", "common.py")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"line {node.lineno}: bare except"
            caught = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)}
            assert not caught & {"Exception", "BaseException"}, f"line {node.lineno}: except {caught}"


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["plan"], ["plan", "--profile", "b200x8", "--json"]])
def test_the_command_line_loads_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import entrypoint\n"
        f"try: entrypoint.main({words!r})\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print('LOADED', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    loaded = set(ended.stdout.splitlines()[-1].split())
    assert "LOADED" in loaded
    assert not loaded & {*HEAVY, *SLOW} - ({"tokenizers"} if words == ["plan"] else set()), "plan counts tokens"
