"""Rows of the table of methods: those that follow gradients and neurons, and the fuzzers."""

from __future__ import annotations

from typing import Any

_DEEPXPLORE = {
    "needs": "gradients",
    "paper": "Pei, Cao, Yang and Jana, SOSP 2017",
    "cite": "pei2017deepxplore",
    "peers": "wanted",
    "budget": "50 gradients a seed",
}
_DLFUZZ = {"needs": "gradients", "paper": "Guo, Jiang, Zhao, Chen and Sun, ESEC/FSE 2018", "cite": "guo2018dlfuzz"}

ROWS: tuple[dict[str, Any], ...] = (
    {
        **_DEEPXPLORE,
        "name": "deepxplore",
        "summary": "models that should agree are driven apart while uncovered units are pushed, under any criterion",
        "where": "deepxplore:deepxplore",
        "differences": "clipped 8-bit pictures, logits, steps in [0, 1] units, constraints as spaces, all seeds at once",
    },
    {
        **_DEEPXPLORE,
        "name": "deepxplore@paper",
        "summary": "DeepXplore's Algorithm 1: a random model deviates, each step pushes a newly drawn idle neuron",
        "where": "deepxplore:deepxplore_paper",
        "differences": "networks see clipped 8-bit pictures; seeds are visited once and together",
    },
    {
        **_DEEPXPLORE,
        "name": "deepxplore@code",
        "summary": "DeepXplore's code: the subject deviates, one idle neuron a walk, a random square each step for blackout",
        "where": "deepxplore:deepxplore_code",
        "differences": "networks see clipped 8-bit pictures; only rightly classified seeds, each once",
    },
    {
        **_DLFUZZ,
        "name": "dlfuzz",
        "summary": "rival classes and chosen neurons are pushed up; what covers anything new is fuzzed again",
        "where": "dlfuzz:dlfuzz",
        "budget": "50 gradients a seed",
        "differences": "clipped, logits, queue of copies, labels against the seed's, strategy 4 toward the threshold",
    },
    {
        **_DLFUZZ,
        "name": "dlfuzz@paper",
        "summary": "DLFuzz as published: often covered neurons, full weight on four rivals, gain asked for decays with time",
        "where": "dlfuzz:dlfuzz_paper",
        "budget": "300 gradients a seed, usually 3 to 30 used",
        "differences": "networks see clipped 8-bit pictures; queue of at most 64 copies; labels against the seed's",
    },
    {
        **_DLFUZZ,
        "name": "dlfuzz@code",
        "summary": "DLFuzz's MNIST code: large weights, rivals at half weight, gain asked for decays with the seed's number",
        "where": "dlfuzz:dlfuzz_code",
        "budget": "300 gradients a seed, usually 5 to 50 used",
        "differences": "networks see clipped 8-bit pictures; entries copied, labels against the seed's",
    },
)
