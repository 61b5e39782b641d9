"""What the rows of a run look like, before anything is trained: lengths, doubles, leaks, empty answers. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from finetune.encode import Encoded
from finetune.selection import SplitCounts
from finetune.tasks.base import Example

BUCKETS = 16
ROWS_NAMED = 5
BARS = "▁▂▃▄▅▆▇█"


def look_at(rows: Sequence[Encoded], scored: Sequence[Encoded], counts: Mapping[str, SplitCounts]) -> dict[str, Any]:
    """The report on the training rows, and on the rows that are measured on.

    `duplicates`: training rows of which an earlier one has the same prompt, images and answer. `leaked`: rows to
    measure on whose prompt and images are trained on as well. `empty`: rows left out because something in them is.
    """
    lengths = [row.longest for row in rows]
    seen: set[Any] = set()
    duplicates = [row.example.row for row in rows if not _is_new((_asked(row.example), row.example.answer), seen)]
    trained = {_asked(row.example) for row in rows}
    leaked = [row.example.row for row in scored if _asked(row.example) in trained]
    dropped = [item for count in counts.values() for item in count.dropped.items()]
    return {
        "lengths": {
            "shortest": min(lengths),
            "median": median(lengths),
            "longest": max(lengths),
            "histogram": _histogram(lengths),
        },
        "duplicates": _told(duplicates),
        "leaked": {**_told(leaked), "of": len(scored)},
        "empty": sum(found.count for reason, found in dropped if "empty" in reason),
    }


def lines(report: Mapping[str, Any]) -> list[str]:
    """The report for a person, a line for each thing."""
    lengths = report["lengths"]
    told = [
        f"tokens a row: {lengths['shortest']:,} to {lengths['longest']:,}, half of them up to {lengths['median']:,.0f}"
        f"  {bars(lengths['histogram'])}"
    ]
    doubles, leaked, empty = report["duplicates"], report["leaked"], report["empty"]
    if doubles["rows"]:
        told.append(f"{doubles['rows']:,} rows are in the data more than once: {_named(doubles)}")
    if leaked["rows"]:
        share = f"{leaked['rows']:,} of the {leaked['of']:,} rows to measure on have a prompt that is trained on"
        told.append(f"{share}, so that the result is too good: {_named(leaked)}")
    if empty:
        told.append(f"{empty:,} rows were left out because something in them is empty")
    good = [
        name
        for name, found in (("row twice", doubles["rows"]), ("leak", leaked["rows"]), ("empty answer", empty))
        if not found
    ]
    return [*told, f"no {', no '.join(good)}"] if good else told


def bars(histogram: Sequence[int]) -> str:
    """Counts as a row of bars, each of one character; an empty place where nothing is."""
    most = max(histogram, default=0)
    return "".join(BARS[(count * len(BARS) - 1) // most] if count else " " for count in histogram)


def _histogram(lengths: Sequence[int]) -> list[int]:
    """Numbers of rows in BUCKETS stretches of equal width, from the shortest to the longest."""
    low, width = min(lengths), (max(lengths) - min(lengths) + 1) / BUCKETS
    counts = [0] * BUCKETS
    for length in lengths:
        counts[int((length - low) / width)] += 1
    return counts


def _asked(example: Example) -> Any:
    return example.prompt, example.images


def _is_new(key: Any, seen: set[Any]) -> bool:
    size = len(seen)
    seen.add(key)
    return len(seen) > size


def _told(rows: Iterable[int]) -> dict[str, Any]:
    found = list(rows)
    return {"rows": len(found), "first": found[:ROWS_NAMED]}


def _named(found: Mapping[str, Any]) -> str:
    more = ", ..." if found["rows"] > len(found["first"]) else ""
    return f"row{'s' if found['rows'] > 1 else ''} {', '.join(map(str, found['first']))}{more}"
