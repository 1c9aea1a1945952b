"""Words that name a network."""

import sys
from importlib import import_module
from types import ModuleType

import pytest
import torch
from torch import nn

from hardcase.cli.main import main
from hardcase.config import chosen_method
from hardcase.errors import HardcaseError, set_consent_check
from hardcase.models.health import check
from hardcase.models.load import Loading, is_stated, load_model, model_of, names_outputs
from hardcase.models.subject import Subject
from hardcase.runs.identity import consent_of, rights
from hardcase.tensors import from_bytes
from hardcase.types import Images
from tiny import install


def net(classes=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, classes))


X = torch.rand(2, 3, 2, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("spec", "stated", "named"),
    [
        ("zoo:resnet50-imagenet", True, True),
        ("zoo:lenet5", False, False),
        ("own.pt@timm:resnet18", True, True),
        ("hf:google/vit", True, True),
        ("net.pt2", False, True),
        ("weights.pt@net.py:make", False, True),
        ("onnx:net.onnx", False, False),
    ],
)
def test_words_are_recognised(spec, stated, named):
    assert (is_stated(spec), names_outputs(spec)) == (stated, named)


def test_a_network_that_was_not_fetched_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    with pytest.raises(HardcaseError) as caught:
        load_model("zoo:efficientnet-lite0", Loading())
    assert caught.value.fix == "hardcase fetch model efficientnet-lite0"


def test_a_library_states_the_normalisation_and_the_user_may_state_another(monkeypatch):
    fake = ModuleType("timm")

    def create_model(name, pretrained, **more):
        module = net()
        module.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
        module.pretrained_cfg |= {"input_size": (3, 96, 96), "crop_pct": 1.0}
        return module

    fake.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", fake)
    found = load_model("timm:tiny", Loading())
    torch.testing.assert_close(found(X).logits, net()((X - 0.5) / 0.25))
    assert found.sizing == "resize=96&crop=96"
    other = load_model("timm:tiny", Loading(mean=(0.1,), std=(1.0,)))
    torch.testing.assert_close(other(X).logits, net()(X - 0.1))


def test_a_scripted_file(tmp_path):
    path = tmp_path / "net.pt"
    torch.jit.script(net()).save(str(path))
    found = load_model(str(path), Loading())
    torch.testing.assert_close(found(X).logits, net()(X))
    with pytest.raises(HardcaseError, match="model of no known kind") as caught:
        load_model("net:1", Loading())
    assert "timm:NAME" in str(caught.value)


def lit(positive=1, count=40):
    """Dark images of class 0 and light ones of class 1 (or the other way round)."""
    y = torch.arange(count) % 2
    light = (y == positive).long()
    noise = torch.randint(0, 40, (count, 1, 4, 4), generator=torch.Generator().manual_seed(0))
    x = (60 + 120 * light[:, None, None, None] + noise).to(torch.uint8)
    return Images(x, y, tuple(map(str, range(count))), ("cat", "dog"))


class Light(nn.Module):
    """One output: how light an image is."""

    def __init__(self, end=nn.Identity):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.layer.weight.data.fill_(30.0)
        self.layer.bias.data.fill_(-15.0)
        self.end = end()

    def forward(self, x):
        return self.end(self.layer(x.mean((1, 2, 3))[:, None]))


@pytest.mark.parametrize("end", [nn.Identity, nn.Sigmoid], ids=["logit", "probability"])
@pytest.mark.parametrize("positive", [1, 0])
def test_one_output_for_two_classes_is_read_by_trying_and_said(end, positive, caplog):
    images = lit(positive)
    model = model_of(Light(end), images)
    assert (model(from_bytes(images.x)).logits.argmax(1) == images.y).all()
    assert f"class {images.classes[positive]!r} (100 % of 40 images right)" in caplog.text
    assert f"model.outputs={model.outputs}" in caplog.text
    health = check(model, images)
    assert (health.accuracy, health.outputs) == (1.0, 2)


def test_one_output_names_the_setting_and_a_sigmoid_that_was_said_is_one(tmp_path):
    with pytest.raises(HardcaseError, match="1 outputs, but") as caught:
        check(Subject(Light()), lit())
    assert caught.value.fix == "--set model.outputs=binary"
    (tmp_path / "net.py").write_text("from test_load import Light\nfrom torch import nn\n"
                                     "def make():\n    return Light(nn.Sigmoid)\n")  # fmt: skip
    how = Loading(test=lit(), outputs="sigmoid")
    assert load_model(f"{tmp_path / 'net.py'}:make", how).outputs == "binary-sigmoid"


def test_one_output_with_a_normalisation_of_its_own(caplog):
    class Scaled(Light):
        def forward(self, x):
            return super().forward(x / 255)

    model = model_of(Scaled(), lit())
    assert check(model, lit()).accuracy == 1.0
    assert "0..255" in caplog.text


def test_which_class_is_meant_is_not_told_by_few_images(caplog):
    model_of(Light(), lit(count=2))
    assert "do not tell which" in caplog.text


LOADER = """
import numpy as np

def load(spec, how):
    threshold = float(spec.removeprefix("lamp:"))
    def light(x):
        return np.stack([np.full(len(x), threshold), np.asarray(x).mean((1, 2, 3))], 1)
    return light
"""


@pytest.fixture
def lamp(tmp_path, monkeypatch):
    """An installed distribution that loads ``lamp:THRESHOLD``."""
    install(tmp_path, monkeypatch, "lamps", LOADER, "[hardcase.loader]\nlamp = lamps:load\n")


def test_an_installed_distribution_loads_models_of_its_own(lamp):
    model = load_model("lamp:0.4", Loading(test=lit()))
    assert model.offers == "scores"
    assert check(model, lit()).accuracy == 1.0
    assert chosen_method({"model": "lamp:0.4"})[0] == "natural-blackbox"
    with pytest.raises(
        HardcaseError, match=r"loader 'lamp' of the entry point lamps:load.*ValueError"
    ):
        load_model("lamp:bright", Loading(test=lit()))


def test_a_run_folder_of_others_does_not_name_a_model_of_a_loader_unasked(lamp):
    (right,) = rights({"model": "lamp:0.4"})
    assert str(right) == "load lamp:0.4, which can run code (as model)"
    try:
        set_consent_check(consent_of(["--model", "lamp:0.4"]))
        load_model("lamp:0.4", Loading(test=lit()))
        with pytest.raises(HardcaseError, match=r"load lamp:0\.5, which can run code"):
            load_model("lamp:0.5", Loading(test=lit()))
    finally:
        set_consent_check(None)


@pytest.mark.parametrize("form", ["onnx", "https", "tflite"])
def test_models_of_a_distribution_that_is_not_installed(form, monkeypatch, capsys, tmp_path):
    extra = form.removesuffix("s")
    monkeypatch.setitem(sys.modules, "hardcase_teams", None)
    monkeypatch.delitem(sys.modules, f"hardcase_teams.{extra}", raising=False)
    (tmp_path / "net").touch()
    words = ["run", "--model", f"{form}:{tmp_path}/net", "--data", "mnist5k", "--images", "2"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert f"pip install 'hardcase[{extra}]'" in capsys.readouterr().err
    public = import_module("hardcase.models")
    monkeypatch.delitem(vars(public), "Onnx", raising=False)
    monkeypatch.delitem(sys.modules, "hardcase_teams.onnx", raising=False)
    with pytest.raises(AttributeError, match=r"hardcase\[teams\]"):
        public.Onnx  # noqa: B018 - names of the distribution are imported when they are used
