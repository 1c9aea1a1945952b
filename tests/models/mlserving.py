"""MLServer in a process of its own, serving an ONNX file."""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager

RUNTIME = """
import numpy as np
import onnxruntime
from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, MetadataModelResponse, MetadataTensor, ResponseOutput


class Toy(MLModel):
    async def load(self) -> bool:
        self.session = onnxruntime.InferenceSession("toy.onnx", providers=["CPUExecutionProvider"])
        return True

    async def metadata(self) -> MetadataModelResponse:
        return MetadataModelResponse(
            name=self.name, platform="onnx", versions=["1"],
            inputs=[MetadataTensor(name="image", datatype="FP32", shape=[-1, 1, 8, 8])],
            outputs=[MetadataTensor(name="scores", datatype="FP32", shape=[-1, 4])],
        )

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        one = payload.inputs[0]
        x = np.array(one.data, dtype=np.float32).reshape(one.shape)
        y = self.session.run(None, {"image": x})[0]
        out = ResponseOutput(name="scores", datatype="FP32", shape=list(y.shape), data=y.ravel().tolist())
        return InferenceResponse(model_name=self.name, outputs=[out])
"""


def program():
    """The command, if there is one: on the path, or named by HARDCASE_MLSERVER (it may live in another environment)."""
    return os.environ.get("HARDCASE_MLSERVER") or shutil.which("mlserver")


@contextmanager
def mlserver(folder, model):
    """The address of the model, served."""
    shutil.copy(model, folder / "toy.onnx")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "runtime.py").write_text(RUNTIME)
    (folder / "model-settings.json").write_text(
        json.dumps({"name": "toy", "implementation": "runtime.Toy"})
    )
    settings = {
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": port + 1,
        "metrics_endpoint": None,
        "parallel_workers": 0,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    log = (folder / "server.log").open("w")
    process = subprocess.Popen([program(), "start", "."], cwd=folder, stdout=log, stderr=log)
    try:
        _ready(port, process, folder / "server.log")
        yield f"http://127.0.0.1:{port}/v2/models/toy/infer"
    finally:
        process.terminate()
        process.wait(20)


def _ready(port, process, log, patience=90.0):
    late = time.monotonic() + patience
    while time.monotonic() < late and process.poll() is None:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}/v2/models/toy/ready", timeout=1
            ) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text()[-2000:])
