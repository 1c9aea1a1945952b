"""Whatever networks return: the same objects from every form, with gradients where there are any."""

import io
import json
import pickle
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from hardcase.claims import load
from hardcase.claims.annotations import load_annotations
from hardcase.claims.answers import (
    Layout,
    TfLite,
    answering,
    names_in_tflite,
    softmax_odds,
    standard_outputs,
)
from hardcase.claims.load import asked_network, claim_model, load_claim_model
from hardcase.claims.outputs import ABSENT, Detections, strongest
from hardcase.claims.subjects import ClaimModel
from hardcase.errors import Problem
from hardcase.models.load import Loading
from hardcase.tensors import from_bytes
from hardcase.testing.toys import toy_subject
from hardcase.types import Images

SIZE = (40, 80)
"""Height and width."""
BOXES = torch.tensor([[[8.0, 4, 24, 20], [40, 10, 72, 30]], [[0, 0, 16, 16], [30, 5, 50, 35]]])
LABELS = torch.tensor([[1, 0], [2, 1]])
SCORES = torch.tensor([[0.9, 0.6], [0.7, 0.8]])
CLASSES = 3
SHARE = torch.tensor([80.0, 40, 80, 40])


def dense(labels=LABELS, scores=SCORES, classes=CLASSES):
    return torch.zeros(*labels.shape, classes).scatter(2, labels[..., None], scores[..., None])


def centred(boxes):
    return torch.cat([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1)


def detr_logits(odds_of):
    """Logits with a last one for no object, whose softmax gives the scores."""
    table = dense().clamp_min(1e-9)
    rest = (1 - table.sum(2, keepdim=True)).clamp_min(1e-9)
    return torch.cat([table, rest], 2).log()


def yolo(objectness):
    scores = dense()
    parts = [centred(BOXES), scores]
    if objectness:
        parts = [centred(BOXES), torch.full((2, 2, 1), 0.5), (scores * 2).clamp_max(1.8)]
    return torch.cat(parts, 2)


FORMS = {
    "torchvision's list": (
        [{"boxes": b, "labels": k, "scores": s} for b, k, s in zip(BOXES, LABELS, SCORES)],
        "auto",
    ),
    "batched dictionary": ({"boxes": BOXES, "labels": LABELS, "scores": SCORES}, "auto"),
    "scores of all classes": ({"boxes": BOXES, "scores": dense()}, "auto"),
    "shares of the image": ({"boxes": BOXES / SHARE, "scores": dense()}, "ssd"),
    "with background": (
        {"boxes": BOXES / SHARE, "scores": torch.cat([torch.zeros(2, 2, 1), dense()], 2)},
        "ssd",
    ),
    "TensorFlow's names": (
        {
            "detection_boxes": (BOXES / SHARE)[..., [1, 0, 3, 2]],
            "detection_classes": LABELS.float(),
            "detection_scores": SCORES,
        },
        "ssd",
    ),
    "TensorFlow's four": (
        [(BOXES / SHARE)[..., [1, 0, 3, 2]], LABELS.float(), SCORES, torch.tensor([2.0, 2.0])],
        "auto",
    ),
    "Hugging Face's": (
        SimpleNamespace(logits=detr_logits(None), pred_boxes=centred(BOXES) / SHARE),
        "auto",
    ),
    "detr without names": ([detr_logits(None), centred(BOXES) / SHARE], "detr"),
    "yolo": (yolo(False).transpose(1, 2), "yolo"),
    "yolo, rows first": (yolo(False), "yolo"),
    "yolo with objectness": (yolo(True), "yolo"),
    "yolo that suppresses": (
        torch.cat([BOXES, SCORES[..., None], LABELS[..., None].float()], 2),
        "yolo",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_objects(form):
    returned, head = FORMS[form]
    found = standard_outputs(returned, Layout("boxes", CLASSES, head), SIZE)
    assert found.logits.shape == (2, 2, CLASSES)
    assert torch.allclose(found.boxes, BOXES, atol=1e-4)
    own = found.logits.gather(2, LABELS[..., None]).squeeze(2)
    assert torch.allclose(own.sigmoid(), SCORES, atol=1e-3)
    others = found.logits.scatter(2, LABELS[..., None], ABSENT)
    assert float(others.max()) < -8


def test_images_with_fewer_boxes_are_filled_up():
    returned = [
        {"boxes": BOXES[0], "labels": LABELS[0], "scores": SCORES[0]},
        {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long(), "scores": torch.zeros(0)},
    ]
    found = standard_outputs(returned, Layout("boxes", CLASSES), SIZE)
    assert float(found.logits[1].max()) == ABSENT
    assert int((strongest(found).scores > ABSENT).sum()) == 2
    four = [*FORMS["TensorFlow's four"][0][:3], torch.tensor([1.0, 2.0])]
    found = standard_outputs(four, Layout("boxes", CLASSES), SIZE)
    assert float(found.logits[0, 1].max()) < -8 < 0 < float(found.logits[1, 1].max())


@pytest.mark.parametrize(
    ("returned", "layout"),
    [
        ({"boxes": BOXES, "labels": LABELS, "scores": SCORES}, Layout("boxes")),  # classes unknown
        (torch.zeros(2, 11, 50), Layout("boxes", 3, "yolo")),  # neither 4 + 3 nor 5 + 3
        ({"heat": torch.zeros(2, 5)}, Layout("boxes", 3, "ssd")),
        ({"logits": torch.zeros(2, 5, 4)}, Layout("boxes", 3, "detr")),
        (torch.zeros(2, 3, 4, 4), Layout("tags")),
        (torch.zeros(2, 3), Layout("masks")),
    ],
)
def test_answers_that_do_not_fit_are_problems(returned, layout):
    with pytest.raises(Problem):
        standard_outputs(returned, layout, SIZE)


def test_odds_of_a_softmax():
    logits = torch.randn(5, 4, dtype=torch.float64) * 3
    p = logits.softmax(1)
    assert torch.allclose(softmax_odds(logits), torch.log(p / (1 - p)), atol=1e-5)


# Modules of torch.


class Detr(nn.Module):
    """A detector in Hugging Face's form, small and random."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(id2label={0: "cat", 1: "dog"})
        self.body = nn.Conv2d(3, 4, 8, 8)
        self.logits = nn.Linear(4, 3)
        self.boxes = nn.Linear(4, 4)

    def forward(self, pixel_values):
        rows = self.body(pixel_values).flatten(2).transpose(1, 2)
        return SimpleNamespace(logits=self.logits(rows), pred_boxes=self.boxes(rows).sigmoid())


def test_gradients_pass_through_a_module():
    net = answering(Detr(), "boxes")
    x = torch.rand(2, 3, *SIZE, requires_grad=True)
    found = net(x)
    assert isinstance(found, Detections)
    assert found.logits.shape == (2, 50, 2)
    (slope,) = torch.autograd.grad(found.logits.sum() + found.boxes.sum(), x)
    assert float(slope.abs().sum()) > 0
    model = claim_model(Detr(), "boxes", ("dog", "cat"))
    assert model.offers == "gradients"
    assert model.columns == (1, 0)
    assert model(torch.rand(3, 3, *SIZE)).logits.shape[0] == 3


class Listing(nn.Module):
    """A detector in torchvision's form, which names classes of its own number."""

    def __init__(self):
        super().__init__()
        self.num_classes = 7
        self.score = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        one = {
            "boxes": BOXES[0],
            "labels": torch.tensor([1, 6]),
            "scores": self.score * x.mean((1, 2, 3)),
        }
        return [{**one, "scores": score.expand(2)} for score in one["scores"]]


def test_a_network_knows_best_how_many_classes_it_has():
    x = torch.rand(2, 3, *SIZE, requires_grad=True)
    found = answering(Listing(), "boxes")(x)
    assert found.logits.shape == (2, 2, 7)
    assert torch.autograd.grad(found.logits.sum(), x)[0].abs().sum() > 0
    x = x.detach()
    model = claim_model(Listing(), "boxes", ("a", "b", "c"))
    said = model.read(model.model(x).logits, x)
    assert said.logits.shape[2] == 4  # the data's, and one for the rest
    assert float(said.logits[0, 0, 1]) == pytest.approx(
        float((0.3 * x[0].mean()).logit()), abs=1e-4
    )


def test_taggers_that_end_in_sigmoids_are_recognised():
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    x = torch.rand(6, 1, 4, 4)
    for net in (plain, nn.Sequential(plain, nn.Sigmoid())):
        assert torch.allclose(answering(net, "tags", example=x)(x), plain(x), atol=1e-4)


def test_a_tagger_of_a_file_is_read_as_the_images_show(tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6400, 10), torch.nn.Sigmoid())\n"
    )
    known = load_annotations("canvas5k", task="tags", count=4)
    model = load_claim_model(
        f"{tmp_path / 'net.py'}:make",
        Loading(),
        task="tags",
        classes=known.images.classes,
        annotated=lambda split: known,
    )
    logits = model(from_bytes(known.images.x)).logits[:, :10]
    assert float(logits.min()) < 0 < float(logits.max())


@pytest.mark.parametrize(
    "wrap", [lambda t: t, lambda t: {"out": t}, lambda t: SimpleNamespace(logits=t)]
)
def test_masks_get_the_size_of_the_image(wrap):
    class Segmenter(nn.Module):
        def forward(self, x):
            return wrap(x[:, :2, ::4, ::4])

    x = torch.rand(2, 3, *SIZE, requires_grad=True)
    said = answering(Segmenter(), "masks")(x)
    assert said.shape == (2, 2, *SIZE)
    assert said.requires_grad


def test_the_class_of_each_pixel_is_enough():
    classes = torch.randint(0, 3, (2, *SIZE))
    said = standard_outputs(classes, Layout("masks", 3), SIZE)
    assert torch.equal(said.argmax(1), classes)


# Networks that can only be asked.


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
    net = asked_network(f"onnx:{path}?head=yolo", "boxes", Loading(), classes=("c", "b"))
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
    with pytest.raises(Problem, match="yolo"):
        asked_network(f"onnx:{path}?head=yolov9", "boxes", Loading())


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
    net = asked_network(address, "boxes", Loading(test=images), classes=images.classes)
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
    monkeypatch.setitem(__import__("sys").modules, "ai_edge_litert.interpreter", None)
    with pytest.raises(Problem) as caught:
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
        four = FORMS["TensorFlow's four"][0]
        return four[index][self.row : self.row + 1].numpy()


@pytest.fixture
def litert(monkeypatch):
    module = SimpleNamespace(Interpreter=Interpreter)
    monkeypatch.setitem(
        __import__("sys").modules, "ai_edge_litert", SimpleNamespace(interpreter=module)
    )
    monkeypatch.setitem(__import__("sys").modules, "ai_edge_litert.interpreter", module)


def test_a_tflite_detector_is_asked_image_by_image(litert, tmp_path):
    (tmp_path / "net.tflite").write_bytes(b"....TFL3")
    (tmp_path / "net.txt").write_text("???\na\nb\nc\n")
    net = asked_network(f"tflite:{tmp_path / 'net.tflite'}", "boxes", Loading())
    assert net.class_names == ("a", "b", "c")  # objects alone are counted
    found = net.ask(torch.rand(2, 3, *SIZE))
    assert torch.allclose(found.boxes, BOXES, atol=1e-4)
    assert found.logits.argmax(2).tolist() == LABELS.tolist()
    again = pickle.loads(pickle.dumps(net))
    assert again.hash == net.hash
    with pytest.raises(Problem):
        net(torch.rand(1, 3, *SIZE), {"layer": lambda x: x})


def test_a_fetched_detector_is_witnessed_by_one_of_another_lineage(monkeypatch):
    present = ["efficientdet-lite0", "efficientdet-lite1", "ssd-mobilenet"]
    monkeypatch.setattr(load, "is_fetched", present.__contains__)

    def named(model):
        asked = []
        load.usual_claim_witnesses(model, "boxes", lambda name: asked.append(name) or toy_subject())
        return tuple(asked)

    assert named("zoo:efficientdet-lite0?threshold=0.3") == ("zoo:ssd-mobilenet",)
    assert named("zoo:ssd-mobilenet") == ("zoo:efficientdet-lite0",)
    assert named("zoo:digit-detector") == ("zoo:digit-detector-wide",)
    assert named("net.py:make") == ()
    present.remove("ssd-mobilenet")
    assert named("zoo:efficientdet-lite0") == ()
