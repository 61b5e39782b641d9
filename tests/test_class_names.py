"""The class is read from an answer as a person would: whole words, the longest name, whatever the spelling."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.tasks.class_names import distinct, folded, read, spoken

CLASSES = ("American Bulldog", "Bulldog", "Yorkshire terrier", "British shorthair", "St. Bernard", "C++", "Sphynx")

READ: list[tuple[str, tuple[str, ...]]] = [
    ("Bulldog", ("Bulldog",)),
    ("american bulldog", ("American Bulldog",)),
    ("It is a Yorkshire Terrier.", ("Yorkshire terrier",)),
    ("**British_Shorthair**", ("British shorthair",)),
    ("Answer: british-shorthair\n", ("British shorthair",)),
    ('"St. Bernard"', ("St. Bernard",)),
    ("That would be C++!", ("C++",)),
    ("C", ()),
    ("Bulldogs", ()),
    ("An American Bulldog or a Bulldog", ("American Bulldog", "Bulldog")),
    ("an American  Bulldog", ("American Bulldog",)),
    ("Sphynx, not a Bulldog", ("Sphynx", "Bulldog")),
    ("Sphynx. Yes, Sphynx", ("Sphynx",)),
    ("some other cat", ()),
    ("", ()),
    ("ＳＰＨＹＮＸ", ("Sphynx",)),  # full-width letters
]


@pytest.mark.parametrize(("text", "names"), READ)
def test_names_are_read(text: str, names: tuple[str, ...]) -> None:
    assert read(text, CLASSES) == names


NAME = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"], exclude_characters="_"), min_size=1, max_size=12)


@settings(deadline=None)
@given(st.lists(NAME, min_size=1, max_size=6))
def test_every_class_is_read_back_from_itself(labels: list[str]) -> None:
    classes = distinct(labels)
    assert len({folded(name) for name in classes}) == len(classes)
    for name in classes:
        assert read(name, classes) == (name,)
        assert read(f"  {name}\n", classes) == (name,)


@settings(deadline=None)
@given(st.lists(st.from_regex(r"[A-Za-z]{2,8}( [A-Za-z]{2,8})?", fullmatch=True), min_size=1, max_size=6))
def test_words_around_a_name_and_its_spelling_change_nothing(labels: list[str]) -> None:
    classes = distinct(label for label in labels if not label.lower().startswith(("a ", "an ", "the ")))
    for name in classes:
        for text in (f"1: {name}.", f"**{name}**", name.replace(" ", "_").upper(), name.replace(" ", "-"), f'"{name}"'):
            assert read(text, classes) == (name,), text


def test_labels_that_differ_in_spelling_alone_are_one_class() -> None:
    assert distinct(["Maine_Coon", "maine coon", "maine-coon", " Birman ", "", "_"]) == ("Birman", "Maine Coon")
    assert spoken(" great__Pyrenees\t") == "great Pyrenees"
    assert distinct(["A-", "A", "-1", "1"]) == ("-1", "1", "A", "A-"), "signs at an end make a difference"
