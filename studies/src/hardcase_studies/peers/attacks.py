"""Same-named attacks of five libraries and of ours, each run and counted by AttackBench (AttackBenchLib 2.0).

A. E. Cinà et al., AttackBench: evaluating gradient-based attacks for adversarial examples, AAAI 2025. It asks the network
itself, so forwards and backwards are counted by one counter for all; the distance of an image is that of its nearest
failing variant which was ever asked about, and a library's *optimality* compares the curve of its distances with the lower
envelope of all that took part. Ours takes part as a foreign attack, through `hc.attack`: its images lie on the grid of
8 bits, which costs distance and is a column of the table.
"""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hardcase as hc
from hardcase.errors import choice
from hardcase.suite.tables import Outcome, Table
from hardcase_studies.bench import Bench, share, table_of
from hardcase_studies.peers import library, machine, versions
from hardcase_studies.peers.networks import attacked

STEPS = 40
"""Steps of projected gradient descent."""
ROUNDS, ROUND = 4, 50
"""Trade-off weights of Carlini and Wagner's attack, and steps with each."""
ADAM = 0.02
"""Its step size."""
RADIUS: Mapping[str, Mapping[int, float]] = {"linf": {1: 0.1, 3: 8 / 255}, "l2": {1: 1.0, 3: 0.5}}
"""Radii by norm and number of channels."""

Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]


def run(bench: Bench) -> Outcome:
    """``--set images=64``, ``attacks=pgd-linf,cw-l2``, ``libraries=ours,foolbox`` and ``model=FILE`` choose."""
    net, x, y, about = attacked(bench, bench.size("images", 64, 256))
    attackbench = library("attackbench")
    tables = []
    for name in bench.names("attacks", tuple(ATTACKS)):
        if name not in ATTACKS:
            raise choice("attack", name, list(ATTACKS))
        norm, makers = ATTACKS[name]
        chosen = bench.names("libraries", tuple(makers))
        results = {}
        for who in (who for who in makers if who in chosen):
            bench.say(f"{name}: {who}")
            attack = makers[who](RADIUS[norm][x.shape[1]])
            measure = partial(_measured, attackbench, net, x, y, norm, attack)
            numbers = bench.cell(f"{name} by {who}", measure, but=("attacks", "libraries"))
            results[who] = _Counted(numbers[: len(COUNTS)], numbers[len(COUNTS) :])
        tables.append(_table(name, norm, results))
    notes = [
        about,
        machine(),
        f"PGD: {STEPS} steps, each 2.5 times the radius over their number; C&W: {ROUNDS} weights with {ROUND} steps of {ADAM} each",
        "optimality: AttackBench's local optimality in the lower envelope of the rows; an image that none was found of is infinitely far",
        "seconds: of the attack as AttackBench takes them, its own counting left out; read them as ratios in one table",
        versions(
            "attackbenchlib", "foolbox", "torchattacks", "adv-lib", "adversarial-robustness-toolbox"
        ),
        "FGSM and PGD in L2 are not in adv-lib; foolbox and torchattacks take no radius for C&W either",
    ]
    tables[-1] = Table(tables[-1].title, tables[-1].columns, tables[-1].rows, notes)
    return Outcome("attacks of five libraries by AttackBench", tables)


COUNTS = ("failing", "forwards", "backwards", "seconds", "batch failures", "box failures")
"""What AttackBench counts of an attack, apart from the distance of every image."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """`COUNTS` of one attack, and the distance of every image, infinite where none was found."""

    counts: Sequence[float]
    distances: Sequence[float]

    def __getitem__(self, name: str) -> float:
        return self.counts[COUNTS.index(name)]


def _measured(
    attackbench: Any, net: nn.Module, x: Tensor, y: Tensor, norm: str, attack: Attack
) -> list[float]:
    """`COUNTS`, then distances, by AttackBench on a fresh copy of the network."""

    def foreign(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        # The wrapper that counts starts in training mode; torchattacks would leave the network in it.
        return attack(model.eval(), inputs, labels)

    loader = DataLoader(TensorDataset(x.cpu(), y.cpu()), batch_size=len(x))
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        found: Mapping[str, Any] = attackbench.run_attack(
            deepcopy(net),
            loader,
            foreign,
            norm,
            device=x.device,
            seed=0,
            output_dir=None,
            debug=False,
        )
    counts = (
        sum(found["adv_success"]),
        np.mean(found["num_forwards"]),
        np.mean(found["num_backwards"]),
        sum(found["times"]),
        sum(found["batch_failures"]),
        sum(found["box_failures"]),
    )
    return [*map(float, counts), *found["distances"][norm]]


def _table(name: str, norm: str, results: Mapping[str, _Counted]) -> Table:
    optimality = library("attackbench.metrics.optimality").compute_local_optimality
    known = {
        who: {"distances": {norm: list(one.distances)}, "correct": [True] * len(one.distances)}
        for who, one in results.items()
    }
    rows: list[Mapping[str, Any]] = []
    for who, result in results.items():
        count = len(result.distances)
        found = torch.arange(count) < int(result["failing"])
        told = optimality(
            known[who], reference_results=list(known.values()), threat_model=norm, use_wandb=False
        )
        rows.append(
            {
                "library": who,
                "success": share(found),
                "optimality": _optimality(told["optimality"]),
                "median distance": _median(result.distances, norm),
                "forwards": f"{result['forwards']:.1f}",
                "backwards": f"{result['backwards']:.1f}",
                "seconds": f"{result['seconds']:.2f}",
                "batch failures": int(result["batch failures"]),
                "box failures": int(result["box failures"]),
            }
        )
    return table_of(f"{name} by AttackBench", rows)


def _optimality(value: float) -> str:
    """AttackBench's figure; there is none where all distances that were found are the same."""
    return "none: one distance" if math.isnan(value) else f"{value:.3f}"


def _median(distances: Sequence[float], norm: str) -> str:
    """The median distance over all images, in grey levels where a single pixel counts."""
    middle = float(np.median(distances))
    if math.isinf(middle):
        return "none: fewer than half fail"
    return f"{255 * middle:.2f} levels" if norm == "linf" else f"{middle:.3f}"


# How each library is called: what takes a radius, and an attack as AttackBench calls it.


def _ours(method: str, eps: float, **options: Any) -> Attack:
    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return hc.attack(model, x, y, method=method, **options).images

    return attack


def _foolbox(name: str, eps: float, **options: Any) -> Attack:
    foolbox = library("foolbox")

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        asked = foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device)
        given = {} if math.isinf(eps) else {"epsilon": eps}
        made = getattr(foolbox.attacks, name)(**options)
        found: Tensor = made.run(asked, x, foolbox.Misclassification(y), **given)
        return found

    return attack


def _torchattacks(name: str, **options: Any) -> Attack:
    made = getattr(library("torchattacks"), name)

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = made(model, **options)(x, y)
        return found

    return attack


def _adv_lib(name: str, **options: Any) -> Attack:
    made = getattr(library("adv_lib.attacks"), name)

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = made(model, x, y, **options)
        return found

    return attack


def _art(name: str, **options: Any) -> Attack:
    made = getattr(library("art.attacks.evasion"), name)
    wrapped = library("art.estimators.classification").PyTorchClassifier

    def attack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        asked = wrapped(
            model,
            loss=nn.CrossEntropyLoss(),
            input_shape=tuple(x.shape[1:]),
            nb_classes=10,
            clip_values=(0, 1),
            device_type="gpu" if x.is_cuda else "cpu",
        )
        found = made(asked, batch_size=len(x), **options).generate(x.cpu().numpy(), y.cpu().numpy())
        return torch.from_numpy(found).to(x)

    return attack


def _step(eps: float) -> float:
    return 2.5 * eps / STEPS


def _pgd(norm: str) -> dict[str, Callable[[float], Attack]]:
    order = "inf" if norm == "linf" else 2
    theirs = {"linf": ("LinfPGD", "PGD"), "l2": ("L2PGD", "PGDL2")}[norm]
    made: dict[str, Callable[[float], Attack]] = {
        "ours": lambda eps: _ours(
            "pgd", eps, norm=norm, epsilon=eps, step_size=_step(eps), gradients=STEPS
        ),
        "foolbox": lambda eps: _foolbox(theirs[0], eps, abs_stepsize=_step(eps), steps=STEPS),
        "torchattacks": lambda eps: _torchattacks(
            theirs[1], eps=eps, alpha=_step(eps), steps=STEPS
        ),
        "art": lambda eps: _art(
            "ProjectedGradientDescentPyTorch",
            norm=order,
            eps=eps,
            eps_step=_step(eps),
            max_iter=STEPS,
            num_random_init=1,
            verbose=False,
        ),
    }
    if norm == "linf":
        made["adv-lib"] = lambda eps: _adv_lib(
            "pgd_linf", ε=eps, steps=STEPS, absolute_step_size=_step(eps)
        )
    return made


ATTACKS: Mapping[str, tuple[str, Mapping[str, Callable[[float], Attack]]]] = {
    "fgsm": (
        "linf",
        {
            "ours": lambda eps: _ours("fgsm", eps, epsilon=eps),
            "foolbox": lambda eps: _foolbox("LinfFastGradientAttack", eps),
            "torchattacks": lambda eps: _torchattacks("FGSM", eps=eps),
            "art": lambda eps: _art("FastGradientMethod", eps=eps),
        },
    ),
    "pgd-linf": ("linf", _pgd("linf")),
    "pgd-l2": ("l2", _pgd("l2")),
    "cw-l2": (
        "l2",
        {
            "ours": lambda eps: _ours("cw", eps, steps=ROUND, rounds=ROUNDS, step_size=ADAM),
            "foolbox": lambda eps: _foolbox(
                "L2CarliniWagnerAttack",
                math.inf,
                binary_search_steps=ROUNDS,
                steps=ROUND,
                stepsize=ADAM,
                initial_const=1.0,
                abort_early=False,
            ),
            "torchattacks": lambda eps: _torchattacks("CW", c=1, steps=ROUNDS * ROUND, lr=ADAM),
            "adv-lib": lambda eps: _adv_lib(
                "carlini_wagner_l2",
                learning_rate=ADAM,
                initial_const=1.0,
                binary_search_steps=ROUNDS,
                max_iterations=ROUND,
                abort_early=False,
            ),
            "art": lambda eps: _art(
                "CarliniL2Method",
                learning_rate=ADAM,
                initial_const=1.0,
                binary_search_steps=ROUNDS,
                max_iter=ROUND,
                verbose=False,
            ),
        },
    ),
}
"""By attack: the norm that it is measured in, and what each library needs to be called."""
