"""Twenty natural mistakes of a newcomer: `doctor` and `run` name the cause of each, and of most the
flag to add; with that flag the doctor is content.
"""

import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hardcase.cli import inspect
from hardcase.cli.main import main

CLASSES = ("amber", "blue", "crimson", "green", "pink", "slate")
COLOURS = [[240, 190, 40], [30, 60, 200], [190, 20, 50], [40, 150, 60], [250, 150, 190]]
COLOURS = np.array([*COLOURS, [90, 100, 110]])
NET = '''
import torch
from torch import nn
from torch.nn import functional

COLOURS = torch.tensor(COLOUR_TABLE) / 255
LUMA = torch.tensor([0.299, 0.587, 0.114])


class Net(nn.Module):
    """The nearest of six colours, or of their six greys."""

    def __init__(self, *, mean=0.0, std=1.0, grey=False, side=None, flip=False, dark=False,
                 last=False, order=None, first=0, end="logits", noise=False, blind=False, copies=False):
        super().__init__()
        known = COLOURS if not grey else (COLOURS * LUMA).sum(1, keepdim=True)
        known = known.expand(-1, 3).clone() if copies else known
        self.known = nn.Parameter(known if not blind else torch.zeros_like(known))
        self.told = (mean, std, side, flip, dark, last, first, end, noise)
        self.order = torch.arange(6) if order is None else torch.tensor(order)

    def forward(self, x):
        mean, std, side, flip, dark, last, first, end, noise = self.told
        x = x.permute(0, 3, 1, 2) if last else x
        if x.shape[1] != self.known.shape[1]:
            raise RuntimeError(f"expected {self.known.shape[1]} channels, got {x.shape[1]}")
        if side and x.shape[2] != side:
            raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({x.shape[2]})")
        x = x * torch.as_tensor(std).reshape(1, -1, 1, 1) + torch.as_tensor(mean).reshape(1, -1, 1, 1)
        x = 1 - x if dark else x
        x = x.flip(1) if flip else x
        logits = -(x.mean((2, 3))[:, None] - self.known).square().sum(2)[:, self.order] * 100
        logits = torch.cat([logits.new_full((len(x), first), -1e3), logits], 1)
        logits = functional.dropout(logits, 0.5, training=True) if noise else logits
        return {"softmax": logits.softmax, "sigmoid": lambda _: (logits + 3).sigmoid(),
                "logits": lambda _: logits}[end](1)


IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
def make(): return Net()
def imagenet(): return Net(**IMAGENET)
def bytes_(): return Net(std=1 / 255)
def bgr(): return Net(flip=True)
def grey(): return Net(grey=True)
def dark(): return Net(dark=True)
def last(): return Net(last=True)
def side(): return Net(side=28)
def order(): return Net(order=[3, 5, 0, 4, 1, 2])
def background(): return Net(first=1)
def softmax(): return Net(end="softmax")
def sigmoid(): return Net(end="sigmoid")
def noisy(): return Net(noise=True)
def blind(): return Net(blind=True)
def three(): return nn.Sequential(Net(), nn.AdaptiveAvgPool1d(3))
def greys(): return Net(grey=True, copies=True)
'''


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with a network, its weights, and images of six colours in every usual form."""
    root = tmp_path_factory.mktemp("newcomer")
    (root / "net.py").write_text(NET.replace("COLOUR_TABLE", str(COLOURS.tolist())))
    rng = np.random.default_rng(0)
    y = np.arange(60) % 6
    x = COLOURS[y][:, None, None] + rng.integers(-9, 10, (60, 16, 16, 3))
    x = x.clip(0, 255).astype(np.uint8)
    for number, (image, label) in enumerate(zip(x, y)):
        picture = Image.fromarray(image)
        sized = picture.resize((16 + 4 * (number % 3), 16))
        forms = {"photos": picture, "mixed": sized, "greys": picture.convert("L")}
        files = {f"{kind}/{CLASSES[label]}/{number}.png": form for kind, form in forms.items()}
        for name, form in {**files, f"loose/{label}_{number}.png": picture}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            form.save(root / name)
    np.savez(root / "one.npz", images=x, labels=y + 1)
    np.savez(root / "float.npz", images=x.astype(np.float32), labels=y)
    weights = {"known": torch.from_numpy(COLOURS).float() / 255}
    torch.save(weights, root / "weights.pt")
    torch.save({"state_dict": weights, "made by": Path("me")}, root / "whole.pkl")
    return root


@dataclass(frozen=True)
class Slip:
    """A mistake: a word of its cause, the flag that mends it, and what was typed."""

    cause: str
    flag: str = ""
    model: str = "net.py:make"
    data: str = "folder:photos?split=all"
    more: str = ""


PHOTOS, MIXED, GREYS = (f"folder:{name}?split=all" for name in ("photos", "mixed", "greys"))
FROM_ONE = "npz:one.npz?split=all"
IMAGENET = "--set model.mean=0.485,0.456,0.406 --set model.std=0.229,0.224,0.225"
IN_LEVELS = "--set model.mean=123.7,116.8,103.9 --set model.std=58.4,57.1,57.4"
BACKGROUND = "--set model.classes=background,amber,blue,crimson,green,pink,slate"
ORDER = "--set model.classes=green,slate,amber,pink,blue,crimson"
BYTES = "--set model.mean=0 --set model.std=0.003922"
INVERTED = "--set model.mean=1 --set model.std=-1"
SLIPS = (
    Slip("takes images of 28 pixels", f"--data '{PHOTOS}&resize=28&crop=center'", "net.py:side"),
    Slip("different sizes", f"--data '{MIXED}&resize=16&crop=center'", data=MIXED),
    Slip("takes grey images", "--set model.channels=grey", "net.py:grey"),
    Slip("takes colour images", "--set model.channels=colour", "net.py:greys", GREYS),
    Slip("normalisation ImageNet", IMAGENET, "net.py:imagenet"),
    Slip("normalisation images in 0..255", BYTES, "net.py:bytes_"),
    Slip("normalisation is another one", IMAGENET, "net.py:imagenet", more=IN_LEVELS),
    Slip("red and blue are exchanged", "--set model.channels=bgr", "net.py:bgr"),
    Slip("light and dark are exchanged", INVERTED, "net.py:dark"),
    Slip("N x H x W x C", "--set model.channels=last", "net.py:last"),
    Slip("another order", ORDER, "net.py:order"),
    Slip("output before the first class", BACKGROUND, "net.py:background"),
    Slip("labels count from 1", f"--data '{FROM_ONE}&first=1'", data=FROM_ONE),
    Slip("returns probabilities", "--set model.outputs=probabilities", "net.py:softmax"),
    Slip("sigmoid", "--set model.outputs=sigmoid", "net.py:sigmoid"),
    Slip("weights may be missing", "--model weights.pt@net.py:blind", "net.py:blind"),
    Slip("needs unpickling", "--trust-pickle", "whole.pkl@net.py:make"),
    Slip("cannot be used", "--device cpu", more="--device cuda:7"),
    Slip("is a path", "--data folder:photos", data="photos"),
    Slip("lie in no class folder", "--data 'folder:loose?labels=prefix'", data="folder:loose"),
    Slip("which function", "--model net.py:make", "net.py"),
    Slip("changes its answer", model="net.py:noisy"),
    Slip("3 outputs", model="net.py:three"),
    Slip("float images range over", data="npz:float.npz"),
)


def words(slip, more=""):
    """What is typed: the slip, with flags of the same name replaced by those of `more`."""
    typed = {"--model": [slip.model], "--data": [slip.data]}
    for text in (slip.more, more):
        said = {}
        for flag in re.findall(r"--\S+(?: (?!--)(?:'[^']*'|\S+))?", text):
            name, *value = shlex.split(flag)
            said.setdefault(name, []).extend(value)
        typed |= said
    pairs = ((name, value) for name, values in typed.items() for value in values or [""])
    return [word for pair in pairs for word in pair if word]


def doctor(slip, capsys, more=""):
    """The doctor's lines that are not in order."""
    capsys.readouterr()
    main(["doctor", "--format", "json", *words(slip, more)])
    return [one for one in json.loads(capsys.readouterr().out) if one["state"] != "ok"]


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.cause)
def test_a_slip_is_named_and_its_flag_mends_it(slip, here, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(here)
    if not os.environ.get("HARDCASE_TORTURE"):  # its ten-second run is tested elsewhere
        fine = inspect.DoctorLine("smoke run", "ok", "")
        monkeypatch.setattr(inspect, "_smoke", lambda *_, **__: fine)
    found = doctor(slip, capsys)
    assert any(slip.cause in one["detail"] for one in found)
    if slip.flag:
        assert any(slip.flag in one["remedy"] for one in found)
        left = doctor(slip, capsys, slip.flag)
        assert not [one for one in left if one["remedy"] or one["state"] == "problem"]
    short = ("--method", "fgsm", "--images", "24", "--out", str(tmp_path / "run"))
    code = main(["run", *words(slip), *short])
    said = capsys.readouterr()
    assert code in (0, 2)
    assert slip.cause in said.out + said.err
