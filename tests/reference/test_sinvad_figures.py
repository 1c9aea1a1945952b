"""SINVAD's Figures 2 and 3 and its Equation 1, written out line by line for one seed, against the searches in batches."""

import math

import pytest
import torch

from hardcase.objectives import UNFIT
from hardcase.randomness import Rng
from hardcase.registry import resolve
from hardcase.searches.genetic import HillClimbing
from hardcase.spaces.latent import Latent
from hardcase.tensors import from_bytes, to_grid
from hardcase.testing.toys import ToyAutoencoder, toy_images, toy_subject
from hardcase.types import Feedback, Probe, Seeds
from tiny import BlackBox

SUBJECT, SPACE = toy_subject(), Latent(ToyAutoencoder())
GENERATIONS, COUNT = 5, 2


def seeds():
    images = toy_images(COUNT)
    x = from_bytes(images.x)
    z = SPACE.encode(x, images.y, Rng.numbered(0, "space", COUNT))[0]
    return Seeds(z, x, images.y, torch.arange(COUNT))


class FakeEvaluator(BlackBox):
    """A look that scores by `objective` and remembers what it was shown."""

    def __init__(self, objective):
        super().__init__(COUNT)
        self.objective, self.seeds, self.shown = objective, seeds(), []

    def __call__(self, z, rows, targets=None):
        origin = self.seeds.take(rows)
        x = to_grid(SPACE.decode(z, origin))
        with torch.no_grad():
            probe = Probe(z, x, SUBJECT(x).logits, origin)
            score = self.objective(probe)
        self.shown.append((z.clone(), rows, score))
        no = torch.zeros(len(rows), dtype=torch.bool)
        return Feedback(z, score, no, rows * 0, score * 0, ~no)


class Recorded(Rng):
    """Its draws can be given out once more, seed by seed."""

    def __init__(self):
        super().__init__(0, "walk", torch.arange(COUNT))
        self.given = []

    def _kept(self, rows, numbers):
        self.given.append({int(row): value for row, value in zip(rows, numbers)})
        return numbers

    def normal(self, rows, shape=()):
        return self._kept(rows, super().normal(rows, shape))

    def uniform(self, rows, shape=()):
        return self._kept(rows, super().uniform(rows, shape))

    def integers(self, rows, high, shape=()):
        return self._kept(rows, super().integers(rows, high, shape))


def rep2img(representation):
    return to_grid(SPACE.vae.decode(representation[None]))


def fit(image, seed_code, label, *, literal, representation):
    """Equation 1: infinity while the label stays; else the distance, re-encoded or (code) of the genotype."""
    with torch.no_grad():
        logits = SUBJECT(image).logits[0].softmax(0)
    others = torch.cat([logits[:label], logits[label + 1 :]])
    if float(others.max() - logits[label]) < 1e-4:  # the oracle's lead, see hardcase.oracles
        return math.inf
    code = SPACE.vae.encode(image)[0][0] if literal else representation
    return float((code - seed_code).abs().sum())


def figure_3(row, draws, *, literal, parents):
    """The genetic algorithm of Figure 3; `literal` as its text is, else as the authors coded it.

    Yields the population of each generation with its scores.
    """
    start = seeds()
    seed, label = start.z[row], int(start.y[row])
    population = [seed + (1.0 if literal else 0.7) * noise for noise in next(draws)[row]]
    previous, size = None, 0.1
    for generation in range(GENERATIONS):
        how = {"literal": literal}
        scores = [fit(rep2img(z), seed, label, **how, representation=z) for z in population]
        yield population, scores
        if generation == GENERATIONS - 1:
            return
        order = sorted(range(len(population)), key=scores.__getitem__)[:parents]
        best, current = [population[i] for i in order], min(scores)
        if generation > 0:
            size = 0.7 * size if previous == current else 0.1
        previous = current
        one, step, cut, noise, mask = (next(draws)[row] for _ in range(5))
        born = []
        for i in range(50 - parents):
            father = best[int(one[i])]
            mother = best[(int(one[i]) + 1 + int(step[i])) % parents]
            child = torch.cat([father[: int(cut[i])], mother[int(cut[i]) :]])
            for j in range(len(child)):
                equal = bool(child[j] == seed[j])
                if literal and equal:
                    child[j] = child[j] + noise[i][j]
                if not literal and not equal:
                    child[j] = child[j] + noise[i][j] * torch.tensor(size)
                if float(mask[i][j]) < 0.5:
                    child[j] = seed[j]
            born.append(child)
        population = best + born


@pytest.mark.parametrize(("name", "parents"), [("sinvad@paper", 10), ("sinvad@code", 20)])
def test_the_genetic_search_is_figure_3(name, parents):
    method = resolve("method", name)(space=SPACE, generations=GENERATIONS)
    evaluate, rng = FakeEvaluator(method.objective), Recorded()
    state = method.search.init(evaluate.seeds, rng)
    for _ in range(GENERATIONS):
        state = method.search.step(state, evaluate, rng)
    assert bool(evaluate.live.all()), "no seed may end within so few generations"
    for row in range(COUNT):
        literal = name == "sinvad@paper"
        written = figure_3(row, iter(rng.given), literal=literal, parents=parents)
        for generation, (population, scores) in enumerate(written):
            z, rows, score = evaluate.shown[generation]
            own = z[rows == row]
            new = population if generation == 0 else population[parents:]
            assert torch.allclose(own, torch.stack(new), atol=1e-5), (name, row, generation)
            said = torch.tensor(scores[-len(new) :])
            theirs = torch.where(said.isinf(), torch.tensor(-UNFIT), -said)
            assert torch.allclose(score[rows == row], theirs, rtol=1e-4), (name, row, generation)


def test_hill_climbing_is_figure_2():
    """One coordinate after the other, every step N(0, 1), kept if the fitness rises."""
    search = resolve("method", "sinvad-surprise@paper")
    assert search.preset["adapt"] == "never"
    assert search.preset["step_size"] == 1.0
    climb = HillClimbing(passes=1, step_size=1.0, adapt="never")
    fitness = lambda x: -(x - 0.7).square().flatten(1).sum(1)  # noqa: E731
    evaluate, rng = FakeEvaluator(lambda probe: fitness(probe.x)), Recorded()
    state = climb.init(evaluate.seeds, rng)
    width = evaluate.seeds.z.shape[1]
    for _ in range(1 + width):
        state = climb.step(state, evaluate, rng)
    for row in range(COUNT):
        best = evaluate.seeds.z[row].clone()
        value = fitness(rep2img(best))
        for i in range(width):
            neighbour = best.clone()
            neighbour[i] = best[i] + rng.given[1 + i][row]
            score = fitness(rep2img(neighbour))
            if value < score:
                best, value = neighbour, score
        assert torch.allclose(state["z"][row], best, atol=1e-5)
        assert float(state["score"][row]) == pytest.approx(float(value), rel=1e-5)
