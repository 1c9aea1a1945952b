"""What a campaign does differently where its networks answer claims: a method per difference.

`Context` and its splits ask these and never look at the name of a task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hardcase.campaign.claims import image_of
from hardcase.claims.subjects import THRESHOLD, Task
from hardcase.data.files import ImageSet, Stream
from hardcase.models.load import Loading, is_stated, load_model, model_of
from hardcase.types import Images, Method, Model

if TYPE_CHECKING:
    from hardcase.context import Context
    from hardcase.splits import CampaignSplits

__all__ = ["Claiming", "Classification", "task_named"]


@dataclass(frozen=True)
class Classification:
    """Networks that predict a single class of each image.

    Args:
        name: The task, as ``--task`` names it.
    """

    name: Task = "classes"
    classifies = True
    """Whether there are judges, surrogates and sizes of images for such networks."""

    def image_names(self, ids: Sequence[str]) -> Sequence[str]:
        """Return the image of every row."""
        return ids

    def read(self, splits: CampaignSplits, split: str) -> Images | Stream:
        """Return a split as it is stored."""
        return splits.load_split(split)

    def all_images(self, context: Context) -> ImageSet:
        """Return all rows that may be measured."""
        return context.labelled(context.config.split)

    def load(self, context: Context, spec: str, how: Loading) -> Model:
        """Return the model that `spec` names; open settings are chosen by trying it on images."""
        if not is_stated(spec):
            how = context.with_examples(spec, how)
        return load_model(spec, how)

    def wrap(self, thing: Any, images: Images, stated: Mapping[str, Any]) -> Model:
        """Return the model in whatever a user has.

        Args:
            thing: A model of hardcase, a module of any library, or a function of images.
            images: Labelled images of its data.
            stated: Keys of ``[model]`` that say how it wants its images.
        """
        return model_of(thing, images)

    def witnesses(
        self, context: Context, wanted: Sequence[str | Model] | None
    ) -> tuple[Model, ...]:
        """Return the witnesses that the user named or passed, else the default witnesses if the
        method needs any.
        """
        if wanted is not None:
            return context.witnessing.named(wanted) if wanted else ()
        if context.part.facts.get("witnesses") == "default":
            return context.witnessing.default(named=False)
        return ()

    def adapted(self, method: Method) -> Method:
        """Return the method as it suits what the networks answer."""
        return method


class Claiming(Classification):
    """Networks that keep or lose a claim about an image: tags, boxes, masks."""

    classifies = False

    def image_names(self, ids: Sequence[str]) -> Sequence[str]:
        return list(map(image_of, ids))

    def read(self, splits: CampaignSplits, split: str) -> Images | Stream:
        from hardcase.claims.load import claim_seeds

        annotated = splits.annotated(split)
        return claim_seeds(annotated.images, annotated.annotations, self.name)

    def all_images(self, context: Context) -> ImageSet:
        """Return every claim; with ``claims = "absent"`` also of what is not there."""
        claimed = super().all_images(context)
        if context.config.claims != "absent":
            return claimed
        from hardcase.claims.load import with_absent

        annotated = context.annotated(context.config.split)
        return with_absent(
            claimed.images(), annotated.images, annotated.annotations, context.subject
        )

    def load(self, context: Context, spec: str, how: Loading) -> Model:
        from hardcase.claims.load import load_claim_model

        return load_claim_model(
            spec,
            how,
            task=self.name,
            classes=context.sample.classes,
            outputs=context.config.model.classes,
            threshold=context.config.model.threshold,
            annotated=context.annotated,
        )

    def wrap(self, thing: Any, images: Images, stated: Mapping[str, Any]) -> Model:
        from hardcase.claims.load import claim_model

        how = Loading(mean=stated.get("mean", (0.0,)), std=stated.get("std", (1.0,)))
        outputs = stated.get("classes", ())
        cut = stated.get("threshold", THRESHOLD)
        return claim_model(
            thing, self.name, images.classes, outputs=outputs, threshold=cut, how=how
        )

    def witnesses(
        self, context: Context, wanted: Sequence[str | Model] | None
    ) -> tuple[Model, ...]:
        if wanted is not None and tuple(wanted) != ("default",):
            return super().witnesses(context, wanted)
        from hardcase.claims.load import usual_claim_witnesses

        return usual_claim_witnesses(context.config.model.name, self.name, context.model)

    def adapted(self, method: Method) -> Method:
        """Return the method without a target margin: log-odds of a claim hardly reach what logits
        of classes do.
        """
        return replace(method, target_margin=0.0)


def task_named(name: Task) -> Classification:
    """Return what differs for networks that answer `name`."""
    return Classification() if name == "classes" else Claiming(name)
