"""Image sets and evaluators made by code, and ways to rewrite a stored run."""

import numpy as np
import torch

from hardcase.types import Images


def bars(count=120, *, size=12, channels=1, classes=3, seed=0, split="train"):
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % classes
    x = torch.rand(count, channels, size, size, generator=rng) * 0.3
    column = (y * size // classes)[:, None] + torch.arange(max(size // classes - 1, 1))
    x[torch.arange(count)[:, None], :, :, column] += 0.6
    names = tuple(f"{split}-{number}" for number in range(count))
    known = tuple(map(str, range(classes)))
    return Images((x * 255).to(torch.uint8), y, names, known, "bars", split)


def trained_bars(seed=0):
    """A network that reads bars where they are, and not where they may be."""
    from hardcase.models.subject import Subject

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(144, 24), torch.nn.ReLU(), torch.nn.Linear(24, 3)
        )
    images = bars(120)
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(images.x.float() / 255), images.y).backward()
        optimiser.step()
    return Subject(net, classes=images.classes, name="bars.py:make")


def beside(shift):
    """The sight of the toy subject, a little to the side: it errs elsewhere."""
    from hardcase.models.subject import Subject
    from hardcase.testing.toys import CLASSES, Quarters

    net = Quarters(60.0)
    net.mean.weight.data = net.mean.weight.data.reshape(4, 8, 8).roll(shift, 2).flatten(1)
    return Subject(net, classes=CLASSES, name=f"beside {shift}")


class Columns(torch.nn.Module):
    """The brightest third of the columns names the class."""

    def __init__(self, size=12, classes=3):
        super().__init__()
        self.hidden = torch.nn.Linear(size * size, classes, bias=False)
        self.out = torch.nn.Linear(classes, classes, bias=False)
        self.out.weight.data = torch.eye(classes)
        column = torch.zeros(classes, size, size)
        for i in range(classes):
            column[i, :, i * size // classes : (i + 1) * size // classes] = 1 / size
        self.hidden.weight.data = column.flatten(1)

    def forward(self, x):
        return self.out(self.hidden(x.mean(1).flatten(1)).relu())


def columns_subject():
    from hardcase.models.subject import Subject

    return Subject(Columns(), name="columns")


HALVES = """
import torch
from torch import nn

class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(20.0))
    def forward(self, x):
        left, right = x[..., :8].mean((1, 2, 3)), x[..., 8:].mean((1, 2, 3))
        return self.scale * torch.stack([left, right], 1)

def net():
    return Halves()
"""


class BlackBox:
    """What a search calls in place of an evaluator: no gradients, no guides, `limit` queries per seed."""

    def __init__(self, count, limit=10**6):
        self.live = torch.ones(count, dtype=torch.bool)
        self.asked = torch.zeros(count, dtype=torch.int64)
        self.limit = limit

    def count(self, rows):
        self.asked += rows.bincount(minlength=len(self.asked))
        self.live &= self.asked < self.limit

    def gradient(self, z, rows, targets=None):
        raise AssertionError("asked for a gradient")

    surrogates = gradient

    def choose(self, rows, following=None):
        return {}

    def retire(self, rows):
        self.live[rows] = False


class StopError(Exception):
    """What `stop_at` raises."""


def stop_at(step):
    """Progress that stops a training at this step."""

    def progress(told):
        if told.step >= step and not told.warning:
            raise StopError

    return progress


def global_state():
    """What nothing in hardcase may move. (Python's own randomness is moved by the type checker of the tests.)"""
    import numpy

    return torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist()


def weights(net):
    from safetensors.torch import save

    return save({name: value.contiguous() for name, value in net.state_dict().items()})


def rewrite_checksum(folder, name):
    """What stands in a file of a run now is what was stored."""
    from hardcase.runs.files import Entry
    from hardcase.runs.folder import Store

    store = Store.open(folder)
    for number, entry in list(store.ledger.read().items()):
        if name in entry.files:
            fresh = Entry.of({name: (folder / name).read_bytes()}, {}).files
            store.ledger.add(number, Entry({**entry.files, **fresh}, entry.summary))


def rewrite(folder, name, data):
    """Another content of a file of a run, as if it had been stored so."""
    (folder / name).write_bytes(data)
    rewrite_checksum(folder, name)


def stored_run(
    folder, x, y, rows, found, *, seeds=None, findings=None, record, config="", verdicts=None
):
    """A finished run as a campaign stores it: seeds `x` of classes `y`, and the images `found` from
    the seeds `rows`; `seeds` and `findings` are further columns, `verdicts` one for each finding."""
    from hardcase.runs.folder import Packed, Store, pack_deltas
    from hardcase.runs.results import Run
    from hardcase.runs.tables import SPENDING, findings_table, seeds_table, to_parquet
    from hardcase.statistics import count
    from hardcase.types import Findings

    n, t = len(y), len(rows)
    columns = {
        "id": [f"s{i}" for i in range(n)], "label": y.tolist(), "predicted": y.tolist(),
        "confidence": [0.9] * n, "status": ["done"] * n, "evaluated": [1] * n, "failing": [1] * n,
        **dict.fromkeys(SPENDING, [0] * n), **(seeds or {}),
    }  # fmt: skip
    table = seeds_table(columns, x)
    none = torch.zeros(t, dtype=torch.int64)
    filled = {
        "kind": none, "expected": y[rows], "predicted": y[rows] + 1, "peer_predicted": none[:, None][:, :0],
        "confidence": torch.full((t,), 0.8), "score": torch.zeros(t), "distance": torch.ones(t),
        "queries": torch.arange(1, t + 1), "code": torch.zeros(t, 0), **(findings or {}),
    }  # fmt: skip
    names = [columns["id"][row] for row in rows.tolist()]
    made = Findings(seed=rows, x=found, **filled)
    tests = findings_table(made, x[rows], names, method=record["method"], oracle="label")
    said = None
    if verdicts is not None:
        said = [{"id": name, **row} for name, row in zip(tests["id"].to_pylist(), verdicts)]
    by_id = None if said is None else {row["id"]: row for row in said}
    kinds = tests.select(["id", "original", "kind"]).to_pylist()
    counts = count(table.drop_columns(["image"]).to_pylist(), kinds, by_id)
    store = Store.create(folder, {**record, **counts}, config, [table])
    store.put(0, Packed(to_parquet(tests), to_parquet(table), pack_deltas({})))
    return Run(folder) if said is None else put_verdicts(Run(folder), said)


def put_verdicts(run, said, **entries):
    """The run with these verdicts, rows by name, and more entries of its record."""
    import pyarrow as pa

    from hardcase.runs.files import checked_json, size_and_crc
    from hardcase.runs.results import Run
    from hardcase.runs.tables import to_parquet

    data = to_parquet(pa.Table.from_pylist(said))
    run.store.write("verdicts/part-00000.parquet", data)
    checksums = {"part-00000.parquet": size_and_crc(data)}
    run.store.write("run.json", checked_json({**run.record, **entries, "verdicts": checksums}))
    return Run(run.folder)


def save_toys(folder, count, **options):
    """The toy images as ``toy.npz`` in a folder."""
    from hardcase.testing.toys import toy_images

    images = toy_images(count, **options)
    arrays = {"images": images.x.numpy(), "labels": images.y.numpy()}
    np.savez(folder / "toy.npz", **arrays, classes=np.array(images.classes))


MODEL = """
from hardcase.testing.toys import Quarters
class Net(Quarters):
    def forward(self, x):
        return super().forward(x)
def make(): return Net()
def other(): return Net(30.0)
"""


def furnish(home, patch, model=MODEL, count=60):
    """Go to the folder of a user with a model and data; the cache is in it, too."""
    patch.chdir(home)
    patch.setenv("HARDCASE_CACHE", str(home / "cache"))
    (home / "model.py").write_text(model)
    save_toys(home, count)
    return home


def install(folder, patch, name, source, points):
    """As if a distribution `name` with this one module and these entry points were installed."""
    import sys

    (folder / f"{name}.py").write_text(source)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(points)
    patch.syspath_prepend(str(folder))
    patch.delitem(sys.modules, name, raising=False)
    return about / "entry_points.txt"


def noise_method():
    """Gradients in a ball of pixels: what a map is made of."""
    import hardcase as hc

    space, search = (
        hc.spaces.Pixels(hc.spaces.Linf(0.5)),
        hc.searches.GradientAscent(step_size=0.05),
    )
    parts = {"space": space, "search": search, "objective": hc.objectives.Margin()}
    return hc.Method(name="noise", **parts, oracle=hc.oracles.LeavesLabel(), needs="gradients")


def kill_at(patch, step):
    """Interrupt any training at this step, after its checkpoint; returns how to go on unharmed."""
    from hardcase.training.monitor import Checkpoints

    write = Checkpoints.__call__

    def killed(keeper, number, now=False):
        write(keeper, number, now=number == step)
        if number == step:
            raise KeyboardInterrupt

    patch.setattr(Checkpoints, "__call__", killed)
    return lambda: patch.setattr(Checkpoints, "__call__", write)


# How often intervals hold the truth. Laws: what runs and trainings give (numbers about a mean,
# skewed shares of a run's seeds, counts of which a quarter are 0).

LAWS = {
    "normal": (lambda rng, *shape: rng.normal(size=shape), 0.0),
    "skewed shares": (lambda rng, *shape: rng.beta(4, 16, shape), 0.2),
    "zero-inflated": (lambda rng, *shape: rng.gamma(4, 1, shape) * (rng.random(shape) > 0.25), 3.0),
}


def holds(found, truth):
    return found.low <= truth <= found.high


def check_coverage(hits, *, most=0.98):
    """95 % intervals hold the truth in 93 to 98 %, but for three standard errors of the simulation."""
    error = 3 * (0.95 * 0.05 / len(hits)) ** 0.5
    assert 0.93 - error <= np.mean(hits) <= min(most + error, 1)


def save_bars(folder, patch, recipes, **brief):
    """Go to a folder with ``bars.npz`` and a cache, where networks are trained in seconds: those of `recipes`, by kind."""
    from dataclasses import replace

    from hardcase import registry

    patch.chdir(folder)
    patch.setenv("HARDCASE_CACHE", str(folder / "cache"))
    for kind, names in recipes.items():
        for name in names:
            facts = registry.parts(kind)[name].facts
            patch.setitem(facts, "recipe", replace(facts["recipe"], steps=0, batch=16, **brief))
    splits = {"train": bars(120), "test": bars(30, seed=1)}
    arrays = {f"x_{split}": images.x.numpy() for split, images in splits.items()}
    arrays |= {f"y_{split}": images.y.numpy() for split, images in splits.items()}
    np.savez(folder / "bars.npz", **arrays)
