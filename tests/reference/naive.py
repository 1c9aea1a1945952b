"""The criteria again, as plain loops over inputs, units and pairs, from their definitions."""

import itertools
import math

import numpy as np


def nc(layers, threshold):
    values = (
        (i, u, v) for i, layer in enumerate(layers) for row in layer for u, v in enumerate(row)
    )
    return {(i, u) for i, u, v in values if v > threshold}


def scaled_nc(maps, threshold, order, epsilon=0.0):
    """`maps`: a layer's outputs, inputs x channels x places."""
    found = set()
    for i, layer in enumerate(maps):
        for image in layer:
            means = image.mean(1)
            base = image if order == "scale-mean" else means
            low, high = base.min(), base.max()
            for c, mean in enumerate(means):
                if high > low and (mean - low) / (high - low + epsilon) > threshold:
                    found.add((i, c))
    return found


def sections(values, low, high, k, cuts="right-open", top="last", constant="skip"):
    """Covered (unit, section), and the number of sections in all. Sizes must be exact in binary for cut points to be met."""
    covered, total = set(), 0
    for u in range(len(low)):
        still = not high[u] > low[u]
        total += 0 if still and constant == "skip" else k
        for row in values:
            v = row[u]
            if math.isnan(v):
                continue
            if still:
                if constant == "all" and v == low[u]:
                    covered |= {(u, s) for s in range(k)}
                continue
            width = (high[u] - low[u]) / k
            for s in range(k):
                a, b = low[u] + s * width, low[u] + (s + 1) * width
                inside = {
                    "right-open": a <= v < b or (s == k - 1 and v == high[u]),
                    "left-open": a < v <= b,
                    "closed": a <= v <= b,
                }[cuts]
                if inside and not (top == "corner" and v == high[u]):
                    covered.add((u, s))
    return covered, total


def corners(values, low, high, equal="none"):
    cells = [(u, v) for row in values for u, v in enumerate(row)]
    above = {u for u, v in cells if v > high[u] or (equal != "none" and v == high[u])}
    below = {u for u, v in cells if v < low[u] or (equal == "both" and v == low[u])}
    return above, below


def strongest(layers, k):
    """For each input, for each layer, the units of the k greatest values, greatest first, ties to the lower number."""
    rows = range(len(layers[0]))

    def rank(row):
        numbers = (u for u, v in enumerate(row) if not math.isnan(v))
        return sorted(numbers, key=lambda u: (-row[u], u))[:k]

    return [[rank(layer[r]) for layer in layers] for r in rows]


def changed(a, b, factor):
    low, high = sorted((abs(a), abs(b)))
    return high >= factor * low and high > low


def mcdc(kind, conditions, decisions, factor, pairs=None):
    """Covered (condition, decision) and the number of qualified input pairs, from all pairs of inputs."""
    n, covered, qualified = len(conditions), set(), 0
    for a, b in pairs or itertools.combinations(range(n), 2):
        both = list(enumerate(zip(conditions[a], conditions[b])))
        flips = [i for i, (one, two) in both if (one > 0) != (two > 0)]
        if kind.startswith("sign"):
            first = flips if len(flips) == 1 else []
            qualified += bool(first)
        else:
            first = [i for i, pair in both if not flips and changed(*pair, factor)]
            qualified += not flips
        for j, (one, two) in enumerate(zip(decisions[a], decisions[b])):
            hit = (one > 0) != (two > 0)
            if not kind.endswith("sign"):
                hit = not hit and changed(one, two, factor)
            covered |= {(i, j) for i in first} if hit else set()
    return covered, qualified


def dsa(values, predicted, traces, classes):
    result = []
    for v, c in zip(values, predicted, strict=True):
        same = [t for t, k in zip(traces, classes, strict=True) if k == c]
        near = min(same, key=lambda t: np.linalg.norm(v - t))
        others = (t for t, k in zip(traces, classes, strict=True) if k != c)
        other = min(np.linalg.norm(near - t) for t in others)
        result.append(np.linalg.norm(v - near) / other)
    return np.array(result)


def buckets(surprise, lower, upper, n):
    width, found = (upper - lower) / n, set()
    for s in surprise:
        if lower <= s <= upper:
            found.add(min(int((s - lower) / width), n - 1))
    return found


def novel(vectors, threshold):
    kept = []
    for v in vectors:
        if all(((v - k) ** 2).sum() > threshold for k in kept):
            kept.append(v)
    return kept
