"""Networks of timm, Hugging Face and torchvision, with the preprocessing that their configuration states."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from hardcase.errors import HardcaseError
from hardcase.models.adapters import module_of
from hardcase.models.subject import Subject
from hardcase_teams import hubs


def net(classes=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, classes))


def test_a_timm_configuration_is_read():
    module = net()
    module.pretrained_cfg = {
        "mean": (0.5, 0.4, 0.3),
        "std": (0.2, 0.2, 0.2),
        "input_size": (3, 288, 288),
        "crop_pct": 0.9,
        "label_names": ["a", "b", "c"],
    }
    hub = hubs.timm_hub(module, "tiny")
    assert (hub.mean, hub.std) == ((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    assert (hub.size, hub.resize) == (288, 320)
    assert hub.classes == ("a", "b", "c")
    assert hub.options == "resize=320&crop=288"
    assert "mean 0.5, 0.4, 0.3" in str(hub)
    silent = hubs.timm_hub(net())
    assert silent.mean == hubs.IMAGENET[0]
    assert "states no normalisation" in silent.note


class HuggingFace(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()
        self.config = SimpleNamespace(id2label={0: "a", 1: "b", 2: "c"}, image_size=2)

    def forward(self, pixel_values):
        return SimpleNamespace(logits=self.inner(pixel_values))


def stated(mean, std, **more):
    return {"image_mean": [mean] * 3, "image_std": [std] * 3, **more}


SQUARE = {"height": 224, "width": 224}


@pytest.mark.parametrize(
    ("text", "mean", "std", "size", "resize"),
    [
        (stated(0.5, 0.5, size=SQUARE), 0.5, 0.5, 224, 224),
        (stated(0.4, 0.2, size={"shortest_edge": 256}, crop_size=SQUARE), 0.4, 0.2, 224, 256),
        (stated(0.4, 0.2, size=96, do_normalize=False), 0.0, 1.0, 96, 96),
        ({"do_normalize": False, "do_rescale": False, "size": 96}, 0.0, 1 / 255, 96, 96),
        (stated(1.0, 1.0, size=[96, 96], rescale_factor=1 / 127.5), 0.5, 0.5, 96, 96),
        (stated(0.5, 0.5), 0.5, 0.5, 2, 2),
    ],
    ids=["vit", "crop", "not normalised", "0..255", "own rescaling", "size of the network"],
)
def test_a_hugging_face_preprocessor_is_read(text, mean, std, size, resize):
    hub = hubs.hf_hub(HuggingFace(), text)
    assert hub.mean == pytest.approx((mean,) * 3)
    assert hub.std == pytest.approx((std,) * 3)
    assert (hub.size, hub.resize) == (size, resize)
    assert hub.classes == ("a", "b", "c")


def test_a_timm_network_in_the_form_of_hugging_face_states_its_preprocessing_inside():
    net = HuggingFace()
    stated = {"mean": [0.5] * 3, "std": [0.25] * 3, "input_size": [3, 96, 96], "crop_pct": 0.75}
    net.config.pretrained_cfg = stated
    hub = hubs.hf_hub(net, {})
    assert (hub.mean, hub.std, hub.size, hub.resize) == ((0.5,) * 3, (0.25,) * 3, 96, 128)
    assert hub.classes == ("a", "b", "c")


def test_a_torchvision_entry_is_read():
    steps = SimpleNamespace(crop_size=[224], resize_size=[232], mean=(0.1,) * 3, std=(0.2,) * 3)
    weights = SimpleNamespace(transforms=lambda: steps, meta={"categories": ["a", "b"]})
    hub = hubs.torchvision_hub(net(), weights, "tiny")
    assert (hub.size, hub.resize, hub.mean, hub.classes) == (224, 232, (0.1,) * 3, ("a", "b"))


@pytest.fixture
def fake_timm(monkeypatch):
    """A library of one network."""
    fake = ModuleType("timm")

    def create_model(name, pretrained=False, num_classes=3):
        if name != "tiny":
            raise RuntimeError(f"Unknown model ({name})")
        module = net(num_classes)
        module.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "num_classes": 3}
        return module

    fake.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", fake)
    return fake


def test_a_name_becomes_a_network(fake_timm):
    hub = hubs.from_hub("timm:tiny")
    assert hub.name == "timm:tiny"
    assert not hub.net.training
    model = Subject(module_of(hub.net), mean=hub.mean, std=hub.std)
    assert model(torch.rand(2, 3, 2, 2)).logits.shape == (2, 3)


def test_own_weights_decide_the_number_of_classes(fake_timm, tmp_path):
    torch.save(
        {"state_dict": {f"module.{k}": v + 1 for k, v in net(7).state_dict().items()}},
        tmp_path / "own.pt",
    )
    hub = hubs.from_hub("timm:tiny", weights=str(tmp_path / "own.pt"), offline=True)
    assert torch.equal(hub.net[1].weight, net(7)[1].weight + 1)
    assert "removed the prefix 'module.'" in hub.note


def test_what_cannot_be_loaded_is_told(fake_timm, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(HardcaseError, match="Unknown model"):
        hubs.from_hub("timm:huge")
    with pytest.raises(HardcaseError, match="no kind of model"):
        hubs.from_hub("keras:tiny")
    with pytest.raises(HardcaseError, match="--offline"):
        hubs.from_hub("timm:tiny", offline=True)
    fake_timm.list_models = lambda: ["tiny", "large"]
    with pytest.raises(HardcaseError, match="no model 'tinny'") as caught:
        hubs.from_hub("timm:tinny")
    assert caught.value.fix == "timm:tiny"


@pytest.mark.parametrize(
    ("spec", "library", "install"),
    [
        ("timm:tiny", "timm", "timm"),
        ("hf:tiny", "transformers", "'hardcase[huggingface]'"),
        ("torchvision:resnet18", "torchvision.models", "'hardcase[torchvision]'"),
    ],
)
def test_an_absent_library_is_named_with_its_install(monkeypatch, spec, library, install):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(HardcaseError, match="cannot be imported") as caught:
        hubs.from_hub(spec)
    assert caught.value.fix == f"pip install {install}"


def test_a_hub_that_has_no_address_here_is_not_asked_again_and_again(monkeypatch, caplog):
    """Its own library tries for half a minute before it says so."""
    asked = []

    def from_pretrained(name, *, local_files_only):
        asked.append((name, local_files_only))
        raise OSError(f"{name} is not in the cache")

    form = SimpleNamespace(from_pretrained=from_pretrained)
    fake = SimpleNamespace(AutoModelForImageClassification=form)
    monkeypatch.setitem(sys.modules, "transformers", fake)
    monkeypatch.setattr(hubs, "getproxies", dict)

    def unknown(host, port):
        raise OSError("Name or service not known")

    monkeypatch.setattr(hubs.socket, "getaddrinfo", unknown)
    with pytest.raises(HardcaseError, match="hf:tiyn cannot be loaded: tiyn is not in the cache"):
        hubs.from_hub("hf:tiyn")
    monkeypatch.setattr(hubs.socket, "getaddrinfo", lambda host, port: [])
    with pytest.raises(HardcaseError):
        hubs.from_hub("hf:tiyn")
    assert asked == [("tiyn", True), ("tiyn", False)]
    assert caplog.text.count("the hub does not answer") == 1


def test_a_real_timm_network(monkeypatch):
    timm = pytest.importorskip("timm", exc_type=Exception)
    created = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda name, pretrained, **more: created(name, **more)
    )
    hub = hubs.from_hub("timm:mobilenetv3_small_050")
    assert hub.mean == pytest.approx((0.485, 0.456, 0.406), abs=0.02)
    model = Subject(module_of(hub.net), mean=hub.mean, std=hub.std)
    assert model(torch.rand(1, 3, 64, 64)).logits.shape == (1, 1000)


def test_a_real_hugging_face_network(tmp_path):
    transformers = pytest.importorskip("transformers", exc_type=Exception)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=32,
        patch_size=8,
        id2label={0: "cat", 1: "dog"},
        label2id={"cat": 0, "dog": 1},
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    text = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 32, "width": 32}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(text))
    hub = hubs.from_hub(f"hf:{tmp_path}", offline=True)
    assert (hub.size, hub.mean, hub.classes) == (32, (0.5,) * 3, ("cat", "dog"))
    model = Subject(module_of(hub.net), mean=hub.mean, std=hub.std)
    assert model(torch.rand(2, 3, 32, 32)).logits.shape == (2, 2)
    assert model.class_names == ("cat", "dog")
