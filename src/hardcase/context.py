"""Names become objects, once: all that a campaign is made of, each part when it is needed."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hardcase.analysis.conditions import Reference, ReferenceModel, ReferenceRun
from hardcase.analysis.references import named_references, usual_references
from hardcase.analysis.regression import regressing
from hardcase.campaign.claims import claim_context
from hardcase.campaign.pace import rows_per_call, seconds_per_seed, seeds_in_time, shard_size
from hardcase.campaign.record import Campaign, computing, overlay, parse_keep
from hardcase.claims.load import load_claim_model, usual_claim_witnesses
from hardcase.claims.outputs import TASKS, Task
from hardcase.claims.seeds import (
    claim_record,
    claim_seeds,
    labelled_annotations,
    task_of_seeds,
    with_absent,
)
from hardcase.conditions.box import condition_box
from hardcase.conditions.declared import Conditions, usual_profile
from hardcase.config import (
    NO_SEARCH,
    Config,
    MethodConfig,
    annotated_as,
    parse,
    task_of,
    typed_options,
)
from hardcase.criteria.criterion import parse_list
from hardcase.data.sizing import MixedSizes
from hardcase.data.sources import large, load
from hardcase.data.streams import ImageSet, LabelledSet, Stream
from hardcase.errors import Problem
from hardcase.methods.parts import no_search
from hardcase.models.http import ClientConfig
from hardcase.models.load import (
    Loading,
    is_stated,
    load_model,
    names_outputs,
    network_of_code,
)
from hardcase.models.mistakes import sizes_taken
from hardcase.models.names import ClassMap, aligned, map_between
from hardcase.models.quantised import CALIBRATION, copy_for
from hardcase.models.subject import Subject
from hardcase.models.tiles import campaign_tile
from hardcase.models.witnesses import WitnessSelection, surrogates_for, witness_record
from hardcase.objectives import with_witnesses
from hardcase.oracles import wanted_oracle
from hardcase.registry import SUPPLIED, Part, check_offer, resolve
from hardcase.runs.identity import code_digests
from hardcase.runs.start import Plan
from hardcase.runs.workers import gpus
from hardcase.tensors import from_bytes, steady, usable_device
from hardcase.training.loop import TrainingProgress
from hardcase.types import OFFERS, Budget, Images, Method, Model, Space, is_photographic

if TYPE_CHECKING:
    from hardcase.claims.annotations import AnnotatedImages
    from hardcase.generators.selection import Generator, GeneratorSelection
    from hardcase.guides.archive import CellGrid
    from hardcase.methods.neurons import Profiles
    from hardcase.spaces.latent import Library

__all__ = ["SEEDS", "Context", "Objects", "few"]

PLAIN = (bool, int, float, str)
"""Types of options that a configuration file can hold."""
SEEDS = 100
"""Images to start from where nobody says how many."""
FILES = ("folder:", "csv:")
"""Data whose images are files of their own, of any size and number."""
FEW = 256
"""Images of many files that stand for all of them where a shape or a first answer is needed."""

_log = logging.getLogger(__name__)
_FROM_PYTHON = (
    "# Started from Python with live objects: hc.resume(folder, subject, seeds, ...) goes on.\n"
)


@dataclass(frozen=True, kw_only=True)
class Objects:
    """Ingredients that are objects already; None: made from the name in the configuration.

    Args:
        subject: The network under test.
        seeds: The images to start from.
        train: Training images, where the data set has no name to load them by.
        peers: Networks to compare with.
        witnesses: Networks that must keep the label, objects or names.
        references: Networks beside whose risk that of the subject stands.
        method: A recipe that is built already.
    """

    subject: Model | None = None
    seeds: Images | Stream | None = None
    train: Images | Stream | None = None
    peers: tuple[Model, ...] | None = None
    witnesses: tuple[Model | str, ...] | None = None
    references: tuple[Model, ...] | None = None
    method: Method | None = None

    @property
    def named(self) -> bool:
        """Whether a configuration alone says everything: no ingredient is an object."""
        names = all(isinstance(one, str) for one in self.witnesses or ())
        others = (getattr(self, one.name) for one in fields(self) if one.name != "witnesses")
        return names and all(value is None for value in others)


NO_OBJECTS = Objects()
"""Everything is made from its name."""


class Context:
    """The ingredients of one campaign: each is loaded, hashed or built once, when it is first used.

    Args:
        config: Names and settings, as a configuration file or flags give them.
        objects: Ingredients that need not be made from their names.
        progress: Told how the training of missing networks goes.

    Example:
        >>> from hardcase.config import parse
        >>> from hardcase.context import Context
        >>> context = Context(parse({"model": "zoo:lenet5", "data": "mnist5k", "method": "pgd"}))
        >>> context.train is context.images("train")
        True
    """

    def __init__(
        self,
        config: Config,
        objects: Objects = NO_OBJECTS,
        progress: Callable[[TrainingProgress], None] | None = None,
    ) -> None:
        self.config = config
        self._named = objects.named
        if config.method.name == NO_SEARCH and objects.method is None:
            objects = replace(objects, method=no_search())
        self.objects = objects
        self.progress = progress
        self._stored: dict[str, Images | Stream] = {}
        self._splits: dict[str, Images] = {}
        self._annotated: dict[str, AnnotatedImages] = {}
        seeds = objects.seeds
        if objects.train is not None:
            self._stored["train"] = objects.train
            if seeds is not None and ":" not in seeds.name:
                self._stored["test"] = seeds  # nothing else is known of the data
        self._given_seeds = seeds
        if seeds is not None and objects.subject is not None:
            self._given_seeds = self.under_model_classes(seeds)

    @classmethod
    def of(
        cls,
        subject: Model | str,
        seeds: Images | Stream,
        method: str | Method,
        *,
        options: Mapping[str, Any] | None = None,
        peers: Sequence[Model] = (),
        witnesses: str | Sequence[str | Model] | None = None,
        reference_models: Sequence[Model] = (),
        train: Images | Stream | None = None,
        progress: Callable[[TrainingProgress], None] | None = None,
        **values: Any,
    ) -> Context:
        """The context of a campaign whose subject and seeds are objects.

        Args:
            subject: The network under test, or its name.
            seeds: The images to start from; their name says which data set they are of.
            method: The name of a method, or a built recipe.
            options: Options of a method that is given by name.
            peers: Networks to compare with.
            witnesses: Networks that must keep the label, as objects or names; ``"default"``;
                nobody if empty; None for the method's own.
            reference_models: Networks beside whose risk that of the subject stands.
            train: Training images, where the data set cannot be loaded by its name.
            progress: Told how the training of missing networks goes.
            values: Any other keys of a configuration.
        """
        objects = Objects(
            seeds=seeds,
            train=train,
            peers=tuple(peers) or None,
            witnesses=several(witnesses),
            references=tuple(reference_models) or None,
        )
        name = subject
        if not isinstance(subject, str):
            name = subject.name
            objects = replace(objects, subject=subject)
        recipe = method
        if not isinstance(method, str):
            recipe = method.name
            objects = replace(objects, method=method)
        known = {
            "model": name,
            "data": seeds.name,
            "method": {**(options or {}), "name": recipe},
            "seeds": max(len(seeds), 1),
        }
        return cls(parse({**known, **values}), objects, progress)

    def load(self) -> None:
        """Load the data and the network under test, which all the rest needs; a campaign begins
        with them, so that what is wrong with either is said first.
        """
        if self._given_seeds is None:
            self._read(self.config.split)
        _log.debug("the data and the model are loaded, on %s", self.subject.device)

    # data

    def images(self, split: str) -> Images:
        """One split of the data under the model's classes, loaded once."""
        if split not in self._splits:
            self._splits[split] = self.labelled(split).images()
        return self._splits[split]

    def named_images(self, data: str, split: str) -> Images:
        """One split of any data set, under the model's classes."""
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
        return map_between(self._read(self.config.split).classes, self._output_names)

    def labelled(self, split: str) -> Images | Stream:
        """One split under the model's classes; of many files nothing is decoded yet."""
        if split in self._splits:
            return self._splits[split]
        return self.under_model_classes(self._read(split))

    @cached_property
    def task(self) -> Task:
        """What the networks answer: as configured, else as the data or the model says."""
        config = self.config
        given = self._given_seeds
        known = task_of(config.task, config.data, config.model)
        if config.task == "auto" and isinstance(given, Images) and claim_context(given.context):
            known = task_of_seeds(given)
        return next(task for task in TASKS if task == known)

    def annotated(self, split: str) -> AnnotatedImages:
        """One split of the data with what is known to be in each image, loaded once."""
        if split not in self._annotated:
            from hardcase.claims.annotations import AnnotatedImages, load_annotations

            if annotated_as(self.config.data) is None:  # a folder of photographs says what is there
                images = load(self.data, split=split, offline=self.config.offline)
                self._annotated[split] = AnnotatedImages(images, labelled_annotations(images))
            else:
                self._annotated[split] = load_annotations(self.config.data, split, self.task)
            for note in self._annotated[split].notes:
                _log.warning("%s", note)
        return self._annotated[split]

    def _read(self, split: str) -> Images | Stream:
        """One split of the data as it is stored, under its own classes."""
        if split not in self._stored and self.task != "classes":
            known = self.annotated(split)
            self._stored[split] = claim_seeds(known.images, known.annotations, self.task)
        if split not in self._stored:
            many = None
            if self.data.startswith(FILES):
                many = large(self.data, split)
            try:
                found = many or load(self.data, split=split, offline=self.config.offline)
            except MixedSizes as mixed:
                taken = self._sizes_taken(mixed.side)
                raise MixedSizes(mixed.seen, mixed.side, taken) from mixed
            self._stored[split] = found
        return self._stored[split]

    def _sizes_taken(self, side: int) -> list[int]:
        """Sides of images that the network under test takes, perhaps also that of the images, as
        far as its code is at hand.
        """
        code = self.config.model.rpartition("@")[2]
        if ".py:" not in code:
            return []
        with suppress(Problem):  # what is wrong with the model is told once its images are read
            return sizes_taken(network_of_code(code), side)
        return []

    @cached_property
    def data(self) -> str:
        """The name of the data; images without a size of their own get the model's."""
        spec = self.config.data
        if "resize=" in spec or "crop=" in spec or not spec.startswith(FILES):
            return spec
        if self.task != "classes":  # networks that make claims take images of any size
            return spec
        wanted = ""
        if self.objects.subject is not None or is_stated(self.config.model):
            wanted = getattr(self.subject, "sizing", "")
        if not wanted:
            return spec
        _log.warning("images are prepared as %s states: ?%s", self.config.model, wanted)
        return f"{spec}{'&' if '?' in spec else '?'}{wanted}"

    @cached_property
    def _output_names(self) -> tuple[str, ...]:
        """What the model calls its outputs; empty where it takes the data's names."""
        if self.task != "classes":  # claims are in the data's classes
            return ()
        if self.config.subject.classes:
            return self.config.subject.classes
        if self.objects.subject is None and not names_outputs(self.config.model):
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

    @property
    def seeds(self) -> ImageSet:
        """The images that the search starts from: those given, a class-balanced sample, or fresh
        ones of a generator; very many stay in their files.
        """
        return self._starting[0]

    @cached_property
    def _starting(self) -> tuple[ImageSet, dict[str, Any]]:
        """The seeds, and how many were generated for them; nothing where none were."""
        given = self._given_seeds
        if given is not None and not (self._perturbs and "latent" not in self._some.context):
            return given, {}
        if self._perturbs:  # given images say only the shape, the classes and how many
            return self._generated_seeds()
        images = self.labelled(self.config.split)
        if self.config.claims == "absent" and self.task != "classes":
            known = self.annotated(self.config.split)
            images = with_absent(images.images(), known.images, known.annotations, self.subject)
        count = min(self.count, len(images))
        return images.sample(count=count, seed=self.config.seed).held(), {}

    def _generated_seeds(self) -> tuple[Images, dict[str, Any]]:
        """Samples of the method's generator that the subject and most verifiers classify so."""
        from hardcase.generators.quality import generated_seeds

        space: Any = self.campaign.method.space
        named = self._wanted_witnesses is not None
        verifiers = self._witnessing.verifiers(self.witnesses, named=named)
        with self.campaign.arithmetic():
            return generated_seeds(
                space.generator,
                self._some,
                self.count,
                subject=self.subject,
                verifiers=verifiers,
                target=self.target,
                seed=self.config.seed,
            )

    @cached_property
    def count(self) -> int:
        """How many images the search starts from: as configured, else 100; of photographs on a CPU
        as many as a few minutes are enough for, by the time of one pass.
        """
        if self.config.seeds is not None:
            return self.config.seeds
        if not (steady(self.subject.device) and is_photographic(self.shape)):
            return SEEDS
        most = min(SEEDS, len(self.labelled(self.config.split)))
        return seeds_in_time(self.campaign, self._timed_rows, self._budget, most=most)

    def seconds_per_seed(self) -> float:
        """How long a seed takes that spends its budget, by one timed pass of every network."""
        return seconds_per_seed(self.campaign, self._timed_rows, self._budget)

    @property
    def _timed_rows(self) -> Tensor:
        return from_bytes(self._some.x[:4]).to(self.subject.device)

    @property
    def _budget(self) -> Budget:
        """What a seed may spend: as configured, else the method's."""
        return overlay(Budget(**self.config.budget.model_dump()), self.method.budget)

    @cached_property
    def _some(self) -> Images:
        """Images of the campaign's shape and classes, whichever are at hand."""
        given = self._given_seeds
        return few(self.labelled("test") if given is None else given)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        channels, height, width = self._some.x.shape[1:]
        return channels, height, width

    @property
    def _numbers(self) -> int:
        """Numbers of one image."""
        return max(self._some.x[:1].numel(), 1)

    # networks

    @cached_property
    def device(self) -> str:
        """Where the networks are: as configured, if that exists here."""
        if self.objects.subject is not None:
            return str(self.objects.subject.device)
        return usable_device(self.config.device)

    @cached_property
    def subject(self) -> Model:
        """The network under test."""
        return self.objects.subject or self.model(self.config.model)

    @cached_property
    def peers(self) -> tuple[Model, ...]:
        """The networks that the method compares with: those named, or a quantised copy it needs."""
        config = self.config
        if self.objects.peers is not None:
            return self.objects.peers
        # the oracle of regressions looks at the first
        named = [spec for spec in (config.baseline, *config.peers) if spec is not None]
        if named:
            return tuple(self.model(spec) for spec in named)
        if self._fact("peers") != "quantised" or config.oracle in ("label", "non-finite"):
            return ()
        images = lambda: from_bytes(self.train.first(CALIBRATION).x)  # noqa: E731
        return (copy_for(config.method.name, self.subject, config.method.options(), images),)

    @cached_property
    def _witnessing(self) -> WitnessSelection:
        """How the witnesses of this campaign are found or trained."""
        return WitnessSelection(
            subject=self.subject,
            shape=self.shape,
            classes=len(self._some.classes),
            images=self.images,
            load=partial(self.model, label_only=False),
            progress=self.progress,
        )

    @property
    def _wanted_witnesses(self) -> tuple[Model | str, ...] | None:
        """The witnesses that were named or given; None: the method's own."""
        given = self.objects.witnesses
        return self.config.witnesses if given is None else given

    @cached_property
    def witnesses(self) -> tuple[Model, ...]:
        """The networks that must keep the label where the subject leaves it.

        Those that were named or given; without any, the default ones if the method has witnesses.
        """
        wanted = self._wanted_witnesses
        if self.task != "classes" and (wanted is None or tuple(wanted) == ("default",)):
            return usual_claim_witnesses(self.config.model, self.task, self.model)
        if wanted is not None:
            return self._witnessing.named(wanted) if wanted else ()
        return self._witnessing.usual() if self._fact("witnesses") == "default" else ()

    @cached_property
    def surrogates(self) -> tuple[Model, ...]:
        """Networks whose gradients stand for those of a black box; none for photographs, nor where
        the search follows no gradient.
        """
        if self._settings.get("search") == "evolution" or self.task != "classes":
            return ()
        train = partial(self.labelled, "train")
        load = partial(self.model, label_only=False)
        return surrogates_for(self.subject, self.shape, train, load)

    def model(self, spec: str, *, label_only: bool | None = None) -> Model:
        """The model that `spec` names, loaded as this campaign loads models.

        Args:
            spec: A name as ``--model`` takes it.
            label_only: Forget all but the label; by default as configured for the subject.
        """
        config = self.config
        how = Loading(
            device=self.device,
            outputs=config.subject.outputs,
            channels=config.subject.channels,
            trust_pickle=config.trust_pickle,
            progress=self.progress,
            offline=config.offline,
            asking=_asking(config, label_only),
        )
        if spec == config.model or not is_stated(spec):
            how = replace(how, mean=config.subject.mean, std=config.subject.std)
        if self.task != "classes":
            return load_claim_model(
                spec,
                how,
                task=self.task,
                classes=self._some.classes,
                outputs=config.subject.classes,
                threshold=config.subject.threshold,
                annotated=self.annotated,
            )
        if not is_stated(spec):  # who states everything needs no images
            read = self.labelled if config.subject.classes else self._read
            found = [read("train"), read("test")]
            trained = spec.startswith("zoo:")  # on all of them
            train, test = (one.images() if trained else few(one) for one in found)
            how = replace(how, train=train, test=test)
        return load_model(spec, how)

    # what latent and white-box methods need

    @cached_property
    def _selection(self) -> GeneratorSelection:
        """How the generator of this campaign is found or trained."""
        from hardcase.generators.selection import GeneratorSelection

        part = self._row
        training = {}
        if part.facts.get("joint"):  # ARGUS trains for the share at which codes will be mixed
            training["mix"] = self._settings.get("mix", part.options["mix"].default)
        return GeneratorSelection(
            method=self.config.method.name,
            perturbs=self._perturbs,
            subject=self.subject,
            example=self._some,
            images=self.images,
            data=self.config.data,
            split=self.config.split,
            training=training,
            refuse=not self.config.allow_low_accuracy,
            progress=self.progress,
        )

    @cached_property
    def generator(self) -> Generator:
        """The generator that was named, or the method's own, trained on the data if missing."""
        own = self._selection.usual(str(self._fact("generator") or ""))
        return self._selection.make(self.config.generator or own)

    @cached_property
    def space(self) -> Space:
        """The space that the method searches, as its generator opens it."""
        return self._selection.space(self.generator)

    @cached_property
    def partners(self) -> Library | None:
        """Codes of training images, to walk toward or to mix with; none where codes need a
        label.
        """
        from hardcase.spaces.latent import Labelled, partners

        if isinstance(self.space, Labelled):
            return None
        with computing(self.subject.device.type, self.tile, self.config.precision):
            return partners(self.space, self.train, device=self.subject.device)

    @cached_property
    def profile(self) -> Profiles:
        """What white-box methods know of networks: their units, and what training data does to
        them.
        """
        from hardcase.methods.neurons import Profiles

        return Profiles(from_bytes(self._some.x[:1]), lambda: self.train)

    @cached_property
    def target(self) -> int | None:
        """The class that a targeted search must reach."""
        wanted = self.config.target
        if wanted is None:
            return None
        classes = self._some.classes
        if str(wanted) in classes:
            return classes.index(str(wanted))
        if isinstance(wanted, int) and 0 <= wanted < len(classes):
            return wanted
        raise Problem(f"there is no class {wanted!r}.", f"classes: {', '.join(classes)}")

    # how often it fails

    @cached_property
    def conditions(self) -> Conditions | None:
        """Under which the risk is measured: as declared, else what suits such images; none for
        seeds that a generator made.
        """
        declared = self.config.conditions
        if declared == "none" or (declared is None and self._perturbs):
            return None
        found = Conditions.load(usual_profile(self.shape) if declared is None else declared)
        return replace(found, rare=found.rare or self.config.rare)

    @cached_property
    def references(self) -> Sequence[Reference]:
        """Beside whose risk the subject's stands: the version before and those named, else plain
        networks of the same data that are at hand.
        """
        config = self.config
        if self.objects.references is not None:
            return [ReferenceModel(model) for model in self.objects.references]
        if config.baseline is not None or config.references is not None:
            names = [name for name in config.references or () if name != "none"]
            return named_references(config.baseline, names, self.model)
        if self.task != "classes":
            return []
        classes = len(self._some.classes)
        return usual_references(self.subject, self.shape, classes, self.images, self.model)

    # the method and the campaign

    @cached_property
    def part(self) -> Part | None:
        """The registry's row of the method; None if a built recipe was given."""
        if self.objects.method is not None:
            return None
        return resolve("method", self.config.method.name)

    @property
    def _row(self) -> Part:
        """The registry's row of a method that was named."""
        assert self.part is not None
        return self.part

    def _fact(self, name: str) -> Any:
        """What the method's row says of itself; nothing of a built recipe."""
        return None if self.part is None else self.part.facts.get(name)

    @property
    def _perturbs(self) -> bool:
        """Whether the method perturbs activations of a generator that makes its own seeds."""
        return bool(self._fact("seeds") == "generator")

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """The method's settings, the criterion's flag among them, as its annotations want them."""
        settings = self.config.method.options()
        if self.config.criterion:
            settings = {**settings, "criterion": self.config.criterion}
        return typed_options(self._row, settings)

    @cached_property
    def options(self) -> dict[str, Any]:
        """The method's options, checked, as is everything else that is asked of the method."""
        part = self._row
        if not self._settings.get("search"):  # another search has needs of its own
            check_offer(part, self.subject.name, self.subject.offers, OFFERS)
        taken = {*part.given, *({"criterion"} & part.options.keys())}
        flags = {"target": "target", "generator": "space", "criterion": "criterion"}
        for flag, needed in flags.items():
            if getattr(self.config, flag) is not None and needed not in taken:
                raise Problem(
                    f'method "{part.name}" takes no {flag}.',
                    fix=f"leave out --{flag}, or another --method",
                )
        unknown = [name for name in part.given if name not in SUPPLIED]
        if unknown:
            raise Problem(
                f'method "{part.name}" takes {unknown[0]!r}, which no campaign can give it.',
                f"A method may ask for {', '.join(SUPPLIED)}; every option has a default.",
            )
        return self._settings

    @cached_property
    def method(self) -> Method:
        """The recipe with its options, and with what it asks this context for."""
        if self.objects.method is not None:
            return self.objects.method
        part = self._row
        options = self.options
        card = None
        if "space" in part.given:  # a missing generator is trained before anything else is
            card = self.generator.card
        given = {name: getattr(self, name) for name in part.given}
        needed = inspect.signature(part.make).parameters
        if given.get("partners", 0) is None and needed["partners"].default is not None:
            raise Problem(
                f'method "{part.name}" mixes codes of images; those of this generator hold no'
                " class.",
                fix="--generator vqvae, or another that is not told the class",
            )
        try:
            method: Method = part(**given, **options)
        except TypeError as error:
            raise Problem(f"method {part.name!r} cannot be built: {error}") from error
        if self._searches_conditions:
            method = self._within_conditions(method)
        known = {name: option.default for name, option in part.options.items()}
        details = {
            **method.details,
            "generator": card,
            "cite": part.cite,
            "options": {**known, **options, **method.details.get("options", {})},
        }
        searches_regressions = self.config.baseline is not None
        oracle = wanted_oracle(
            self.config.oracle,
            method.oracle,
            peers=bool(self.peers),
            regressions=searches_regressions,
        )
        method = replace(method, oracle=oracle, details=details)
        if self.task != "classes":  # log-odds of a claim hardly reach what logits of classes do
            method = replace(method, target_margin=0.0)
        return regressing(method) if searches_regressions else method

    @property
    def _searches_conditions(self) -> bool:
        """Whether the search keeps to the declared box: where conditions were declared, and nobody
        named another space.
        """
        declared = self.config.conditions not in (None, "none")
        usual = self._settings.get("space", "auto") == "auto"
        return declared and usual and self._row.name in ("natural", "natural-blackbox")

    def _within_conditions(self, method: Method) -> Method:
        assert self.conditions is not None
        box = condition_box(self.conditions, self.shape)
        record = {**box.space.to_record(), "columns": list(box.columns)}
        return replace(method, space=box, details={**method.details, "space": record})

    @cached_property
    def map_cells(self) -> CellGrid | None:
        """The cells of the map that the search fills; None without ``--map``."""
        if self.config.map is None:
            return None
        from hardcase.analysis.maps import grid_of

        return grid_of(self.config.map, self._some)

    @cached_property
    def campaign(self) -> Campaign:
        """The method applied to the subject: what worker processes are given."""
        config = self.config
        method = self.method
        if self.map_cells is not None:
            from hardcase.analysis.maps import mapping

            margin = config.campaign.margin if self.witnesses else None
            method = mapping(method, self.map_cells, margin=margin)
        if self.witnesses:
            method = with_witnesses(method, config.campaign.margin)
        keep = parse_keep(config.keep or method.keep)
        if not config.keep:
            keep = replace(keep, place=self.map_cells)
        batch = config.batch_size
        if batch == "auto":
            batch = rows_per_call(self._numbers, self.subject.device, self.tile)
        return Campaign(
            subject=self.subject,
            method=method,
            peers=self.peers,
            witnesses=self.witnesses,
            margin=config.campaign.margin,
            keep=keep,
            batch=batch,
            seed=config.seed,
            tile=self.tile,
            precision=config.precision,
        )

    @cached_property
    def tile(self) -> int | None:
        """Rows of every network call on a device: as recorded, else the largest that holds bits."""
        return campaign_tile(
            (self.subject, *self.peers, *self.witnesses),
            self._example_decoder,
            from_bytes(self._some.x[:64]).to(self.subject.device),
            precision=self.config.precision,
            recorded=self.config.campaign.tile,
        )

    def _example_decoder(self, images: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor] | None:
        """The decoder of the space that is searched, if it has one, with a few codes."""
        from hardcase.spaces.latent import example_decoder

        # a method that takes a space is built later: its partners need the tile
        takes_space = self.part is not None and "space" in self.part.given
        return example_decoder(self.space if takes_space else self.method.space, images)

    @cached_property
    def shard(self) -> int:
        """Seeds that are searched at once."""
        chosen = self.config.campaign.shard
        return chosen or shard_size(self.campaign.method, self._numbers, self.subject.device)

    @cached_property
    def plan(self) -> Plan:
        """Everything that a run on disk needs."""
        config = self.config
        if config.criteria is not None:
            parse_list(config.criteria)
        if self.conditions is not None:  # what is wrong with them is told before the search
            condition_box(self.conditions, self.shape)
            for one in self.references if config.references else ():
                if isinstance(one, ReferenceRun):
                    one.check(self.conditions, self.seeds, config.seed)
        campaign = self.campaign
        source: Callable[[], Campaign] = partial(_itself, campaign)
        text = _FROM_PYTHON
        if self._named:
            source = partial(_campaign_of, config)
            text = self._resolved().to_toml()
        return Plan(
            source=source,
            campaign=campaign,
            images=self.seeds,
            budget=Budget(**config.budget.model_dump()),
            shard=self.shard,
            rounds=config.campaign.round or (1 if campaign.method.guides else 8),
            workers=config.workers,
            devices=self._devices(),
            cluster=config.cluster,
            metrics=None if config.metrics is None else Path(config.metrics),
            allow_low_accuracy=config.allow_low_accuracy,
            config=text,
            about=self._about(),
            ingredients=self._ingredients(),
        )

    def _devices(self) -> tuple[str, ...]:
        """The GPUs over which worker processes are spread: all, unless one of them was named."""
        place = self.subject.device
        named = ":" in self.config.device
        if named or place.type != "cuda" or place.index not in (None, 0):
            return ()
        return gpus(torch.cuda.device_count())

    def _resolved(self) -> Config:
        """The configuration with what was chosen for it, so that it re-runs the same way."""
        config = self.config
        changed: dict[str, Any] = {
            "campaign": config.campaign.model_copy(update={"shard": self.shard, "tile": self.tile}),
            "device": self.device,
            "data": self.data,
            "seeds": config.seeds or len(self.seeds),
            "conditions": config.conditions or getattr(self.conditions, "name", "none"),
        }
        if isinstance(self.subject, Subject) and not is_stated(config.model):
            mean = tuple(self.subject.mean.flatten().tolist())
            std = tuple(self.subject.std.flatten().tolist())
            changed["subject"] = config.subject.model_copy(update={"mean": mean, "std": std})
        options = self.method.details.get("options", {})
        plain = {name: value for name, value in options.items() if isinstance(value, PLAIN)}
        changed["method"] = MethodConfig(name=config.method.name, **plain)
        return config.model_copy(update=changed)

    def _ingredients(self) -> dict[str, str]:
        """What the campaign was made from and does not show: source text, and the training data
        where it was used.
        """
        known = {**code_digests(self.config.model_dump()), "training data": "none"}
        if "train" in self._splits:
            known["training data"] = self._splits["train"].hash
        surrogates = self.method.details.get("surrogates")
        if surrogates:
            known["surrogates"] = " ".join(surrogates)
        return known

    def _about(self) -> dict[str, Any]:
        """What run.json says beyond the campaign itself."""
        config = self.config
        about: dict[str, Any] = {"model": config.model, "data": self.data, "keep": config.keep}
        if any(one.name.startswith("witness:") for one in self.witnesses):
            margin = config.campaign.margin
            about["witnesses"] = witness_record(self.subject, self.witnesses, margin, self.train)
        if claim_context(self._some.context):
            about["claims"] = claim_record(self.seeds.images(), self.task, self.subject)
        if config.judge_features:
            about["judge_features"] = list(config.judge_features)
        if config.baseline is not None:
            about["baseline"] = config.baseline
        generated = self._starting[1]
        if generated:
            about["generated seeds"] = generated
        if self.map_cells is not None:
            from hardcase.analysis.maps import record

            about["map"] = record(self.map_cells)
        return about


def few(images: Images | Stream) -> Images:
    """A few of many files, decoded; whatever is in memory already stays whole."""
    return images.first(FEW).images() if isinstance(images, Stream) else images


def several(witnesses: str | Sequence[str | Model] | None) -> tuple[str | Model, ...] | None:
    """Witnesses as a tuple, where one name was given too."""
    if isinstance(witnesses, str):
        return (witnesses,)
    return None if witnesses is None else tuple(witnesses)


def _asking(config: Config, label_only: bool | None) -> ClientConfig:
    """How models are asked; a limit of requests per second is shared out over the workers."""
    names = (field.name for field in fields(ClientConfig))
    settings = ClientConfig(**{name: getattr(config.subject, name) for name in names})
    if settings.rate is not None:
        settings = replace(settings, rate=settings.rate / config.workers)
    if label_only is not None:
        settings = replace(settings, label_only=label_only)
    return settings


def _campaign_of(config: Config) -> Campaign:
    """A campaign from its configuration, in whatever process needs it."""
    return Context(config).campaign


def _itself(campaign: Campaign) -> Campaign:
    return campaign
