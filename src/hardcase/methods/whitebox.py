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
_ADAPT = {"needs": "gradients", "paper": "Lee, Cha, Lee and Oh, ISSTA 2020", "cite": "lee2020adapt"}
_MAXPLORE = {
    "needs": "gradients",
    "paper": "Te Wei Lee, report, Singapore Management University, 2020",
    "cite": "lee2020maxplore",
    "peers": "wanted",
}
_DEEPHUNTER = {
    "needs": "activations",
    "paper": "Xie et al., ISSTA 2019",
    "cite": "xie2019deephunter",
    "budget": "401 queries a seed",
}

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
    {
        **_ADAPT,
        "name": "adapt",
        "summary": "fuzzing that learns, by 29 features of a neuron, which ones are worth pushing",
        "where": "adapt:adapt",
        "budget": "150 gradients a seed",
        "differences": "clipped, logits, scaled gradients; strategies shared by all seeds; feature 7 is not lost",
    },
    {
        **_ADAPT,
        "name": "adapt@paper",
        "summary": "ADAPT as published: a fuzzer for each seed, probabilities, raw gradients, three steps a queue entry",
        "where": "adapt:adapt_paper",
        "budget": "600 gradients a seed",
        "differences": "networks see clipped 8-bit pictures; a budget of gradients instead of a clock; feature 7 is not lost",
    },
    {
        **_ADAPT,
        "name": "deepxplore@adapt",
        "summary": "DeepXplore as ADAPT ships it: random uncovered neurons of one model, ADAPT's loop and loss",
        "where": "adapt:deepxplore_adapt",
        "budget": "600 gradients a seed",
        "differences": "as for adapt@paper",
    },
    {
        **_ADAPT,
        "name": "dlfuzz@adapt",
        "summary": "DLFuzz as ADAPT ships it: most covered, least covered and heavy neurons take turns",
        "where": "adapt:dlfuzz_adapt",
        "budget": "600 gradients a seed",
        "differences": "as for adapt@paper",
    },
    {
        **_MAXPLORE,
        "name": "maxplore",
        "summary": "each filter's strongest units on the seed are pushed beyond their training range, models driven apart",
        "where": "maxplore:maxplore",
        "budget": "400 gradients a seed (16 walks of 25)",
        "differences": "clipped, scaled gradients, steps in [0, 1] units",
    },
    {
        **_MAXPLORE,
        "name": "maxplore@paper",
        "summary": "MaXplore's text: the six strongest neurons of a layer rise together",
        "where": "maxplore:maxplore_paper",
        "budget": "50 gradients a seed (2 walks of 25)",
        "differences": "networks see clipped 8-bit pictures",
    },
    {
        **_MAXPLORE,
        "name": "maxplore@code",
        "summary": "MaXplore's code: the six strongest positions of each of sixteen filters rise together",
        "where": "maxplore:maxplore_code",
        "budget": "400 gradients a seed (16 walks of 25)",
        "differences": "networks see clipped 8-bit pictures",
    },
    {
        **_DEEPHUNTER,
        "name": "deephunter",
        "summary": "shifts, turns, light, blur and noise, guided by coverage: mutants that cover anything new are mutated again",
        "where": "deephunter:deephunter",
        "differences": "a corpus for each seed; signed differences; visible noise; operator classes of the paper",
    },
    {
        **_DEEPHUNTER,
        "name": "deephunter@code",
        "summary": "DeepHunter with the operator classes and fading chances of its code",
        "where": "deephunter:deephunter_code",
        "differences": "a corpus for each seed; signed differences; visible noise",
    },
    {
        "name": "tensorfuzz",
        "summary": "noise guided by new outputs, until an 8-bit copy disagrees or the answer is not a number",
        "needs": "scores",
        "paper": "Odena, Olsson, Andersen and Goodfellow, ICML 2019",
        "where": "tensorfuzz:tensorfuzz",
        "budget": "1,001 queries a seed",
        "cite": "odena2019tensorfuzz",
        "peers": "quantised",
        "differences": "8-bit copy instead of float16; pictures in [0, 1]; a corpus for each seed; exact neighbours",
    },
)
