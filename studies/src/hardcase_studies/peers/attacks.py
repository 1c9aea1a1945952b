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
from collections.abc import Callable, Mapping
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
            results[who] = _measured(attackbench, net, x, y, norm, attack)
        tables.append(_table(name, norm, results))
    notes = [
        about,
        machine(),
        f"PGD: {STEPS} steps, each 2.5 times the radius over their number; C&W: {ROUNDS} weights with {ROUND} steps of {ADAM} each",
        "optimality: AttackBench's local optimality in the lower envelope of the rows; median distance over all images, none found is infinite",
        "seconds: of the attack as AttackBench takes them, its own counting left out; read them as ratios in one table",
        versions(
            "attackbenchlib", "foolbox", "torchattacks", "adv-lib", "adversarial-robustness-toolbox"
        ),
        "FGSM and PGD in L2 are not in adv-lib; foolbox and torchattacks take no radius for C&W either",
    ]
    tables[-1] = Table(tables[-1].title, tables[-1].columns, tables[-1].rows, notes)
    return Outcome("attacks of five libraries by AttackBench", tables)


def _measured(
    attackbench: Any, net: nn.Module, x: Tensor, y: Tensor, norm: str, attack: Attack
) -> Mapping[str, Any]:
    """What AttackBench tells of one attack on a fresh copy of the network, which counts for itself."""
    from copy import deepcopy

    def foreign(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        return attack(model, inputs, labels)

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
    return found


def _table(name: str, norm: str, results: Mapping[str, Mapping[str, Any]]) -> Table:
    optimality = library("attackbench.metrics.optimality").compute_local_optimality
    rows: list[Mapping[str, Any]] = []
    for who, result in results.items():
        distances = np.array(result["distances"][norm])
        found = torch.tensor(result["adv_success"])
        scale = 255 if norm == "linf" else 1
        failures = sum(result["batch_failures"])
        told = optimality(
            result, reference_results=list(results.values()), threat_model=norm, use_wandb=False
        )
        rows.append(
            {
                "library": who,
                "success": share(found),
                "optimality": f"{told['optimality']:.3f}",
                "median distance": f"{float(np.median(distances)) * scale:.3f}"
                + (" levels" if scale > 1 else ""),
                "forwards": f"{np.mean(result['num_forwards']):.1f}",
                "backwards": f"{np.mean(result['num_backwards']):.1f}",
                "seconds": f"{sum(result['times']):.2f}",
                "batch failures": failures,
                "box failures": sum(result["box_failures"]),
            }
        )
    return table_of(f"{name} by AttackBench", rows)


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
