"""Published experiments on test inputs for image classifiers, repeated: ``hardcase reproduce NAME``. Imports no torch."""

from __future__ import annotations

from hardcase.companions import PaperStudy

_PAPERS = {
    "Kim, Cho and Kwon, course project: Adversarial image generation based on various neuron coverage": {
        "coverage-matrix": "DeepXplore and DLFuzz under every criterion and four controls, each measured by every criterion",
    },
    "Te Wei Lee, report, Singapore Management University, 2020": {
        "maxplore": "each claim of MaXplore singly: One, Topk and Multi-Topk against DeepXplore by Layer-SNAC; k against validity",
        "maxplore-uses": "what its Section 7 proposes: retraining with its images; KMNC with a generator and with nearest neighbours",
    },
    "Kang, Feldt and Yoo, TOSEM 2023": {
        "sinvad-rq1": "real images, FGSM, C&W and SINVAD on the same boundary, as a study for people (hardcase study serve)",
        "sinvad-rq2": "how close to the decision boundary found images lie, and what that costs",
        "sinvad-pca": "whether found images lie between the clusters of two classes, seen by the network (Figure 13)",
        "sinvad-rq3": "class escape against test error as labels are mixed in training",
        "sinvad-matrix": "arrivals of the genetic search from each class in each other, beside the confusion matrix (Figure 14)",
        "sinvad-rq4": "latent size and kind of VAE against how well a classifier still sees the label",
        "sinvad-feasibility": "interpolation, images of given surprise and ambiguous images, in pixels and in the latent space",
    },
    "ours, after SINVAD's RQ3": {
        "escape-null": "ways out of networks with mixed labels, and of clean ones, against ten clean retrainings",
    },
    "Duan, Dwyer and Yang, 2025 (ARGUS)": {
        "argus-table1": "likeness, diversity, error and success rate of interpolated images at every share, adaptive, and of rivals (Table 3 too)",
        "argus-table2": "accuracy after retraining with found images, against controls of the same size",
        "argus-table4": "the ablation: without the quantiser, without the discriminators",
        "argus-curve": "its five published numbers beside our own curves, mix by mix, likeness counted in four ways",
        "argus-settling": "why its error rates are not found here: counting, batch normalisation, literal losses, plain networks",
        "argus-ratings": "images of seven methods for people to rank and grade, as a blinded study (hardcase study serve)",
    },
    "Dunn, Pouget, Melham and Kroening, ISSTA 2021": {
        "features-rq1": "planted faults: which methods detect which (also hardcase faults)",
        "features-rq2": "unmodified networks: which features move in confident targeted failures of pairs of classes, beside pixels",
        "features-rq3": "how far tests lie from seeds in pixels, and how often robust networks keep the label of them",
    },
    "Karras, Aittala, Aila and Laine, NeurIPS 2022, in minutes": {
        "diffusion-cifar10": "the share of a diffusion model's samples that a classifier recognises which took no part",
    },
    "ours; ratings of Riccio and Tonella, ICSE 2023": {
        "asking-digits": "answers that a rate takes, asked at random or by doubt, replayed on recorded raters, each generator unseen",
        "asking-photographs": "the same for 80 photographs of one class, judged by several lineages of networks, one vote each",
    },
    "Riccio and Tonella, ICSE 2023 (its published ratings)": {
        "blind-readings": "the judge, and the measured noise, against somebody's blind readings of findings; planted losses in runs",
        "rated-digits": "the judge against digits that two people have rated: AUROC, precision of what is accepted by method, agreement with one rater, flips between trainings",
        "rated-photographs": "the same for 80 photographs of one class, judged by a network that others have trained",
    },
    "ours": {
        "witness-test": "searches with witnesses on unseen digits: a test set that is opened once (--open), matched by size too",
        "witness-controls": "searches with witnesses and the controls a hostile reader asks for: filter, wrong label, neighbourhood, A/A, rivals, a blind study",
        "slices-faults": "whether the first slice names a planted trait among distractors; family-wise error; how many slices hold",
        "severity-crossings": "smallest failing severity by bisection beside a fine grid: error, queries, and seeds whose failing is not monotone",
        "regression-search": "inputs that a new version broke: a search less its nulls beside a replay of real images at equal queries",
        "repair": "trained on with gradient steps or the worst of four draws, beside random draws at equal steps and seconds, findings, AugMix",
        "natural-cifar10": "other appearances of CIFAR-10's images that a ResNet-18 misreads: which networks that took no part keep the label",
        "natural-imagenet": "other appearances of photographs that EfficientNet-Lite0 misreads: does a ResNet-50 keep the label",
        "decides": "does risk say more of a network on other data than accuracy, loss and corruption error do; 56 recipes",
        "demo": "does the demo decide: the command as it is typed, over many run seeds",
        "effects": "the effects of conditions and the worst region that a run tells, against laws whose truth is known",
        "field": "conditions that unlabelled images tell: planted ones, nulls, real shifts, and the accuracy that is expected there",
        "intervals": "do the intervals that runs print hold, and how often is a gate wrong: populations whose rate is known",
        "detectors": "claims that EfficientDet-Lite0 loses as a black box while SSD-MobileNet keeps them; Lite0 to 2 by accuracy and risk",
        "yardstick": "every method at equal network passes on the same seeds, judged by one judge, beside random conditions",
    },
    "libraries of others (make peers)": {
        "peers-attacks": "FGSM, PGD and C&W of foolbox, torchattacks, adv-lib, ART and ours, run and counted by AttackBench",
        "peers-corruptions": "pixels and speed of every corruption beside imagecorruptions",
        "peers-probability": "PRBench's rate of failures in a box beside our interval: queries for equal width",
        "peers-accuracy": "fetched networks on photographs beside the accuracy that others publish",
    },
    "ours, after Mouret and Clune 2015": {
        "map-cells": "cells of a map with an accepted failure: the map's search beside SINVAD and random search at equal queries",
    },
}
"""Where each study was published, and what it measures in one line."""
_USUAL = "mnist5k"
_NEEDS = {
    "diffusion-cifar10": "cifar10 and a GPU",
    "asking-digits": "--set people=FILE.npz",
    "asking-photographs": "--set people=FILE.npz and photographs",
    "blind-readings": "--set readings=FILE.npz",
    "rated-digits": "--set people=FILE.npz",
    "rated-photographs": "--set people=FILE.npz and photographs",
    "witness-test": "mnist",
    "natural-cifar10": "cifar10 and a GPU",
    "natural-imagenet": "photographs of ImageNet's classes; fetched networks",
    "detectors": "photographs with boxes of COCO's classes; fetched networks",
    "peers-attacks": "libraries of make peers; --set model=FILE and cifar10 for a published network",
    "peers-corruptions": "libraries of make peers",
    "peers-accuracy": "photographs of ImageNet's classes; fetched networks",
}
"""The smallest data a study makes sense on, where that is not the usual one."""

REPEATED = frozenset(
    ("argus-table1", "argus-table2", "argus-table4", "asking-digits", "asking-photographs",
     "coverage-matrix", "map-cells", "maxplore-uses", "repair", "sinvad-rq3", "sinvad-rq4",
     "slices-faults")
)  # fmt: skip
"""Studies that ``--repeats`` repeats; the others refuse it."""

STUDIES = {
    name: PaperStudy(name=name, summary=summary, paper=paper, needs=_NEEDS.get(name, _USUAL))
    for paper, studies in _PAPERS.items()
    for name, summary in studies.items()
}
"""What each entry point of this package does; `hardcase list experiments` shows it without torch."""
