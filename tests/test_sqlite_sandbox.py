"""The sandbox: what a statement may do there, what stops it, and what it leaves behind."""

import contextlib
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.tasks.sqlite_sandbox import ROW_LIMIT, Sandbox, SqlFailure, split, without_comments

COUNTING = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
DOUBLING = ", ".join(
    ["v0(x) AS (SELECT 1)"] + [f"v{i}(x) AS (SELECT a.x FROM v{i - 1} a, v{i - 1} b)" for i in range(1, 24)]
)


@pytest.fixture
def sandbox():
    with Sandbox() as sandbox:
        for statement in split("CREATE TABLE t (a INT, b TEXT); INSERT INTO t VALUES (1, 'x'), (2, NULL);"):
            sandbox.execute(statement)
        yield sandbox


def rows(sandbox: Sandbox, statement: str) -> list[tuple[object, ...]] | None:
    return sandbox.execute(statement).rows


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH ':memory:' AS other",
        "ATTACH DATABASE '/tmp/other.db' AS other",
        "DETACH main",
        "PRAGMA writable_schema = 1",
        "PRAGMA table_info(t)",
        "SELECT * FROM pragma_table_info('t')",
        "VACUUM",
        "VACUUM INTO '/tmp/copy.db'",
        "SELECT load_extension('mod_spatialite')",
        "SELECT LOAD_EXTENSION('mod_spatialite', 'start')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT sqlite_log(1, 'x')",
        "CREATE VIRTUAL TABLE f USING fts5(a)",
        "CREATE VIRTUAL TABLE f USING csv(filename = '/etc/passwd')",
        "SELECT a FROM t ORDER BY random()",
        "SELECT randomblob(4)",
        "INSERT INTO t SELECT random(), 'x'",
        "CREATE TABLE u AS SELECT load_extension('x')",
    ],
)
def test_what_reaches_outside_or_depends_on_chance_is_refused(sandbox: Sandbox, statement: str) -> None:
    before = sandbox.tables()
    with pytest.raises(SqlFailure, match="refused") as caught:
        sandbox.execute(statement)
    assert caught.value.kind == "refused"
    assert sandbox.tables() == before


@pytest.mark.parametrize("name", ["readfile", "writefile", "edit", "lsdir"])
def test_functions_of_the_sqlite_shell_do_not_exist_or_are_refused(sandbox: Sandbox, name: str, tmp_path: Path) -> None:
    with pytest.raises(SqlFailure):
        sandbox.execute(f"SELECT {name}('{tmp_path}/x', 'y')")
    assert not list(tmp_path.iterdir())


def test_a_refusal_hidden_in_a_view_or_trigger_comes_when_it_runs(sandbox: Sandbox) -> None:
    sandbox.execute("CREATE VIEW v AS SELECT random()")
    with pytest.raises(SqlFailure, match="refused"):
        sandbox.execute("SELECT * FROM v")
    sandbox.execute("CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT fts3_tokenizer('simple'); END")
    with pytest.raises(SqlFailure, match="refused"):
        sandbox.execute("INSERT INTO t VALUES (3, 'y')")


@pytest.mark.parametrize(
    "statement",
    [
        f"{COUNTING} SELECT count(*) FROM c",
        f"{COUNTING} SELECT x FROM c ORDER BY x",
        f"{COUNTING} SELECT group_concat(x) FROM c",
        f"{COUNTING} INSERT INTO t SELECT x, 'x' FROM c",
        f"{COUNTING} SELECT sum(length(replace(hex(zeroblob(49000)), hex(zeroblob(20000)) || '1', 'x'))) FROM c",
        "SELECT count(*) FROM " + ", ".join(f"(SELECT 1 UNION ALL SELECT 2) a{i}" for i in range(40)),
        "SELECT zeroblob(1000000000)",
        "SELECT length(hex(zeroblob(90000)))",
        "SELECT printf('%.*c', 1000000000, 'x')",
        "SELECT printf('%2000000000d', 1)",
        "SELECT 'a' LIKE '" + "%a" * 1000 + "'",
        "WITH RECURSIVE c(x) AS (SELECT zeroblob(90000) UNION ALL SELECT x FROM c) SELECT * FROM c ORDER BY x",
        "WITH RECURSIVE c(x) AS (SELECT zeroblob(90000) UNION ALL SELECT x FROM c) SELECT * FROM c",
        f"WITH {DOUBLING} SELECT * FROM v23",
        "SELECT " + "(" * 5000 + "1" + ")" * 5000,
        "SELECT " + " + ".join(["1"] * 5000),
    ],
)
def test_a_statement_without_end_or_measure_is_stopped(sandbox: Sandbox, statement: str) -> None:
    with pytest.raises(SqlFailure):
        sandbox.execute(statement)
    assert rows(sandbox, "SELECT a FROM t") == [(1,), (2,)], "the sandbox must still work, and hold what it held"


def test_no_more_than_the_row_limit_is_fetched(sandbox: Sandbox) -> None:
    assert len(rows(sandbox, f"{COUNTING} SELECT x FROM c") or []) == ROW_LIMIT + 1


def test_what_needs_no_refusal_works(sandbox: Sandbox) -> None:
    assert rows(sandbox, "SELECT printf('%.2f of %d%%', 1.25, 2024)") == [("1.25 of 2024%",)]
    assert rows(sandbox, "SELECT format('%s', b) FROM t WHERE a = 1") == [("x",)]
    assert rows(sandbox, "SELECT value FROM json_each('[1, 2]')") == [(1,), (2,)]
    assert rows(sandbox, "SELECT CAST(x'ff' AS TEXT)") == [("�",)]
    assert rows(sandbox, "SELECT 9e999") == [(math.inf,)]
    sandbox.execute("ALTER TABLE t ADD COLUMN c INT")
    sandbox.execute("ALTER TABLE t RENAME TO u")
    assert rows(sandbox, "SELECT * FROM u") == [(1, "x", None), (2, None, None)]


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SELEC 1", "syntax"),
        ("SELECT a FROM t WHERE", "syntax"),
        ("SELECT 'open", "syntax"),
        ("SELECT nope FROM t", "error"),
        ("SELECT nope(a) FROM t", "error"),
        ("SELECT a FROM t WHERE a = ?", "error"),
        ("SELECT 1; SELECT 2", "error"),
    ],
)
def test_a_failure_says_whether_sqlite_could_read_the_statement(sandbox: Sandbox, statement: str, kind: str) -> None:
    with pytest.raises(SqlFailure) as caught:
        sandbox.execute(statement)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("statement", "wrote"),
    [
        ("SELECT a FROM t", False),
        ("SELECT value FROM json_each('[1]')", False),
        ("CREATE TEMP TABLE u AS SELECT a FROM t", False),
        ("BEGIN", False),
        ("ANALYZE", False),
        ("INSERT INTO t VALUES (3, 'z')", True),
        ("INSERT INTO t VALUES (3, 'z') RETURNING a", True),
        ("UPDATE t SET a = 1 WHERE a = 99", True),
        ("WITH x AS (SELECT 1 AS q) DELETE FROM t WHERE a IN (SELECT q FROM x)", True),
        ("CREATE TABLE u (a)", True),
        ("CREATE VIEW u AS SELECT 1", True),
        ("CREATE INDEX u ON t (a)", True),
        ("DROP TABLE t", True),
        ("ALTER TABLE t DROP COLUMN b", True),
    ],
)
def test_a_result_says_whether_tables_may_have_changed(sandbox: Sandbox, statement: str, wrote: bool) -> None:
    assert sandbox.execute(statement).wrote is wrote


def test_a_result_says_which_tables_were_read(sandbox: Sandbox) -> None:
    sandbox.execute("CREATE TABLE Empty (a)")
    sandbox.execute("CREATE VIEW v AS SELECT a FROM T")
    result = sandbox.execute("SELECT COUNT(*) FROM v WHERE a IN (SELECT a FROM EMPTY)")
    assert {"t", "empty"} <= result.reads
    assert sandbox.count_empty(result.reads) == (1, 2)
    assert sandbox.count_empty(sandbox.execute("SELECT 1").reads) == (0, 0)


def test_tables_are_told_by_names_columns_and_rows_alone() -> None:
    def tables(script: str):
        with Sandbox() as sandbox:
            for statement in split(script):
                sandbox.execute(statement)
            return sandbox.tables()

    one = tables("CREATE TABLE t (b TEXT, a INT); INSERT INTO t VALUES ('x', 1); CREATE INDEX i ON t (a, b);")
    other = tables(
        'create table "T" ("A" integer primary key autoincrement, B VARCHAR(9) NOT NULL);'
        "insert into t (b) values ('x'); create index\n another on T(A,b)"
    )
    assert one == other
    assert one != tables("CREATE TABLE t (b TEXT, a INT); INSERT INTO t VALUES ('x', 1); CREATE INDEX i ON t (b, a);")
    assert one != tables("CREATE TABLE t (b TEXT, a INT); INSERT INTO t VALUES ('x', 1);")


def test_a_view_whose_table_is_gone_does_not_hide_the_others(sandbox: Sandbox) -> None:
    sandbox.execute("CREATE VIEW v AS SELECT a FROM t")
    sandbox.execute("DROP TABLE t")
    assert sandbox.tables().keys() == {"v"}


def test_the_clock_can_be_set() -> None:
    with Sandbox(datetime(2024, 2, 29, 23, 59, 58, tzinfo=UTC)) as sandbox:
        sandbox.execute("CREATE TABLE t (a, made DEFAULT CURRENT_TIMESTAMP)")
        sandbox.execute("INSERT INTO t (a) VALUES (current_date || ' ' || CURRENT_TIME)")
        assert rows(sandbox, "SELECT * FROM t") == [("2024-02-29 23:59:58", "2024-02-29 23:59:58")]


@pytest.mark.parametrize(
    ("script", "statements"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;", ["SELECT 1;"]),
        (" ; ;\nSELECT 1 ;; SELECT 2", ["SELECT 1 ;", "SELECT 2"]),
        ("SELECT ';'; SELECT \";\" -- ; no end\n; /* ; */", ["SELECT ';';", 'SELECT ";" -- ; no end\n;']),
        ("CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT 1; SELECT 2; END; SELECT 3",
         ["CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT 1; SELECT 2; END;", "SELECT 3"]),
        ("-- only a comment", []),
        ("", []),
        ("SELECT 'open; SELECT 2", ["SELECT 'open; SELECT 2"]),
    ],
)  # fmt: skip
def test_split(script: str, statements: list[str]) -> None:
    assert list(split(script)) == statements


def test_without_comments_keeps_what_only_looks_like_one() -> None:
    assert without_comments("a -- b\n 'c -- d' /* e */ \"/* f */\" /* open").split() == [
        "a",
        "'c",
        "--",
        "d'",
        '"/*',
        "f",
        '*/"',
    ]


@given(st.text())
def test_split_and_execute_take_any_text(script: str) -> None:
    with Sandbox() as sandbox:
        for statement in split(script):
            assert statement.strip()
            with contextlib.suppress(SqlFailure):
                sandbox.execute(statement)
