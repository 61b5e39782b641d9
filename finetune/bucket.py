"""A run directory -> a folder in a bucket, through gcsfs, with the sizes there compared."""

import shlex
from collections.abc import Callable
from pathlib import Path

from finetune.errors import DeliveryError

TEMPORARY = (".tmp", ".lock", ".incomplete")


def copy(run_dir: Path, place: str, say: Callable[[str], None]) -> None:
    """Copy all files of a run to `place` (gs://BUCKET/PATH). Raises DeliveryError with what to run to copy again.

    gcsfs tries each request six times, over about half a minute.
    """
    import aiohttp
    import gcsfs
    from google.auth.exceptions import GoogleAuthError

    say(f"> copying {run_dir} to {place}")
    root = place.removeprefix("gs://").rstrip("/")
    wanted = {f"{root}/{path.relative_to(run_dir).as_posix()}": path for path in _files(run_dir)}
    try:
        storage = gcsfs.GCSFileSystem()
        storage.put([str(path) for path in wanted.values()], list(wanted))
        storage.invalidate_cache()
        there = {name: entry["size"] for name, entry in storage.find(root, detail=True).items()}
    except (
        OSError,
        RuntimeError,
        ValueError,
        GoogleAuthError,
        aiohttp.ClientError,
        gcsfs.retry.HttpError,
        gcsfs.retry.ChecksumError,
        gcsfs.retry.NonRetryableError,
    ) as error:
        raise _failure(run_dir, place, _reason(error)) from error
    wrong = [name for name, path in wanted.items() if there.get(name) != path.stat().st_size]
    if wrong:
        raise _failure(run_dir, place, f"{len(wanted) - len(wrong)} of {len(wanted)} files arrived; not {wrong[0]}")
    say(f"  {len(wanted)} files are in {place}")


def _files(run_dir: Path) -> list[Path]:
    """All results; not what is being written, and nothing hidden."""
    files = [path for path in sorted(run_dir.rglob("*")) if path.is_file() and path.suffix not in TEMPORARY]
    return [path for path in files if not any(part.startswith(".") for part in path.relative_to(run_dir).parts)]


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.errno is None:  # gcsfs's word for 404
        return "there is no such bucket, or this machine's account may not see it"
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _failure(run_dir: Path, place: str, reason: str) -> DeliveryError:
    again = shlex.join(["gcloud", "storage", "rsync", "--recursive", str(run_dir), place])
    return DeliveryError(
        f"the results were not copied to {place}: {reason}", f"they are safe in {run_dir}; copy them with `{again}`"
    )
