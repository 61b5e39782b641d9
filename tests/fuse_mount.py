"""A folder mounted through FUSE that behaves as a mounted bucket does: `python -m tests.fuse_mount SOURCE MOUNT LOG`.

Folders cannot be renamed (Cloud Storage FUSE: copy and delete, or refused), nor files linked; owners, modes and times
are taken and not kept. Opens and reads are logged, one JSON object a line. It needs mfusepy and fuse3.
"""

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.tools import need

ROOT = Path(__file__).parent.parent


@contextmanager
def mounted(source: Path, mount: Path) -> Iterator[Path]:
    """`source` as a bucket mounted at `mount`, for as long as the block lasts. Gives the log."""
    need("fusermount3")
    if not Path("/dev/fuse").exists():
        pytest.skip("no /dev/fuse")
    mount.mkdir(parents=True, exist_ok=True)
    log = mount.with_name(f"{mount.name}.log")
    log.touch()
    argv = [sys.executable, "-m", "tests.fuse_mount", str(source), str(mount), str(log)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            for _ in range(100):
                if os.path.ismount(mount):
                    break
                if process.poll() is not None:
                    pytest.skip(f"no FUSE here: {process.stderr and process.stderr.read()}")
                time.sleep(0.1)
            yield log
        finally:
            subprocess.run(["fusermount3", "-u", "-z", str(mount)], check=False)
            process.terminate()


def reads(log: Path) -> list[dict[str, Any]]:
    """The reads that were logged, in their order."""
    return [entry for entry in map(json.loads, log.read_text().splitlines()) if entry["op"] == "read"]


def serve(source: str, mount: str, log: str) -> None:
    """Mount, in the foreground, until it is unmounted."""
    import mfusepy

    class Bucket(mfusepy.Operations):
        use_ns = True

        def place(self, path: str) -> Path:
            return Path(source + path)

        def note(self, op: str, path: str, **more: Any) -> None:
            with Path(log).open("a") as file:
                file.write(json.dumps({"op": op, "path": path, **more}) + "\n")

        def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:
            found = self.place(path).lstat()
            kept = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")
            times = {f"st_{name}": getattr(found, f"st_{name}_ns") for name in ("atime", "mtime", "ctime")}
            return {name: getattr(found, name) for name in kept} | times

        def readdir(self, path: str, fh: Any) -> list[str]:
            return [".", "..", *(found.name for found in self.place(path).iterdir())]

        def open(self, path: str, flags: int) -> int:
            self.note("open", path)
            return os.open(self.place(path), flags)

        def create(self, path: str, mode: int, fi: Any = None) -> int:
            return os.open(self.place(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            self.note("read", path, offset=offset, size=size)
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            return os.pwrite(fh, data, offset)

        def truncate(self, path: str, length: int, fh: Any = None) -> None:
            os.truncate(self.place(path), length)

        def rename(self, old: str, new: str) -> None:
            if self.place(old).is_dir():
                raise mfusepy.FuseOSError(errno.EMFILE)
            self.note("rename", old)
            self.place(old).replace(self.place(new))

        def unlink(self, path: str) -> None:
            self.place(path).unlink()

        def mkdir(self, path: str, mode: int) -> None:
            self.place(path).mkdir(mode)

        def rmdir(self, path: str) -> None:
            self.place(path).rmdir()

        def fsync(self, path: str, datasync: int, fh: int) -> None:
            os.fsync(fh)

        def release(self, path: str, fh: int) -> None:
            os.close(fh)

        def chmod(self, path: str, mode: int) -> int:
            return 0

        def chown(self, path: str, uid: int, gid: int) -> int:
            return 0

        def utimens(self, path: str, times: Any = None) -> int:
            return 0

        def link(self, target: str, source: str) -> None:
            raise mfusepy.FuseOSError(errno.ENOSYS)

        def statfs(self, path: str) -> dict[str, Any]:
            found = os.statvfs(self.place(path))
            return {name: getattr(found, name) for name in dir(found) if name.startswith("f_") and name != "f_fsid"}

    mfusepy.FUSE(Bucket(), mount, foreground=True, nothreads=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
