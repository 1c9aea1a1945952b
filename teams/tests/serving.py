"""A minimal server of the Open Inference Protocol v2 on a real HTTP stack, answering with onnxruntime, and its faults."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter, deque
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from hardcase.tensors import from_bytes
from hardcase.testing.toys import SIZE, Quarters, toy_images, toy_subject

LENGTH = "Inference-Header-Content-Length"


def pictures(count=20):
    return from_bytes(toy_images(count).x)


def answers_as_the_network(subject, count=20, *, labels=False):
    """Whether a model says of pictures what the toy network does, or names the same labels."""
    said, known = (one(pictures(count)).logits for one in (subject, toy_subject()))
    if labels:
        return torch.equal(said.argmax(1), known.argmax(1))
    return torch.allclose(said, known, rtol=1e-5, atol=1e-5)


def write_onnx(
    path,
    *,
    batch="n",
    softmax=False,
    labels=False,
    external=False,
    layout="nchw",
    shape=None,
    classes=4,
):
    """The toy network that names the brightest quarter, as an ONNX file."""
    weights = Quarters().mean.weight.detach().numpy().T.astype(np.float32) * 20
    shape = (
        shape
        or {
            "nchw": [batch, 1, SIZE, SIZE],
            "nhwc": [batch, SIZE, SIZE, 1],
            "flat": [batch, SIZE * SIZE],
        }[layout]
    )
    nodes = [
        helper.make_node("Flatten", ["image"], ["flat"], axis=1),
        helper.make_node("MatMul", ["flat", "w"], ["scores"]),
    ]
    last = "scores"
    if softmax:
        nodes.append(helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1))
        last = "probabilities"
    if labels:
        nodes.append(helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0))
        last = "label"
    kind, out = (TensorProto.INT64, [batch]) if labels else (TensorProto.FLOAT, [batch, classes])
    graph = helper.make_graph(
        nodes, "toy", [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, kind, out)], [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    how = (
        {"save_as_external_data": True, "location": f"{path.name}.data", "size_threshold": 0}
        if external
        else {}
    )
    onnx.save_model(model, str(path), **how)
    return path


class Server:
    """What a server does: `faults` are used up one a request (`drop`, a status, `slow`, `shape`, `garbage`, `short`, `huge`)."""

    def __init__(self, path, *, binary=True, token=None, largest=None, metadata=None, poison=None):
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.binary, self.token, self.largest, self.poison = binary, token, largest, poison
        self.faults, self.seen, self.times = deque(), Counter(), []
        self.always, self.delay, self.together, self.most = None, 1.0, 0, 0
        self.lock = threading.Lock()
        given, wanted = self.session.get_inputs()[0], self.session.get_outputs()[0]
        kind = {"tensor(float)": "FP32", "tensor(int64)": "INT64"}
        self.metadata = metadata or {
            "name": "toy", "versions": ["1"], "platform": "onnx",
            "inputs": [{"name": given.name, "datatype": kind[given.type], "shape": _sizes(given.shape)}],
            "outputs": [{"name": wanted.name, "datatype": kind[wanted.type], "shape": _sizes(wanted.shape)}],
        }  # fmt: skip

    def answer(self, body, length):
        """Status, headers and body for a request."""
        header = json.loads(body[: int(length)] if length else body)
        one = header["inputs"][0]
        if length:
            x = np.frombuffer(body[int(length) :], "<f4").reshape(one["shape"])
        else:
            x = np.array(one["data"], np.float32).reshape(one["shape"])
        self.seen["rows"] += len(x)
        if self.largest is not None and len(x) > self.largest:
            return 413, {}, b"too large"
        if (
            self.poison is not None
            and (np.abs(x - self.poison).reshape(len(x), -1).max(1) < 1e-6).any()
        ):
            return self.poisoned(x)
        logits = self.session.run(None, {one["name"]: x})[0]
        return self.packed(logits, binary=bool(length))

    def poisoned(self, x):
        return 500, {}, b"this picture breaks me"

    def packed(self, array, *, binary):
        kind = "INT64" if array.dtype.kind == "i" else "FP32"
        out = {
            "name": self.metadata["outputs"][0]["name"],
            "datatype": kind,
            "shape": list(array.shape),
        }
        if not binary:
            return (
                200,
                {},
                json.dumps({"outputs": [{**out, "data": array.ravel().tolist()}]}).encode(),
            )
        data = array.tobytes()
        header = json.dumps(
            {"outputs": [{**out, "parameters": {"binary_data_size": len(data)}}]}
        ).encode()
        return 200, {LENGTH: str(len(header))}, header + data


def _sizes(shape):
    return [one if isinstance(one, int) else -1 for one in shape]


def handler(server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words):
            pass

        def reply(self, status, headers, body):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def allowed(self):
            if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
                self.reply(401, {}, f"no: {self.headers.get('Authorization')}".encode())
                return False
            return True

        def do_GET(self):
            server.seen["metadata"] += 1
            if self.allowed():
                good = self.path == "/v2/models/toy"
                self.reply(
                    200 if good else 404,
                    {},
                    json.dumps(server.metadata).encode() if good else b"no such model",
                )

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with server.lock:
                server.seen["requests"] += 1
                server.times.append(time.monotonic())
                server.together += 1
                server.most = max(server.most, server.together)
                fault = server.faults.popleft() if server.faults else server.always
            try:
                if self.allowed():
                    self.respond(body, fault)
            finally:
                with server.lock:
                    server.together -= 1

        def respond(self, body, fault):
            length = self.headers.get(LENGTH)
            server.seen["binary" if length else "json"] += 1
            if fault == "drop":
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if fault == "slow":
                time.sleep(server.delay)
            if isinstance(fault, int):
                self.reply(
                    fault, {"Retry-After": "0.05"} if fault == 429 else {}, b"no <b>thanks</b>\n"
                )
                return
            if length and not server.binary:
                self.reply(500, {}, b"cannot read this")
                return
            status, headers, content = server.answer(body, length)
            if fault == "shape":
                status, headers, content = server.packed(
                    np.zeros((1, 2, 2), np.float32), binary=bool(length)
                )
            if fault == "garbage":
                headers, content = {}, b"<html>welcome</html>"
            if fault == "short":
                headers, content = headers, content[:-5]
            if fault == "nan":
                status, headers, content = server.packed(
                    np.full((1, 4), np.nan, np.float32), binary=bool(length)
                )
            self.reply(status, headers, content)

    return Handler


@contextmanager
def serving(path, *, tls=None, **how):
    """A running server and the address of its model."""
    server = Server(path, **how)
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler(server))
    http.daemon_threads = True
    http.handle_error = lambda *words: None
    if tls is not None:
        http.socket = tls.wrap_socket(http.socket, server_side=True)
    thread = threading.Thread(
        target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{http.server_port}/v2/models/toy/infer"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
