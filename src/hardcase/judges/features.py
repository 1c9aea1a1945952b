"""Features of networks that were trained elsewhere, cached on disk, and probes fitted to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional

from hardcase.cache import cache_folder, write_atomically
from hardcase.errors import HardcaseError
from hardcase.judges.judge import Neighbours
from hardcase.models.pretrained import PRETRAINED
from hardcase.models.subject import Subject
from hardcase.tensors import chunks, digest, fingerprints, from_bytes
from hardcase.types import Answer

VIEWS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "flipped": lambda x: x.flip(3),
}
"""A view of an image: how an encoder receives it. Each view costs a pass of every encoder."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """A frozen network, the layers that are read, and its origin.

    It returns pooled features by layer, and the scores of its head.
    """

    subject: Subject
    layers: tuple[str, ...]
    lineage: str = ""
    spec: str = ""
    size: int = 0

    @property
    def hash(self) -> str:
        """The hash of the network."""
        return self.subject.hash

    @property
    def classifies(self) -> bool:
        """Whether its outputs are scores of classes, and not features alone."""
        row = PRETRAINED.get(self.spec.removeprefix("zoo:"))
        return row is None or row.outputs == "imagenet"

    def __call__(self, x: Float[Tensor, "m c h w"]) -> Answer:
        answer: Answer = self.subject(_sized(x, self.size), dict.fromkeys(self.layers, pooled))
        return answer

    @torch.no_grad()
    def ask(self, x: Float[Tensor, "m c h w"], *, view: str = "plain", batch: int = 32) -> Answer:
        """Return features and scores of a view, in batches."""
        parts = list(chunks(len(x), batch)) or [slice(0, 0)]
        parts_read = [self(VIEWS[view](x[rows])) for rows in parts]
        names = parts_read[0].activations
        features = {
            name: torch.cat([part.activations[name] for part in parts_read]) for name in names
        }
        return Answer(torch.cat([part.logits for part in parts_read]), features)


def pooled(output: Tensor) -> Float[Tensor, "m _"]:
    """Return a row of numbers per image: means over a map, first token and mean of the others,
    or the output as it is.
    """
    if output.ndim == 4:
        return output.mean((2, 3))
    if output.ndim == 3:
        return torch.cat([output[:, 0], output[:, 1:].mean(1)], 1)
    return output.flatten(1).clone()


def _sized(x: Float[Tensor, "m c h w"], size: int) -> Float[Tensor, "m c h2 w2"]:
    if not size or x.shape[2:] == (size, size):
        return x
    return functional.interpolate(x, size=(size, size), mode="bilinear", antialias=True)


def encoder(
    net: Subject,
    x: Float[Tensor, "m c h w"],
    *,
    lineage: str = "",
    spec: str = "",
    size: int = 0,
) -> Encoder:
    """Return an encoder that reads the deepest resolutions of a network."""
    layers = depths(net, _sized(x, size))
    return Encoder(net, layers, lineage, spec or net.name, size)


@torch.no_grad()
def depths(net: Subject, x: Float[Tensor, "m c h w"], *, count: int = 3) -> tuple[str, ...]:
    """Return the last layer of each of the deepest resolutions and the layer before the head,
    `count` layers in all.
    """
    body = _fired(net, x)
    heads = [at for at, (_, module, _) in enumerate(body) if isinstance(module, nn.Linear)]
    if heads and heads[-1]:
        body = body[: heads[-1]]
    if not body:
        raise HardcaseError(f"{net.name} has no layer whose output could be read as features.")
    *_, (before, _, shape) = body
    last = {row[2][1:]: row for row in body if len(row[2]) == 3}
    maps = [name for name, _, size in last.values() if name != before]
    if maps and len(shape) == 1 and [*last.values()][-1][2][0] == shape[0]:
        maps = maps[:-1]  # the mean over the last map is what stands before the head
    chosen = {*maps[max(0, len(maps) - count + 1) :], before}
    return tuple(name for name, _, _ in body if name in chosen)


Fired = tuple[str, nn.Module, tuple[int, ...]]
"""Name, module, and the shape of its output for an image; maps of a single pixel count as rows.
"""


def _fired(net: Subject, x: Tensor) -> list[Fired]:
    """Return every layer with a new tensor as output, in the order in which they ran."""
    fired: dict[str, Fired] = {}

    def note(name: str, module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim >= 2 and name not in fired:
            shape = tuple(output.shape[1:])
            if shape[1:] == (1, 1):
                shape = shape[:1]
            fired[name] = (name, module, shape)

    modules = net.layers().items()
    handles = [module.register_forward_hook(partial(note, name)) for name, module in modules]
    try:
        net(x[:1])
    finally:
        for handle in handles:
            handle.remove()
    return list(fired.values())


# Features of images on the disk, by what the image shows: computed once, and again only where they
# are missing. A folder for every encoder, its layers and the view; in it parts of some hundred
# images, each written whole, so that interrupted work goes on after the last finished part.

PART = 128
"""Images in a part: what an interruption can lose."""
OnProgress = Callable[[int, int], None]
"""Called with how many images are done, and with their total."""
KEYS = "hardcase.keys"
LOGITS = "hardcase.logits"
Rows = dict[int, tuple[Mapping[str, Tensor], int]]
"""Where features and scores of an image are, by its fingerprint: a part, and a row of it."""


def features_folder(encoder: Encoder, view: str) -> Path:
    """Return the folder of the features of this view."""
    size = [str(encoder.size)] * bool(encoder.size)
    return cache_folder() / "features" / digest([encoder.hash, *encoder.layers, view, *size])


def kept_features(
    encoder: Encoder,
    x: UInt8[Tensor, "n c h w"],
    *,
    view: str = "plain",
    on_progress: OnProgress | None = None,
) -> Answer:
    """Return features and scores of 8-bit images; missing ones are computed and cached."""
    from safetensors.torch import save

    folder = features_folder(encoder, view)
    keys = fingerprints(x)
    cached = _known(folder, keys)
    missing = [row for row, key in enumerate(keys.tolist()) if key not in cached]
    done = len(keys) - len(missing)
    for rows in chunks(len(missing), PART):
        part = missing[rows]
        read = encoder.ask(from_bytes(x[part].to(encoder.subject.device)), view=view)
        columns = {KEYS: keys[part], LOGITS: read.logits, **read.activations}
        table = {name: value.cpu().contiguous() for name, value in columns.items()}
        data = save(table)
        write_atomically(folder / f"part-{digest([data])}.safetensors", data)
        cached |= {key: (table, row) for row, key in enumerate(table[KEYS].tolist())}
        done += len(part)
        if on_progress is not None:
            on_progress(done, len(keys))
    places = [cached[key] for key in keys.tolist()]
    joined = {
        name: torch.stack([table[name][row] for table, row in places])
        for name in (LOGITS, *encoder.layers)
    }
    return Answer(joined.pop(LOGITS), joined)


def _known(folder: Path, keys: Int[Tensor, " n"]) -> Rows:
    """Read the cached rows of these images; a part is named after the checksum of its content."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    cached: Rows = {}
    for path in sorted(folder.glob("part-*.safetensors")):
        try:
            data = path.read_bytes()
            if path.stem != f"part-{digest([data])}":
                raise OSError("its content is not what its checksum says")
            table = load(data)
            inside = torch.isin(table[KEYS], keys)
        except (SafetensorError, OSError, KeyError) as error:
            raise HardcaseError(f"{path} cannot be used: {error}", fix=f"delete {path}") from error
        table = {name: value[inside] for name, value in table.items()}
        cached |= {key: (table, row) for row, key in enumerate(table[KEYS].tolist())}
    return cached


# Probes: from features of a frozen network to classes, fitted in seconds. All are tempered on
# images they were not fitted to, so that their probabilities mean something.

PER_CLASS = 200
"""Training images of a class that are stored as neighbours."""
SHRINK = 0.1
"""Share of the mean variance in a shrunk covariance (O. Ledoit, M. Wolf, 2004, who choose it)."""
PENALTY = 1e-2
"""Weight of the squared coefficients of a regression relative to the mean loss per image."""
WIDEST = 256
"""Directions in which a covariance is stored, at most."""
ALL = "all layers"
_WHOLE = {"counts", "outputs"}


class FeatureProbe(nn.Module):
    """A probe of an encoder; its tensors are buffers, so that a panel is stored as a single
    file."""

    kind = ""
    scale: Tensor
    weight: Tensor
    typical: Tensor

    def __init__(self, encoder: int, layer: str, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.encoder = encoder
        self.layer = layer
        self.names = tuple(tensors)
        for name, value in tensors.items():
            self.register_buffer(f"probe_{name}", value.clone())
        for name in ("scale", "weight", "typical"):
            self.register_buffer(name, torch.tensor(1.0))

    def tensor(self, name: str) -> Tensor:
        """Return a tensor that it was fitted to."""
        return self.get_buffer(f"probe_{name}")

    def logits(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        """Return untempered scores of the classes; by default the nearer, the higher."""
        return -self.distances(features).clamp_max(1e6)

    def distances(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        """Return distances to the classes, where the probe has them."""
        raise HardcaseError(f"a {self.kind} probe has no distances.")

    def log_probabilities(self, seen: Answer) -> Float[Tensor, "m k"]:
        """Return tempered log-probabilities of the classes."""
        return (self.scale * self.logits(features_at(seen, self.layer))).log_softmax(1)

    @property
    def described(self) -> dict[str, Any]:
        """What a card needs to build it again."""
        shapes = {name: list(self.tensor(name).shape) for name in self.names}
        return {"encoder": self.encoder, "layer": self.layer, "kind": self.kind, "shapes": shapes}


class LogisticProbe(FeatureProbe):
    """A multinomial regression on standardised features."""

    kind = "logistic"

    def logits(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        """Return scores that are linear in the features."""
        centred = (features - self.tensor("centre")) / self.tensor("width")
        return centred @ self.tensor("weight") + self.tensor("bias")

    @staticmethod
    def fit(x: Float[Tensor, "n f"], y: Int[Tensor, " n"], classes: int) -> dict[str, Tensor]:
        """Fit it; every class must have an image."""
        from sklearn.linear_model import LogisticRegression

        centre = x.mean(0)
        width = x.std(0, correction=0).clamp_min(1e-6) * x.shape[1] ** 0.5
        # The penalty of all coefficients per class; of two classes scikit-learn fits one row, the
        # difference of two opposite ones, whose squares sum to half of its own.
        strength = classes / (PENALTY * len(x))
        if classes > 2:
            strength = strength / 2
        model = LogisticRegression(C=strength, max_iter=1000, tol=1e-6)
        model.fit(((x - centre) / width).double().cpu().numpy(), y.cpu().numpy())
        weight, bias = (x.new_tensor(value) for value in (model.coef_, model.intercept_))
        if classes == 2:
            weight, bias = (torch.cat([-value, value]) / 2 for value in (weight, bias))
        return {"centre": centre, "width": width, "weight": weight.T.contiguous(), "bias": bias}


class MahalanobisProbe(FeatureProbe):
    """A Gaussian for each class with a shared shrunk covariance (after K. Lee et al., NeurIPS
    2018).

    Means of the classes are stored in coordinates in which that covariance is the identity.
    """

    kind = "mahalanobis"

    def distances(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        """Return squared distances per coordinate; infinite for a class without images."""
        means = self.tensor("means")
        gaps = torch.cdist(features @ self.tensor("whitening"), means).square() / means.shape[1]
        return gaps.masked_fill(self.tensor("present")[None] == 0, torch.inf)

    @staticmethod
    def fit(x: Float[Tensor, "n f"], y: Int[Tensor, " n"], classes: int) -> dict[str, Tensor]:
        """Fit means and the covariance within classes, in the directions that tell most."""
        from sklearn.covariance import shrunk_covariance

        counts = y.bincount(minlength=classes)
        present = counts > 0
        sums = x.new_zeros(classes, x.shape[1]).index_add_(0, y, x)
        means = sums / counts.clamp_min(1)[:, None]
        within = x - means[y]
        covariance = within.T @ within / max(len(y) - int(present.sum()), 1)
        covariance = covariance + 1e-12 * torch.eye(len(covariance), device=x.device)
        shrunk = shrunk_covariance(covariance.double().cpu().numpy(), shrinkage=SHRINK)
        variance, directions = torch.linalg.eigh(torch.from_numpy(shrunk).to(x.device))
        telling = variance  # with one class, the widest directions
        if int(present.sum()) > 1:  # else those along which classes lie apart
            centred = means[present].double() - means[present].double().mean(0)
            telling = (centred @ directions).square().mean(0) / variance
        order = telling.argsort(descending=True, stable=True)[:WIDEST]
        whitening = (directions[:, order] / variance[order].sqrt()).to(x.dtype)
        return {"whitening": whitening, "means": means @ whitening, "present": present.to(x.dtype)}


class NearestProbe(FeatureProbe):
    """The distance (1 - cosine) to the nearest training images of each class."""

    kind = "nearest"

    def distances(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        """Return the mean distance to the nearest images of every class."""
        return Neighbours(self.tensor("references"), self.tensor("counts")).distances(features)

    @staticmethod
    def fit(x: Float[Tensor, "n f"], y: Int[Tensor, " n"], classes: int) -> dict[str, Tensor]:
        """Keep the first `PER_CLASS` images of every class."""
        neighbours = Neighbours.of(x, y, classes, most=PER_CLASS)
        return {"references": neighbours.features, "counts": neighbours.counts}


class HeadProbe(FeatureProbe):
    """The network's last layer: `outputs` are the scores of the classes."""

    kind = "head"

    def logits(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        """Return the scores of the outputs that mean the classes."""
        return features[:, self.tensor("outputs")]


FITS: Mapping[str, type[LogisticProbe | MahalanobisProbe | NearestProbe]] = {
    each.kind: each for each in (LogisticProbe, MahalanobisProbe, NearestProbe)
}
"""Probes that are fitted, by kind."""


def probe_from_card(row: Mapping[str, Any]) -> FeatureProbe:
    """Return an empty probe of the shape that a card describes."""
    dtypes = dict.fromkeys(_WHOLE, torch.int64)
    tensors = {
        name: torch.zeros(*shape, dtype=dtypes.get(name, torch.float32))
        for name, shape in row["shapes"].items()
    }
    kinds: Mapping[str, type[FeatureProbe]] = {**FITS, HeadProbe.kind: HeadProbe}
    return kinds[row["kind"]](row["encoder"], row["layer"], tensors)


def features_at(seen: Answer, layer: str) -> Float[Tensor, "m f"]:
    """Return the features of a layer, of all (each of unit length), or the encoder's scores."""
    if not layer:
        return seen.logits
    if layer == ALL:
        unit = [functional.normalize(value, dim=1) for value in seen.activations.values()]
        return torch.cat(unit, 1)
    return seen.activations[layer]


def temperature(logits: Float[Tensor, "m k"], y: Int[Tensor, " m"]) -> float:
    """Return what to multiply scores by, from 1/100 to 1,000, so that their probabilities fit these
    labels best.
    """
    grid = torch.logspace(-2, 3, 101, device=logits.device, dtype=torch.float64)
    losses = torch.stack([functional.cross_entropy(each * logits.double(), y) for each in grid])
    return float(grid[losses.argmin()])
