"""What can be found about one predicted SQL statement: the labels, and the judgement that carries one."""

from dataclasses import dataclass

CORRECT = "correct"
WRONG_RESULT = "wrong result"
DOES_NOT_EXECUTE = "does not execute"
NOT_SQL = "not SQL"
UNSCORABLE = "unscorable"

VERDICTS: tuple[str, ...] = (CORRECT, WRONG_RESULT, DOES_NOT_EXECUTE, NOT_SQL, UNSCORABLE)
"""Best first. Only the first is a success; the last says nothing about the model."""


@dataclass(frozen=True)
class Judgement:
    """`label` is one of VERDICTS, `detail` says why in one line.

    `exact`: the statement is the gold itself, apart from formatting. Only a correct one can be.
    """

    label: str
    detail: str = ""
    exact: bool = False
