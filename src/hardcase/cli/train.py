"""``hardcase train``: the networks that methods need. Another kind is another function and another row of `VERBS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.speaking import as_json, facts, tell

if TYPE_CHECKING:
    from hardcase.training import Progress
    from hardcase.types import Images

    Card = dict[str, Any]
    Train = Callable[[Images, Images, str, Callable[[Progress], None]], Card]

Epochs = Annotated[int | None, typer.Option(metavar="N", help="Passes over the data; by default the recipe's.")]
TrainingData = Annotated[str, typer.Option("--data", help="What to learn from.")]


def classifier(
    model: Annotated[str, typer.Option(help="zoo:NAME; see hardcase list models.")] = "zoo:lenet5",
    data: TrainingData = "mnist5k",
    adversarial: Annotated[str | None, typer.Option(metavar="NORM:RADIUS", help="linf:0.1 or l2:1.5.")] = None,
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
    from hardcase import zoo

    def train(first: Images, second: Images, place: str, tell: Callable[[Progress], None]) -> Card:
        name = model.removeprefix("zoo:")
        return zoo.trained(
            name, first, second, seed=seed or 0, epochs=epochs, adversarial=adversarial, progress=tell, device=place
        )[1]

    present(learn(train, data, device, offline=offline, progress=progress, quiet=quiet, verbose=verbose), format, quiet)


def vae(
    data: TrainingData = "mnist5k",
    kind: Annotated[str, typer.Option(help="linear, conv or conditional; see hardcase list generators.")] = "linear",
    latent: Annotated[int | None, typer.Option(metavar="N", help="Size of the code.")] = None,
    beta: Annotated[float, typer.Option(help="Weight of the code's divergence.")] = 1.0,
    model: Annotated[str, typer.Option(help="Which network must still see the label; zoo:NAME.")] = "zoo:lenet5",
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
    from hardcase import generators, models

    def train(first: Images, second: Images, place: str, tell: Callable[[Progress], None]) -> Card:
        judge = models.load(model, models.Loading(train=first, test=second, device=place, progress=tell))
        return generators.trained(
            "vae", first, second, kind=kind, latent=latent, beta=beta, epochs=epochs, seed=seed or 0,
            judge=lambda x: judge(x).logits, progress=tell, device=place,
        )[1]  # fmt: skip

    present(learn(train, data, device, offline=offline, progress=progress, quiet=quiet, verbose=verbose), format, quiet)


def vqvae(
    data: TrainingData = "mnist5k",
    kind: Annotated[str, typer.Option(help="ema (codes follow their users) or gradient (as ARGUS states it).")] = "ema",
    latent: Annotated[int | None, typer.Option(metavar="N", help="Width of a code.")] = None,
    mix: Annotated[
        float, typer.Option(metavar="SHARE", help="Train with discriminators at this share of a partner; 0: without.")
    ] = 0.0,
    latent_weight: Annotated[float, typer.Option(help="Weight of the latent discriminator's loss.")] = 0.01,
    image_weight: Annotated[float, typer.Option(help="Weight of the image discriminator's loss.")] = 0.01,
    model: Annotated[str, typer.Option(help="Which network must still see the label; zoo:NAME.")] = "zoo:lenet5",
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
    from hardcase import generators, models
    from hardcase.generators.pictures import draw_reconstructions

    def train(first: Images, second: Images, place: str, tell: Callable[[Progress], None]) -> Card:
        judge = models.load(model, models.Loading(train=first, test=second, device=place, progress=tell))
        net, card = generators.trained(
            "vqvae", first, second, kind=kind, latent=latent, epochs=epochs, seed=seed or 0, mix=mix,
            latent_weight=latent_weight, image_weight=image_weight,
            judge=lambda x: judge(x).logits, progress=tell, device=place,
        )  # fmt: skip
        draw_reconstructions(home(card), net, second)
        return card

    present(learn(train, data, device, offline=offline, progress=progress, quiet=quiet, verbose=verbose), format, quiet)


def gan(
    data: TrainingData = "mnist5k",
    kind: Annotated[str, typer.Option(help="small (minutes on a CPU) or conditional (GPU).")] = "small",
    latent: Annotated[int | None, typer.Option(metavar="N", help="Size of the noise.")] = None,
    flips: Annotated[bool, typer.Option(help="Also learn from mirrored images.")] = False,
    model: Annotated[str, typer.Option(help="Which network must see the class of a sample; zoo:NAME.")] = "zoo:lenet5",
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
    from hardcase import generators, models
    from hardcase.generators.pictures import draw_samples

    def train(first: Images, second: Images, place: str, tell: Callable[[Progress], None]) -> Card:
        judge = models.load(model, models.Loading(train=first, test=second, device=place, progress=tell))
        net, card = generators.trained(
            "gan", first, second, kind=kind, latent=latent, epochs=epochs, seed=seed or 0, flips=flips,
            judge=lambda x: judge(x).logits, progress=tell, device=place,
        )  # fmt: skip
        draw_samples(home(card), net, len(first.classes))
        return card

    present(learn(train, data, device, offline=offline, progress=progress, quiet=quiet, verbose=verbose), format, quiet)


def learn(
    train: Train, data: str, device: str | None, *, offline: bool, progress: str, quiet: bool, verbose: bool
) -> Card:
    """Load the data, train with progress on the screen, return the card."""
    from hardcase.cli.closing import logging_to
    from hardcase.cli.watching import front
    from hardcase.data import load
    from hardcase.planning import device as existing

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
        key: f"{100 * value:.1f} %" for key, value in card.items() if key.endswith(("accuracy", "agreement")) and value
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
