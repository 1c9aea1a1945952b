"""The images of a campaign: splits of its data, under the classes of the model's outputs."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from hardcase.campaign.claims import claim_context
from hardcase.config import Config, annotated_as, task_of
from hardcase.data.files import LabelledSet, MixedSizes, Stream
from hardcase.data.sources import large, load
from hardcase.errors import HardcaseError
from hardcase.models.load import is_stated, names_outputs, network_of_code
from hardcase.models.names import ClassMap, aligned, map_between
from hardcase.tasks import task_named
from hardcase.types import Images, Model

if TYPE_CHECKING:
    from hardcase.claims.annotations import AnnotatedImages


FILES = ("folder:", "csv:")
"""Data whose images are separate files, of any size and number."""
SAMPLE = 256
"""Images of many files that stand for all of them where a shape or a first answer is needed."""

_log = logging.getLogger(__name__)


class CampaignSplits:
    """Each split is loaded once, when it is first used.

    Args:
        config: Names and settings; its data is what is loaded.
        live_subject: The network under test, where it is an object already.
        seeds: Images to start from that are at hand already.
        train: Training images, where the data set has no name to load them by.
    """

    def __init__(
        self,
        config: Config,
        *,
        live_subject: bool,
        seeds: Images | Stream | None,
        train: Images | Stream | None,
    ) -> None:
        self.config = config
        self._live_subject = live_subject
        self._stored: dict[str, Images | Stream] = {}
        self.loaded: dict[str, Images] = {}
        self._annotated: dict[str, AnnotatedImages] = {}
        if train is not None:
            self._stored["train"] = train
            if seeds is not None and ":" not in seeds.name:
                self._stored["test"] = seeds  # nothing else is known of the data
        answered = task_of(config.task, config.data, config.model.name)
        if config.task == "auto" and isinstance(seeds, Images) and claim_context(seeds.context):
            from hardcase.claims.load import task_of_seeds

            answered = task_of_seeds(seeds)
        self.task = task_named(answered)
        """What the networks answer: as configured, else as the data or the model says."""
        self.given_seeds = seeds
        if seeds is not None and live_subject:
            self.given_seeds = self.under_model_classes(seeds)

    @property
    def subject(self) -> Model:
        """The network under test."""
        raise NotImplementedError

    def images(self, split: str) -> Images:
        """A split of the data under the model's classes, loaded once."""
        if split not in self.loaded:
            self.loaded[split] = self.labelled(split).images()
        return self.loaded[split]

    def unrecorded(self, split: str) -> Images:
        """Return a split for networks with a separate identity, such as witnesses: it is no
        ingredient of a search that does not read it otherwise.
        """
        return self.labelled(split).images()

    def named_images(self, data: str, split: str) -> Images:
        """A split of any data set, under the model's classes."""
        if data == self.config.data:
            return self.images(split)
        return self.under_model_classes(load(data, split=split, offline=self.config.offline))

    def under_model_classes(self, images: LabelledSet) -> LabelledSet:
        """The images with the labels and class names of the model's outputs."""
        names = self._output_names
        return images if names == () else aligned(images, names)

    @property
    def class_map(self) -> ClassMap | None:
        """Which output means each class of the data; None where they are the same."""
        return map_between(self.read(self.config.split).classes, self._output_names)

    def labelled(self, split: str) -> Images | Stream:
        """A split under the model's classes; of many files nothing is decoded yet."""
        if split in self.loaded:
            return self.loaded[split]
        return self.under_model_classes(self.read(split))

    def annotated(self, split: str) -> AnnotatedImages:
        """A split of the data with the annotations of each image, loaded once."""
        if split not in self._annotated:
            from hardcase.claims.annotations import AnnotatedImages, load_annotations
            from hardcase.claims.load import labelled_annotations

            if annotated_as(self.config.data) is None:  # a folder of photographs says what is there
                images = load(self.data, split=split, offline=self.config.offline)
                self._annotated[split] = AnnotatedImages(images, labelled_annotations(images))
            else:
                self._annotated[split] = load_annotations(self.config.data, split, self.task.name)
            for note in self._annotated[split].notes:
                _log.warning("%s", note)
        return self._annotated[split]

    def read(self, split: str) -> Images | Stream:
        """A split of the data as it is stored, with the classes of the data."""
        if split not in self._stored:
            self._stored[split] = self.task.read(self, split)
        return self._stored[split]

    def load_split(self, split: str) -> Images | Stream:
        """A split as its files hold it; of many files nothing is decoded yet."""
        for stored in self._stored.values():
            if (stored.name, stored.split) == (self.data, "all"):  # it is every split at once
                return stored
        many = large(self.data, split) if self.data.startswith(FILES) else None
        try:
            return many or load(self.data, split=split, offline=self.config.offline)
        except MixedSizes as mixed:
            taken = self._sizes_taken(mixed.side)
            raise MixedSizes(mixed.seen, mixed.side, taken) from mixed

    def _sizes_taken(self, side: int) -> list[int]:
        """Sides of images that the network under test takes, perhaps also that of the images, as
        far as its code is at hand.
        """
        from hardcase.models.mistakes import sizes_taken

        code = self.config.model.name.rpartition("@")[2]
        if ".py:" not in code:
            return []
        with suppress(
            HardcaseError
        ):  # what is wrong with the model is told once its images are read
            return sizes_taken(network_of_code(code), side)
        return []

    @cached_property
    def data(self) -> str:
        """The name of the data; images without a fixed size get the model's."""
        spec = self.config.data
        if "resize=" in spec or "crop=" in spec or not spec.startswith(FILES):
            return spec
        if not self.task.classifies:  # networks that make claims take images of any size
            return spec
        wanted = ""
        if self._live_subject or is_stated(self.config.model.name):
            wanted = getattr(self.subject, "sizing", "")
        if not wanted:
            return spec
        _log.warning("images are prepared as %s states: ?%s", self.config.model.name, wanted)
        return f"{spec}{'&' if '?' in spec else '?'}{wanted}"

    @cached_property
    def _output_names(self) -> tuple[str, ...]:
        """What the model calls its outputs; empty where it takes the data's names."""
        if not self.task.classifies:  # claims are in the data's classes
            return ()
        if self.config.model.classes:
            return self.config.model.classes
        if not self._live_subject and not names_outputs(self.config.model.name):
            return ()
        return tuple(getattr(self.subject, "class_names", ()))

    @property
    def train(self) -> Images:
        """What generators, profiles and judges learn from."""
        return self.images("train")

    @property
    def test(self) -> Images:
        """What trained networks are measured on."""
        return self.images("test")

    @cached_property
    def sample(self) -> Images:
        """Images of the run's shape and classes, whichever are at hand."""
        seeds_passed = self.given_seeds
        return sample_of(self.labelled("test") if seeds_passed is None else seeds_passed)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        channels, height, width = self.sample.x.shape[1:]
        return channels, height, width


def sample_of(images: Images | Stream) -> Images:
    """A choice of many files, decoded; images in memory stay as they are."""
    return images.first(SAMPLE).images() if isinstance(images, Stream) else images
