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
    return Images(
        (x * 255).to(torch.uint8), y, names, tuple(map(str, range(classes))), "bars", split
    )


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
    from hardcase.runs.folder import Store
    from hardcase.runs.ledger import Entry

    store = Store.open(folder)
    for number, entry in list(store.ledger.read().items()):
        if name in entry.files:
            fresh = Entry.of({name: (folder / name).read_bytes()}, {}).files
            store.ledger.add(number, Entry({**entry.files, **fresh}, entry.summary))


def rewrite(folder, name, data):
    """Another content of a file of a run, as if it had been stored so."""
    (folder / name).write_bytes(data)
    rewrite_checksum(folder, name)


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
