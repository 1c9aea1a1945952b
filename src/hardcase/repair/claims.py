"""Training of a network that answers claims: its claims on unmodified images must hold on the worst
of the draws, and no other claims.

The loop is that of all trainings here; what is learned are supports of claims, and that nothing is
said that nobody claims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.campaign.claims import Claims, image_of
from hardcase.claims.boxes import moved_boxes
from hardcase.claims.subjects import OVERLAP, ClaimModel, Detections, cut_of, iou
from hardcase.conditions import ConditionBox
from hardcase.models.subject import Subject, in_evaluation_mode
from hardcase.repair.hardest import render_draws
from hardcase.repair.loop import JUDGED, Learner, RepairRecipe, Trained
from hardcase.tensors import chunks, from_bytes
from hardcase.training.cards import TrainingRecipe
from hardcase.training.loop import Goal, fit
from hardcase.types import Images

__all__ = ["train_on_claims"]

RATE = 1e-3
"""Default learning rate."""


@dataclass(frozen=True, slots=True)
class _Objects:
    """All claims on each row's image, padded: the answers that are allowed."""

    label: Int[Tensor, "n o"]
    box: Float[Tensor, "n o 4"]

    @staticmethod
    def of(images: Images, device: torch.device) -> _Objects:
        claims = Claims.of(images)
        assert claims is not None
        rows = dict[str, list[int]]()
        for row, name in enumerate(images.id):
            rows.setdefault(image_of(name), []).append(row)
        rows_of_image = [rows[image_of(name)] for name in images.id]
        most = max(map(len, rows_of_image))
        index = torch.tensor([(each + [-1] * most)[:most] for each in rows_of_image])
        label = torch.where(index < 0, -1, claims.label[index])
        return _Objects(label.to(device), claims.box[index].to(device))

    def take(self, rows: Int[Tensor, " m"]) -> _Objects:
        return _Objects(self.label[rows], self.box[rows])

    def moved(self, places: Tensor | None) -> _Objects:
        if places is None:
            return self
        parts = [moved_boxes(transform, places)[0] for transform in self.box.unbind(1)]
        return _Objects(self.label, torch.stack(parts, 1))


def train_on_claims(
    model: ClaimModel,
    train: Images,
    valid: Images,
    box: ConditionBox,
    recipe: RepairRecipe,
    *,
    log: Callable[[str], None] = lambda text: None,
) -> Trained:
    """Train a copy of a network on from its weights, by claims."""
    began = monotonic()
    assert isinstance(model.model, Subject)
    learner = Learner(model.model)
    work = _ClaimLoss(model, train, box, recipe)
    before = work.score(learner.eval(), valid)
    log(f"validation loss before: {before:.4f}")
    start = {name: value.clone() for name, value in learner.state_dict().items()}
    numbered = Images(train.x, torch.arange(len(train)), train.id, train.classes, train.name)
    batch = min(recipe.batch, len(train))
    history = fit(
        learner,
        numbered,
        Goal(work.loss, lambda net, x, y: net(x), float("inf")),
        TrainingRecipe(epochs=recipe.epochs, batch=batch, lr=recipe.rate or RATE, clip=5.0),
        name=model.name,
        seed=recipe.seed,
        device=model.device,
    )
    after = work.score(learner.eval(), valid)
    log(f"validation loss after {recipe.epochs} epochs: {after:.4f}")
    best = len(history.loss)
    if after >= before:
        learner.load_state_dict(start)
        best = 0
    return Trained(
        net=learner.net.eval(),
        rate=recipe.rate or RATE,
        scores=[before, after],
        losses=list(history.loss),
        best=best,
        seconds=monotonic() - began,
        notes=list(history.warnings),
        over=True,
    )


class _ClaimLoss:
    """What a network is to learn of claims."""

    def __init__(
        self, model: ClaimModel, train: Images, box: ConditionBox, recipe: RepairRecipe
    ) -> None:
        self.model = model
        self.box = box
        self.recipe = recipe
        claims = Claims.of(train, model.device)
        assert claims is not None
        self.claims = claims
        self.objects = _Objects.of(train, model.device)
        self.seen = 0

    def loss(self, net: nn.Module, x: Tensor, y: Int[Tensor, " n"], noise: object) -> Tensor:
        """Claims about images and about the worst of their draws, and what nobody claims of
        either.
        """
        claims, objects = self.claims.take(y), self.objects.take(y)
        total = self._loss(net(x), x, claims, objects)
        if not self.recipe.draws:
            return total
        self.seen += 1
        keys = y + self.seen * len(self.claims)
        hard, places, moved = self._worst(net, x, claims, keys, self.recipe.draws)
        return (total + self._loss(net(hard), hard, moved, objects.moved(places))) / 2

    def _worst(
        self, net: nn.Module, x: Tensor, claims: Claims, keys: Tensor, draws: int
    ) -> tuple[Tensor, Tensor | None, Claims]:
        """Of the samples of each image, that with the least support of the claim."""
        rendered, drawn = render_draws(
            self.box, x, keys, draws, seed=self.recipe.seed, name="claims"
        )
        rows = torch.arange(len(x), device=x.device)
        images = rendered.flatten(0, 1)
        places = self.box.places(drawn.z.flatten(0, 1))
        every = claims.take(rows.repeat_interleave(draws))
        if places is not None:
            every = every.moved(places)
        with torch.no_grad(), in_evaluation_mode(net):
            support = self._support(net(images), images, every)
        value = support.where(every.inside, torch.full_like(support, torch.inf))
        worst = rows * draws + value.reshape(-1, draws).argmin(1)
        claims_of = None if places is None else places[worst]
        return images[worst], claims_of, every.take(worst)

    def _support(self, table: Tensor, x: Tensor, claims: Claims) -> Float[Tensor, " m"]:
        return self.model.support(self.model.read(table.float(), x), claims).value

    def _loss(self, table: Tensor, x: Tensor, claims: Claims, objects: _Objects) -> Tensor:
        support = self._support(table, x, claims)
        hinge = (functional.softplus(-support) * claims.inside).mean()
        return hinge + self._unclaimed(self.model.read(table.float(), x), objects)

    def _unclaimed(self, said: Tensor | Detections, objects: _Objects) -> Tensor:
        """The loss of answers without a claim: tags of other classes, boxes where no such object
        is."""
        cut = cut_of(self.model.threshold)
        if isinstance(said, Detections):
            logits = said.logits[..., :-1]
            return (
                (functional.softplus(logits - cut) * ~_matched(said.boxes, logits, objects))
                .sum((1, 2))
                .mean()
            )
        if said.ndim == 4:  # of pixels, claims say all
            return said.new_zeros(())
        absent = torch.ones_like(said[:, :-1])
        label = objects.label.clamp_min(0)
        absent = absent.scatter(1, label, (objects.label < 0).to(said))
        return (functional.softplus(said[:, :-1] - cut) * absent).sum(1).mean()

    @torch.no_grad()
    def score(self, net: nn.Module, valid: Images) -> float:
        """The loss on validation claims: half unchanged, half the worst of the draws."""
        claims = Claims.of(valid, self.model.device)
        assert claims is not None
        objects = _Objects.of(valid, self.model.device)
        total = 0.0
        for part in chunks(len(valid), 64):
            x = from_bytes(valid.x[part].to(self.model.device))
            keys = torch.arange(part.start, part.stop, device=x.device)
            part_claims, part_objects = claims.take(part), objects.take(keys)
            hard, places, moved = self._worst(net, x, part_claims, keys, JUDGED)
            unchanged = self._loss(net(x), x, part_claims, part_objects)
            changed = self._loss(net(hard), hard, moved, part_objects.moved(places))
            total += float(unchanged + changed) / 2 * len(x)
        return total / len(valid)


def _matched(
    boxes: Float[Tensor, "m d 4"], logits: Float[Tensor, "m d k"], objects: _Objects
) -> Bool[Tensor, "m d k"]:
    """Whether a box overlaps an object of each class."""
    near_boxes = torch.zeros_like(logits, dtype=torch.bool)
    classes = torch.arange(logits.shape[2], device=logits.device)
    for label, box in zip(objects.label.unbind(1), objects.box.unbind(1)):
        near = iou(boxes.detach(), box) >= OVERLAP
        near_boxes |= near[:, :, None] & (classes == label[:, None])[:, None]
    return near_boxes
