"""The verdicts, one by one: a table of predictions and of what is to be said of each."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.tasks.sql_judge import clean, is_ordered, judge
from finetune.tasks.sql_verdicts import CORRECT, DOES_NOT_EXECUTE, NOT_SQL, UNSCORABLE, VERDICTS, WRONG_RESULT

CITIES = """
CREATE TABLE city (name TEXT, pop INT, state TEXT);
INSERT INTO city VALUES ('a', 1, 'x'), ('b', 2, 'x'), ('c', 2, 'y');
CREATE TABLE nobody (name TEXT);
"""
ALL_BUT_A = "SELECT name FROM city WHERE pop = 2"
COUNTING = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"


@pytest.mark.parametrize(
    ("label", "prediction"),
    [
        (CORRECT, "select NAME from CITY where POP = 2;"),
        (CORRECT, "SELECT c.name AS anything FROM city c WHERE pop > 1"),
        (CORRECT, "SELECT name FROM city WHERE pop = 2 ORDER BY name DESC"),
        (CORRECT, 'SELECT name FROM city WHERE name = "b" OR name = "c"'),
        (CORRECT, "SELECT TOP 5 name FROM city WHERE pop = 2"),
        (CORRECT, "SELECT name FROM dbo.city WHERE name ILIKE 'B' OR state ILIKE 'Y'"),
        (CORRECT, "```sql\nSELECT name FROM city WHERE pop = 2\n```"),
        (CORRECT, "SELECT 1; SELECT name FROM city WHERE pop = 2"),
        (CORRECT, "CREATE TEMP TABLE q AS SELECT name FROM city WHERE pop = 2; SELECT name FROM q"),
        (WRONG_RESULT, "SELECT name FROM city"),
        (WRONG_RESULT, "SELECT name, pop FROM city WHERE pop = 2"),
        (WRONG_RESULT, "SELECT name FROM city WHERE pop = 2 UNION ALL SELECT 'b'"),
        (WRONG_RESULT, "SELECT name FROM city WHERE pop = 2 AND pop = 3"),
        (WRONG_RESULT, "SELECT pop FROM city WHERE pop = 2"),
        (WRONG_RESULT, "SELECT name FROM city WHERE pop = 2; SELECT 1"),
        (WRONG_RESULT, "DELETE FROM city WHERE pop = 1; SELECT name FROM city"),
        (WRONG_RESULT, "DELETE FROM city WHERE pop = 99"),
        (WRONG_RESULT, "BEGIN"),
        (WRONG_RESULT, f"{COUNTING} SELECT x FROM c"),
        (DOES_NOT_EXECUTE, "SELECT nam FROM city WHERE pop = 2"),
        (DOES_NOT_EXECUTE, "SELECT name FROM town WHERE pop = 2"),
        (DOES_NOT_EXECUTE, "SELECT name FROM city GROUP BY ROLLUP (name)"),
        (DOES_NOT_EXECUTE, "SELECT name FROM city WHERE pop = ?"),
        (DOES_NOT_EXECUTE, "SELECT name FROM city WHERE pop = 2 ORDER BY random()"),
        (DOES_NOT_EXECUTE, "ATTACH ':memory:' AS z; SELECT name FROM city WHERE pop = 2"),
        (DOES_NOT_EXECUTE, "PRAGMA table_info(city)"),
        (DOES_NOT_EXECUTE, f"{COUNTING} SELECT count(*) FROM c"),
        (DOES_NOT_EXECUTE, "SELECT zeroblob(1000000000)"),
        (NOT_SQL, ""),
        (NOT_SQL, ";"),
        (NOT_SQL, "-- no idea"),
        (NOT_SQL, "foo"),
        (NOT_SQL, "b, c"),
        (NOT_SQL, "The cities are b and c."),
        (NOT_SQL, "from city | filter pop > 1 | select {name}"),
        (NOT_SQL, "FROM city |> WHERE pop = 2 |> SELECT name"),
        (NOT_SQL, "Select the name of all cities"),
        (NOT_SQL, "SELECT name FROM city WHERE"),
        (NOT_SQL, "Here it is: SELECT name FROM city WHERE pop = 2"),
        (NOT_SQL, "SELECT name FROM city WHERE pop = 2; It lists all but a."),
        (NOT_SQL, "```sql\nSELECT 1\n```\nor\n```sql\nSELECT name FROM city WHERE pop = 2\n```"),
        (NOT_SQL, "SELECT '\ud800"),
    ],
)
def test_a_query(label: str, prediction: str) -> None:
    judgement = judge(prediction, ALL_BUT_A, CITIES)
    assert judgement.label == label, judgement.detail
    assert bool(judgement.detail) == (label != CORRECT)
    assert "\n" not in judgement.detail


@pytest.mark.parametrize(
    ("label", "gold", "prediction"),
    [
        (CORRECT, "UPDATE city SET pop = 3 WHERE name = 'a'", "update CITY set POP = pop + 2 where pop = 1"),
        (WRONG_RESULT, "UPDATE city SET pop = 3 WHERE name = 'a'", "UPDATE city SET pop = 3"),
        (WRONG_RESULT, "UPDATE city SET pop = 3 WHERE name = 'a'", "SELECT 3"),
        (CORRECT, "INSERT INTO city (name, pop) VALUES ('d', 4)", "INSERT INTO city VALUES ('d', 4, NULL)"),
        (WRONG_RESULT, "INSERT INTO city (name, pop) VALUES ('d', 4)", "INSERT INTO city VALUES ('d', 4, '')"),
        (CORRECT, "INSERT INTO nobody VALUES ('z')", "INSERT INTO nobody (name) SELECT 'z'"),
        (CORRECT, "DELETE FROM city WHERE pop = 2", "DELETE FROM city WHERE name <> 'a'"),
        (DOES_NOT_EXECUTE, "DELETE FROM city WHERE pop = 2", "DELETE FROM town"),
        (
            CORRECT,
            "CREATE TABLE z (id INT, v VARCHAR(20))",
            "create table if not exists Z (v TEXT, id INTEGER PRIMARY KEY)",
        ),
        (WRONG_RESULT, "CREATE TABLE z (id INT, v VARCHAR(20))", "CREATE TABLE z (id INT)"),
        (
            CORRECT,
            "CREATE VIEW v AS SELECT name FROM city WHERE pop = 2",
            "CREATE VIEW V AS SELECT c.name AS name FROM city c WHERE pop > 1",
        ),
        (
            WRONG_RESULT,
            "CREATE VIEW v AS SELECT name FROM city WHERE pop = 2",
            "CREATE VIEW v AS SELECT name FROM city",
        ),
        (CORRECT, "DROP TABLE nobody", "DROP TABLE IF EXISTS nobody"),
        (WRONG_RESULT, "DROP TABLE nobody", "DROP TABLE city"),
        (CORRECT, "ALTER TABLE city ADD COLUMN z INT", "ALTER TABLE city ADD z BIGINT"),
        (CORRECT, "CREATE INDEX i ON city (name)", "CREATE INDEX by_name ON City(name)"),
        (WRONG_RESULT, "CREATE INDEX i ON city (name)", "CREATE INDEX i ON city (pop)"),
        (WRONG_RESULT, "CREATE INDEX i ON city (name)", "SELECT 1"),
        (
            CORRECT,
            "DELETE FROM city WHERE pop = 1; SELECT COUNT(*) FROM city",
            "DELETE FROM city WHERE name = 'a'; SELECT 2",
        ),
        (WRONG_RESULT, "DELETE FROM city WHERE pop = 1; SELECT COUNT(*) FROM city", "SELECT 2"),
        (WRONG_RESULT, "DELETE FROM city WHERE pop = 1; SELECT COUNT(*) FROM city", "DELETE FROM city WHERE pop = 1"),
        (CORRECT, "INSERT INTO nobody VALUES (NOW())", "INSERT INTO nobody SELECT CURRENT_TIMESTAMP"),
        (CORRECT, "DELETE FROM city WHERE pop = 1 RETURNING name", "DELETE FROM city WHERE pop = 1"),
    ],
)
def test_a_change_is_compared_by_the_tables_it_leaves(label: str, gold: str, prediction: str) -> None:
    judgement = judge(prediction, gold, CITIES)
    assert judgement.label == label, judgement.detail


@pytest.mark.parametrize(
    ("gold", "detail"),
    [
        ("SELECT name FROM town", "the gold does not run: no such table: town"),
        ("all of them", 'the gold does not run: near "all": syntax error'),
        ("SELECT name FROM city ORDER BY random() LIMIT 1", "the gold does not run: refused: random()"),
        (f"{COUNTING} SELECT max(x) FROM c", "the gold does not run: stopped: needs more than 10,000,000 steps"),
        (f"{COUNTING} SELECT x FROM c", "the gold gives more than 10,000 rows"),
        ("SELECT name FROM nobody", "the gold finds nothing"),
        ("SELECT name FROM city WHERE pop > 9", "the gold finds nothing"),
        ("SELECT MAX(pop) FROM city WHERE pop > 9", "the gold finds nothing"),
        ("SELECT COUNT(*) FROM nobody", "the gold reads empty tables"),
        ("SELECT MAX(name), COUNT(*) FROM city JOIN nobody USING (name)", "the gold reads empty tables"),
        ("SELECT city.name FROM city JOIN nobody ON city.name = nobody.name", "the gold finds nothing"),
        ("UPDATE city SET pop = 5 WHERE name = 'z'", "the gold changes nothing"),
        ("UPDATE city SET pop = pop", "the gold changes nothing"),
        ("DELETE FROM nobody", "the gold changes nothing"),
        ("CREATE VIEW v AS SELECT name FROM nobody", "the view that the gold makes is empty"),
        ("CREATE SCHEMA s", "the gold gives no result"),
    ],
)
def test_a_gold_that_says_nothing_about_the_model(gold: str, detail: str) -> None:
    for prediction in (gold, "SELECT 1", "nonsense"):
        judgement = judge(prediction, gold, CITIES)
        assert (judgement.label, judgement.detail, judgement.exact) == (UNSCORABLE, detail, False)


def test_a_schema_that_does_not_run_says_nothing_either() -> None:
    judgement = judge("SELECT 1", "SELECT 1", "CREATE TABLE city (name TEXT; ")
    assert judgement.label == UNSCORABLE
    assert judgement.detail.startswith("the schema does not run: ")


def test_a_view_that_cannot_be_read_is_in_nobodys_way() -> None:
    schema = CITIES + "CREATE VIEW broken AS SELECT lost FROM nowhere; CREATE VIEW tidy AS SELECT name FROM nobody;"
    assert judge(ALL_BUT_A, ALL_BUT_A, schema).exact
    assert judge("drop table NOBODY", "DROP TABLE nobody", schema).label == CORRECT


@pytest.mark.parametrize(
    ("label", "gold", "prediction"),
    [
        (CORRECT, "SELECT COUNT(*) FROM city WHERE pop > 9", "SELECT COUNT(name) FROM city WHERE pop > 9"),
        (WRONG_RESULT, "SELECT COUNT(*) FROM city WHERE pop > 9", "SELECT COUNT(*) FROM city"),
        (WRONG_RESULT, "SELECT name FROM city", "DELETE FROM city WHERE pop > 9"),
        (CORRECT, "SELECT COUNT(*) FROM city LEFT JOIN nobody USING (name)", "SELECT COUNT(*) FROM city"),
        (CORRECT, "SELECT 1", "SELECT 1"),
    ],
)
def test_nothing_found_but_told_by_a_number_counts(label: str, gold: str, prediction: str) -> None:
    assert judge(prediction, gold, CITIES).label == label


@pytest.mark.parametrize(
    ("label", "gold", "prediction"),
    [
        (CORRECT, "SELECT name FROM city ORDER BY name", "SELECT name FROM city ORDER BY 1"),
        (WRONG_RESULT, "SELECT name FROM city ORDER BY name", "SELECT name FROM city ORDER BY name DESC"),
        (CORRECT, "SELECT name FROM (SELECT name FROM city ORDER BY name)", "SELECT name FROM city ORDER BY name DESC"),
        (CORRECT, "SELECT name FROM city ORDER BY pop", "SELECT name FROM city ORDER BY pop, name DESC"),
        (CORRECT, "SELECT * FROM city ORDER BY pop", "SELECT * FROM city ORDER BY pop, name DESC"),
        (
            CORRECT,
            "SELECT name, pop AS p FROM city ORDER BY p DESC",
            "SELECT name, pop FROM city ORDER BY 2 DESC, 1 DESC",
        ),
        (CORRECT, "SELECT name, pop FROM city ORDER BY 2", "SELECT name, pop FROM city ORDER BY pop, name DESC"),
        (WRONG_RESULT, "SELECT name FROM city ORDER BY pop, name", "SELECT name FROM city ORDER BY pop, name DESC"),
        (WRONG_RESULT, "SELECT name FROM city ORDER BY pop", "SELECT name FROM city ORDER BY pop DESC"),
        (
            WRONG_RESULT,
            "SELECT state, COUNT(*) FROM city GROUP BY state ORDER BY COUNT(*) DESC",
            "SELECT state, COUNT(*) FROM city GROUP BY state ORDER BY COUNT(*)",
        ),
        (
            CORRECT,
            "SELECT pop, COUNT(*) FROM city GROUP BY pop, name ORDER BY COUNT(*) DESC",
            "SELECT pop, COUNT(*) FROM city GROUP BY pop, name ORDER BY COUNT(*) DESC, pop DESC",
        ),
        (
            WRONG_RESULT,
            "SELECT DISTINCT name FROM city ORDER BY pop",
            "SELECT DISTINCT name FROM city ORDER BY pop DESC",
        ),
        (
            WRONG_RESULT,
            "SELECT name FROM city UNION SELECT state FROM city ORDER BY 1",
            "SELECT name FROM city UNION SELECT state FROM city ORDER BY 1 DESC",
        ),
    ],
)
def test_order_counts_where_the_gold_orders_and_only_between_unequal_keys(
    label: str, gold: str, prediction: str
) -> None:
    judgement = judge(prediction, gold, CITIES)
    assert judgement.label == label, judgement.detail


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("SELECT a FROM t order\n by a LIMIT 1", True),
        ("SELECT a FROM t UNION SELECT b FROM u ORDER BY 1", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", False),
        ("SELECT RANK() OVER (ORDER BY a) FROM t", False),
        ("SELECT a FROM t WHERE b = ' ORDER BY ' -- ORDER BY a", False),
        ('SELECT a AS "ORDER BY (" FROM t ORDER BY a', True),
        ("SELECT reorder, by_a FROM t", False),
    ],
)
def test_is_ordered(query: str, ordered: bool) -> None:
    assert is_ordered(query) is ordered


@pytest.mark.parametrize(
    ("completion", "sql"),
    [
        (" SELECT 1;\n", "SELECT 1;"),
        ("```sql\nSELECT 1\n```", "SELECT 1"),
        ("```SQL\nSELECT 1;\n```\n", "SELECT 1;"),
        ("```\nSELECT 1\n```", "SELECT 1"),
        ("```SELECT 1```", "SELECT 1"),
        ("```sql SELECT 1```", "SELECT 1"),
        ("```sqlite\nSELECT 1", "SELECT 1"),
        ("SELECT 1\n```", "SELECT 1"),
        ("Here:\n```sql\nSELECT 1\n```\nDone.", "SELECT 1"),
        ("SQL: SELECT 1", "SELECT 1"),
        ("SQL Query:\nSELECT 1", "SELECT 1"),
        ("```sql\nSELECT 1\n```\n```sql\nSELECT 2\n```", "```sql\nSELECT 1\n```\n```sql\nSELECT 2\n```"),
        ("Answer: SELECT 1", "Answer: SELECT 1"),
        ("", ""),
    ],
)
def test_clean(completion: str, sql: str) -> None:
    assert clean(completion) == sql


def test_only_a_correct_prediction_can_be_exact() -> None:
    assert judge("select name from city c where pop=2", ALL_BUT_A, CITIES).exact is False
    assert judge("select NAME from City where Pop=2", ALL_BUT_A, CITIES).exact is True
    assert judge("SELECT name FROM city", ALL_BUT_A, CITIES).exact is False


WORDS = st.sampled_from(
    [
        "SELECT",
        "FROM",
        "WHERE",
        "city",
        "name",
        "pop",
        "state",
        "'x'",
        '"x"',
        "2",
        "=",
        ">",
        "(",
        ")",
        ",",
        "*",
        ";",
        "COUNT",
        "AVG",
        "GROUP",
        "BY",
        "ORDER",
        "LIMIT",
        "JOIN",
        "ON",
        "AS",
        "a",
        "DATE_SUB",
        "NOW",
        "INTERVAL",
        "6",
        "MONTH",
        "CASE",
        "WHEN",
        "END",
        "INSERT",
        "INTO",
        "VALUES",
        "UPDATE",
        "SET",
        "DELETE",
        "WITH",
        "UNION",
        "ALL",
        "{",
        "}",
        "|",
        "`",
        "'",
        "--",
        "/*",
        "CREATE",
        "TABLE",
        "DROP",
        "CAST",
        "::",
        "[",
        "]",
        "TOP",
        "LEFT",
        "EXTRACT",
        "YEAR",
        "->",
        "?",
        "\\",
        "IN",
        "NOT",
        "NULL",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=14).map(" ".join) | st.text(max_size=40))
def test_any_text_gets_a_verdict_and_is_right_if_it_is_the_gold(text: str) -> None:
    assert judge(text, ALL_BUT_A, CITIES).label in VERDICTS[:4]
    as_gold = judge(text, text, CITIES)
    assert as_gold.label == UNSCORABLE or (as_gold.label == CORRECT and as_gold.exact)
