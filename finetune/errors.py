"""The errors a user can meet, each with a hint and an exit code of its own.

Only entrypoint.py, worker.py and stage.py turn one into text (`str(error)`), as their processes end.
"""


class FinetuneError(Exception):
    """Something the user can mend. `message` says what was found and expected, `hint` what to write."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"error: {self.message}" + (f"\n  hint: {self.hint}" if self.hint else "")


class UsageError(FinetuneError, ValueError):
    """A flag, environment variable or config key that cannot be used as written."""

    exit_code = 2


class DataError(FinetuneError, ValueError):
    """A data set that cannot be read, or of which no row can be used."""

    exit_code = 3


class ModelError(FinetuneError, ValueError):
    """A model folder, tokenizer or chat template that is not a usable Gemma 4."""

    exit_code = 4


class LaunchError(FinetuneError, RuntimeError):
    """The processes of a run did not come up as the plan says."""

    exit_code = 5


class TrainingError(FinetuneError, RuntimeError):
    """Training cannot go on: for example, the loss is no longer a number."""

    exit_code = 6


class DeliveryError(FinetuneError, RuntimeError):
    """Results that could not be handed on, to the hub or to a bucket. They are safe where they are."""

    exit_code = 7


class StorageError(FinetuneError, RuntimeError):
    """A disk, mount or bucket that does not give or take what it should."""

    exit_code = 8


class Interrupted(FinetuneError, RuntimeError):
    """The run was told to stop, and did. The same command goes on from there. (The code is EX_TEMPFAIL.)"""

    exit_code = 75

    def __str__(self) -> str:
        return f"stopped: {self.message}" + (f"\n  {self.hint}" if self.hint else "")


class UsageErrors(UsageError):
    """Several mistakes of one command, told together."""

    def __init__(self, errors: list[FinetuneError]) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = errors

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)
