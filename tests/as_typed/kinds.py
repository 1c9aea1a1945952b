"""The kinds of model that the matrix types the commands with: each is made by code, in a folder.

Of a command of a page only the words for the model and its data are exchanged; nothing is added.
"""

import csv
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

import claims.toys
from claims.toys import CLASSES, scenes

MODEL, DATA = "net.py:make", "folder:photos"
"""What the pages call the model and its data."""
SIDE, SMALLER = 96, 72
"""Sides of the photographs of a network of one's own, and of other kinds, which take less time."""
TONES = np.array([[170, 110, 80], [115, 140, 90], [80, 90, 190]])
"""The first two are near enough that another light exchanges them."""
TESTED = 72
"""Photographs of the test split, of all classes together: half of them stay for proofs."""
NET = '''
import torch
from torch import nn

TONES = torch.tensor(TONE_TABLE) / 255


class Tones(nn.Module):
    """The nearest of some tones to the mean of an image."""

    def __init__(self, classes):
        super().__init__()
        tones = TONES[:classes]
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(3, classes)
        self.head.weight.data = 40 * tones
        self.head.bias.data = -20 * tones.square().sum(1)

    def forward(self, x):
        return self.head(self.pool(x).flatten(1))


class One(nn.Module):
    """One output for two classes."""

    def __init__(self):
        super().__init__()
        self.net = Tones(2)

    def forward(self, x):
        logits = self.net(x)
        return logits[:, 1:] - logits[:, :1]


def make():
    return FACTORY
'''


def photographs(folder, classes, side=SMALLER, train=40):
    """Folders of images of one tone under a gradient, with stripes and noise, already divided."""
    rng = np.random.default_rng(0)
    down, across = np.mgrid[:side, :side] / side
    for label in range(classes):
        name = f"{'abc'[label]} tone"
        for part in ("train", "test"):
            (Path(folder) / part / name).mkdir(parents=True)
        for number in range(train + TESTED // classes):
            light = (
                1 + rng.uniform(-0.3, 0.3) * (across - 0.5) + rng.uniform(-0.3, 0.3) * (down - 0.5)
            )
            stripes = 14 * np.sin(across * rng.uniform(20, 60) + down * rng.uniform(20, 60))
            tone = TONES[label] + rng.normal(0, 22, 3)
            x = tone * light[..., None] + stripes[..., None] + rng.normal(0, 5, (side, side, 3))
            Image.fromarray(x.clip(0, 255).astype(np.uint8)).save(
                Path(folder) / ("train" if number < train else "test") / name / f"{number:03d}.png"
            )


def network(factory):
    """The file net.py with this network."""
    text = NET.replace("TONE_TABLE", str(TONES.tolist())).replace("FACTORY", factory)
    Path("net.py").write_text(text)


def torch_classifier(classes, factory, side=SMALLER):
    def make():
        photographs("photos", classes, side)
        network(factory)

    return make


def onnx_scores():
    from onnx import TensorProto, helper, numpy_helper, save

    photographs("photos", 3)
    tones = (TONES / 255).astype(np.float32)
    arrays = {"w": 40 * tones.T, "b": (-20 * np.square(tones).sum(1)).astype(np.float32)}
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"], axis=1),
        helper.make_node("MatMul", ["flat", "w"], ["scores"]),
        helper.make_node("Add", ["scores", "b"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tones",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, SMALLER, SMALLER])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(value, name) for name, value in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, "net.onnx")


class Answering(BaseHTTPRequestHandler):
    """The Open Inference Protocol of the nearest tone: scores, or the number of the class alone."""

    labels = False

    def log_message(self, *words):
        pass

    def do_GET(self):
        kind = {"datatype": "INT64", "shape": [-1]}
        if not self.labels:
            kind = {"datatype": "FP32", "shape": [-1, 3]}
        image = {"name": "x", "datatype": "FP32", "shape": [-1, 3, SMALLER, SMALLER]}
        self.reply({"name": "m", "inputs": [image], "outputs": [{"name": "y", **kind}]})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            asked = json.loads(body)
            image = asked["inputs"][0]
            x = np.asarray(image["data"], np.float32).reshape(image["shape"])
        except (ValueError, KeyError):  # the binary form, which this server does not speak
            return self.send_error(400)
        tones = (TONES / 255).astype(np.float32)
        y = x.mean((2, 3)) @ (40 * tones.T) - 20 * np.square(tones).sum(1)
        said = {"name": "y", "datatype": "FP32", "shape": list(y.shape), "data": y.ravel().tolist()}
        if self.labels:
            y = y.argmax(1)
            said = {"name": "y", "datatype": "INT64", "shape": [len(y)], "data": y.tolist()}
        return self.reply({"model_name": "m", "id": asked.get("id", ""), "outputs": [said]})

    def reply(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(labels):
    """Start such a server in a thread of this process, and say where it is."""
    handler = type("Served", (Answering,), {"labels": labels})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}/v2/models/m/infer"


def scene_files(factory, count=240):
    """Scenes as PNG with COCO's JSON and a table of tags, and the network in net.py."""
    source = Path(claims.toys.__file__).read_text()
    Path("net.py").write_text(f"{source}\n\ndef make(): return {factory}()\n")
    Path("photos").mkdir()
    images, known = scenes(count, seed=5)
    listed, boxes, tags = [], [], []
    for row, one in enumerate(known):
        name = f"{row:03d}.png"
        Image.fromarray(images.x[row, 0].numpy()).save(Path("photos") / name)
        listed.append({"id": row, "file_name": name, "width": 24, "height": 24})
        names = sorted({CLASSES[label] for label in one.labels.tolist()})
        tags.append({"path": f"photos/{name}", "labels": "|".join(names)})
        for label, (left, top, right, bottom) in zip(one.labels.tolist(), one.boxes.tolist()):
            box = {"id": len(boxes), "image_id": row, "category_id": label + 1}
            boxes.append({**box, "bbox": [left, top, right - left, bottom - top]})
    names = [{"id": number, "name": name} for number, name in enumerate(CLASSES, 1)]
    told = {"images": listed, "annotations": boxes, "categories": names}
    Path("labels.json").write_text(json.dumps(told))
    with Path("tags.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["path", "labels"])
        writer.writeheader()
        writer.writerows(tags)


def hugging_face():
    from test_way_in import folder, hugging_face as small

    small(Path("tiny"))
    folder(Path("photos"), count=400)  # a fifth is for testing: some stay for proofs


@dataclass(frozen=True)
class Kind:
    """A kind of model.

    `make` writes its files into the working folder; `needs` are libraries, `labels` says whether its
    server answers labels alone (None: it has none).
    """

    make: Callable[[], None]
    model: str = MODEL
    data: str = DATA
    offers: str = "gradients"
    needs: tuple[str, ...] = ()
    labels: bool | None = None
    task: str = "classes"

    @property
    def missing(self):
        """A library without which this kind cannot be tried here."""
        return next((name for name in self.needs if find_spec(name) is None), "")


KINDS = {
    "own network": Kind(torch_classifier(3, "Tones(3)", SIDE)),
    "one output": Kind(torch_classifier(2, "One()")),
    "onnx": Kind(onnx_scores, "onnx:net.onnx", offers="scores", needs=("onnxruntime", "onnx")),
    "server": Kind(
        lambda: photographs("photos", 3), "SERVER", offers="scores", labels=False,
        needs=("httpx2",),
    ),
    "labels": Kind(
        lambda: photographs("photos", 3), "SERVER", offers="label", labels=True,
        needs=("httpx2",),
    ),
    "detector": Kind(
        lambda: scene_files("Windows"), data="coco:labels.json?images=photos", task="boxes"
    ),
    "tagger": Kind(lambda: scene_files("Tags", 600), data="tags:tags.csv", task="tags"),
    "hugging face": Kind(hugging_face, "hf:tiny", needs=("transformers",)),
    "bundled": Kind(lambda: None, "zoo:lenet5", "mnist5k"),
}  # fmt: skip
