"""A question in English and the query it asks for, about a given table or pair of tables.

Each kind of question is a function: it picks columns and values, and one of several ways to say it.
"""

from collections.abc import Callable
from random import Random

from finetune.embedded.query import Aggregate, Filter, Function, Join, Op, Order, Query
from finetune.embedded.schemas import Column, Table

Asked = tuple[str, Query]

_COMPARISONS: dict[Op, tuple[str, ...]] = {
    ">": ("above {}", "over {}", "greater than {}", "more than {}"),
    "<": ("below {}", "under {}", "less than {}"),
    ">=": ("at least {}", "{} or more"),
    "<=": ("at most {}", "{} or less"),
    "=": ("{}", "equal to {}"),
}
_AGGREGATES: dict[Function, tuple[str, ...]] = {
    "max": ("highest", "maximum", "largest"),
    "min": ("lowest", "minimum", "smallest"),
    "avg": ("average", "mean"),
    "sum": ("total", "combined"),
}


def ask(random: Random, table: Table) -> Asked:
    """A question of any kind about one table."""
    kinds: tuple[tuple[Callable[[Random, Table], Asked], int], ...] = (
        (list_filtered, 5),
        (which, 4),
        (count, 4),
        (aggregate, 4),
        (superlative, 4),
        (grouped, 3),
        (distinct, 2),
    )
    [kind] = random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
    return kind(random, table)


def list_filtered(random: Random, table: Table) -> Asked:
    """One or two columns of the rows that meet a condition."""
    condition = random.choice((_number_filter, _text_filter, _between))(random, table)
    columns = _columns(random, table, unlike=condition.column)
    wanted = random.choice(("List the {}", "Show the {}", "Give me the {}", "What is the {}", "Find the {}"))
    words = wanted.format(" and ".join(columns))
    text = f"{words} of {random.choice(('', 'all '))}{table.name} {_said(random, condition)}"
    return _ended(text), Query(table.name, select=columns, filters=(condition,))


def which(random: Random, table: Table) -> Asked:
    """'Which pilots ...': the answer is the column that names a row, and only the schema says which that is."""
    label = table.of_kind("label")[0].name
    conditions = _conditions(random, table)
    lead = random.choice(("Which {} are there", "Name the {}", "List {}", "Name all {}", "Which are the {}"))
    text = f"{lead.format(table.name)} {_all_said(random, conditions)}"
    return _ended(text), Query(table.name, select=(label,), filters=conditions)


def count(random: Random, table: Table) -> Asked:
    """How many rows meet a condition."""
    conditions = _conditions(random, table)
    lead = random.choice(("How many {} are there", "Count the {}", "What is the number of {}", "How many {} exist"))
    text = f"{lead.format(table.name)} {_all_said(random, conditions)}"
    return _ended(text), Query(table.name, aggregate=Aggregate("count"), filters=conditions)


def aggregate(random: Random, table: Table) -> Asked:
    """The maximum, minimum, average or sum of a number column, over all rows or over some."""
    function: Function = random.choice(tuple(_AGGREGATES))
    column = random.choice(table.of_kind("number")).name
    conditions = (_text_filter(random, table),) if random.random() < 0.6 else ()
    lead = random.choice(("What is the {} {} of", "Find the {} {} of", "Tell me the {} {} of", "Compute the {} {} of"))
    text = f"{lead.format(random.choice(_AGGREGATES[function]), column)} {random.choice(('', 'all '))}{table.name}"
    if conditions:
        text += " " + _all_said(random, conditions)
    return _ended(text), Query(table.name, aggregate=Aggregate(function, column), filters=conditions)


def superlative(random: Random, table: Table) -> Asked:
    """The first one, two or three rows by a number column."""
    column = random.choice(table.of_kind("number")).name
    descending = random.random() < 0.5
    limit = random.choice((1, 1, 2, 3))
    best = random.choice(_AGGREGATES["max" if descending else "min"])
    wanted = _columns(random, table, unlike=column)
    number = f"{limit} " if limit > 1 else ""
    lead = random.choice(("What is the {}", "Show the {}", "List the {}", "Give me the {}")).format(
        " and ".join(wanted)
    )
    if random.random() < 0.3:
        wanted, lead = (table.of_kind("label")[0].name,), random.choice(("Name", "Find", "Which are", "List"))
        text = f"{lead} the {number}{table.name} with the {best} {column}"
    else:
        text = f"{lead} of the {number}{table.name} with the {best} {column}"
    conditions: tuple[Filter, ...] = ()
    if limit == 1 and random.random() < 0.25:
        condition = _text_filter(random, table)
        conditions = (condition,)
        text += f" among those {_said(random, condition)}"
    return _ended(text), Query(table.name, select=wanted, filters=conditions, order=Order(column, descending, limit))


def grouped(random: Random, table: Table) -> Asked:
    """A count, or an aggregate of a number column, for each value of a text column."""
    group = random.choice(table.of_kind("text")).name
    each = random.choice(("for each {}", "per {}", "by {}", "in each {}")).format(group)
    if random.random() < 0.5:
        lead = random.choice(("How many {} are there", "Count the {}", "Show the number of {}")).format(table.name)
        return _ended(f"{lead} {each}"), Query(table.name, aggregate=Aggregate("count"), group=group)
    function: Function = random.choice(tuple(_AGGREGATES))
    column = random.choice(table.of_kind("number")).name
    lead = random.choice(("What is the {} {} of {}", "Show the {} {} of {}", "Find the {} {} of {}"))
    text = f"{lead.format(random.choice(_AGGREGATES[function]), column, table.name)} {each}"
    return _ended(text), Query(table.name, aggregate=Aggregate(function, column), group=group)


def distinct(random: Random, table: Table) -> Asked:
    """The different values of a text column, or how many there are."""
    column = random.choice(table.of_kind("text")).name
    different = random.choice(("different", "distinct", "unique"))
    if random.random() < 0.5:
        lead = random.choice(("List the", "Show the", "What are the", "Give me all"))
        text = f"{lead} {different} {column} values of {table.name}"
        return _ended(text), Query(table.name, select=(column,), distinct=True)
    lead = random.choice(("How many {} {} values do {} have", "Count the {} {} values of {}"))
    text = lead.format(different, column, table.name)
    return _ended(text), Query(table.name, aggregate=Aggregate("count distinct", column))


def joined(random: Random, child: Table, parent: Table) -> Asked:
    """Rows of one table, by a column of the table they belong to."""
    foreign_key, _ = child.keys[0]
    join = Join(parent.name, f"{child.name}.{foreign_key}", f"{parent.name}.id")
    owner = random.choice(parent.columns)
    value = random.choice(owner.values)
    condition = Filter(f"{parent.name}.{owner.name}", "=", value)
    whose = random.choice(("that belong to", "in", "of")) + f" {parent.name} with {owner.name} {value}"
    if random.random() < 0.4:
        lead = random.choice(("How many {} are there", "Count the {}")).format(child.name)
        query = Query(child.name, aggregate=Aggregate("count"), filters=(condition,), join=join)
        return _ended(f"{lead} {whose}"), query
    column = random.choice(child.columns).name
    lead = random.choice(("List the {}", "Show the {}", "What is the {}")).format(column)
    query = Query(child.name, select=(f"{child.name}.{column}",), filters=(condition,), join=join)
    return _ended(f"{lead} of {child.name} {whose}"), query


def _columns(random: Random, table: Table, unlike: str) -> tuple[str, ...]:
    names = [column.name for column in table.columns if column.name != unlike]
    return tuple(random.sample(names, random.choice((1, 1, 1, 2))))


def _conditions(random: Random, table: Table) -> tuple[Filter, ...]:
    shape = random.random()
    if shape < 0.4:
        return (_number_filter(random, table),)
    if shape < 0.65:
        return (_text_filter(random, table),)
    if shape < 0.8:
        return (_between(random, table),)
    return _text_filter(random, table), _number_filter(random, table)


def _number_filter(random: Random, table: Table) -> Filter:
    column = random.choice(table.of_kind("number"))
    op: Op = random.choice((">", ">", "<", "<", ">=", "<=", "="))
    return Filter(column.name, op, random.choice(column.values))


def _text_filter(random: Random, table: Table) -> Filter:
    column: Column = random.choice(table.of_kind("text"))
    return Filter(column.name, random.choice(("=", "=", "=", "!=")), random.choice(column.values))


def _between(random: Random, table: Table) -> Filter:
    column = random.choice(table.of_kind("number"))
    low, high = sorted(value for value in random.sample(column.values, 2) if isinstance(value, int))
    return Filter(column.name, "between", low, high)


def _said(random: Random, condition: Filter) -> str:
    """A condition in words, starting with 'with', 'whose' or 'where'."""
    column, value = condition.column, condition.value
    if condition.op == "between":
        how = random.choice(("between {} and {}", "from {} to {}")).format(value, condition.high)
        return random.choice(("with {} {}", "whose {} is {}", "where {} is {}")).format(column, how)
    if condition.op == "!=":
        return random.choice(("whose {} is not {}", "where {} is not {}", "with {} other than {}")).format(
            column, value
        )
    how = random.choice(_COMPARISONS[condition.op]).format(value) if isinstance(value, int) else value
    return random.choice(("with {} {}", "whose {} is {}", "where {} is {}")).format(column, how)


def _all_said(random: Random, conditions: tuple[Filter, ...]) -> str:
    said = [_said(random, condition) for condition in conditions]
    random.shuffle(said)
    return " and ".join(said)


def _ended(text: str) -> str:
    asks = text.split(" ", 1)[0] in ("What", "Which", "How")
    return text + ("?" if asks else ".")
