"""What the stand-ins for services share: an HTTP server on the loopback, for as long as a block lasts."""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Keeps connections, logs nothing, reads chunked bodies, and answers in one call."""

    protocol_version = "HTTP/1.1"

    def body(self) -> bytes:
        """The whole body of the request."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def reply(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        """Answer the request."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):  # a client that has given up
                self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


def free_port() -> int:
    """A port that nothing listens on, for a program that has to be told one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def served(handler: type[Handler]) -> Iterator[str]:
    """A server; its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
