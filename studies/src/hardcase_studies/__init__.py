"""Published experiments on test inputs for image classifiers, repeated: ``hardcase reproduce NAME``. Imports no torch."""

from __future__ import annotations

from hardcase.companions import PaperStudy

_SINVAD = "Kang, Feldt and Yoo, TOSEM 2023"
_ARGUS = "Duan, Dwyer and Yang, 2025 (ARGUS)"
_DUNN = "Dunn, Pouget, Melham and Kroening, ISSTA 2021"

_ROWS: tuple[PaperStudy, ...] = (
    PaperStudy(
        name="coverage-matrix",
        summary="DeepXplore and DLFuzz under every criterion and four controls, each measured by every criterion",
        paper="Kim, Cho and Kwon, course project: Adversarial image generation based on various neuron coverage",
    ),
    PaperStudy(
        name="maxplore",
        summary="each claim of MaXplore singly: One, Topk and Multi-Topk against DeepXplore by Layer-SNAC; k against validity",
        paper="Te Wei Lee, report, Singapore Management University, 2020",
    ),
    PaperStudy(
        name="maxplore-uses",
        summary="what its Section 7 proposes: retraining with its images; KMNC with a generator and with nearest neighbours",
        paper="Te Wei Lee, report, Singapore Management University, 2020",
    ),
    PaperStudy(
        name="sinvad-rq1",
        summary="real images, FGSM, C&W and SINVAD on the same boundary, as a study for people (hardcase study serve)",
        paper=_SINVAD,
    ),
    PaperStudy(
        name="sinvad-rq2",
        summary="how close to the decision boundary found images lie, and what that costs",
        paper=_SINVAD,
    ),
    PaperStudy(
        name="sinvad-rq3",
        summary="class escape against test error as labels are mixed in training",
        paper=_SINVAD,
    ),
    PaperStudy(
        name="escape-null",
        summary="ways out of networks with mixed labels, and of clean ones, against ten clean retrainings",
        paper="ours, after SINVAD's RQ3",
    ),
    PaperStudy(
        name="sinvad-rq4",
        summary="latent size and kind of VAE against how well a classifier still sees the label",
        paper=_SINVAD,
    ),
    PaperStudy(
        name="sinvad-feasibility",
        summary="interpolation, images of given surprise and ambiguous images, in pixels and in the latent space",
        paper=_SINVAD,
    ),
    PaperStudy(
        name="argus-table1",
        summary="likeness, diversity, error and success rate of interpolated images at every share, adaptive, and of rivals (Table 3 too)",
        paper=_ARGUS,
    ),
    PaperStudy(
        name="argus-table2",
        summary="accuracy after retraining with found images, against controls of the same size",
        paper=_ARGUS,
    ),
    PaperStudy(
        name="argus-table4",
        summary="the ablation: without the quantiser, without the discriminators",
        paper=_ARGUS,
    ),
    PaperStudy(
        name="argus-curve",
        summary="its five published numbers beside our own curves, mix by mix, likeness counted in four ways",
        paper=_ARGUS,
    ),
    PaperStudy(
        name="argus-settling",
        summary="why its error rates are not found here: counting, batch normalisation, literal losses, plain networks",
        paper=_ARGUS,
    ),
    PaperStudy(
        name="argus-ratings",
        summary="images of seven methods for people to rank and grade, as a blinded study (hardcase study serve)",
        paper=_ARGUS,
    ),
    PaperStudy(
        name="features-rq1",
        summary="planted faults: which methods detect which (also hardcase faults)",
        paper=_DUNN,
    ),
    PaperStudy(
        name="features-rq2",
        summary="unmodified networks: which features move in confident targeted failures of pairs of classes, beside pixels",
        paper=_DUNN,
    ),
    PaperStudy(
        name="features-rq3",
        summary="how far tests lie from seeds in pixels, and how often robust networks keep the label of them",
        paper=_DUNN,
    ),
    PaperStudy(
        name="diffusion-cifar10",
        summary="the share of a diffusion model's samples that a classifier recognises which took no part",
        paper="Karras, Aittala, Aila and Laine, NeurIPS 2022, in minutes",
        needs="cifar10 and a GPU",
    ),
    PaperStudy(
        name="asking-digits",
        summary="questions chosen by answers, replayed on recorded raters: verdicts, undecided, answers for a rate, each generator unseen",
        paper="ours; ratings of Riccio and Tonella, ICSE 2023",
        needs="--set people=FILE.npz",
    ),
    PaperStudy(
        name="asking-photographs",
        summary="the same for 80 photographs of one class, judged by several lineages of networks, one vote each",
        paper="ours; ratings of Riccio and Tonella, ICSE 2023",
        needs="--set people=FILE.npz and photographs",
    ),
    PaperStudy(
        name="rated-digits",
        summary="the judge against digits that two people have rated: AUROC, agreement with one rater, precision of confirmed",
        paper="Riccio and Tonella, ICSE 2023 (its published ratings)",
        needs="--set people=FILE.npz",
    ),
    PaperStudy(
        name="rated-photographs",
        summary="the same for 80 photographs of one class, judged by a network that others have trained",
        paper="Riccio and Tonella, ICSE 2023 (its published ratings)",
        needs="--set people=FILE.npz and photographs",
    ),
    PaperStudy(
        name="witness-test",
        summary="searches with witnesses on unseen digits: a test set that is opened once (--open), matched by size too",
        paper="ours",
        needs="mnist",
    ),
    PaperStudy(
        name="witness-controls",
        summary="searches with witnesses and the controls a hostile reader asks for: filter, wrong label, neighbourhood, A/A, rivals, a blind study",
        paper="ours",
    ),
    PaperStudy(
        name="slices-faults",
        summary="whether the first slice names a planted trait among distractors; family-wise error; how many slices hold",
        paper="ours",
    ),
    PaperStudy(
        name="map-cells",
        summary="cells of a map with a confirmed failure: the map's search beside SINVAD and random search at equal queries",
        paper="ours, after Mouret and Clune 2015",
    ),
    PaperStudy(
        name="severity-crossings",
        summary="smallest failing severity by bisection beside a fine grid: error, queries, and seeds whose failing is not monotone",
        paper="ours",
    ),
    PaperStudy(
        name="regression-search",
        summary="inputs that a new version broke: a search less its nulls beside a replay of real images at equal queries",
        paper="ours",
    ),
    PaperStudy(
        name="repair",
        summary="trained on with gradient steps or the worst of four draws, beside random draws at equal steps and seconds, findings, AugMix",
        paper="ours",
    ),
    PaperStudy(
        name="natural-cifar10",
        summary="other appearances of CIFAR-10's images that a ResNet-18 misreads: which networks that took no part keep the label",
        paper="ours",
        needs="cifar10 and a GPU",
    ),
    PaperStudy(
        name="natural-imagenet",
        summary="other appearances of photographs that EfficientNet-Lite0 misreads: does a ResNet-50 keep the label",
        paper="ours",
        needs="photographs of ImageNet's classes; fetched networks",
    ),
    PaperStudy(
        name="decides",
        summary="does risk say more of a network on other data than accuracy, loss and corruption error do; 56 recipes",
        paper="ours",
    ),
    PaperStudy(
        name="detectors",
        summary="claims that EfficientDet-Lite0 loses as a black box while SSD-MobileNet keeps them; Lite0 to 2 by accuracy and risk",
        paper="ours",
        needs="photographs with boxes of COCO's classes; fetched networks",
    ),
    PaperStudy(
        name="yardstick",
        summary="every method at equal network passes on the same seeds, judged by one judge, beside random conditions",
        paper="ours",
    ),
)

STUDIES = {row.name: row for row in _ROWS}
"""What each entry point of this package does; `hardcase list experiments` shows it without torch."""
