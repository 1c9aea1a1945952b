"""The rows of the catalogue: what each criterion means, what it needs, which paper it is from, and the laws it keeps."""

from __future__ import annotations

from collections.abc import Iterator

from hardcase.criteria.entry import Entry, Option

_COUNT = ("monotone", "order-free", "idempotent", "mergeable")
_SUM = ("order-free", "mergeable", "to rounding")

_DEEPXPLORE = "Pei, Cao, Yang, Jana: DeepXplore, SOSP 2017"
_DEEPGAUGE = "Ma et al.: DeepGauge, ASE 2018"
_MCDC = "Sun, Huang, Kroening, Sharp, Hill, Ashmore: Structural test coverage criteria for DNNs, TECS 2019"
_SURPRISE = (
    "Kim, Feldt, Yoo: Guiding deep learning system testing using surprise adequacy, ICSE 2019"
)
_MDSA = "Kim, Ju, Feldt, Yoo: Reducing DNN labelling cost using surprise adequacy, ESEC/FSE 2020"


_GROUPS = "a group (conv-linear, conv, dense, hidden, hidden-dense, activated, activated-softmax, last-hidden, last) or names joined by +"
_MODE = Option("channel", "one unit per channel (its mean) or every unit", ("channel", "unit"))


def _units(layers: str = "conv-linear", **more: Option) -> dict[str, Option]:
    return {"layers": Option(layers, _GROUPS), "mode": _MODE, **more}


def _beyond(**more: Option) -> dict[str, Option]:
    equal = Option("none", "where a value on the bound counts", ("none", "above", "both"))
    widen = Option(0.0, "standard deviations by which the bounds move out")
    return {**_units(widen=widen, equal=equal), **more}


def _surprise(**more: Option) -> dict[str, Option]:
    return {**_units("last-hidden"), **more}


def _bounds() -> dict[str, Option]:
    return {
        "n": Option(1000, "number of buckets"),
        "lower": Option(
            "train", "lower bound; train: the least leave-one-out surprise of training data"
        ),
        "upper": Option(
            "train", "upper bound; train: the greatest leave-one-out surprise of training data"
        ),
        "overflow": Option(False, "the last bucket holds everything above the others"),
    }


_LSA = {
    "per": Option("class", "one density per predicted class, or one for all", ("class", "all")),
    "floor": Option(1e-5, "units that vary less in some class are left out"),
    "most": Option(0, "if above 0: keep that many units of highest variance instead"),
}
_DSA = {"search": Option("exact", "exact, faiss, or faiss-N for an inverted file of N lists")}
_MD = {
    "per": Option("class", "one covariance per predicted class, or one for all", ("class", "all")),
    "squared": Option(False, "squared distances"),
}


def entries() -> Iterator[Entry]:
    yield from _neurons()
    yield from _layers()
    yield from _pairs()
    yield from _surprises()
    yield from _others()


def _neurons() -> Iterator[Entry]:
    yield Entry(
        name="nc",
        summary="neuron coverage: units active for some input",
        definition="share of units whose value exceeds the threshold for some input",
        paper=_DEEPXPLORE,
        where="neuron:nc",
        options=_units(
            threshold=Option(0.0, "values above it count as active"),
            scale=Option(
                "none",
                "scale each layer to [0, 1] within an input or over the suite",
                ("none", "input", "suite"),
            ),
            order=Option(
                "mean-scale",
                "average channels before or after scaling",
                ("mean-scale", "scale-mean"),
            ),
            epsilon=Option(0.0, "added to the width when scaling"),
        ),
    )
    yield Entry(
        name="kmnc",
        summary="k-multisection neuron coverage: parts of each unit's training range that were seen",
        definition="the range of each unit over training data in k equal sections; share of sections hit by some input",
        paper=_DEEPGAUGE,
        needs="activations, profile",
        where="neuron:kmnc",
        options=_units(
            k=Option(1000, "sections per unit"),
            cuts=Option(
                "right-open", "who owns a cut point", ("right-open", "left-open", "closed")
            ),
            top=Option(
                "last", "the highest value fills the last section, or none", ("last", "corner")
            ),
            constant=Option(
                "skip",
                "units without a range: left out, never hit, or filled when hit",
                ("skip", "never", "all"),
            ),
        ),
    )
    yield Entry(
        name="nbc",
        summary="neuron boundary coverage: units driven beyond their training range, either way",
        definition="upper and lower corners reached by some input, of two per unit (or units with both, or either)",
        paper=_DEEPGAUGE,
        needs="activations, profile",
        where="neuron:nbc",
        options=_beyond(count=Option("corners", "what is counted", ("corners", "both", "either"))),
    )
    yield Entry(
        name="snac",
        summary="strong neuron activation coverage: units driven above their training range",
        definition="share of units that exceed their greatest training value for some input",
        paper=_DEEPGAUGE,
        needs="activations, profile",
        where="neuron:snac",
        options=_beyond(),
    )
    yield Entry(
        name="layer-snac",
        summary="SNAC of each layer, over the suite and per input",
        definition="mean over layers of the share of units that exceed their greatest training value; each layer in detail",
        paper="MaXplore report (Topk-MaXplore)",
        needs="activations, profile",
        where="neuron:layer_snac",
        options=_beyond(),
    )


def _layers() -> Iterator[Entry]:
    yield Entry(
        name="tknc",
        summary="top-k neuron coverage: units that were among the strongest of their layer",
        definition="share of units among the k strongest of their layer for some input",
        paper=_DEEPGAUGE,
        where="neuron:tknc",
        options=_units(
            k=Option(3, "how many per layer"),
            ranked=Option(False, "each rank of a unit counts apart"),
        ),
    )
    yield Entry(
        name="tknp",
        summary="top-k neuron patterns: combinations of strongest units",
        definition="number of different combinations, over all layers, of the k strongest units of each (a count, not a ratio)",
        paper=_DEEPGAUGE,
        where="neuron:tknp",
        laws=_COUNT,
        options=_units(
            k=Option(3, "how many per layer"), ordered=Option(False, "their ranks matter")
        ),
    )


def _pairs() -> Iterator[Entry]:
    kinds = {
        "ssc": ("sign-sign", "its sign alone flips in its layer", "its sign flips"),
        "vsc": (
            "value-sign",
            "its size changes by a factor and no sign of its layer flips",
            "its sign flips",
        ),
        "svc": (
            "sign-value",
            "its sign alone flips in its layer",
            "its size changes by a factor, its sign does not",
        ),
        "vvc": (
            "value-value",
            "its size changes by a factor and no sign of its layer flips",
            "its size changes by a factor, its sign does not",
        ),
    }
    for name, (kind, condition, decision) in kinds.items():
        yield Entry(
            name=name,
            summary=f"{kind} coverage: units shown to drive units of the next layer",
            definition=f"share of (condition, decision) pairs of neighbouring layers for which two inputs exist such that of the condition {condition}, and of the decision {decision}",
            paper=_MCDC,
            where=f"mcdc:{name}",
            options={
                "layers": Option("hidden-dense", _GROUPS),
                "channels": Option(
                    False, "hidden convolutions too, by the sign of each channel's mean"
                ),
                "top": Option(
                    0, "only the so many strongest incoming weights of each decision (0: all)"
                ),
                "pairs": Option(
                    "all", "any two inputs, or an input and its seed", ("all", "seed-test")
                ),
                "factor": Option(5.0 if name == "vvc" else 2.0, "the change in size that counts"),
                "relax": Option(
                    0.01,
                    "share of the condition layer that may flip in the relaxed form printed beside",
                ),
            },
        )


def _surprises() -> Iterator[Entry]:
    what = {
        "lsa": (
            "likelihood",
            "minus the logarithm of a kernel density over training traces of the predicted class",
            _LSA,
            _SURPRISE,
        ),
        "dsa": (
            "distance",
            "distance to the nearest training trace of the predicted class over that trace's distance to other classes",
            _DSA,
            _SURPRISE,
        ),
        "mdsa": (
            "Mahalanobis",
            "distance to the mean of the predicted class, measured in its spread",
            _MD,
            _MDSA,
        ),
    }
    for name, (kind, definition, options, paper) in what.items():
        yield Entry(
            name=name,
            summary=f"mean {kind}-based surprise of the inputs",
            definition=f"mean over inputs of: {definition}",
            paper=paper,
            needs="activations, profile with traces",
            where=f"trace:{name}",
            laws=_SUM,
            options=_surprise(**options),
        )
    for name, (kind, definition, options, paper) in what.items():
        short = name[:-1] + "c"
        yield Entry(
            name=short,
            summary=f"{kind}-based surprise coverage: how much of the range of surprise was seen",
            definition=f"the range of surprise in n equal buckets; share of buckets hit by some input. Surprise: {definition}",
            paper=paper,
            needs="activations, profile with traces",
            where=f"trace:{short}",
            options=_surprise(**options, **_bounds()),
        )


def _others() -> Iterator[Entry]:
    yield Entry(
        name="neighbour",
        summary="nearest-neighbour novelty: inputs far from all kept before",
        definition="number of inputs whose squared distance to every input kept before exceeds the threshold (order matters)",
        paper="Odena, Olsson, Andersen, Goodfellow: TensorFuzz, ICML 2019",
        where="trace:neighbour",
        laws=("monotone", "idempotent", "mergeable"),
        options=_units(
            "last", threshold=Option(1.0, "squared distance beyond which an input is new")
        ),
    )
    yield Entry(
        name="nlc",
        summary="neural coverage: how widely the units of each layer vary together (not a ratio, not monotone)",
        definition="sum over layers of the mean size of the covariances between units",
        paper="Yuan, Pang, Wang: Revisiting neuron coverage for DNN testing, ICSE 2023",
        where="trace:nlc",
        laws=_SUM,
        options=_units(),
    )
    yield Entry(
        name="lscd",
        summary="latent space class dispersion: how far inputs lie from the centre of their class",
        definition="mean over classes of the mean distance between inputs of a label and the centroid of its rightly classified training traces",
        paper="Vekariya, Golagha, Stocco, Pretschner: Latent space class dispersion, arXiv 2503.18799, 2025",
        needs="activations, labels, profile with traces",
        where="trace:lscd",
        laws=_SUM,
        options=_units("last-hidden"),
    )
