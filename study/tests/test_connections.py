"""A real socket: slow, endless and broken requests end, and others are served meanwhile."""

import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

pytest.importorskip("uvicorn", reason="needs hardcase[study]")


@contextmanager
def served(study, monkeypatch, *, seconds=0.5, most=800):
    """The port of a study's server in a thread."""
    import uvicorn

    from hardcase_study.answers import Answers
    from hardcase_study.connections import BoundedConnection
    from hardcase_study.server import Site, application
    from hardcase_study.session import Session

    monkeypatch.setattr(BoundedConnection, "seconds", seconds)
    monkeypatch.setattr(BoundedConnection, "most", most)
    session = Session(study, Answers(study.folder, durable=False))
    site = Site(session, token="door", desk="desk", secret=b"s")
    line = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        application(site), http=BoundedConnection, ws="none", log_level="critical"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [line]}, daemon=True)
    thread.start()
    try:
        yield line.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def healthy(port):
    with connect(port) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return line.recv(100).startswith(b"HTTP/1.1 200")


def seconds_until_closed(line):
    began = time.monotonic()
    with suppress(ConnectionError):
        while line.recv(4096):
            pass
    return time.monotonic() - began


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"POST /begin HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\nt=",
    ],
)
def test_half_a_request_is_not_waited_for(make, monkeypatch, beginning):
    with served(make(), monkeypatch) as port, connect(port) as line:
        line.sendall(beginning)
        assert seconds_until_closed(line) < 3


def test_an_endless_body_is_neither_kept_nor_read_for_long(make, monkeypatch):
    with served(make(), monkeypatch) as port:
        for path in (b"/begin", b"/nothing/here"):
            with connect(port) as line:
                head = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\n" % path
                line.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
                began = time.monotonic()
                with suppress(OSError):
                    while time.monotonic() < began + 5:
                        line.sendall(b"10000\r\n" + bytes(0x10000) + b"\r\n")
                assert time.monotonic() < began + 3
        assert healthy(port)


def test_long_headers_are_refused(make, monkeypatch):
    with served(make(), monkeypatch) as port, connect(port) as line:
        line.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000)
        assert b" 400 " in line.recv(100)


def test_slow_connections_lock_nobody_out(make, monkeypatch):
    with served(make(), monkeypatch, seconds=60, most=50) as port:
        slow = [connect(port) for _ in range(200)]
        for line in slow:
            with suppress(OSError):  # pushed out by later ones
                line.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert all(healthy(port) for _ in range(20))
        for line in slow:
            line.close()


def test_a_body_without_end_is_cut_off(make, monkeypatch):
    head = b"POST /begin HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + 65_536 * b"x" + b"\r\n"
    with served(make(), monkeypatch, seconds=30.0) as port, connect(port) as line:
        line.sendall(head)
        sent = 0
        with suppress(OSError):
            for _ in range(2_000):  # 131 MB, of which sockets hold a few
                line.sendall(chunk)
                sent += len(chunk)
        assert sent < 32_000_000
        assert healthy(port)


def test_half_of_the_files_that_may_be_open_are_for_slow_connections(monkeypatch):
    from hardcase_study import server

    asked = []
    monkeypatch.setattr(server.resource, "getrlimit", lambda kind: (200, 256))
    monkeypatch.setattr(server.resource, "setrlimit", lambda kind, limits: asked.append(limits))
    assert server._allowed_files(4096) == 256
    assert asked == [(256, 256)]
