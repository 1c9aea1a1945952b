"""The way of a newcomer: a classifier of a hub, a folder of photographs, two commands, a report.

The networks are the smallest of their libraries, trained here for a few seconds; where a library
is not installed its test is skipped.
"""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

CLASSES = ("amber", "blue", "crimson")
COLOURS = torch.tensor([[0.8, 0.6, 0.2], [0.2, 0.3, 0.8], [0.8, 0.2, 0.2]])
SIDE = 64


def photographs(count, seed=0):
    """Blots of three colours on noise: easy to tell apart, and easy to push over."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % len(CLASSES)
    noise = 0.25 * torch.rand(count, 3, SIDE, SIDE, generator=rng)
    return (0.4 * COLOURS[y][:, :, None, None] + 0.2 + noise).clamp(0, 1), y


def folder(root, count=30):
    x, y = photographs(count)
    for number, (image, label) in enumerate(zip(x, y.tolist())):
        place = root / CLASSES[label]
        place.mkdir(parents=True, exist_ok=True)
        pixels = (image.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
        picture = Image.fromarray(pixels).resize((SIDE + 8 * (number % 2), SIDE))
        picture.save(place / f"{number:03d}.png")
    return root


def taught(net, logits, mean, std, steps=40):
    """`net` after a few steps on such photographs."""
    torch.manual_seed(0)
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    x, y = photographs(96, seed=1)
    x = (x - mean) / std
    net.train()
    for _ in range(steps):
        loss = functional.cross_entropy(logits(net(x)), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net.eval()


def library(name, member):
    """A library, if it can be used beside this torch."""
    try:
        found = import_module(name)
        getattr(found, member)
    except Exception as error:  # a build that does not fit torch raises many kinds
        pytest.skip(f"{name} cannot be used here: {str(error).splitlines()[0][:120]}")
    return found


def hugging_face(root):
    transformers = library("transformers", "ResNetForImageClassification")
    names = dict(enumerate(CLASSES))
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    known = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    config = transformers.ResNetConfig(**sizes, num_labels=len(CLASSES), **known)
    net = transformers.ResNetForImageClassification(config)
    taught(net, lambda said: said.logits, 0.5, 0.25).save_pretrained(root)
    stated = {"do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    stated |= {"size": {"height": SIDE, "width": SIDE}}
    (root / "preprocessor_config.json").write_text(json.dumps(stated))
    return f"hf:{root}"


def timm_network(root):
    timm = library("timm", "create_model")
    net = timm.create_model("resnet10t", num_classes=len(CLASSES))
    mean, std = (torch.tensor(net.pretrained_cfg[name])[:, None, None] for name in ("mean", "std"))
    root.mkdir()
    weights = taught(net, lambda said: said, mean, std).state_dict()
    torch.save({"state_dict": weights}, root / "w.pt")
    return f"{root / 'w.pt'}@timm:resnet10t"


def hardcase(*words, cwd):
    """The command line in a process of its own, with a home and a cache that are empty."""
    kept = ("PATH", "PYTHONPATH", "MKL_CBWR", "OMP_NUM_THREADS", "LANG")
    clean = {name: os.environ[name] for name in kept if name in os.environ}
    clean |= {"HOME": str(cwd), "HARDCASE_CACHE": str(cwd / "cache"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "hardcase", *words]
    told = {"capture_output": True, "text": True, "check": False}
    done = subprocess.run(command, cwd=cwd, env=clean, timeout=600, **told)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("make", [hugging_face, timm_network])
def test_two_commands_lead_from_a_hub_and_a_folder_to_a_report(make, tmp_path):
    """No flag but where the model and the images are: everything else is chosen, and said."""
    model = make(tmp_path / "network")
    folder(tmp_path / "photos")
    size = "" if model.startswith("hf:") else f"&resize={SIDE}"
    data = f"folder:photos?split=all{size}"
    said = hardcase("run", "--model", model, "--data", data, cwd=tmp_path)
    assert "method natural" in said.stderr
    assert "searching with natural on" in said.stderr
    (home,) = (tmp_path / "runs").iterdir()
    page = Path(hardcase("open", str(home), "-q", cwd=tmp_path).stdout.strip())
    record = json.loads((home / "run.json").read_text())
    assert record["classes"][:3] == list(CLASSES)
    assert record["accuracy"]["value"] > 0.9
    assert record["search_results"]["images"] >= 20
    assert record["search_results"]["failing"] > 0
    assert "natural" in page.read_text(encoding="utf-8")


def test_a_bare_network_and_a_data_set_in_python(tmp_path):
    import hardcase as hc

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, len(CLASSES))

        def forward(self, x):
            return {"logits": self.head(x.mean((2, 3)))}

    net = taught(Small(), lambda said: said["logits"], 0.5, 0.25, steps=200)
    x, y = photographs(12)
    data = torch.utils.data.TensorDataset(x, y)
    run = hc.run(net, data, method="pgd", options={"epsilon": 0.2}, out=tmp_path / "run")
    assert run.record["search_results"]["failing"] > 0
    assert "failing" in run._repr_html_()
