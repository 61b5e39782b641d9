"""Names of classes: as a prompt writes them, and as they are found again in what a model wrote.

Names are compared without regard to case, and with underscores, hyphens within and runs of spaces as one space:
`British-Shorthair` is `british_shorthair`. So two labels that differ only in that are one class.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

HYPHENS = "-\u2010\u2011\u2012\u2013\u2014\u2212"
WITHIN = re.compile(rf"(?<=\w)(?:[{HYPHENS}]+| [{HYPHENS}]+ )(?=\w)")
"""Hyphens between words. Others are kept: -1 and 1, or A- and A, are two classes."""
QUOTES = str.maketrans({"’": "'", "‘": "'"})
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Japanese, Chinese
    "\uac00-\ud7a3"  # Korean: spaces between words, but particles grow on them
)
LETTER = rf"[^\W{UNSPACED}]"
"""A character that belongs to the word beside it."""
ARTICLES = ("a ", "an ", "the ")


def spoken(label: str) -> str:
    """A label as it stands in a prompt: `british_shorthair` -> `british shorthair`. May be empty."""
    return " ".join(writable(label).replace("_", " ").split())


def writable(text: str) -> str:
    """`text` with a question mark for half a surrogate pair, which no tokenizer and no Arrow table takes."""
    return text.encode("utf-8", "replace").decode()


def folded(text: str) -> str:
    """`text` without the differences that are none between two names. Text of any length."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).translate(QUOTES)
    return WITHIN.sub(" ", " ".join(plain.replace("_", " ").split()))


def distinct(labels: Iterable[str]) -> tuple[str, ...]:
    """The classes that the labels name, in alphabetical order; of several spellings, the first in that order."""
    names: dict[str, str] = {}
    for name in sorted({spoken(label) for label in labels} - {""}, key=lambda name: (name.casefold(), name)):
        names.setdefault(folded(name), name)
    return tuple(names.values())


@lru_cache(maxsize=4)
def by_folded(classes: tuple[str, ...]) -> dict[str, str]:
    """The classes by their folded names."""
    return {folded(name): name for name in classes}


def read(text: str, classes: tuple[str, ...]) -> tuple[str, ...]:
    """The classes that `text` names, each once, in its order; () if it names none.

    A name counts where it stands as whole words, and not within a longer name: `an American Bulldog` does not
    name the class Bulldog. Nor does an article in front of a name: `It is a B` does not name the class A.
    """
    names, pattern = _pattern(classes)
    return tuple(dict.fromkeys(names[found] for found in pattern.findall(folded(text))))


@lru_cache(maxsize=4)
def _pattern(classes: tuple[str, ...]) -> tuple[dict[str, str], re.Pattern[str]]:
    """What may be found, each with its class, and the expression that finds the longest at each place."""
    plain = by_folded(classes)
    names = {article + key: name for article in ARTICLES for key, name in plain.items()} | plain
    longest_first = sorted(names, key=lambda key: (-len(key), key))
    return names, re.compile("|".join(map(_whole, longest_first)) if classes else r"(?!)")


def _whole(key: str) -> str:
    before = rf"(?<!{LETTER})" if re.match(LETTER, key) else ""
    after = rf"(?!{LETTER})" if re.match(LETTER, key[-1]) else ""
    return before + re.escape(key) + after
