"""SQL of other dialects on SQLite, what counts as SQL at all, and one way of writing."""

import datetime

import pytest

from finetune.tasks.sql_dialects import forms, is_sql, normalise
from finetune.tasks.sql_judge import run
from finetune.tasks.sqlite_sandbox import Row, Sandbox

TABLES = """
CREATE TABLE t (a INT, n VARCHAR(50), d DATE);
INSERT INTO t VALUES (1, 'Abc', '2021-05-31'), (2, 'b', '2022-01-01');
"""
TODAY = datetime.datetime.now(datetime.UTC).date()


def results(script: str, schema: str = TABLES) -> list[Row] | None:
    with Sandbox() as database:
        run(database, schema)
        return run(database, script).rows


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT n FROM t WHERE n ILIKE 'a%'", [("Abc",)]),
        ("SELECT TOP 1 n FROM t ORDER BY a", [("Abc",)]),
        ("SELECT n FROM t ORDER BY a FETCH FIRST 1 ROWS ONLY", [("Abc",)]),
        ("SELECT EXTRACT(YEAR FROM d) FROM t", [(2021,), (2022,)]),
        ("SELECT DATE_PART('month', d) FROM t", [(5,), (1,)]),
        ("SELECT DATEPART(year, d) FROM t", [(2021,), (2022,)]),
        ("SELECT YEAR(d), MONTH(d), DAY(d), QUARTER(d) FROM t WHERE a = 1", [(2021, 5, 31, 2)]),
        ("SELECT DATE_TRUNC('month', d) FROM t WHERE a = 1", [("2021-05-01",)]),
        ("SELECT TO_CHAR(d, 'YYYY-MM') FROM t WHERE a = 1", [("2021-05",)]),
        ("SELECT DATE_FORMAT(d, '%Y/%m') FROM t WHERE a = 1", [("2021/05",)]),
        ("SELECT DATE_SUB(d, INTERVAL 1 MONTH) FROM t WHERE a = 2", [("2021-12-01",)]),
        ("SELECT DATE_ADD(d, INTERVAL 2 WEEK) FROM t WHERE a = 2", [("2022-01-15",)]),
        ("SELECT d + INTERVAL 1 DAY FROM t WHERE a = 1", [("2021-06-01",)]),
        ("SELECT d - INTERVAL '3 months' FROM t WHERE a = 2", [("2021-10-01",)]),
        ("SELECT d - INTERVAL '1' QUARTER FROM t WHERE a = 2", [("2021-10-01",)]),
        ("SELECT d + INTERVAL a DAY FROM t WHERE a = 2", [("2022-01-03",)]),
        ("SELECT d + INTERVAL 12 HOUR FROM t WHERE a = 2", [("2022-01-01 12:00:00",)]),
        ("SELECT YEAR(DATE_SUB(d, INTERVAL 1 DAY)) FROM t WHERE a = 2", [(2021,)]),
        ("SELECT DATE_TRUNC('month', d - INTERVAL '1 month') FROM t WHERE a = 2", [("2021-12-01",)]),
        ("SELECT DATEADD(month, -1, d) FROM t WHERE a = 2", [("2021-12-01",)]),
        ("SELECT DATEDIFF('2022-01-31', d) FROM t WHERE a = 2", [(30,)]),
        ("SELECT DATEDIFF(day, d, '2022-01-31') FROM t WHERE a = 2", [(30,)]),
        ("SELECT TIMESTAMPDIFF(YEAR, d, '2025-03-01') FROM t WHERE a = 2", [(3,)]),
        ("SELECT CURDATE(), CURRENT_DATE", [(str(TODAY), str(TODAY))]),
        ("SELECT COUNT(*) FROM t WHERE d < NOW() AND d < GETDATE()", [(2,)]),
        ("SELECT CAST(d AS DATE) FROM t WHERE a = 1", [("2021-05-31",)]),
        ("SELECT n FROM t WHERE d >= '2022-01-01'::date", [("b",)]),
        ("SELECT n FROM t WHERE d BETWEEN DATE '2021-01-01' AND DATE '2021-12-31'", [("Abc",)]),
        ("SELECT a::float / 4 FROM t WHERE a = 1", [(0.25,)]),
        ("SELECT LEFT(n, 2), RIGHT(n, 2) FROM t WHERE a = 1", [("Ab", "bc")]),
        ("SELECT CONCAT(n, '!') FROM t WHERE a = 1", [("Abc!",)]),
        ("SELECT STRING_AGG(n, '-') FROM t", [("Abc-b",)]),
        ("SELECT ISNULL(NULL, 'x'), NVL(NULL, 'y'), IF(1 > 0, 1, 2)", [("x", "y", 1)]),
        ("SELECT LEN(n), CHAR_LENGTH(n), POSITION('b' IN n) FROM t WHERE a = 1", [(3, 3, 2)]),
        ("SELECT GREATEST(a, 2), LEAST(a, 2) FROM t WHERE a = 1", [(2, 1)]),
        ("SELECT `n` FROM `t` WHERE [a] = 1", [("Abc",)]),
        ("SELECT 'it\\'s'", [("it's",)]),
        ("(SELECT a FROM t) UNION (SELECT 3)", [(1,), (2,), (3,)]),
        ("(SELECT a FROM t ORDER BY a DESC LIMIT 1) UNION ALL (SELECT 3)", [(2,), (3,)]),
        ("SELECT a FROM t MINUS SELECT 1", [(2,)]),
        ("SELECT a FROM t QUALIFY ROW_NUMBER() OVER (ORDER BY a DESC) = 1", [(2,)]),
        ("SELECT s.t.a FROM s.t WHERE s.t.a = 1", [(1,)]),
        ("SELECT x.a FROM s.t AS x JOIN public.t y ON x.a = y.a", [(1,), (2,)]),
        ("TRUNCATE TABLE t; SELECT COUNT(*) FROM t", [(0,)]),
        ("DROP TABLE t CASCADE; SELECT 1", [(1,)]),
        ("CREATE OR REPLACE VIEW v AS SELECT a FROM t; SELECT * FROM v", [(1,), (2,)]),
        ("INSERT IGNORE INTO t (a) VALUES (3); SELECT COUNT(*) FROM t", [(3,)]),
    ],
)  # fmt: skip
def test_a_query_of_another_dialect_gives_what_is_meant(query: str, rows: list[Row]) -> None:
    assert results(query) == rows


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE u (id SERIAL PRIMARY KEY, x INT)",
        "CREATE TABLE u (id BIGSERIAL PRIMARY KEY, x INT)",
        "CREATE TABLE u (id INT AUTO_INCREMENT PRIMARY KEY, x INT)",
        "CREATE TABLE u (id INT NOT NULL AUTO_INCREMENT, x INT, PRIMARY KEY (id)) ENGINE=InnoDB DEFAULT CHARSET=utf8",
        "CREATE TABLE u (id INT IDENTITY(1,1) PRIMARY KEY, x INT, y NVARCHAR(MAX))",
        "CREATE TABLE u (id INT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, x INT)",
        "CREATE TABLE IF NOT EXISTS u (id INTEGER PRIMARY KEY, x DECIMAL(10, 2), e ENUM('a', 'b'), tags TEXT[])",
        "CREATE SCHEMA IF NOT EXISTS s; CREATE TABLE s.u (id SERIAL PRIMARY KEY, x INT, d DATETIME)",
        "CREATE DATABASE s; USE s; CREATE TABLE u (id SERIAL PRIMARY KEY, x INT REFERENCES s.other (x))",
    ],
)
def test_a_schema_of_another_dialect_makes_its_tables_and_counts_its_keys(table: str) -> None:
    schema = f"{table}; INSERT INTO u (x) VALUES (7), (8);"
    assert results("SELECT id, x FROM u", schema) == [(1, 7), (2, 8)]


def test_what_sqlite_runs_as_meant_is_tried_first_and_alone() -> None:
    assert next(forms("SELECT Population FROM City")) == "SELECT Population FROM City"


def test_what_would_have_to_be_left_out_is_not_tried() -> None:
    pivot = "SELECT a, n FROM t PIVOT (SUM(a) FOR n IN ('x', 'y'))"
    assert list(forms(pivot)) == [pivot]


def test_nulls_are_ordered_alike_in_all_dialects() -> None:
    schema = "CREATE TABLE t (a INT); INSERT INTO t VALUES (NULL), (1);"
    assert results("SELECT a FROM t ORDER BY a", schema) == [(None,), (1,)]
    assert results("SELECT a::int FROM t ORDER BY a", schema) == [(None,), (1,)]
    assert results("SELECT a::int FROM t ORDER BY a NULLS LAST", schema) == [(1,), (None,)]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t WHERE n ~ '^x'",
        "SELECT a, COUNT(*) FROM t GROUP BY ROLLUP (a)",
        "MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN DELETE",
        "UPDATE t JOIN u ON t.a = u.a SET t.n = 'x'",
        "DELETE FROM t USING u WHERE t.a = u.a",
        "ALTER TABLE t ALTER COLUMN a TYPE TEXT",
        "GRANT SELECT ON t TO somebody",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "-- why\nSELECT 1",
    ],
)
def test_a_statement_of_any_dialect_is_sql(text: str) -> None:
    assert is_sql(text)


@pytest.mark.parametrize(
    "text",
    [
        "foo",
        "population",
        "42",
        "'kansas'",
        "name, population",
        "from city | filter population > 100 | select {name}",
        "FROM city |> WHERE population > 100 |> SELECT name",
        "FROM city SELECT name",
        "select {name} from city",
        "The answer is wichita.",
        "I cannot answer that.",
        "Select the name of all cities",
        "select all the cities in kansas",
        "Update the table",
        "update city",
        "Delete all rows from city",
        "Insert a row into city",
        "insert into city",
        "Create a table",
        "Drop the table city",
        "Alter the table",
        "Merge the tables",
        "Show me the cities",
        "With three cities",
        "Set the population to 3",
        "set",
        "Use the city table",
        "Use SELECT name FROM city",
        "With x as the state",
        "SELECT",
        "SELECT name FROM",
        "SELECT name FROM city WHERE",
        "SELECT name FRM city",
        "DATE_SUB(NOW(, INTERVAL 6",
        "SELECT DATE_SUB(NOW(, INTERVAL 6)",
        "SELECT " + "(" * 3000,
        "{'query': 'SELECT 1'}",
        "",
    ],
)
def test_leniency_makes_no_sql_of_what_is_none(text: str) -> None:
    assert not is_sql(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT Name FROM City", "select  name\nfrom city ;"),
        ("SELECT name FROM city", 'SELECT "name" FROM [city] -- all'),
        ("SELECT name FROM city WHERE state = 'x'", 'SELECT name FROM city WHERE state = "x"'),
        ("SELECT name AS n FROM city AS c ORDER BY n", "SELECT name n FROM city c ORDER BY n ASC"),
        ('SELECT name AS "N" FROM city ORDER BY "N"', "SELECT name AS n FROM city ORDER BY n"),
        (
            "SELECT a.name FROM city a JOIN city b ON a.name = b.name",
            "SELECT a.name FROM city a INNER JOIN city b ON a.name = b.name",
        ),
        ("SELECT name FROM city WHERE name <> 'x'", "SELECT name FROM city WHERE name != 'x'"),
        ("SELECT count( * ) FROM city", "SELECT COUNT(*) FROM city"),
        ("SELECT TOP 3 name FROM city", "SELECT name FROM city LIMIT 3"),
        ("nothing that  parses", "NOTHING that parses"),
    ],
)
def test_formatting_is_not_a_difference(one: str, other: str) -> None:
    columns = frozenset({"name", "state"})
    assert normalise(one, columns) == normalise(other, columns)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT name FROM city", "SELECT state FROM city"),
        ("SELECT name FROM city WHERE state = 'x'", "SELECT name FROM city WHERE state = 'X'"),
        ("SELECT name FROM city WHERE state = 'name'", 'SELECT name FROM city WHERE state = "name"'),
        ("SELECT name FROM city", "SELECT DISTINCT name FROM city"),
        ("SELECT name FROM city ORDER BY name", "SELECT name FROM city ORDER BY name DESC"),
        (
            "SELECT a.name FROM city a JOIN city b ON a.name = b.name",
            "SELECT a.name FROM city a LEFT JOIN city b ON a.name = b.name",
        ),
        ("SELECT name FROM city LIMIT 1", "SELECT name FROM city LIMIT 2"),
    ],
)
def test_everything_else_is(one: str, other: str) -> None:
    columns = frozenset({"name", "state"})
    assert normalise(one, columns) != normalise(other, columns)
