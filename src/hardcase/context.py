"""Build the parts of a campaign from their names, each when it is first needed."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hardcase.campaign.loop import rows_per_call, seconds_per_seed, seeds_in_time
from hardcase.campaign.record import Campaign, computing, overlay, parse_keep
from hardcase.config import NO_SEARCH, Config, ModelConfig, is_run, typed_options
from hardcase.data.files import ImageSet, Stream
from hardcase.errors import HardcaseError
from hardcase.models.adapters import ClientConfig
from hardcase.models.load import Loading, is_stated
from hardcase.objectives import with_witnesses
from hardcase.oracles import wanted_oracle
from hardcase.randomness import hashed_order, reserved
from hardcase.registry import SUPPLIED, Part, check_offer, resolve
from hardcase.request import Request
from hardcase.splits import CampaignSplits, sample_of
from hardcase.tensors import from_bytes, steady, usable_device
from hardcase.types import OFFERS, Budget, Images, Method, Model, Space, is_photographic

if TYPE_CHECKING:
    from hardcase.conditions.box import ConditionBox
    from hardcase.conditions.declared import Conditions
    from hardcase.generators.build import Generator, GeneratorSelection
    from hardcase.guides.archive import CellGrid
    from hardcase.methods.neurons import Profiles
    from hardcase.models.witnesses import WitnessSelection
    from hardcase.runs.measured import Measurement
    from hardcase.spaces.latent import Library
    from hardcase.training.cards import TrainingProgress

__all__ = ["SEEDS", "Context"]

_log = logging.getLogger(__name__)

SEEDS = 60
"""Images to search from where nobody says how many."""
MOST_MEASURED = 10_000
"""Images that are measured, at most."""
FEWEST_DIVIDED = 100
"""Images from which on half of them is reserved for proofs of repair."""
SOME = 16
"""Images in the timed call of a black box."""
QUERIES = 400
"""Default query budget per image of a black box."""


class Context(CampaignSplits):
    """The ingredients of one campaign: each is loaded, hashed or built once, when it is first used.

    An argument is an object, or None: built from its name in the configuration.

    Args:
        config: Names and settings, as a configuration file or flags give them.
        progress: Called with the progress of trainings of missing networks.
        subject: The network under test.
        seeds: The images to start from, all of them.
        given: Images to measure; the search starts from a sample of them.
        rest_trains: Whether images of `given` that are neither searched from nor reserved are
            training images, for want of others.
        train: Training images, where the data set has no name to load them by.
        peers: Networks to compare with, by name or whatever a user has.
        witnesses: Networks that must keep the label, likewise.
        baselines: Networks that are measured on the same samples, likewise.
        method: A recipe that is built already.

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
        *,
        progress: Callable[[TrainingProgress], None] | None = None,
        subject: Model | None = None,
        seeds: Images | Stream | None = None,
        given: Images | Stream | None = None,
        rest_trains: bool = False,
        train: Images | Stream | None = None,
        peers: Sequence[Any] = (),
        witnesses: str | Sequence[Any] | None = None,
        baselines: Sequence[Any] = (),
        method: Method | None = None,
    ) -> None:
        if isinstance(witnesses, str):
            witnesses = (witnesses,)
        others = [*peers, *baselines, *(witnesses or ())]
        live = [subject, seeds, given, train, method]
        live += [each for each in others if not isinstance(each, str)]
        self.by_name = all(each is None for each in live)
        """Whether a configuration alone says everything: no ingredient is an object."""
        self._subject = subject
        self._peers = tuple(peers)
        self._baselines = tuple(baselines)
        self._given = given
        self._rest_trains = rest_trains
        self._method = method
        self.progress = progress
        self.generated: dict[str, Any] = {}
        """How many seeds were generated, and which networks classified them as their label."""
        self._wanted_witnesses = config.witnesses if witnesses is None else witnesses
        """The witnesses that the user named or passed; None: those of the method."""
        images = given if seeds is None else seeds
        super().__init__(config, live_subject=subject is not None, seeds=images, train=train)

    @classmethod
    def of(
        cls,
        subject: Model | str,
        seeds: Images | Stream,
        method: str | Method,
        *,
        options: Mapping[str, Any] | None = None,
        train: Images | Stream | None = None,
        peers: Sequence[Any] = (),
        witnesses: str | Sequence[Any] | None = None,
        baselines: Sequence[Any] = (),
        some: bool = False,
        rest_trains: bool = False,
        request: Request | None = None,
        **values: Any,
    ) -> Context:
        """The context of a campaign whose subject and seeds are objects. With `some`, the seeds are
        all images to measure, and a sample of them is searched.
        """
        merged = (request or Request()).ask(values, "python")
        named: dict[str, Any] = {
            "model": getattr(subject, "name", subject),
            "data": merged.values.get("data", seeds.name),
            "method": {**(options or {}), "name": getattr(method, "name", method)},
        }
        if not some:
            named["images"] = max(len(seeds), 1)
        images: dict[str, Any] = {"given" if some else "seeds": seeds}
        return cls(
            merged.ask(named, "python").config(),
            subject=None if isinstance(subject, str) else subject,
            **images,
            rest_trains=rest_trains,
            train=train,
            peers=peers,
            witnesses=witnesses,
            baselines=baselines,
            method=None if isinstance(method, str) else method,
        )

    # what is measured, and where the search starts

    @cached_property
    def all_images(self) -> ImageSet:
        """Every image of the split, or all images that the caller passed."""
        if self.given_seeds is not None:
            return self.given_seeds
        return self.task.all_images(self)

    @cached_property
    def measured_images(self) -> ImageSet:
        """The images in the order in which they are measured, which the run's seed fixes: what is
        measured in less time is the beginning of what is measured in more.
        """
        images = self.all_images
        order = hashed_order(self.task.image_names(images.id), self.config.seed)
        return images.take(order[:MOST_MEASURED])

    @property
    def reserves(self) -> bool:
        """Whether half of the images are reserved for proofs of repair: where they are enough, and
        the user chose no images to search.
        """
        chosen = self.given_seeds is not None and self._given is None
        return not chosen and len(self.all_images) >= FEWEST_DIVIDED

    @cached_property
    def seeds(self) -> ImageSet:
        """The images that the search starts from: the caller's, a class-balanced sample of the
        images that are not reserved, or freshly generated images; very many stay in their files.
        """
        passed = self.given_seeds
        if self._perturbs:  # given images say only the shape, the classes and how many
            return self._generated_seeds() if self._generates else self.all_images
        if passed is not None and self._given is None:
            return passed
        images = self.all_images
        if self.reserves:
            names = self.task.image_names(images.id)
            images = images.take((~reserved(names)).nonzero().flatten())
        if self.config.images is None and len(images) <= SEEDS and passed is not None:
            return images.held()
        count = min(self.count, len(images))
        return images.sample(count=count, seed=self.config.seed).held()

    @property
    def _generates(self) -> bool:
        """Whether the method's generator makes the seeds: unless the caller's images come with
        codes."""
        return self.given_seeds is None or "latent" not in self.sample.context

    def read(self, split: str) -> Images | Stream:
        """One split of the data as it is stored, with the classes of the data."""
        if split == "train" and split not in self._stored and self._rest_trains:
            images = self.all_images
            used = {*self.seeds.id}
            held = reserved(images.id).tolist() if self.reserves else [False] * len(images)
            rows = [i for i, name in enumerate(images.id) if name not in used and not held[i]]
            if rows:
                self._stored["train"] = images.take(torch.tensor(rows))
                self._stored.setdefault("test", images)
        return super().read(split)

    def _generated_seeds(self) -> Images:
        """Samples of the method's generator that the subject and most verifiers classify so."""
        from hardcase.generators.quality import generated_seeds

        space: Any = self.campaign.method.space
        named = self._wanted_witnesses is not None
        verifiers = self.witnessing.verifiers(self.witnesses, named=named)
        with self.campaign.arithmetic():
            generated, self.generated = generated_seeds(
                space.generator,
                self.sample,
                self.count,
                subject=self.subject,
                verifiers=verifiers,
                target=self.target,
                seed=self.config.seed,
            )
        return generated

    @cached_property
    def count(self) -> int:
        """How many images the search starts from: as configured, else 60; of photographs on a CPU
        as many as minutes are enough for, by a timed pass.
        """
        if self.config.images is not None:
            return self.config.images
        timed = steady(self.subject.device) and is_photographic(self.shape)
        if not timed or not self.config.method.searches:
            return SEEDS
        most = min(SEEDS, len(self.labelled(self.config.split)))
        return seeds_in_time(self.seconds_per_seed(), most=most)

    def seconds_per_seed(self) -> float:
        """How long a seed takes that spends its budget, by a timed pass of every network."""
        budget = overlay(Budget(**self.config.budget.model_dump()), self.method.budget)
        rows = from_bytes(self.sample.x[:4]).to(self.subject.device)
        return seconds_per_seed(self.campaign, rows, budget)

    # networks

    @cached_property
    def device(self) -> str:
        """Where the networks are: as configured, if that exists here."""
        if self._subject is not None:
            return str(self._subject.device)
        return usable_device(self.config.device)

    @cached_property
    def subject(self) -> Model:
        """The network under test."""
        return self._subject or self.model(self.config.model.name)

    @cached_property
    def peers(self) -> tuple[Model, ...]:
        """The networks that the method compares with: those named, or a quantised copy it needs."""
        config = self.config
        if self._peers:
            return tuple(map(self.network, self._peers))
        # the oracle of regressions looks at the first
        named = [self.model(spec) for spec in config.peers]
        if self.regressing:
            named.insert(0, self.baselines[0])
        if named:
            return tuple(named)
        if self.part.facts.get("peers") != "quantised" or config.oracle in ("label", "non-finite"):
            return ()
        from hardcase.models.quantised import CALIBRATION, copy_for

        images = lambda: from_bytes(self.train.first(CALIBRATION).x)  # noqa: E731
        return (copy_for(config.method.name, self.subject, config.method.options(), images),)

    @cached_property
    def witnessing(self) -> WitnessSelection:
        """How the witnesses of this campaign are loaded or trained."""
        from hardcase.models.witnesses import WitnessSelection

        return WitnessSelection(
            subject=self.subject,
            shape=self.shape,
            classes=len(self.sample.classes),
            images=self.unrecorded,
            load=partial(self.model, label_only=False),
            progress=self.progress,
            search_seconds=self._search_seconds if self.subject.offers != "gradients" else None,
        )

    def _search_seconds(self) -> float:
        """The longest time that a black box may take, by a timed call."""
        rows = from_bytes(self.sample.x[:SOME]).to(self.subject.device)
        self.subject(rows[:1])
        began = monotonic()
        self.subject(rows)
        each = (monotonic() - began) / len(rows)
        queries = self.config.budget.queries or QUERIES
        return each * queries * (self.config.images or SEEDS)

    @cached_property
    def witnesses(self) -> tuple[Model, ...]:
        """The networks that must keep the label where the subject leaves it: those that the user
        named or passed, else the default witnesses if the method needs any.
        """
        wanted = self._wanted_witnesses
        if wanted is not None:  # words as default are not names of networks
            wanted = tuple(
                witness if isinstance(witness, str) else self.network(witness) for witness in wanted
            )
        return self.task.witnesses(self, wanted)

    @cached_property
    def surrogates(self) -> tuple[Model, ...]:
        """Networks whose gradients stand for those of a black box; none for photographs, nor where
        the search follows no gradient.
        """
        from hardcase.models.witnesses import surrogates_for

        if self.options.get("search") == "evolution" or not self.task.classifies:
            return ()
        train = partial(self.labelled, "train")
        load = partial(self.model, label_only=False)
        if self.options.get("search") == "surrogates":
            return surrogates_for(self.subject, self.shape, train, load)
        seconds = self._search_seconds()
        return surrogates_for(self.subject, self.shape, train, load, seconds=seconds)

    def network(self, model: Any) -> Model:
        """The model that a name means, or that is in whatever a user has."""
        if isinstance(model, str):
            return self.model(model)
        return self.task.wrap(model, self.sample, self.config.model.model_dump())

    def model(self, spec: str, *, label_only: bool | None = None) -> Model:
        """The model that `spec` names, loaded as this campaign loads models."""
        config = self.config
        names = {field.name for field in fields(ClientConfig)} & ModelConfig.model_fields.keys()
        client = ClientConfig(**{name: getattr(config.model, name) for name in names})
        if config.batch_size != "auto":
            client = replace(client, batch=config.batch_size)
        if client.rate is not None:  # requests per second are shared out over the workers
            client = replace(client, rate=client.rate / config.workers)
        if label_only is not None:
            client = replace(client, label_only=label_only)
        how = Loading(
            device=self.device,
            outputs=config.model.outputs,
            channels=config.model.channels,
            trust_pickle=config.trust_pickle,
            progress=self.progress,
            offline=config.offline,
            asking=client,
        )
        if spec == config.model.name or not is_stated(spec):
            how = replace(how, mean=config.model.mean, std=config.model.std)
        return self.task.load(self, spec, how)

    def with_examples(self, spec: str, how: Loading) -> Loading:
        """The images on which a model is tried that does not state how it wants them; all of them
        where it is trained on them.
        """
        if self.given_seeds is not None and not spec.startswith("zoo:"):
            return replace(how, test=self.sample)
        read = self.labelled if self.config.model.classes else self.read
        if not spec.startswith("zoo:"):
            return replace(how, test=sample_of(read("test")))
        return replace(how, train=read("train").images(), test=read("test").images())

    # what latent and white-box methods need

    @cached_property
    def _selection(self) -> GeneratorSelection:
        """How the generator of this campaign is loaded or trained."""
        from hardcase.generators.build import GeneratorSelection

        training = {}
        if self.part.facts.get("joint"):  # ARGUS trains for the share at which codes will be mixed
            training["mix"] = self.options.get("mix", self.part.options["mix"].default)
        return GeneratorSelection(
            method=self.config.method.name,
            perturbs=self._perturbs,
            subject=self.subject,
            example=self.sample,
            images=self.images,
            data=self.config.data,
            split=self.config.split,
            training=training,
            refuse=not self.config.allow_low_accuracy,
            progress=self.progress,
        )

    @cached_property
    def generator(self) -> Generator:
        """The named generator, or that of the method, trained on the data if missing."""
        default = str(self.part.facts.get("generator") or "")
        return self._selection.make(self.config.generator, default)

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

        return Profiles(from_bytes(self.sample.x[:1]), lambda: self.train)

    @cached_property
    def target(self) -> int | None:
        """The class that a targeted search must reach."""
        wanted = self.config.target
        if wanted is None:
            return None
        classes = self.sample.classes
        if str(wanted) in classes:
            return classes.index(str(wanted))
        if isinstance(wanted, int) and 0 <= wanted < len(classes):
            return wanted
        raise HardcaseError(f"there is no class {wanted!r}.", f"classes: {', '.join(classes)}")

    # how often it fails

    @cached_property
    def conditions(self) -> Conditions | None:
        """The conditions in effect: as declared, else what suits such images."""
        declared = self.config.conditions
        if declared == "none":
            return None
        from hardcase.conditions.declared import Conditions, usual_profile

        return Conditions.load(usual_profile(self.shape) if declared is None else declared)

    @cached_property
    def box(self) -> ConditionBox | None:
        """The space of the conditions in effect: what is measured is drawn from it, and a search in
        a space of appearance stays within it.
        """
        if self.conditions is None:
            return None
        from hardcase.conditions.box import condition_box

        return condition_box(self.conditions, self.shape)

    @cached_property
    def baselines(self) -> tuple[Model, ...]:
        """The models that are evaluated on the same samples: first the baseline, then comparison
        models. Runs are no models: they were measured before.
        """
        named = (spec for spec in self._baseline_specs if not is_run(spec))
        return tuple(map(self.network, named))

    @property
    def stored_baselines(self) -> list[str]:
        """The folders of runs with which the failure rate is compared."""
        return [str(spec) for spec in self._baseline_specs if is_run(spec)]

    @property
    def _baseline_specs(self) -> Sequence[Any]:
        return self._baselines or self.config.baseline

    @cached_property
    def measurement(self) -> Measurement:
        """What measuring needs, under the conditions in effect."""
        from hardcase.runs.measured import Measurement

        return Measurement(
            model=self.subject,
            box=self.box,
            baselines=self.baselines,
            samples=self.config.samples,
            seed=self.config.seed,
            tile=self._measure_tile(),
            reserve=self.reserves,
        )

    def _measure_tile(self) -> int | None:
        """Rows of every call while it is measured; chosen as the tile of a search is."""
        device = self.subject.device
        if steady(device) and not is_photographic(self.shape):
            return None
        from hardcase.runs.tiles import campaign_tile

        rows = from_bytes(self.sample.x[:64]).to(device)
        networks = (self.subject, *self.baselines)
        return campaign_tile(networks, lambda images: None, rows, precision="strict")

    # the method and the campaign

    @cached_property
    def part(self) -> Part:
        """The registry's row of the method; an empty row for a built recipe, or if nothing is
        searched.
        """
        built = self._method
        if built is not None:
            return Part(kind="method", name=built.name, make=partial(_itself, built))
        if not self.config.method.searches:
            return Part(kind="method", name=NO_SEARCH, make=_nothing)
        return resolve("method", self.config.method.name)

    @property
    def regressing(self) -> bool:
        """Whether the search looks for regressions: the baseline is a model."""
        first = next(iter(self._baseline_specs), None)
        return first is not None and not is_run(first)

    @property
    def _perturbs(self) -> bool:
        """Whether the method perturbs activations of a generator that also makes the seeds."""
        return bool(self.part.facts.get("seeds") == "generator")

    @cached_property
    def options(self) -> dict[str, Any]:
        """The checked options of the method, with everything
        else that the method requires.
        """
        part = self.part
        settings = self.config.method.options()
        if settings:
            settings = typed_options(part, settings)
        if not settings.get("search"):  # another search has needs of its own
            check_offer(part, self.subject.name, self.subject.offers, OFFERS)
        flags = {"target": "target", "generator": "space"}
        for flag, needed in flags.items():
            if getattr(self.config, flag) is not None and needed not in part.given:
                raise HardcaseError(
                    f'method "{part.name}" takes no {flag}.',
                    fix=f"leave out {flag}, or another method",
                )
        unknown = [name for name in part.given if name not in SUPPLIED]
        if unknown:
            raise HardcaseError(
                f'method "{part.name}" takes {unknown[0]!r}, which no run can give it.',
                f"A method may ask for {', '.join(SUPPLIED)}; every option has a default.",
            )
        return settings

    @cached_property
    def method(self) -> Method:
        """The recipe with its options, and with what it asks this context for."""
        if self._method is not None:
            named = self._method.details.get("options", {})
            bounded = self._within_conditions(self._method, named)
            if bounded is not self._method and self.conditions is not None:
                _log.warning(
                    "%s, which was given built, is searched as a copy within the conditions %s",
                    *(bounded.name, self.conditions.name),
                )
            return bounded
        part = self.part
        options = self.options
        card = None
        if "space" in part.given:  # a missing generator is trained before anything else is
            card = self.generator.card
        ingredients = {name: getattr(self, name) for name in part.given}
        needed = inspect.signature(part.make).parameters
        if ingredients.get("partners", 0) is None and needed["partners"].default is not None:
            raise HardcaseError(
                f'method "{part.name}" mixes codes of images; those of this generator hold no'
                " class.",
                fix="--generator vqvae, or a generator that does not know the class",
            )
        try:
            method: Method = part(**ingredients, **options)
        except TypeError as error:
            raise HardcaseError(f"method {part.name!r} cannot be built: {error}") from error
        method = self._within_conditions(method, options)
        defaults = {name: option.default for name, option in part.options.items()}
        settings = {**defaults, **options, **method.details.get("options", {})}
        if self.config.budget.queries is not None and "queries" in settings:
            settings["queries"] = self.config.budget.queries
        details = {
            **method.details,
            "generator": card,
            "cite": part.cite,
            "options": settings,
        }
        oracle = wanted_oracle(
            self.config.oracle,
            method.oracle,
            peers=bool(self.peers),
            regressions=self.regressing,
        )
        method = self.task.adapted(replace(method, oracle=oracle, details=details))
        if self.regressing:
            from hardcase.analysis.references import regressing

            return regressing(method)
        return method

    def _within_conditions(self, method: Method, options: Mapping[str, Any]) -> Method:
        """The method bounded by the conditions in effect, if it searches appearance and nobody
        named the space; where somebody did, only declared conditions are worth a word.
        """
        from hardcase.spaces.appearance import Appearance

        if self.conditions is None:
            return method
        config = self.config  # what was chosen by default is stored, and no declaration
        declared = config.conditions is not None and config.given.get("conditions") != "default"
        if not isinstance(method.space, Appearance):
            if declared:
                _log.warning(
                    "the conditions %s bound what is measured, not the search of %s",
                    *(self.conditions.name, method.name),
                )
            return method
        if options.get("space", "auto") != "auto":
            if declared:
                _log.warning(
                    "%s searches the space %s, which was named, not the conditions %s",
                    *(method.name, options["space"], self.conditions.name),
                )
            return method
        box = self.box
        assert box is not None
        record = {**box.space.to_record(), "columns": list(box.columns)}
        return replace(method, space=box, details={**method.details, "space": record})

    @cached_property
    def map_cells(self) -> CellGrid | None:
        """The cells of the map that the search fills; None without ``--map``."""
        if self.config.map is None:
            return None
        from hardcase.analysis.maps import grid_of

        return grid_of(self.config.map, self.sample)

    @cached_property
    def campaign(self) -> Campaign:
        """The method applied to the subject: the task of worker processes."""
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
            batch = rows_per_call(math.prod(self.shape), self.subject.device, self.tile)
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
        """Rows of every network call on a device: as recorded, else the largest size with equal
        bits; on a CPU for photographs only.
        """
        device = self.subject.device
        if steady(device):
            if self.config.precision == "bf16":
                raise HardcaseError("bf16 is an arithmetic of GPUs.", fix="--precision strict")
            if not is_photographic(self.shape):
                return None
        if self.config.campaign.tile is not None:
            return self.config.campaign.tile
        from hardcase.runs.tiles import campaign_tile

        return campaign_tile(
            (self.subject, *self.peers, *self.witnesses),
            self._example_decoder,
            from_bytes(self.sample.x[:64]).to(device),
            precision=self.config.precision,
        )

    def _example_decoder(self, images: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor] | None:
        """The decoder of the space that is searched, if it has a decoder, with sample codes."""
        from hardcase.spaces.latent import example_decoder

        # a method that takes a space is built later: its partners need the tile
        takes_space = "space" in self.part.given
        return example_decoder(self.space if takes_space else self.method.space, images)


def _itself(built: Method) -> Method:
    return built


def _nothing() -> Method:
    raise HardcaseError("a run without a search has no method.", fix="--method natural")
