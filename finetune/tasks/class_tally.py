"""What was answered where which class was right, counted: by pairs, and for each class by itself."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from finetune.tasks.base import Confusion

AMBIGUOUS = "ambiguous"
"""The answer names several classes."""
UNKNOWN = "unknown"
"""The answer names none."""


@dataclass(frozen=True)
class Tally:
    """One class: so many examples of it, so many answers that name it, and so many of both.

    Of shares with nothing to divide by (a class without examples, or never answered) there are none.
    """

    rows: int
    answered: int
    right: int

    @property
    def precision(self) -> float | None:
        return self.right / self.answered if self.answered else None

    @property
    def recall(self) -> float | None:
        return self.right / self.rows if self.rows else None

    @property
    def f1(self) -> float | None:
        """The harmonic mean of both; 0 for a class with examples that is never answered, or the other way round."""
        return 2 * self.right / (self.rows + self.answered) if self.rows + self.answered else None


def confuse(classes: tuple[str, ...], expected: Iterable[str], readings: Iterable[tuple[str, ...]]) -> Confusion:
    """Count the pairs. A reading is what class_names.read found in the answer."""
    ambiguous, unknown = (_apart(label, classes) for label in (AMBIGUOUS, UNKNOWN))
    answers = (unknown if not names else names[0] if len(names) == 1 else ambiguous for names in readings)
    return Confusion(classes, (ambiguous, unknown), dict(Counter(zip(expected, answers, strict=True))))


def tally(confusion: Confusion) -> dict[str, Tally]:
    """Every class, in the prompt's order."""
    rows: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    for (expected, answer), count in confusion.counts.items():
        rows[expected] += count
        answered[answer] += count
    return {
        name: Tally(rows[name], answered[name], confusion.counts.get((name, name), 0)) for name in confusion.classes
    }


def _apart(label: str, classes: tuple[str, ...]) -> str:
    """The label, in brackets where a class is called so."""
    return _apart(f"({label})", classes) if label in classes else label
