"""``hardcase train`` and ``hardcase judge``: the networks that methods and judges need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.output import as_json, console, facts, grid, shown, tell
from hardcase.cli.results import rate
from hardcase.errors import Problem

if TYPE_CHECKING:
    from hardcase.training.loop import TrainingProgress
    from hardcase.types import Images

    Card = dict[str, Any]
    Train = Callable[[Images, Images, str, Callable[[TrainingProgress], None]], Card]
    from hardcase.judges.judge import Judge
    from hardcase.runs.results import Run


# --- ``hardcase train``: the networks that methods need. Another kind is another function and another row of `VERBS`.

Epochs = Annotated[
    int | None, typer.Option(metavar="N", help="Passes over the data; by default the recipe's.")
]
TrainingData = Annotated[str, typer.Option("--data", help="What to learn from.")]


def classifier(
    model: Annotated[str, typer.Option(help="zoo:NAME; see hardcase list models.")] = "zoo:lenet5",
    data: TrainingData = "mnist5k",
    adversarial: Annotated[
        str | None, typer.Option(metavar="NORM:RADIUS", help="linf:0.1 or l2:1.5.")
    ] = None,
    epochs: Epochs = None,
    seed: o.Seed = None,
    device: o.Device = None,
    offline: o.Offline = False,
    progress: o.ShowProgress = o.Progress.auto,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Train a network of the zoo, plainly or against attacks."""

    from hardcase.models.zoo import trained_classifier

    def train(
        first: Images, second: Images, place: str, tell: Callable[[TrainingProgress], None]
    ) -> Card:
        name = model.removeprefix("zoo:")
        return trained_classifier(
            name,
            first,
            second,
            seed=seed or 0,
            epochs=epochs,
            adversarial=adversarial,
            progress=tell,
            device=place,
        )[1]

    present(
        learn(
            train, data, device, offline=offline, progress=progress, quiet=quiet, verbose=verbose
        ),
        format,
        quiet,
    )


def vae(
    data: TrainingData = "mnist5k",
    kind: Annotated[
        str, typer.Option(help="linear, conv or conditional; see hardcase list generators.")
    ] = "linear",
    latent: Annotated[int | None, typer.Option(metavar="N", help="Size of the code.")] = None,
    beta: Annotated[float, typer.Option(help="Weight of the code's divergence.")] = 1.0,
    model: Annotated[
        str, typer.Option(help="Which network must still see the label; zoo:NAME.")
    ] = "zoo:lenet5",
    epochs: Epochs = None,
    seed: o.Seed = None,
    device: o.Device = None,
    offline: o.Offline = False,
    progress: o.ShowProgress = o.Progress.auto,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Train a variational autoencoder and measure how much of an image it gives back."""
    from hardcase.generators.build import trained_generator
    from hardcase.models import load

    def train(
        first: Images, second: Images, place: str, tell: Callable[[TrainingProgress], None]
    ) -> Card:
        judge = load.load_model(
            model, load.Loading(train=first, test=second, device=place, progress=tell)
        )
        return trained_generator(
            "vae", first, second, kind=kind, latent=latent, beta=beta, epochs=epochs, seed=seed or 0,
            judge=lambda x: judge(x).logits, progress=tell, device=place,
        )[1]  # fmt: skip

    present(
        learn(
            train, data, device, offline=offline, progress=progress, quiet=quiet, verbose=verbose
        ),
        format,
        quiet,
    )


def vqvae(
    data: TrainingData = "mnist5k",
    kind: Annotated[
        str, typer.Option(help="ema (codes follow their users) or gradient (as ARGUS states it).")
    ] = "ema",
    latent: Annotated[int | None, typer.Option(metavar="N", help="Width of a code.")] = None,
    mix: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Train with discriminators at this share of a partner; 0: without.",
        ),
    ] = 0.0,
    latent_weight: Annotated[
        float, typer.Option(help="Weight of the latent discriminator's loss.")
    ] = 0.01,
    image_weight: Annotated[
        float, typer.Option(help="Weight of the image discriminator's loss.")
    ] = 0.01,
    model: Annotated[
        str, typer.Option(help="Which network must still see the label; zoo:NAME.")
    ] = "zoo:lenet5",
    epochs: Epochs = None,
    seed: o.Seed = None,
    device: o.Device = None,
    offline: o.Offline = False,
    progress: o.ShowProgress = o.Progress.auto,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Train a VQ-VAE, alone or with ARGUS's discriminators, and draw what it gives back (reconstructions.png).

    A finished network is kept and found again. Of a training that was stopped, the part with discriminators goes on.
    """
    from hardcase.generators.build import trained_generator
    from hardcase.generators.quality import draw_reconstructions
    from hardcase.models import load

    def train(
        first: Images, second: Images, place: str, tell: Callable[[TrainingProgress], None]
    ) -> Card:
        judge = load.load_model(
            model, load.Loading(train=first, test=second, device=place, progress=tell)
        )
        net, card = trained_generator(
            "vqvae", first, second, kind=kind, latent=latent, epochs=epochs, seed=seed or 0, mix=mix,
            latent_weight=latent_weight, image_weight=image_weight,
            judge=lambda x: judge(x).logits, progress=tell, device=place,
        )  # fmt: skip
        draw_reconstructions(home(card), net, second)
        return card

    present(
        learn(
            train, data, device, offline=offline, progress=progress, quiet=quiet, verbose=verbose
        ),
        format,
        quiet,
    )


def gan(
    data: TrainingData = "mnist5k",
    kind: Annotated[
        str, typer.Option(help="small (minutes on a CPU) or conditional (GPU).")
    ] = "small",
    latent: Annotated[int | None, typer.Option(metavar="N", help="Size of the noise.")] = None,
    flips: Annotated[bool, typer.Option(help="Also learn from mirrored images.")] = False,
    model: Annotated[
        str, typer.Option(help="Which network must see the class of a sample; zoo:NAME.")
    ] = "zoo:lenet5",
    epochs: Epochs = None,
    seed: o.Seed = None,
    device: o.Device = None,
    offline: o.Offline = False,
    progress: o.ShowProgress = o.Progress.auto,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Train a class-conditional GAN and draw samples of every class (samples.png).

    A finished network is kept and found again. Training that was stopped goes on with the same command; until it is
    finished, it and its samples so far are in a folder beside, NAME.unfinished.
    """
    from hardcase.generators.build import trained_generator
    from hardcase.generators.quality import draw_samples
    from hardcase.models import load

    def train(
        first: Images, second: Images, place: str, tell: Callable[[TrainingProgress], None]
    ) -> Card:
        judge = load.load_model(
            model, load.Loading(train=first, test=second, device=place, progress=tell)
        )
        net, card = trained_generator(
            "gan", first, second, kind=kind, latent=latent, epochs=epochs, seed=seed or 0, flips=flips,
            judge=lambda x: judge(x).logits, progress=tell, device=place,
        )  # fmt: skip
        draw_samples(home(card), net, len(first.classes))
        return card

    present(
        learn(
            train, data, device, offline=offline, progress=progress, quiet=quiet, verbose=verbose
        ),
        format,
        quiet,
    )


def learn(
    train: Train,
    data: str,
    device: str | None,
    *,
    offline: bool,
    progress: str,
    quiet: bool,
    verbose: bool,
) -> Card:
    """Load the data, train with progress on the screen, return the card."""
    from hardcase.cli.progress import front
    from hardcase.cli.run import logging_to
    from hardcase.context import device as existing
    from hardcase.data.sources import load

    logging_to(verbose=verbose, quiet=quiet)
    place = existing(device or "cpu")
    first, second = (load(data, split=split, offline=offline) for split in ("train", "test"))
    with front(progress, quiet=quiet) as screen:
        return train(first, second, place, screen.train)


def home(card: Mapping[str, Any]) -> Path:
    """The folder of the network that a card describes."""
    from hardcase.training.cards import folder_of

    return folder_of(card["kind"], card["name"], card["configuration"], card["data"])


def present(card: Mapping[str, Any], format: str, quiet: bool) -> None:
    """Print a card and where its network is kept."""
    where = str(home(card))
    if format == "json":
        as_json({"folder": where, **card})
    elif quiet:
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


# --- ``hardcase judge`` and ``hardcase train judge``: are found tests valid, have they kept their label, how sure is that.


def judge(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Run folders.")
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz", help="Images rated by people, to fit and measure the judge with."
        ),
    ] = None,
    which: Annotated[
        Path | None,
        typer.Option(
            "--judge", metavar="DIR", help="A trained judge; by default that of the run's data."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Whose judge; by default that of the run's data, mnist5k without a run."),
    ] = None,
    seed: o.Seed = None,
    device: o.Device = None,
    offline: o.Offline = False,
    progress: o.ShowProgress = o.Progress.auto,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Judge what runs have found: valid, label kept, distinct. Trains the judge of the data if it is missing."""
    from hardcase.cli.progress import front
    from hardcase.cli.run import logging_to
    from hardcase.context import device as existing
    from hardcase.runs.results import Run

    logging_to(verbose=verbose, quiet=quiet)
    place = existing(device or "cpu")
    runs = [Run(folder) for folder in folders or []]
    if not runs and calibrate is None:
        raise Problem(
            "there is no run to judge and nothing to calibrate with.", fix="hardcase judge RUN"
        )
    with front(progress, quiet=quiet) as screen:
        asked = {"seed": seed or 0, "device": place, "offline": offline, "progress": screen.train}
        judges = [_judge(run, which, data, asked) for run in runs] or [
            _judge(None, which, data or "mnist5k", asked)
        ]
    if calibrate is not None:
        judges = [_calibrated(one, calibrate, place) for one in judges[:1]] * max(len(judges), 1)
        _tell_calibration(judges[0], format, quiet or format == "json")
    judged = [_judged(run, one, place) for run, one in zip(runs, judges)]
    if format == "json":
        as_json(
            [{"folder": str(run.folder), **run.record} for run in judged] or judges[0].calibration
        )
    elif judged:
        tell("\n\n".join(_closing(run, quiet) for run in judged))


def train(
    data: TrainingData = "mnist5k",
    seed: o.Seed = None,
    device: o.Device = None,
    offline: o.Offline = False,
    progress: o.ShowProgress = o.Progress.auto,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Train the judge of a data set: networks that take no part in any search."""
    from hardcase.judges.teach import trained

    def school(
        first: Images, second: Images, place: str, tell: Callable[[TrainingProgress], None]
    ) -> dict[str, Any]:
        return dict(trained(first, second, seed=seed or 0, device=place, progress=tell).card)

    present(
        learn(
            school, data, device, offline=offline, progress=progress, quiet=quiet, verbose=verbose
        ),
        format,
        quiet,
    )


def _judge(run: Run | None, which: Path | None, data: str | None, asked: dict[str, Any]) -> Judge:
    from hardcase.judges import verdicts

    if which is not None:
        return verdicts.read(which)
    if run is None or data is not None:
        split = "test" if run is None else run.record.get("split", "test")
        return verdicts.for_data(
            data or "mnist5k", learn_from="train" if split == "test" else "test", **asked
        )
    return verdicts.for_run(run, **asked)


def _judged(run: Run, judge: Judge, place: str) -> Run:
    from hardcase.judges.verdicts import judge_run

    return judge_run(run, judge, device=place)


def _calibrated(judge: Judge, file: Path, place: str) -> Judge:
    from hardcase.judges.verdicts import calibrate_on

    return calibrate_on(judge, file, device=place)


def _tell_calibration(judge: Judge, format: str, quiet: bool) -> None:
    if quiet:
        return
    known = judge.calibration
    assert known is not None
    columns = (
        "question",
        "AUROC",
        "yes where it is so",
        "no where it is not",
        "wrongly yes",
        "undecided",
    )
    rows = [
        (name.replace("_", " "), _auroc(known[name]["auroc"]), *(rate(known[name][key]) for key in ("tpr", "tnr", "false_yes", "undecided")))
        for name in ("label_kept", "valid")
    ]  # fmt: skip
    console().print(
        grid(
            f"{known['images']} images rated by people, pooled over {known['pooled_over']}",
            columns,
            rows,
        )
    )
    both = known["confirmed"]
    tell(
        facts(
            {
                "confirmed, right": rate(both["precision"]),
                "confirmed, found": rate(both["recall"]),
                "kept in": shown(judge.folder),
            }
        )
    )


def _auroc(value: dict[str, Any]) -> str:
    return (
        "–"
        if value["value"] is None
        else f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"
    )


def _closing(run: Run, quiet: bool) -> str:
    if quiet:
        return str(run.folder)
    said = run.record["judge"]
    quiet_ones = said["silence"]["silent"]
    lines = [
        f"{run.record['method']} on {run.record['model']}, {run.record['data']}",
        run.summary(),
        f"judge: {said['standing']}",
        f"of the confirmed tests {rate(quiet_ones)} are silent: the model is as sure of them as of its right answers",
        f"report  hardcase report {shown(run.folder)} --open",
    ]
    return "\n".join(lines)
