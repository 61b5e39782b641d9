"""Which of a run's machines this one is, from the environment that a cluster gives it.

NUM_NODES machines form one run. Each is told its number by NODE_RANK, or by the JOB_COMPLETION_INDEX of a Kubernetes
Indexed Job, and where node 0 is by MASTER_ADDR (and MASTER_PORT). Without NUM_NODES there is one machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from finetune.errors import FinetuneError, UsageError

COUNT, ADDRESS, PORT = "NUM_NODES", "MASTER_ADDR", "MASTER_PORT"
RANKS = ("NODE_RANK", "JOB_COMPLETION_INDEX")
"""The first that is set counts."""
DEFAULT_PORT = 29500
"""torch's own."""


@dataclass(frozen=True)
class Nodes:
    """This machine's place among `count`. `rank` and `address` (of node 0) are None where nothing told them."""

    count: int = 1
    rank: int | None = None
    address: str | None = None
    port: int = DEFAULT_PORT

    @property
    def leads(self) -> bool:
        """Whether this is the node that writes the results."""
        return self.count == 1 or self.rank == 0


ALONE = Nodes()
"""One machine."""


def from_environment(environ: Mapping[str, str]) -> tuple[Nodes, list[FinetuneError]]:
    """This machine's place, and the variables that cannot be read. With one node nothing else is looked at."""
    problems: list[FinetuneError] = []
    count = _number(environ, COUNT, 1, "the number of machines, such as 2", problems) or 1
    if count == 1:
        return ALONE, problems
    named = next((name for name in RANKS if environ.get(name)), RANKS[0])
    rank = _number(environ, named, 0, f"0 to {count - 1}", problems)
    if rank is not None and rank >= count:
        problems.append(UsageError(f"{named}: {rank} is not below {COUNT}={count}", f"write 0 to {count - 1}"))
    port = _number(environ, PORT, 1, "a free port of node 0, such as 29500", problems) or DEFAULT_PORT
    return Nodes(count, rank, environ.get(ADDRESS) or None, port), problems


def find_missing(nodes: Nodes) -> list[FinetuneError]:
    """What has to be set before one of several nodes can start."""
    if nodes.count == 1:
        return []
    several = f"{COUNT} is {nodes.count}"
    missing: list[FinetuneError] = []
    if nodes.rank is None:
        hint = f"set NODE_RANK to 0 on the first machine, 1 on the next, up to {nodes.count - 1}"
        missing.append(UsageError(f"{RANKS[0]}: not set, and {several}", hint))
    if nodes.address is None:
        hint = "set it to the host name or address of node 0, on every machine"
        missing.append(UsageError(f"{ADDRESS}: not set, and {several}", hint))
    return missing


def _number(
    environ: Mapping[str, str], name: str, least: int, wanted: str, problems: list[FinetuneError]
) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < least:
        problems.append(UsageError(f"{name}: {text!r} is no whole number from {least}", f"write {wanted}"))
        return None
    return int(text)
