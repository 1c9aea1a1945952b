"""``hardcase train`` and ``hardcase judge``: the networks that methods and judges need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.output import as_json, console, facts, grid, note, opened, rate, shown, tell
from hardcase.errors import Problem

if TYPE_CHECKING:
    from hardcase.runs.results import Run
    from hardcase.training.loop import TrainingProgress
    from hardcase.types import Images

    Card = dict[str, Any]
    Train = Callable[[Images, Images, str, Callable[[TrainingProgress], None]], Card]
    from hardcase.types import Judge

TRAINING = ("seed", "device", "offline", *o.WATCHED)

Epochs = Annotated[
    int | None, typer.Option(metavar="N", help="Training epochs; by default the recipe's.")
]
TrainingData = Annotated[str, typer.Option("--data", help="Training data.")]
Checker = Annotated[
    str,
    typer.Option(
        "--model", help="Classifier used to check that images keep their label; zoo:NAME."
    ),
]


@o.takes(*TRAINING)
def classifier(
    flags: o.Flags,
    model: Annotated[str, typer.Option(help="zoo:NAME; see hardcase list models.")] = "zoo:lenet5",
    data: TrainingData = "mnist5k",
    adversarial: Annotated[
        str | None, typer.Option(metavar="NORM:RADIUS", help="linf:0.1 or l2:1.5.")
    ] = None,
    epochs: Epochs = None,
) -> None:
    """Train a network of the zoo, plainly or adversarially."""
    from hardcase.models.zoo import trained_classifier

    def train(
        first: Images, second: Images, place: str, tell: Callable[[TrainingProgress], None]
    ) -> Card:
        return trained_classifier(
            model.removeprefix("zoo:"),
            first,
            second,
            seed=flags.seed or 0,
            epochs=epochs,
            adversarial=adversarial,
            progress=tell,
            device=place,
        )[1]

    present(learn(train, data, flags), flags)


@o.takes(*TRAINING)
def vae(
    flags: o.Flags,
    data: TrainingData = "mnist5k",
    kind: Annotated[
        str, typer.Option(help="linear, conv or conditional; see hardcase list generators.")
    ] = "linear",
    latent: Annotated[int | None, typer.Option(metavar="N", help="Latent dimensions.")] = None,
    beta: Annotated[float, typer.Option(help="Weight of the KL divergence.")] = 1.0,
    checker: Checker = "zoo:lenet5",
    epochs: Epochs = None,
) -> None:
    """Train a variational autoencoder and measure its reconstructions."""
    options = {"kind": kind, "latent": latent, "beta": beta, "epochs": epochs}
    present(learn(_generator("vae", checker, options, flags), data, flags), flags)


@o.takes(*TRAINING)
def vqvae(
    flags: o.Flags,
    data: TrainingData = "mnist5k",
    kind: Annotated[
        str,
        typer.Option(
            help="ema (codebook updated by exponential moving averages) or gradient (as in ARGUS)."
        ),
    ] = "ema",
    latent: Annotated[
        int | None, typer.Option(metavar="N", help="Dimensions of a codebook entry.")
    ] = None,
    mix: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help=(
                "Train with discriminators on codes mixed with this share of a partner; 0: without."
            ),
        ),
    ] = 0.0,
    latent_weight: Annotated[
        float, typer.Option(help="Weight of the latent discriminator's loss.")
    ] = 0.01,
    image_weight: Annotated[
        float, typer.Option(help="Weight of the image discriminator's loss.")
    ] = 0.01,
    checker: Checker = "zoo:lenet5",
    epochs: Epochs = None,
) -> None:
    """Train a VQ-VAE, alone or with ARGUS's discriminators, and draw its reconstructions
    (reconstructions.png).

    A finished network is cached and found again. Of a training that was stopped, the part with
    discriminators is resumed.
    """
    from hardcase.generators.quality import draw_reconstructions

    options = {
        "kind": kind,
        "latent": latent,
        "epochs": epochs,
        "mix": mix,
        "latent_weight": latent_weight,
        "image_weight": image_weight,
    }
    draw = lambda card, net, test: draw_reconstructions(home(card), net, test)  # noqa: E731
    present(learn(_generator("vqvae", checker, options, flags, draw), data, flags), flags)


@o.takes(*TRAINING)
def gan(
    flags: o.Flags,
    data: TrainingData = "mnist5k",
    kind: Annotated[
        str, typer.Option(help="small (minutes on a CPU) or conditional (GPU).")
    ] = "small",
    latent: Annotated[int | None, typer.Option(metavar="N", help="Latent dimensions.")] = None,
    flips: Annotated[bool, typer.Option(help="Augment with mirrored images.")] = False,
    checker: Checker = "zoo:lenet5",
    epochs: Epochs = None,
) -> None:
    """Train a class-conditional GAN and draw samples of every class (samples.png).

    A finished network is cached and found again. Training that was stopped is resumed by the same
    command; until it is finished, it and its samples so far are in a folder beside,
    NAME.unfinished.
    """
    from hardcase.generators.quality import draw_samples

    options = {"kind": kind, "latent": latent, "epochs": epochs, "flips": flips}
    draw = lambda card, net, test: draw_samples(home(card), net, len(test.classes))  # noqa: E731
    present(learn(_generator("gan", checker, options, flags, draw), data, flags), flags)


@o.takes(*TRAINING)
def diffusion(
    flags: o.Flags,
    data: TrainingData = "cifar10",
    minutes: Annotated[
        float | None,
        typer.Option(metavar="N", help="Minutes of training in all; by default the epochs'."),
    ] = None,
    piece: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Keep the training and stop after so many minutes (exit code 4); the same command"
            " goes on.",
        ),
    ] = None,
    width: Annotated[
        int | None, typer.Option(metavar="N", help="Channels of the largest features.")
    ] = None,
    checker: Checker = "zoo:resnet18",
    epochs: Epochs = None,
) -> None:
    """Train a class-conditional diffusion model, on a GPU, and draw samples of every class
    (samples.png).

    A finished network is cached and found again. Training that was stopped is resumed by the same
    command; until it is finished, it and its samples so far are in a folder beside,
    NAME.unfinished.
    """
    from hardcase.generators.quality import draw_samples

    options: dict[str, Any] = {"latent": width, "epochs": epochs, "minutes": minutes}
    if piece is not None:
        options["piece"] = piece
    draw = lambda card, net, test: draw_samples(home(card), net, len(test.classes))  # noqa: E731
    present(learn(_generator("diffusion", checker, options, flags, draw), data, flags), flags)


@o.takes(*TRAINING)
def judging(flags: o.Flags, data: TrainingData = "mnist5k") -> None:
    """Train the judge of a data set: networks that take no part in any search."""
    from hardcase.judges.teach import trained

    def train(
        first: Images, second: Images, place: str, tell: Callable[[TrainingProgress], None]
    ) -> Card:
        judge = trained(first, second, seed=flags.seed or 0, device=place, progress=tell)
        return dict(judge.card)

    present(learn(train, data, flags), flags)


@o.takes("device", "offline", *o.WATCHED)
def witness(flags: o.Flags, data: TrainingData = "mnist5k") -> None:
    """Train the default witnesses: three LeNet-5 on the training images of even content hash."""
    from hardcase.cli.progress import front
    from hardcase.data.sources import load
    from hardcase.models.witnesses import trained_witnesses

    train, test = (load(data, split=split, offline=flags.offline) for split in ("train", "test"))
    with front(flags.progress, quiet=flags.quiet) as screen:
        trained = trained_witnesses(train, test, device=flags.place, progress=screen.train)
    if flags.json:
        as_json([{"folder": str(home(card)), **card} for _, card in trained])
        return
    for _, card in trained:
        present(card, flags)


def _generator(
    family: str,
    checker: str,
    options: Mapping[str, Any],
    flags: o.Flags,
    draw: Callable[[Card, Any, Images], object] | None = None,
) -> Train:
    """How a generator is trained and measured: `checker` classifies its images,
    `draw` paints some beside it.
    """
    from hardcase.generators.build import trained_generator
    from hardcase.models import load

    def train(
        first: Images, second: Images, place: str, tell: Callable[[TrainingProgress], None]
    ) -> Card:
        how = load.Loading(train=first, test=second, device=place, progress=tell)
        judge = load.load_model(checker, how)
        net, card = trained_generator(
            family,
            first,
            second,
            seed=flags.seed or 0,
            judge=lambda x: judge(x).logits,
            progress=tell,
            device=place,
            **options,
        )
        if draw is not None:
            draw(card, net, second)
        return card

    return train


def learn(train: Train, data: str, flags: o.Flags) -> Card:
    """Load the data, train with progress on the screen, return the card."""
    from hardcase.cli.progress import front
    from hardcase.data.sources import load

    place = flags.place
    first, second = (load(data, split=split, offline=flags.offline) for split in ("train", "test"))
    with front(flags.progress, quiet=flags.quiet) as screen:
        return train(first, second, place, screen.train)


def home(card: Mapping[str, Any]) -> Path:
    """The folder of the network that a card describes."""
    from hardcase.training.cards import folder_of

    return folder_of(card["kind"], card["name"], card["configuration"], card["data"])


def present(card: Mapping[str, Any], flags: o.Flags) -> None:
    """Print a card and where its network is kept."""
    where = str(home(card))
    if flags.json:
        as_json({"folder": where, **card})
    elif flags.quiet:
        tell(where)
    else:
        tell(facts({**_worth_telling(card), "folder": where}))


def _worth_telling(card: Mapping[str, Any]) -> dict[str, Any]:
    shares = {
        key: f"{100 * value:.1f} %"
        for key, value in card.items()
        if key.endswith(("accuracy", "agreement")) and value
    }
    plain = {
        key: card[key]
        for key in ("ssim", "mse", "diversity", "measured_images", "steps", "seconds", "warnings")
        if card.get(key)
    }
    return {
        card["kind"]: card["name"],
        **{key.replace("_", " "): value for key, value in (shares | plain).items()},
        "seed": card["seed"],
        "data hash": card["data"],
    }


@o.takes("judge_features", *TRAINING)
def judge(
    flags: o.Flags,
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Run folders.")
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="STUDY|FILE.npz",
            help="Images rated by people, to fit and measure the judge with.",
        ),
    ] = None,
    which: Annotated[
        str | None,
        typer.Option(
            "--judge",
            metavar="DIR|FILE.py:NAME",
            help="A trained judge, or one of your own; by default that of the run's data.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Whose judge; by default that of the run's data, mnist5k without a run."),
    ] = None,
    untaught: Annotated[
        bool,
        typer.Option(
            "--untaught", help="Train a second judge that was never taught what was searched."
        ),
    ] = False,
) -> None:
    """Judge the findings of runs: valid, label kept, distinct. Trains the judge of the data if it
    is missing.
    """
    from hardcase.cli.progress import front
    from hardcase.judges.verdicts import judge_run, second_judge, with_people

    place = flags.place
    runs = [opened(folder) for folder in folders or []]
    if not runs and calibrate is None:
        raise Problem(
            "there is no run to judge and nothing to calibrate with.", fix="hardcase judge RUN"
        )
    with front(flags.progress, quiet=flags.quiet) as screen:
        asked: dict[str, Any] = {
            "seed": flags.seed or 0,
            "device": place,
            "offline": flags.offline,
            "progress": screen.train,
        }
        if flags.judge_features and (which is not None or data is not None):
            raise Problem(
                "--judge-features makes the judge of the run's own data.",
                fix="leave out --judge and --data",
            )
        judges = [_judge(run, which, data, asked, flags.judge_features or ()) for run in runs] or [
            _judge(None, which, data or "mnist5k", asked)
        ]
        others = [
            second_judge(run, one, make=untaught, **asked)
            for run, one in zip(runs, judges)  # without runs there is one judge and nobody beside
        ]
    measured = None
    if calibrate is not None:
        fitted = with_people(judges[0], calibrate, runs, device=place, say=flags.say)
        judges = [fitted] * len(judges)
        runs = [opened(run.folder) for run in runs]
        measured = getattr(fitted, "calibration", None)
        if measured and not flags.quiet and not flags.json:
            _tell_calibration(fitted)
    earlier = [run.judged_by for run in runs]
    judged = [judge_run(run, one, untaught=other) for run, one, other in zip(runs, judges, others)]
    for before, run in zip(earlier, judged):
        changed = before.differences(run.judged_by) if before and run.judged_by else []
        if changed:
            note(f"note: {shown(run.folder)} was judged before, by another {', '.join(changed)}")
    if flags.json:
        records = [{"folder": str(run.folder), **run.record} for run in judged]
        as_json(records or measured)
    elif judged:
        tell("\n\n".join(_closing(run, flags.quiet) for run in judged))


def _judge(
    run: Run | None,
    which: str | None,
    data: str | None,
    asked: dict[str, Any],
    features: Sequence[str] = (),
) -> Judge:
    from hardcase.judges import teach, verdicts

    if which is not None:
        return verdicts.named(which, asked["device"])
    if run is None or data is not None:
        split = "test" if run is None else run.record.get("split", "test")
        return teach.for_data(
            data or "mnist5k", learn_from="train" if split == "test" else "test", **asked
        )
    return verdicts.for_run(run, features=features, **asked)


def _tell_calibration(judge: Judge) -> None:
    from hardcase.judges.judge import PanelJudge

    assert isinstance(judge, PanelJudge)
    known = judge.calibration
    assert known is not None
    rates = {
        "true positive rate": "tpr",
        "true negative rate": "tnr",
        "false positive rate": "false_yes",
        "undecided": "undecided",
    }
    rows = []
    for name in ("label_kept", "valid"):
        shares = (rate(known[name][key]) for key in rates.values())
        rows.append((name.replace("_", " "), _auroc(known[name]["auroc"]), *shares))
    title = f"{known['images']} images rated by people, pooled over {known['pooled_over']}"
    console().print(grid(title, ("question", "AUROC", *rates), rows))
    both = known["confirmed"]
    lines = {
        f"{name.replace('_', ' ')}, agreement": _one_rater(known[name]["one_rater"])
        for name in ("label_kept", "valid")
        if "one_rater" in known[name]
    }
    lines |= {
        "confirmed, precision": rate(both["precision"]),
        "confirmed, recall": rate(both["recall"]),
        "kept in": shown(judge.folder),
    }
    tell(facts(lines))


def _one_rater(found: Mapping[str, Any]) -> str:
    gap = found["difference"]
    return (
        f"with one rater {found['judge']:.1%}, two raters with each other {found['two_raters']:.1%}"
        f" ({gap['value']:+.3f}, {gap['low']:+.3f} to {gap['high']:+.3f})"
    )


def _auroc(value: dict[str, Any]) -> str:
    if value["value"] is None:
        return "–"
    return f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def _closing(run: Run, quiet: bool) -> str:
    if quiet:
        return str(run.folder)
    said = run.record["judge"]
    from hardcase.cli.run import independence

    silent = rate(said["silence"]["silent"])
    lines = [
        f"{run.record['method']} on {run.record['model']}, {run.record['data']}",
        run.summary(),
        f"judge: {said['standing']}",
        *independence(run.record),
        (
            f"of the confirmed findings {silent} are silent: predicted with the confidence of"
            " correct predictions"
        ),
        *_distributions(said.get("distributions")),
        f"report  hardcase report {shown(run.folder)} --open",
    ]
    return "\n".join(lines)


def _distributions(found: dict[str, Any] | None) -> list[str]:
    """Findings beside seeds as wholes."""
    if found is None:
        return []
    halves = found["kid_halves_of_seeds"]
    return [
        f"{found['findings']} findings beside {found['seeds']} seeds in the judge's features: KID"
        f" {found['kid']:.4f} (between halves of the seeds {halves:.4f}), FID {found['fid']:.3f}"
    ]
