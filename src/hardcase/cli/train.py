"""``hardcase train`` and ``judge``: networks that methods and judges need, and verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.options import answer, as_json, facts, grid, note, opened, rate, show, shown
from hardcase.cli.results import project_limits
from hardcase.cli.run import independence, make_progress
from hardcase.companions import reader
from hardcase.errors import HardcaseError

if TYPE_CHECKING:
    from rich.table import Table

    from hardcase.judges.judge import JudgeRequest
    from hardcase.runs.progress import Stoppable
    from hardcase.runs.results import Run
    from hardcase.types import Images, Judge

    Card = Mapping[str, Any]

TRAINING = ("seed", "device", "offline", *o.WATCHED)


Kind = StrEnum("Kind", "classifier vae vqvae gan diffusion judge witness")
"""What can be trained."""
OPTIONS = {
    Kind.classifier: ("model", "epochs", "adversarial"),
    Kind.vae: ("model", "epochs", "kind", "latent", "beta"),
    Kind.vqvae: ("model", "epochs", "kind", "latent", "mix", "latent_weight", "image_weight"),
    Kind.gan: ("model", "epochs", "kind", "latent", "flips"),
    Kind.diffusion: ("model", "epochs", "latent", "minutes"),
    Kind.judge: ("people",),
    Kind.witness: (),
}
"""The flags that each of them takes, besides those that all take."""
EVERY = {name for names in OPTIONS.values() for name in names}
DEFAULTS: Mapping[Kind, Mapping[str, Any]] = {
    Kind.vae: {"kind": "linear"},
    Kind.vqvae: {"kind": "ema"},
    Kind.gan: {"kind": "small"},
    Kind.diffusion: {"model": "zoo:resnet18", "data": "cifar10"},
}


@o.takes(
    *TRAINING,
    data=o.Row("Training data; mnist5k by default, cifar10 for diffusion."),
    model=o.Row("The network of a classifier, or who checks what a generator makes."),
    kind=o.Row("Of a vae, vqvae or gan; see: hardcase list generators."),
    epochs=o.Row("Training epochs; by default the recipe's.", "N"),
    latent=o.Row("Latent dimensions; of diffusion: channels.", "N", ("--latent", "--width")),
    adversarial=o.Row("Of a classifier: linf:0.1 or l2:1.5.", "NORM:RADIUS"),
    beta=o.Row("Of a vae: weight of the KL divergence, 1."),
    mix=o.Row("Of a vqvae: discriminators on codes mixed with this share.", "SHARE"),
    latent_weight=o.Row("Of a vqvae: weight of the latent discriminator, 0.01."),
    image_weight=o.Row("Of a vqvae: weight of the image discriminator, 0.01."),
    flips=o.Row("Of a gan: augment with mirrored images."),
    minutes=o.Row("Of diffusion: minutes of training in all.", "N"),
    people=o.Row("Of a judge: how many people named each class.", "FILE.npz"),
)
def train(
    flags: o.Flags,
    what: Annotated[Kind, typer.Argument(metavar="KIND", help=", ".join(Kind))],
    data: str | None = None,
    model: str | None = None,
    kind: str | None = None,
    epochs: int | None = None,
    latent: int | None = None,
    adversarial: str | None = None,
    beta: float | None = None,
    mix: float | None = None,
    latent_weight: float | None = None,
    image_weight: float | None = None,
    flips: bool = False,
    minutes: float | None = None,
    people: Path | None = None,
) -> None:
    """Train a network that methods or judges need, and measure it; the same command finds it again.

    An interrupted training continues: of a gan, a diffusion model and a vqvae with discriminators
    from the folder NAME.unfinished.
    """
    flags_typed = locals()  # every flag, as it came
    from hardcase.data.sources import load

    wanted = (
        name for name, value in flags_typed.items() if value is not None and value is not False
    )
    passed = {name: flags_typed[name] for name in wanted if name in EVERY}
    for name in passed:
        if name not in OPTIONS[what]:
            names = ", ".join(f"--{option.replace('_', '-')}" for option in OPTIONS[what])
            raise HardcaseError(
                f"train {what} takes no --{name.replace('_', '-')}.",
                f"It takes {names or 'none of these flags'}.",
            )
    options = {**DEFAULTS.get(what, {}), **passed}
    source = data or options.pop("data", "mnist5k")
    options.pop("data", None)
    place = flags.place
    first, second = (
        load(source, split=split, offline=flags.offline) for split in ("train", "test")
    )
    with make_progress(flags) as screen:
        cards = _trained(what, first, second, options, place, screen, flags.seed or 0)
    if flags.json and what is Kind.witness:
        as_json([{"folder": str(home(card)), **card} for card in cards])
        return
    for card in cards:
        present(card, flags)


def _trained(
    what: Kind,
    train: Images,
    test: Images,
    options: dict[str, Any],
    device: str,
    screen: Stoppable,
    seed: int,
) -> list[Card]:
    """Train or find it; the cards of its networks."""
    if what is Kind.witness:
        from hardcase.models.witnesses import default_witnesses

        witnesses = default_witnesses(train, test, device=device, progress=screen.train)
        return [dict(network.card) for network in witnesses]
    how: dict[str, Any] = {"seed": seed, "device": device, "progress": screen.train}
    if what is Kind.judge:
        from hardcase.judges.panel import trained

        return [trained(train, test, **options, **how).card]
    model = options.pop("model", "zoo:lenet5")
    if what is Kind.classifier:
        from hardcase.models.zoo import trained_classifier

        name = model.removeprefix("zoo:")
        return [trained_classifier(name, train, test, **options, **how)[1]]
    from hardcase.generators.build import trained_generator
    from hardcase.generators.quality import draw_reconstructions, draw_samples
    from hardcase.models.load import Loading, load_model

    loading = Loading(train=train, test=test, device=device, progress=screen.train)
    checker = load_model(model, loading)
    net, card = trained_generator(
        what, train, test, judge=lambda x: checker(x).logits, **options, **how
    )
    if what is Kind.vqvae:
        draw_reconstructions(home(card), net, test)
    elif what is not Kind.vae:
        draw_samples(home(card), net, len(test.classes))
    return [card]


def home(card: Mapping[str, Any]) -> Path:
    """The folder of the network that a card describes."""
    from hardcase.training.cards import folder_of

    return folder_of(card["kind"], card["name"], card["configuration"], card["data"])


def present(card: Mapping[str, Any], flags: o.Flags) -> None:
    """Print a card and the path of its network."""
    where = str(home(card))
    text = facts({**_worth_telling(card), "folder": where})
    answer(flags, {"folder": where, **card}, text, quiet=where)


def _worth_telling(card: Mapping[str, Any]) -> dict[str, Any]:
    names = [key for key in card if key.endswith(("accuracy", "agreement"))]
    shares = {key: f"{100 * card[key]:.1f} %" for key in names if card[key]}
    names = ["ssim", "mse", "diversity", "measured_images", "steps", "seconds", "warnings"]
    plain = {key: card[key] for key in names if card.get(key)}
    entries = {key.replace("_", " "): value for key, value in (shares | plain).items()}
    named = {card["kind"]: card["name"]}
    return {**named, **entries, "seed": card["seed"], "data hash": card["data"]}


@o.takes(
    *("judge_features", "allow_changes", *TRAINING),
    calibrate=o.Row("Images rated by people, to fit the judge with.", "STUDY|FILE.npz"),
    people=o.Row("How many people named each class, to train it on.", "FILE.npz"),
    which=o.Row(
        "A judge by its name in: hardcase list judges.", "NAME|FILE.py:NAME|DIR", ("--judge",)
    ),
    data=o.Row("Whose judge; by default that of the run's data, mnist5k without a run."),
    held_out=o.Row("Ask a second judge, never trained on this.", names=("--held-out-judge",)),
    ask=o.Row("Show a person at the terminal N failures of judged runs.", "N"),
    by_doubt=o.Row("--ask: choose what the judge doubts, not at random.", names=("--by-doubt",)),
)
def judge(
    flags: o.Flags,
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Run folders.")
    ] = None,
    calibrate: Path | None = None,
    people: Path | None = None,
    which: str | None = None,
    data: str | None = None,
    held_out: bool = False,
    ask: int | None = None,
    by_doubt: bool = False,
) -> None:
    """Judge the failures of runs: is the label kept, lost or unsure? Trains the judge of the data
    if it is missing.
    """
    from hardcase.judges.held_out import held_out_judge
    from hardcase.judges.judge import JudgeRequest
    from hardcase.judges.verdicts import judge_run, with_people

    runs = [opened(folder) for folder in folders or []]
    if not runs and calibrate is None:
        raise HardcaseError(
            "there is no run to judge and nothing to calibrate with.", fix="hardcase judge RUN"
        )
    if people is not None and which is not None:
        raise HardcaseError("--people trains a judge; --judge names one.", fix="leave out --judge")
    if flags.judge_features and data is not None:
        raise HardcaseError(
            "--judge-features makes the judge of the run's own data.", fix="leave out --data"
        )
    with make_progress(flags) as screen:
        request = JudgeRequest(
            features=flags.judge_features or (),
            people=people,
            offline=flags.offline,
            seed=flags.seed or 0,
            device=flags.place,
            progress=screen.train,
        )
        judges = [_judge(run, which, data, request) for run in runs] or [
            _judge(None, which, data, request)
        ]
        second = replace(request, train=held_out)
        others = [
            held_out_judge(run, first_judge, second) for run, first_judge in zip(runs, judges)
        ]
    measured = None
    if calibrate is not None:
        fitted = with_people(judges[0], calibrate, runs, device=flags.place, log=flags.log)
        judges = [fitted] * len(judges)
        runs = [opened(run.folder) for run in runs]
        measured = getattr(fitted, "calibration", None)
        if measured and not flags.quiet and not flags.json:
            show(*_calibration(measured))
    earlier = [run.judged_by for run in runs]

    def judge_all() -> list[Run]:
        return [
            judge_run(
                opened(run.folder), first_judge, held_out=other, allow_changes=flags.allow_changes
            )
            for run, first_judge, other in zip(runs, judges, others)
        ]

    judged = judge_all()
    if ask is not None:
        limits = project_limits(None)  # which the answers then decide
        limit = limits and limits.accepted_rate
        choose = "doubt" if by_doubt else "random"
        reader().ask(judged, budget=ask, limit=limit, seed=flags.seed or 0, choose=choose)
        judged = judge_all()
    for before, run in zip(earlier, judged):
        changed = before.differences(run.judged_by) if before and run.judged_by else []
        if changed:
            note(f"note: {shown(run.folder)} was judged before, by another {', '.join(changed)}")
        moved = run.record["judge"].get("moved")
        if moved:
            note(f"note: the same judge now says something else of {moved} of {len(run)} failures")
    records = [{"folder": str(run.folder), **run.record} for run in judged]
    lines = "\n\n".join(_closing(run, flags.quiet) for run in judged)
    answer(flags, records or measured, lines)


def _judge(run: Run | None, which: str | None, data: str | None, request: JudgeRequest) -> Judge:
    """Return the requested judge; without a run and a name, that of a data set."""
    from hardcase.judges import panel, verdicts

    if which is not None or (run is not None and data is None):
        return verdicts.judge_named(which, run, request)
    split = "test" if run is None else run.record.get("split", "test")
    return panel.for_data(
        data or "mnist5k",
        train_on={"test": "train"}.get(split, "test"),
        offline=request.offline,
        seed=request.seed,
        people=request.people,
        device=request.device,
        progress=request.progress,
    )


def _calibration(calibration: Mapping[str, Any]) -> Iterator[str | Table]:
    rates = {
        "precision": "precision",
        "where raters agree": "precision_where_agreed",
        "of kept": "recall",
        "lost, right": "lost_right",
        "unsure": "unsure",
    }
    rows = [("all", calibration["label_kept"]), *calibration["methods"].items()]
    title = (
        f"{calibration['images']} images rated by people, pooled over {calibration['pooled_over']}"
    )
    table = [
        (name, *(rate(rates_of_row[key]) for key in rates.values())) for name, rates_of_row in rows
    ]
    yield grid(title, ("accepted", *rates), table)
    rates_of_row = calibration["label_kept"]
    lines = {"AUROC": _auroc(rates_of_row["auroc"])}
    if "one_rater" in rates_of_row:
        lines["agreement"] = _one_rater(rates_of_row["one_rater"])
    yield facts(lines)


def _one_rater(agreement: Mapping[str, Any]) -> str:
    gap = agreement["difference"]
    span = f"{gap['value']:+.3f}"
    if gap["low"] is not None:  # None: the same of every image
        span += f", {gap['low']:+.3f} to {gap['high']:+.3f}"
    raters = f"two raters with each other {agreement['two_raters']:.1%}"
    return f"with one rater {agreement['judge']:.1%}, {raters} ({span})"


def _auroc(value: Mapping[str, Any]) -> str:
    if value["value"] is None:
        return "–"
    return f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def _closing(run: Run, quiet: bool) -> str:
    if quiet:
        return str(run.folder)

    judge = run.record["judge"]
    confident = rate(judge["high_confidence"]["high_confidence"])
    lines = [
        f"{run.record['method']} on {run.record['model']}, {run.record['data']}",
        run.summary(),
        f"label check: {judge['status']}",
        *independence(run.record),
        f"of the accepted failures {confident} are as confident as correct predictions",
    ]
    return "\n".join([*lines, f"report  hardcase report {shown(run.folder)} --open"])
