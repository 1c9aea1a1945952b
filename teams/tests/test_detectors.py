"""Detectors that can only be asked: ONNX and TFLite files, and servers."""

import io
import json
import pickle
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from hardcase.claims.load import network_from_user
from hardcase.claims.subjects import ClaimModel
from hardcase.errors import HardcaseError
from hardcase.models.load import Loading
from hardcase.types import Images
from hardcase_teams.tflite import TfLite, names_in_tflite

SIZE = (40, 80)
"""Height and width."""
BOXES = torch.tensor([[[8.0, 4, 24, 20], [40, 10, 72, 30]], [[0, 0, 16, 16], [30, 5, 50, 35]]])
LABELS = torch.tensor([[1, 0], [2, 1]])
SCORES = torch.tensor([[0.9, 0.6], [0.7, 0.8]])
SHARE = torch.tensor([80.0, 40, 80, 40])


def write_detector(path, *, batch="n", size=SIZE, names=None):
    """A yolo-like network of one box: its x is the mean of the image's first channel in pixels."""
    rest = torch.tensor([[20.0, 10, 8, 0.2, 0.9, 0.1]]).numpy()
    nodes = [
        helper.make_node("ReduceMean", ["image", "axes"], ["mean"], keepdims=0),
        helper.make_node("Gather", ["mean", "first"], ["x"], axis=1),
        helper.make_node("Mul", ["x", "zero"], ["empty"]),
        helper.make_node("Add", ["empty", "rest"], ["others"]),
        helper.make_node("Mul", ["x", "width"], ["placed"]),
        helper.make_node("Concat", ["placed", "others"], ["numbers"], axis=1),
        helper.make_node("Unsqueeze", ["numbers", "last"], ["output0"]),
    ]
    held = {
        "axes": np.array([2, 3]), "first": np.array([0]), "zero": np.array([0.0], dtype=np.float32),
        "rest": rest, "width": np.array([size[1]], dtype=np.float32), "last": np.array([2]),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "toy",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, *size])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [batch, 7, 1])],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    if names:
        helper.set_model_props(model, {"names": names})
    onnx.save_model(model, str(path))
    return path


@pytest.mark.parametrize("batch", ["n", 1, 2])
def test_an_onnx_detector_with_a_named_head(batch, tmp_path):
    path = write_detector(tmp_path / "net.onnx", batch=batch, names="{0: 'a', 1: 'b', 2: 'c'}")
    net = network_from_user(f"onnx:{path}?head=yolo", "boxes", Loading(), classes=("c", "b"))
    assert net.offers == "scores"
    assert net.class_names == ("a", "b", "c")
    x = torch.linspace(0.1, 0.9, 3)[:, None, None, None].expand(-1, 3, *SIZE).contiguous()
    found = net.ask(x)
    assert torch.allclose(found.boxes[:, 0, 0] + 5, torch.linspace(0.1, 0.9, 3) * 80, atol=1e-3)
    assert torch.allclose(found.logits[0, 0].sigmoid(), torch.tensor([0.2, 0.9, 0.1]), atol=1e-3)
    again = pickle.loads(pickle.dumps(net))
    assert torch.equal(again(x).logits, net(x).logits)
    assert again.hash == net.hash
    large = net.ask(torch.full((1, 3, 80, 160), 0.5)).boxes  # in pixels of the image
    assert torch.allclose(large, 2 * net.ask(torch.full((1, 3, *SIZE), 0.5)).boxes, atol=1e-3)
    with pytest.raises(HardcaseError, match="yolo"):
        network_from_user(f"onnx:{path}?head=yolov9", "boxes", Loading())


class Detecting(BaseHTTPRequestHandler):
    """A server of the Open Inference Protocol: a box at the image's brightest column."""

    def log_message(self, *words):
        pass

    def do_GET(self):
        outputs = [
            ("boxes", "FP32", [-1, 1, 4]),
            ("scores", "FP32", [-1, 1]),
            ("labels", "INT64", [-1, 1]),
        ]
        self.say(
            {
                "name": "toy",
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3, *SIZE]}],
                "outputs": [{"name": n, "datatype": d, "shape": s} for n, d, s in outputs],
            }
        )

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])).decode("latin-1"))
        given = body["inputs"][0]
        if "data" not in given:
            return self.send_error(400)
        x = np.array(given["data"]).reshape(given["shape"])
        at = x.mean((1, 2)).argmax(1)
        boxes = np.stack([at, np.zeros_like(at), at + 10, np.full_like(at, 20)], 1)
        said = {"boxes": (boxes, [len(x), 1, 4], "FP32"), "scores": (x.mean((1, 2, 3)), [len(x), 1], "FP32"),
                "labels": (at % 3, [len(x), 1], "INT64")}  # fmt: skip
        wanted = [one["name"] for one in body["outputs"]]
        self.say(
            {
                "id": body["id"],
                "outputs": [
                    {
                        "name": n,
                        "shape": said[n][1],
                        "datatype": said[n][2],
                        "data": said[n][0].ravel().tolist(),
                    }
                    for n in wanted
                ],
            }
        )
        return None

    def say(self, words):
        text = json.dumps(words).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def address():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Detecting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v2/models/toy/infer"
    server.shutdown()
    server.server_close()


def test_a_detector_behind_an_address(address):
    pytest.importorskip("httpx2")
    images = Images(
        torch.zeros(1, 3, *SIZE, dtype=torch.uint8), torch.zeros(1).long(), ("a",), ("a", "b", "c")
    )
    net = network_from_user(address, "boxes", Loading(test=images), classes=images.classes)
    assert net.offers == "scores"
    model = ClaimModel(net, "boxes", images.classes)
    x = torch.full((5, 3, *SIZE), 0.5)
    columns = torch.tensor([3, 20, 41, 7, 60])
    x[torch.arange(5), :, :, columns] = 1.0
    found = model.read(model.model(x).logits, x)
    assert found.boxes[:, 0, 0].tolist() == columns.tolist()
    best = found.logits[:, 0, :3]
    assert best.argmax(1).tolist() == (columns % 3).tolist()
    assert torch.allclose(best.amax(1).sigmoid(), x.mean((1, 2, 3)), atol=1e-4)


def test_names_behind_a_tflite_file():
    content = io.BytesIO(b"....TFL3 network")
    with zipfile.ZipFile(content, "a") as packed:
        packed.writestr("labelmap.txt", "person\n???\ncar\n")
    assert names_in_tflite(content.getvalue()) == ("person", "???", "car")
    assert names_in_tflite(b"no archive") == ()


def test_tflite_without_its_package_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    with pytest.raises(HardcaseError) as caught:
        TfLite(b"....TFL3")
    assert "tflite" in caught.value.fix


class Interpreter:
    """Stands for ai-edge-litert's: TensorFlow's four tensors of one image of 20 x 40 bytes."""

    def __init__(self, model_content, num_threads):
        self.asked = 0

    def allocate_tensors(self):
        pass

    def get_input_details(self):
        return [{"index": 0, "shape": np.array([1, 20, 40, 3]), "dtype": np.uint8}]

    def get_output_details(self):
        return [{"index": number} for number in range(4)]

    def set_tensor(self, index, array):
        assert array.shape == (1, 20, 40, 3)
        assert array.dtype == np.uint8

    def invoke(self):
        self.row = self.asked % 2
        self.asked += 1

    def get_tensor(self, index):
        places = (BOXES / SHARE)[..., [1, 0, 3, 2]]
        four = [places, LABELS.float(), SCORES, torch.tensor([2.0, 2.0])]
        return four[index][self.row : self.row + 1].numpy()


@pytest.fixture
def litert(monkeypatch):
    module = SimpleNamespace(Interpreter=Interpreter)
    monkeypatch.setitem(sys.modules, "ai_edge_litert", SimpleNamespace(interpreter=module))
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", module)


def test_a_tflite_detector_is_asked_image_by_image(litert, tmp_path):
    (tmp_path / "net.tflite").write_bytes(b"....TFL3")
    (tmp_path / "net.txt").write_text("???\na\nb\nc\n")
    net = network_from_user(f"tflite:{tmp_path / 'net.tflite'}", "boxes", Loading())
    assert net.class_names == ("a", "b", "c")  # objects alone are counted
    found = net.ask(torch.rand(2, 3, *SIZE))
    assert torch.allclose(found.boxes, BOXES, atol=1e-4)
    assert found.logits.argmax(2).tolist() == LABELS.tolist()
    again = pickle.loads(pickle.dumps(net))
    assert again.hash == net.hash
    with pytest.raises(HardcaseError):
        net(torch.rand(1, 3, *SIZE), {"layer": lambda x: x})
