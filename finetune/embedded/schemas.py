"""Schemas with a few rows: tables, columns and values drawn from pools, so that an answer has to be read off them."""

from dataclasses import dataclass
from random import Random
from typing import Literal

Value = str | int
Kind = Literal["label", "text", "number"]

# What a row is called: the column's name varies, so that "which pilots" can only be answered from the schema.
_LABELS = ("name", "title", "label", "code")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_PEOPLE = _words(
    "Ada Ben Cleo Dan Eva Finn Gus Hana Ivo Jane Kai Lena Max Nora Otto Pia Quinn Rosa Sven Tara Uma Vera Will Yara Zoe"
)
_PLACES = _words(
    "Lima Oslo Cairo Delhi Paris Quito Rome Seoul Tokyo Vienna Accra Bern Dakar Hanoi Kyoto Leeds Milan Nice Perth Riga"
)
_THINGS = _words(
    "Atlas Bravo Comet Delta Ember Falcon Galaxy Harbor Indigo Jasper Karma Lotus Meteor Nova Orbit Prism Quartz Raven "
    "Sierra Titan"
)

# table -> (names of its rows, its text columns, its number columns)
_TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "cities": (_PLACES, ("country", "climate", "region"), ("population", "area", "altitude")),
    "pilots": (_PEOPLE, ("grade", "home", "country"), ("age", "flights", "salary")),
    "books": (_THINGS, ("genre", "author", "language"), ("pages", "price", "stock")),
    "films": (_THINGS, ("genre", "director", "country"), ("minutes", "budget", "rating")),
    "shops": (_PLACES, ("owner", "district", "status"), ("revenue", "staff", "area")),
    "players": (_PEOPLE, ("role", "country", "team"), ("age", "goals", "salary")),
    "horses": (_THINGS, ("breed", "color", "owner"), ("age", "weight", "speed")),
    "hotels": (_THINGS, ("region", "owner", "status"), ("rooms", "price", "rating")),
    "students": (_PEOPLE, ("major", "home", "status"), ("age", "credits", "score")),
    "doctors": (_PEOPLE, ("ward", "home", "grade"), ("age", "patients", "salary")),
    "ships": (_THINGS, ("owner", "home", "color"), ("weight", "speed", "crew")),
    "farms": (_PLACES, ("owner", "crop", "region"), ("area", "harvest", "staff")),
    "phones": (_THINGS, ("brand", "color", "status"), ("price", "weight", "stock")),
    "recipes": (_THINGS, ("author", "cuisine", "course"), ("minutes", "calories", "rating")),
    "bridges": (_PLACES, ("material", "country", "status"), ("width", "height", "cost")),
    "rivers": (_PLACES, ("region", "country", "climate"), ("speed", "depth", "width")),
    "singers": (_PEOPLE, ("genre", "language", "country"), ("age", "albums", "score")),
    "drivers": (_PEOPLE, ("team", "home", "status"), ("age", "wins", "points")),
    "planets": (_THINGS, ("color", "climate", "status"), ("mass", "moons", "radius")),
    "museums": (_PLACES, ("district", "owner", "status"), ("visitors", "rooms", "price")),
}

_TEXTS: dict[str, tuple[str, ...]] = {
    "author": ("Blake", "Frost", "Hardy", "Joyce", "Woolf"),
    "brand": ("Apex", "Lyra", "Onyx", "Vega"),
    "breed": ("arab", "cob", "pony", "shire"),
    "climate": ("arid", "cold", "humid", "mild", "tropical"),
    "color": ("black", "blue", "green", "red", "white", "yellow"),
    "country": ("Brazil", "Chile", "Egypt", "India", "Japan", "Kenya", "Norway", "Spain"),
    "course": ("dessert", "main", "snack", "starter"),
    "crop": ("corn", "rice", "rye", "wheat"),
    "cuisine": ("greek", "indian", "thai", "turkish"),
    "director": ("Allen", "Lang", "Scott", "Varda"),
    "district": ("center", "harbor", "north", "south"),
    "genre": ("comedy", "crime", "drama", "fantasy", "jazz"),
    "home": ("Austin", "Boston", "Dallas", "Denver", "Miami"),
    "language": ("Dutch", "Greek", "Hindi", "Latin"),
    "major": ("biology", "history", "law", "physics"),
    "material": ("iron", "steel", "stone", "wood"),
    "owner": ("Clark", "Evans", "Jones", "Smith", "Young"),
    "role": ("defense", "forward", "goalie", "midfield"),
    "grade": ("captain", "chief", "junior", "senior"),
    "region": ("coast", "desert", "island", "valley"),
    "status": ("active", "closed", "open", "planned"),
    "team": ("Bears", "Hawks", "Lions", "Sharks"),
    "ward": ("cardio", "neuro", "trauma", "urology"),
}

# Tables that others can belong to, with the name of one of their rows.
_PARENTS = {"cities": "city", "shops": "shop", "hotels": "hotel", "ships": "ship", "farms": "farm", "museums": "museum"}


@dataclass(frozen=True)
class Column:
    """`kind` says what may be asked of it: the label names a row, text repeats, numbers do not."""

    name: str
    kind: Kind
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Table:
    """A table with all its rows, column by column. `keys` are ids and foreign keys: joined on, never asked for."""

    name: str
    columns: tuple[Column, ...]
    keys: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def of_kind(self, kind: Kind) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.kind == kind)

    def to_sql(self) -> str:
        """CREATE TABLE and INSERT INTO, each ending in a semicolon."""
        declared = [f"{name} INT" for name, _ in self.keys]
        declared += [f"{column.name} {'INT' if column.kind == 'number' else 'TEXT'}" for column in self.columns]
        values = [ids for _, ids in self.keys] + [column.values for column in self.columns]
        records = ", ".join(f"({', '.join(map(_literal, record))})" for record in zip(*values, strict=True))
        return f"CREATE TABLE {self.name} ({', '.join(declared)}); INSERT INTO {self.name} VALUES {records};"


def one_table(random: Random) -> Table:
    """A table of four rows: a label, then one text and one or two number columns, or two text and one number."""
    texts, numbers = random.choice(((1, 1), (1, 2), (2, 1)))
    return _table(random, random.choice(tuple(_TABLES)), texts, numbers, rows=4)


def two_tables(random: Random) -> tuple[Table, Table]:
    """A table and the one its rows belong to: child.<parent>_id refers to parent.id."""
    parent_name = random.choice(tuple(_PARENTS))
    child_name = random.choice([name for name in _TABLES if name not in _PARENTS])
    parent = _table(random, parent_name, texts=1, numbers=0, rows=2)
    child = _table(random, child_name, texts=0, numbers=1, rows=4)
    ids = random.sample(range(1, 10), 2)
    owners = [*ids, random.choice(ids), random.choice(ids)]
    random.shuffle(owners)
    foreign_key = f"{_PARENTS[parent_name]}_id"
    return (
        Table(child.name, child.columns, ((foreign_key, tuple(owners)),)),
        Table(parent.name, parent.columns, (("id", tuple(ids)),)),
    )


def _table(random: Random, name: str, texts: int, numbers: int, rows: int) -> Table:
    labels, text_names, number_names = _TABLES[name]
    columns = [Column(random.choice(_LABELS), "label", tuple(random.sample(labels, rows)))]
    for column in random.sample(text_names, texts):
        columns.append(Column(column, "text", _with_repeats(random, _TEXTS[column], rows)))
    for column in random.sample(number_names, numbers):
        columns.append(Column(column, "number", tuple(random.sample(range(2, 100), rows))))
    random.shuffle(columns)
    return Table(name, tuple(columns))


def _with_repeats(random: Random, pool: tuple[str, ...], rows: int) -> tuple[str, ...]:
    """Two values at least, but fewer than rows: grouping and counting need some that repeat."""
    few = random.sample(pool, min(3, rows))
    values = few[:2] + [random.choice(few) for _ in range(rows - 2)]
    random.shuffle(values)
    return tuple(values)


def _literal(value: Value) -> str:
    return str(value) if isinstance(value, int) else f"'{value}'"
