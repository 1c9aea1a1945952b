"""The risk of a network while it is trained: a fixed sample, fixed draws, the network itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.conditions import Conditions, RiskTable, condition_box, measure_risk
from hardcase.data.sources import images_of
from hardcase.errors import HardcaseError
from hardcase.models.adapters import logits_of
from hardcase.models.subject import in_evaluation_mode
from hardcase.tensors import to_bytes
from hardcase.types import Answer, Images, Offer, Tap

NAMES = (("pixel_values", "image", "images", "x"), ("labels", "label", "y"))
"""What a batch that is a mapping may call its images and its labels."""


class TrainingRisk:
    """Measure how often a network in training fails under declared conditions.

    The images and the draws are the same every time, so that values of two epochs can be compared;
    the network is asked itself, in evaluation mode, and left as it was. No random state changes.

    Args:
        conditions: A profile, a ``.toml`` file, a table of ranges or `hc.Conditions`.
        images: What it is measured on, in any form that `hc.run` takes; None: the first images of
            the validation data.
        count: How many images.
        draws: Random conditions per image.
        every: Measured after every so many validations.
        mean: Mean per channel by which the loop's images are normalised; 0 if they are not.
        std: Standard deviation per channel.
        seed: Everything random follows from it.
    """

    def __init__(
        self,
        conditions: str | Mapping[str, Any] | Conditions,
        *,
        images: Any = None,
        count: int = 128,
        draws: int = 16,
        every: int = 5,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        seed: int = 0,
    ) -> None:
        if min(count, draws, every) < 1:
            raise HardcaseError(
                f"{count} images, {draws} draws, every {every}: each must be at least 1.",
                fix="count=128, draws=16, every=5",
            )
        if not isinstance(conditions, Conditions):
            conditions = Conditions.load(conditions)
        self.conditions = conditions
        self.count = count
        self.draws = draws
        self.every = every
        self.seed = seed
        self.validations = 0
        self.best = float("inf")
        self._mean = torch.tensor(mean).reshape(1, -1, 1, 1)
        self._std = torch.tensor(std).reshape(1, -1, 1, 1)
        self._images: Images | None = None
        if images is not None:
            self._images = images_of(images).sample(count=count, seed=seed)

    def due(self) -> bool:
        """Count a validation and return whether it is one after which the failure rate is
        measured.
        """
        self.validations += 1
        return self.validations % self.every == 0

    def measure(self, net: nn.Module, batches: Iterable[Any] = ()) -> RiskTable:
        """Return the failure rate of `net` as it is now.

        Args:
            net: The network in training: images as the loop has them to logits.
            batches: The loop's validation data, ``(images, labels, ...)`` or a mapping of them;
                read once, where no images were given.
        """
        if self._images is None:
            with torch.random.fork_rng(devices=[]):  # a loader draws a number when it begins
                self._images = self._collected(batches)
        box = condition_box(self.conditions, self._images.shape)
        model = _Trained(net, self._mean, self._std)
        with in_evaluation_mode(net):
            return measure_risk(model, self._images, box, samples=self.draws, seed=self.seed)

    def improved(self, risk: float) -> bool:
        """Keep `risk` if it is the least so far, and return whether it is."""
        better = risk < self.best
        self.best = min(risk, self.best)
        return better

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"validations": self.validations, "best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the checkpoint was taken."""
        self.validations = int(state["validations"])
        self.best = float(state["best"])

    def _collected(self, batches: Iterable[Any]) -> Images:
        """The first images of a loop's validation data, as they were before normalisation."""
        x = list[Tensor]()
        y = list[Tensor]()
        for batch in batches:
            images, labels = _pair(batch)
            x.append(to_bytes((images.cpu().float() * self._std + self._mean).clamp(0, 1)))
            y.append(labels.cpu().long())
            if sum(map(len, y)) >= self.count:
                break
        if not x:
            raise HardcaseError(
                "there is no validation data to measure the failure rate on.",
                fix="images=..., in any form that hc.run takes",
            )
        label = torch.cat(y)[: self.count]
        names = tuple(f"validation-{i}" for i in range(len(label)))
        classes = tuple(map(str, range(int(label.max()) + 1)))
        return Images(torch.cat(x)[: self.count], label, names, classes, name="validation")


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    """Images and labels of a batch."""
    found: list[Any] = []
    if isinstance(batch, Mapping):
        found = [next((batch[key] for key in keys if key in batch), None) for keys in NAMES]
    elif isinstance(batch, list | tuple):
        found = list(batch[:2])
    if len(found) != 2 or not all(isinstance(one, Tensor) for one in found):
        raise HardcaseError(
            f"a validation batch is a {type(batch).__name__} without images and labels.",
            fix="images=..., in any form that hc.run takes",
        )
    return found[0], found[1]


class _Trained:
    """A network in training as a model: it is neither copied nor frozen."""

    name = "in training"
    hash = ""
    offers: Offer = "scores"

    def __init__(self, net: nn.Module, mean: Tensor, std: Tensor) -> None:
        self.net = net
        weight = next(net.parameters(), torch.zeros(()))
        self.device = weight.device
        self.mean = mean.to(weight)
        self.std = std.to(weight)

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        with torch.no_grad():
            returned = self.net((x.to(self.mean) - self.mean) / self.std)
        return Answer(logits_of(returned).float())
