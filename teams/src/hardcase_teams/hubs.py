"""``timm:NAME``, ``hf:NAME-OR-PATH`` and ``torchvision:NAME``: a network with the preprocessing
that its own configuration states. ``hf:NAME-OR-PATH?labels=cat,dog`` is a zero-shot classifier.

The libraries are imported in the one function that needs them. Weights are read as safetensors or
with ``weights_only``; code of a model's repository is never run.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import nn

from hardcase.cache import named_path
from hardcase.errors import HardcaseError, choice, reading, require_consent
from hardcase.models.adapters import fit_state, own_names, read_state, timm_config
from hardcase.models.names import imagenet_if_known

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """A network for normalised images, with what its library says of it.

    Its images are resized so that the shorter side has `resize` pixels, then cropped to `size`.
    """

    net: nn.Module
    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int
    resize: int
    classes: tuple[str, ...] = ()
    note: str = ""

    @property
    def options(self) -> str:
        """The words after ``folder:PATH?`` that give images as this network was trained on them."""
        return f"resize={self.resize}&crop={self.size}"

    def __str__(self) -> str:
        mean = ", ".join(f"{value:.4g}" for value in self.mean)
        std = ", ".join(f"{value:.4g}" for value in self.std)
        size = f"{self.size} px after a resize to {self.resize}"
        names = f"{len(self.classes) or 'no'} class names"
        words = [f"{self.name}: mean {mean}", f"std {std}", size, names, self.note]
        return "; ".join(filter(None, words))


def from_hub(
    spec: str,
    *,
    weights: str = "",
    offline: bool = False,
    trust: bool = False,
    task: str = "classes",
) -> Hub:
    """The network that `spec` names, with `weights` of a file of one's own if there is one.

    Args:
        spec: ``timm:NAME``, ``hf:NAME-OR-PATH`` or ``torchvision:NAME``; with ``?labels=cat,dog``
            (and ``&template=a drawing of a {}``) a network of images and texts.
        weights: A file of weights; without it the library's pretrained ones.
        offline: Take nothing that is not on this machine.
        trust: Whether `weights` may be unpickled.
        task: What the network answers, where the library has a form for each.
    """
    kind, _, name = spec.partition(":")
    if kind not in LOADERS or not name:
        raise choice("kind of model", spec, tuple(f"{each}:NAME" for each in LOADERS))
    require_consent(spec)
    load: Callable[..., Hub] = LOADERS[kind]
    if task in FORMS and kind == "hf":
        load = partial(load, task=task)
    if not weights:
        hub = load(name, None, True, offline)
        return replace(hub, net=hub.net.eval(), name=spec)
    own = read_state(named_path(weights), trust=trust)
    heads = [len(value) for value in own.values() if value.ndim == 2]
    classes = heads[-1] if heads else None
    hub = load(name, classes, False, offline)
    note = "; ".join(filter(None, [hub.note, fit_state(hub.net, own, weights)]))
    if len(hub.classes) != classes:
        hub = replace(hub, classes=())
    return replace(hub, net=hub.net.eval(), name=spec, note=note)


def _timm(name: str, classes: int | None, pretrained: bool, offline: bool) -> Hub:
    timm = _imported("timm", "timm")
    known = timm.list_models() if hasattr(timm, "list_models") else [name]
    if name.split(".")[0] not in known and "/" not in name:
        near = get_close_matches(name, known, n=1)
        fix = f"timm:{near[0]}" if near else "timm.list_models() names them"
        raise HardcaseError(f"timm has no model {name!r}.", fix=fix)
    if pretrained and offline and os.environ.get("HF_HUB_OFFLINE") != "1":
        raise HardcaseError(
            f"--offline, and timm:{name} may have to fetch its weights.",
            fix=f"HF_HUB_OFFLINE=1 in the environment, or WEIGHTS@timm:{name}",
        )
    extra = {} if classes is None else {"num_classes": classes}
    with _loading("timm", name):
        net = timm.create_model(name, pretrained=pretrained, **extra)
    return timm_hub(net, name)


def timm_hub(net: nn.Module, name: str = "", config: Any = None) -> Hub:
    """What a timm network's ``pretrained_cfg``, or the one given, says of its preprocessing."""
    config = timm_config(net, config)
    size = int((config.get("input_size") or (3, 224, 224))[-1])
    share = float(config.get("crop_pct") or 0.875)
    known = imagenet_if_known(int(config.get("num_classes") or 0))
    labels = config.get("label_names") or [row.name for row in known]
    note = ""
    if not config.get("mean"):
        note = "the configuration states no normalisation; ImageNet's is used"
    return Hub(
        net=net,
        name=name,
        mean=tuple(config.get("mean") or IMAGENET[0]),
        std=tuple(config.get("std") or IMAGENET[1]),
        size=size,
        resize=int(size / share),
        classes=tuple(map(str, labels)),
        note=note,
    )


FORMS = {
    "classes": "AutoModelForImageClassification",
    "boxes": "AutoModelForObjectDetection",
    "masks": "AutoModelForSemanticSegmentation",
}
"""The forms of Hugging Face's networks by their task."""


def _hf(
    name: str, classes: int | None, pretrained: bool, offline: bool, *, task: str = "classes"
) -> Hub:
    transformers = _imported("transformers", "transformers")
    hide = getattr(getattr(transformers, "logging", None), "disable_progress_bar", None)
    if hide is not None:  # the screen has a bar of its own
        hide()
    name, asks, words = name.partition("?")
    place = named_path(name)
    where = str(place) if place.is_dir() else name
    if not place.is_dir() and not offline and not _hub_answers():
        _log.warning("the hub does not answer; only what it gave before is looked at")
        offline = True
    if asks and not pretrained:
        raise HardcaseError(
            f"hf:{name} with labels takes the weights of its folder, not a file of yours.",
            fix=f"hf:FOLDER?{words}, after save_pretrained(FOLDER)",
        )
    if asks:
        labels, template = _labels(words)
        with _loading("hf", name):
            net = zero_shot(transformers, where, labels, template, offline=offline)
            hub = hf_hub(net, _preprocessor(where, offline=offline), name)
            return replace(hub, classes=labels)
    with _loading("hf", name):
        form = getattr(transformers, FORMS[task])
        if pretrained:
            net = form.from_pretrained(where, local_files_only=offline)
        else:
            config = transformers.AutoConfig.from_pretrained(where, local_files_only=offline)
            config.num_labels = classes or config.num_labels
            net = form.from_config(config)
        return hf_hub(net, _preprocessor(where, offline=offline), name)


def _hub_answers() -> bool:
    """Whether the hub has an address here: its own library asks for half a minute."""
    if getproxies():
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True


def _labels(words: str) -> tuple[tuple[str, ...], str]:
    """The labels and the template after the question mark of a zero-shot classifier."""
    given = dict(part.partition("=")[::2] for part in words.split("&"))
    labels = tuple(word.strip() for word in given.pop("labels", "").split(",") if word.strip())
    template = given.pop("template", TEMPLATE)
    if given:
        raise choice("option of a zero-shot classifier", next(iter(given)), ("labels", "template"))
    if len(set(labels)) < 2 or "{}" not in template:
        raise HardcaseError(
            f"a zero-shot classifier tells at least two labels apart; this names {len(labels)}.",
            fix="hf:PATH?labels=cat,dog, perhaps &template=a drawing of a {}",
        )
    return labels, template


class ZeroShot(nn.Module):
    """A network of images and texts as a classifier: the likeness of an image to each text."""

    texts: torch.Tensor

    def __init__(self, model: nn.Module, texts: torch.Tensor) -> None:
        super().__init__()
        self.model = model
        self.config = getattr(model.config, "vision_config", model.config)
        self.register_buffer("texts", texts)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        features: Any = self.model.get_image_features(pixel_values=pixel_values)  # type: ignore[operator]
        images = getattr(features, "pooler_output", features)
        likeness: torch.Tensor = nn.functional.normalize(images, dim=-1) @ self.texts.T
        scale = getattr(self.model, "logit_scale", None)
        bias = getattr(self.model, "logit_bias", None)
        if scale is not None:
            likeness = likeness * scale.exp()
        return likeness if bias is None else likeness + bias


def zero_shot(
    transformers: Any, where: str, labels: Sequence[str], template: str, *, offline: bool
) -> ZeroShot:
    """The zero-shot classifier in a folder or on the hub; the texts are read once."""
    kind = transformers.AutoModelForZeroShotImageClassification
    model = kind.from_pretrained(where, local_files_only=offline).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(where, local_files_only=offline)
    longest = getattr(model.config, "text_config", model.config).max_position_embeddings
    said = tokenizer(
        [template.replace("{}", label) for label in labels],
        padding="max_length",
        truncation=True,
        max_length=longest,
        return_tensors="pt",
    )
    with torch.no_grad():
        features = model.get_text_features(
            input_ids=said["input_ids"], attention_mask=said.get("attention_mask")
        )
    texts = getattr(features, "pooler_output", features)
    return ZeroShot(model, nn.functional.normalize(texts, dim=-1))


def hf_hub(net: nn.Module, preprocessor: Mapping[str, Any], name: str = "") -> Hub:
    """What a Hugging Face network's ``preprocessor_config.json`` and own configuration say."""
    inside = getattr(getattr(net, "config", None), "pretrained_cfg", None)
    if inside and not preprocessor:  # a network of timm in Hugging Face's form
        return replace(timm_hub(net, name, inside), classes=own_names(net))
    scale = 255.0  # what our [0, 1] becomes before mean and std are applied
    if preprocessor.get("do_rescale", True):
        scale *= float(preprocessor.get("rescale_factor", 1 / 255))
    mean: Sequence[float] = (0.0,) * 3
    std: Sequence[float] = (1.0,) * 3
    if preprocessor.get("do_normalize", True) and "image_mean" in preprocessor:
        mean = preprocessor["image_mean"]
        std = preprocessor["image_std"]
    resize = _side(
        preprocessor.get("size"), getattr(getattr(net, "config", None), "image_size", None)
    )
    size = resize
    if preprocessor.get("do_center_crop", "crop_size" in preprocessor):
        size = _side(preprocessor.get("crop_size"), resize)
    note = ""
    if not preprocessor:
        note = "no preprocessor_config.json; images in 0..1 are given as they are"
    return Hub(
        net=net,
        name=name,
        mean=tuple(value / scale for value in mean),
        std=tuple(value / scale for value in std),
        size=size,
        resize=round(resize / float(preprocessor.get("crop_pct") or 1.0)),
        classes=own_names(net),
        note=note,
    )


def _side(value: Any, otherwise: Any) -> int:
    """One number from the many ways in which a size is written."""
    if isinstance(value, Mapping):
        keys = ("shortest_edge", "height", "width", "longest_edge")
        value = [value[key] for key in keys if key in value][:1]
    if isinstance(value, Sequence) and value and not isinstance(value, str):
        value = value[-1]
    if isinstance(value, int | float):
        return int(value)
    if otherwise is None:
        return 224
    return _side(otherwise, None)


def _preprocessor(where: str, *, offline: bool) -> dict[str, Any]:
    """The file beside a network that says how images are prepared; empty if there is none."""
    file = "preprocessor_config.json"
    path = Path(where) / file
    if not Path(where).is_dir():
        hub = _imported("huggingface_hub", "huggingface_hub")
        try:
            path = Path(hub.hf_hub_download(where, file, local_files_only=offline))
        except Exception:  # a network without that file is one that states nothing
            return {}
    if not path.is_file():
        return {}
    with reading(f"{path} cannot be read"):
        return dict(json.loads(path.read_text(encoding="utf-8")))


def _torchvision(name: str, classes: int | None, pretrained: bool, offline: bool) -> Hub:
    models = _imported("torchvision.models", "torchvision")
    if name not in models.list_models():
        raise choice("torchvision model", name, models.list_models())
    weights = models.get_model_weights(name).DEFAULT
    stored = Path(torch.hub.get_dir()) / "checkpoints" / str(weights.url).rpartition("/")[2]
    if pretrained and offline and not stored.is_file():
        raise HardcaseError(
            f"the weights of {name} are not on this machine, and --offline forbids to fetch them.",
            f"Looked for {stored}.",
        )
    extra: dict[str, Any] = {"weights": weights if pretrained else None}
    if classes is not None:
        extra["num_classes"] = classes
    with _loading("torchvision", name):
        return torchvision_hub(models.get_model(name, **extra), weights, name)


def torchvision_hub(net: nn.Module, weights: Any, name: str = "") -> Hub:
    """What a torchvision weights entry says: its transforms and its categories."""
    steps = weights.transforms()
    size = _side(getattr(steps, "crop_size", None), 224)
    return Hub(
        net=net,
        name=name,
        mean=tuple(getattr(steps, "mean", (0.0,) * 3)),  # detectors normalise themselves
        std=tuple(getattr(steps, "std", (1.0,) * 3)),
        size=size,
        resize=_side(getattr(steps, "resize_size", None), size),
        classes=tuple(map(str, weights.meta.get("categories", ()))),
    )


TEMPLATE = "a photo of a {}"
"""The text of a label of a zero-shot classifier, where none is given."""
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
Loader = Callable[[str, int | None, bool, bool], Hub]
LOADERS: Mapping[str, Loader] = {"timm": _timm, "hf": _hf, "torchvision": _torchvision}


INSTALLS = {
    "torchvision": "'hardcase[torchvision]'",
    "transformers": "'hardcase[huggingface]'",
    "huggingface_hub": "'hardcase[huggingface]'",
}
"""What brings a library with a version that fits; others are installed by their own names."""


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except Exception as error:  # a build that does not fit torch raises RuntimeError at import
        raise HardcaseError(
            f"{package} cannot be imported: {error}",
            fix=f"pip install {INSTALLS.get(package, package)}",
        ) from error


def _loading(kind: str, name: str) -> AbstractContextManager[None]:
    """Unknown names, missing files, absent networks and broken downloads raise many kinds."""
    spec = f"{kind}:{name}"
    return reading(f"{spec} cannot be loaded", fix=f"WEIGHTS@{spec} loads weights of your own")
