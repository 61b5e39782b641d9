"""How numbers, times and machines are written, the same in every report."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

SPELLINGS = {"sql": "SQL", "f1": "F1", "lora": "LoRA"}
NO_VALUE = "–"


def machine(found: Mapping[str, Any]) -> str:
    """8 × NVIDIA B200 (178 GiB), or CPU (2 cores) where there is none."""
    models = Counter((gpu["name"], gpu["memory_gib"]) for gpu in found["gpus"])
    if not models:
        return f"CPU ({found['cpu_cores']} cores)"
    return ", ".join(
        f"{count} × {name}" + (f" ({gib:.0f} GiB)" if gib else "") for (name, gib), count in models.items()
    )


def label(name: str) -> str:
    """execution_accuracy -> Execution accuracy, valid_sql -> Valid SQL."""
    words = " ".join(SPELLINGS.get(word, word) for word in name.split("_"))
    return words[:1].upper() + words[1:]


def percent(share: float) -> str:
    """0.714 -> 71.4 %. The space does not break."""
    return f"{share * 100:.1f}\u00a0%"


def amount(number: float, unit: str) -> str:
    """A metric's value: 71.4 % of a share, 0.812 of what has a unit."""
    return f"{number:.3f}" if unit else percent(number)


def span(low: float, high: float, unit: str) -> str:
    """An interval, in the same terms: 64.6–77.3, or 0.780–0.844."""
    return f"{low:.3f}–{high:.3f}" if unit else f"{low * 100:.1f}–{high * 100:.1f}"


def change(points: float | None) -> str:
    """+68.3 points, with a real minus sign for less."""
    return f"{signed(round(points, 1))} points" if points is not None else NO_VALUE


def signed(number: float) -> str:
    """+138, −3.0, 0."""
    return f"{number:+,}".replace("-", "−") if number else "0"


def duration(seconds: float) -> str:
    """0.2 s, 11 s, 1 min 10 s, 2 h 31 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def day(moment: str) -> str:
    """An ISO 8601 moment, to the minute, in its own time zone."""
    parsed = datetime.fromisoformat(moment)
    zone = parsed.tzname() or ""
    return f"{parsed:%Y-%m-%d %H:%M} {zone}".strip()


def value(item: Any) -> str:
    """A setting or a count as text: 10,000 · 1e-05 · yes · none."""
    match item:
        case None:
            return NO_VALUE
        case bool():
            return "yes" if item else "no"
        case int():
            return f"{item:,}"
        case float():
            return f"{item:g}"
        case _:
            return str(item)
