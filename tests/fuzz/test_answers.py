"""What a server answers: any bytes, JSON or binary, and any bytes instead of HTTP."""

import json
import socket
import threading
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from garbage import DEEP, damaged, lawful, often, twisted
from hypothesis import example, given, strategies as st

from hardcase.models import http
from hardcase.models.http import (
    LENGTH,
    Client,
    ClientConfig,
    Http,
    MalformedAnswer,
    Refused,
    TensorSpec,
)
from hardcase.usercode import Unanswered

WANTED = TensorSpec("scores", "FP32", (None, 3))
JSON = {
    "model_name": "m",
    "outputs": [
        {"name": "scores", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
    ],
}
BINARY = {"outputs": [{"name": "other", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}},
          {"name": "scores", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": 24}}]}  # fmt: skip
TAIL = np.arange(2, dtype="<i8")[:1].tobytes() + np.arange(6, dtype="<f4").tobytes()
METADATA = {"name": "m", "versions": ["1"], "platform": "onnx", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1, 4, 4]}],
            "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}]}  # fmt: skip
ODD = st.one_of(
    st.just(
        {"outputs": [{"name": "scores", "datatype": "FP32", "shape": [10**9, 10**9], "data": [1]}]}
    ),
    st.just(
        {"outputs": [{"name": "scores", "datatype": "INT64", "shape": [2], "data": [10**30, 1]}]}
    ),
    st.just({"outputs": [{"name": "scores", "datatype": "INT64", "shape": [0], "data": []}]}),
    st.just(
        {
            "outputs": [
                {"name": "scores", "datatype": "FP32", "shape": [2, 3], "data": [[1, 2, 3], [4, 5]]}
            ]
        }
    ),
)


def text(document):
    return json.dumps(document).encode()


@often(200)
@given(st.one_of(twisted(JSON).map(text), ODD.map(text), damaged(text(JSON))))
@example(b"[" * DEEP)
@example(
    b'{"outputs":[{"name":"scores","datatype":"FP32","shape":[1],"data":[' + b"9" * 5000 + b"]}]}"
)
def test_json_of_any_kind(body):
    lawful(lambda: http.decode({}, body, WANTED), MalformedAnswer)


@often(200)
@given(
    st.one_of(twisted(BINARY).map(text), damaged(text(BINARY))),
    damaged(TAIL),
    st.one_of(
        st.none(),
        st.integers(-9, 400).map(str),
        st.sampled_from(["", "9" * 5000, "1e3", "٣", "\0"]),
    ),
)
def test_binary_of_any_kind(head, tail, length):
    headers = {LENGTH: str(len(head)) if length is None else length}
    lawful(lambda: http.decode(headers, head + tail, WANTED), MalformedAnswer)


@often(100)
@given(st.one_of(twisted(METADATA).map(text), damaged(text(METADATA))))
@example(b"[" * DEEP)
def test_metadata_of_any_kind(body):
    lawful(lambda: http.specs(body), MalformedAnswer)


def scripted(metadata, answer):
    """Stands for the network: metadata to whoever asks for them, the same answer to every question."""

    def ask(client, method, path, headers, body, **limits):
        return {}, metadata if method == "GET" else answer

    return ask


HUGE = {**METADATA, "inputs": [{"name": "x", "datatype": "FP32", "shape": [10**12, 1, 4, 4]}]}


@often(100)
@given(
    st.one_of(st.just(text(METADATA)), twisted(METADATA).map(text)),
    st.one_of(twisted(JSON).map(text), ODD.map(text), damaged(text(JSON)), st.just(text(JSON))),
)
@example(text(HUGE), text(JSON))
@example(
    text({**METADATA, "inputs": [{"name": "x", "datatype": "INT8", "shape": [-1, 16]}]}), text(JSON)
)
def test_a_model_behind_any_server(metadata, answer):
    """A subject, and answers of one row an image; or a problem, also when it is asked later."""
    images = torch.rand(2, 1, 4, 4)

    def ask():
        subject = Http(
            "http://127.0.0.1:9/v2/models/m/infer", 3, (1, 4, 4), config=ClientConfig(retries=0)
        )
        logits = subject(images).logits
        assert logits.shape[0] == 2
        assert logits.dtype == torch.float32
        return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "ask", scripted(metadata, answer))
        lawful(ask, Unanswered)


@contextmanager
def saying(content):
    """A server on a real socket that answers every connection with `content` and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(5)

        def serve():
            try:
                link, _ = listening.accept()
                with link:
                    link.settimeout(5)
                    link.recv(65536)
                    link.sendall(content)
            except OSError:
                return

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
BUSY = b"HTTP/1.1 429 Too Many\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


@often(80)
@given(damaged(WHOLE, CHUNKED, BUSY))
@example(WHOLE.replace(b": 2", b": 99999999999999999999"))
@example(CHUNKED.replace(b"\r\n2\r\n", b"\r\n-5\r\n"))
@example(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n")
@example(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n")
def test_any_bytes_instead_of_http(content):
    with saying(content) as port:
        client = Client(
            f"http://127.0.0.1:{port}/v2/models/m/infer",
            ClientConfig(retries=0, timeout=1),
            Counter(),
        )
        until = client.deadline()
        answer = lawful(
            lambda: client.ask("GET", "/v2/models/m", {}, b"", until=until), Refused, Unanswered
        )
        client.hang_up()
    assert answer is None or isinstance(answer[1], bytes)


def test_an_answer_in_order_is_understood():
    """The fuzzed answers are damage to ones that are right."""
    assert http.decode({}, text(JSON), WANTED).tolist() == [[1, 2, 3], [4, 5, 6]]
    head = text(BINARY)
    assert http.decode({LENGTH: str(len(head))}, head + TAIL, WANTED).tolist() == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    assert http.specs(text(METADATA))[0] == TensorSpec("x", "FP32", (None, 1, 4, 4))
