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
_DLFUZZ = {
    "needs": "gradients",
    "paper": "Guo, Jiang, Zhao, Chen and Sun, ESEC/FSE 2018",
    "cite": "guo2018dlfuzz",
}
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
        "differences": "from @paper and @code: pictures stay clipped while they are walked, steps of 0.02 instead of 10, "
        "logits, any criterion with its own gradient, a new target every ten steps, the subject deviates, "
        "constraints as spaces, coverage learns from every look",
    },
    {
        **_DEEPXPLORE,
        "name": "deepxplore@paper",
        "summary": "DeepXplore's Algorithm 1: a random model deviates, each step pushes a newly drawn idle neuron",
        "where": "deepxplore:deepxplore_paper",
        "differences": "from @code: a random model deviates, a new idle neuron each step, several black squares at once; "
        "from the paper: networks see clipped 8-bit pictures, seeds are visited once and together",
    },
    {
        **_DEEPXPLORE,
        "name": "deepxplore@code",
        "summary": "DeepXplore's code: the subject deviates, one idle neuron a walk, a random square each step for blackout",
        "where": "deepxplore:deepxplore_code",
        "differences": "from @paper: the subject deviates, one idle neuron a walk, one random square a step, occlusion at "
        "the top left; from the code: networks see clipped 8-bit pictures, only rightly classified seeds, "
        "each once",
    },
    {
        **_DLFUZZ,
        "name": "dlfuzz",
        "summary": "rival classes and chosen neurons are pushed up; what covers anything new is fuzzed again",
        "where": "dlfuzz:dlfuzz",
        "budget": "50 gradients a seed",
        "differences": "from @paper and @code: clipped while it is walked, all four strategies (the fourth toward the "
        "threshold, as the paper says), any gain queues an entry, radius 0.3 instead of 0.02, lists restart; "
        "entries are copies, labels are compared with the seed's",
    },
    {
        **_DLFUZZ,
        "name": "dlfuzz@paper",
        "summary": "DLFuzz as published: often covered neurons, full weight on four rivals, gain asked for decays with time",
        "where": "dlfuzz:dlfuzz_paper",
        "budget": "300 gradients a seed, usually 3 to 30 used",
        "differences": "from @code: often covered instead of heavy neurons, ten instead of five, three steps, rivals at full "
        "weight, the gain asked for falls with time; from the paper: networks see clipped 8-bit pictures, at "
        "most 64 entries wait",
    },
    {
        **_DLFUZZ,
        "name": "dlfuzz@code",
        "summary": "DLFuzz's MNIST code: large weights, rivals at half weight, gain asked for decays with the seed's number",
        "where": "dlfuzz:dlfuzz_code",
        "budget": "300 gradients a seed, usually 5 to 50 used",
        "differences": "from @paper: heavy neurons, five of them, five steps, rivals at half weight, the gain asked for "
        "falls with the seed's number, 'apart' pushes away from the threshold; from the code: clipped 8-bit "
        "pictures, entries copied, labels against the seed's",
    },
    {
        **_ADAPT,
        "name": "adapt",
        "summary": "fuzzing that learns, by 29 features of a neuron, which ones are worth pushing",
        "where": "adapt:adapt",
        "budget": "150 gradients a seed",
        "differences": "from @paper: logits instead of probabilities, scaled instead of raw gradients, clipped while it is "
        "walked, strategies shared by all seeds instead of a fuzzer each",
    },
    {
        **_ADAPT,
        "name": "adapt@paper",
        "summary": "ADAPT as published: a fuzzer for each seed, probabilities, raw gradients, three steps a queue entry",
        "where": "adapt:adapt_paper",
        "budget": "600 gradients a seed",
        "differences": "as published and coded; from both: networks see clipped 8-bit pictures, a budget of gradients "
        "instead of a clock, a vector earns its own coverage only, feature 7 is not lost",
    },
    {
        **_ADAPT,
        "name": "deepxplore@adapt",
        "summary": "DeepXplore as ADAPT ships it: random uncovered neurons of one model, ADAPT's loop and loss",
        "where": "adapt:deepxplore_adapt",
        "budget": "600 gradients a seed",
        "differences": "from deepxplore: one model, ten random uncovered neurons, ADAPT's loop, probabilities and raw "
        "gradients; from ADAPT's code: as for adapt@paper",
    },
    {
        **_ADAPT,
        "name": "dlfuzz@adapt",
        "summary": "DLFuzz as ADAPT ships it: most covered, least covered and heavy neurons take turns",
        "where": "adapt:dlfuzz_adapt",
        "budget": "600 gradients a seed",
        "differences": "from dlfuzz: three strategies take turns, neurons are the top of a list and not drawn, ADAPT's loop, "
        "probabilities and raw gradients; from ADAPT's code: as for adapt@paper",
    },
    {
        **_MAXPLORE,
        "name": "maxplore",
        "summary": "each filter's strongest units on the seed are pushed beyond their training range, models driven apart",
        "where": "maxplore:maxplore",
        "budget": "400 gradients a seed (16 walks of 25)",
        "differences": "from @paper and @code: clipped while it is walked, scaled instead of raw gradients, steps of 0.03, "
        "units weigh 0.1 instead of 1; groups by filter, as the code",
    },
    {
        **_MAXPLORE,
        "name": "maxplore@paper",
        "summary": "MaXplore's text: the six strongest neurons of a layer rise together",
        "where": "maxplore:maxplore_paper",
        "budget": "50 gradients a seed (2 walks of 25)",
        "differences": "from @code: the strongest of a layer, not of each filter; from the report: networks see clipped "
        "8-bit pictures",
    },
    {
        **_MAXPLORE,
        "name": "maxplore@code",
        "summary": "MaXplore's code: the six strongest positions of each of sixteen filters rise together",
        "where": "maxplore:maxplore_code",
        "budget": "400 gradients a seed (16 walks of 25)",
        "differences": "from @paper: the strongest of each filter, not of a layer; from the code: networks see clipped 8-bit "
        "pictures",
    },
    {
        **_DEEPHUNTER,
        "name": "deephunter",
        "summary": "shifts, turns, light, blur and noise, guided by coverage: mutants that cover anything new are mutated again",
        "where": "deephunter:deephunter",
        "differences": "from @code: light, contrast and blur are pixel changes, checked and repeatable, as the paper says; "
        "from the paper: a corpus for each seed, signed differences, noise that can be seen",
    },
    {
        **_DEEPHUNTER,
        "name": "deephunter@code",
        "summary": "DeepHunter with the operator classes and fading chances of its code",
        "where": "deephunter:deephunter_code",
        "differences": "from deephunter: light, contrast and blur come once and unchecked, an entry's chance falls from 0.8 "
        "by a fifth; from the code: a corpus for each seed, signed differences, noise that can be seen",
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
