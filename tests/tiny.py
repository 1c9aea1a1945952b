"""Image sets made by code: a bright bar whose place is its class, and a little noise."""

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


def global_state():
    """What nothing in hardcase may move. (Python's own randomness is moved by the type checker of the tests.)"""
    import numpy

    return torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist()


def weights(net):
    from safetensors.torch import save

    return save({name: value.contiguous() for name, value in net.state_dict().items()})


def reseal(folder, name):
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
    reseal(folder, name)


def put_verdicts(run, said, **entries):
    """The run with these verdicts, rows by name, and more entries of its record."""
    import pyarrow as pa

    from hardcase.runs.files import seal_of, sealed
    from hardcase.runs.results import Run
    from hardcase.runs.tables import to_parquet

    data = to_parquet(pa.Table.from_pylist(said))
    run.store.write("verdicts/part-00000.parquet", data)
    seals = {"part-00000.parquet": seal_of(data)}
    run.store.write("run.json", sealed({**run.record, **entries, "verdicts": seals}))
    return Run(run.folder)
