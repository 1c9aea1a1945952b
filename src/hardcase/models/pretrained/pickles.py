"""Pickled arrays of others, read without running anything.

Own code, because unpickling runs whatever a file asks for: here only the names that rebuild a NumPy
array are known. `torch.load(weights_only=True)` reads files of torch alone.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from hardcase.data.formats import Array
from hardcase.errors import Problem

try:
    from numpy._core.multiarray import _reconstruct as _rebuild
except ImportError:  # NumPy 1 keeps it elsewhere
    from numpy.core.multiarray import (  # type: ignore[no-redef,unused-ignore]
        _reconstruct as _rebuild,
    )

ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _rebuild,
    ("numpy._core.multiarray", "_reconstruct"): _rebuild,
}
"""Every name that such a file may use.

None of them opens, imports or calls anything of the user's.
"""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def read_arrays(path: Path) -> dict[str, Array]:
    """Nested dictionaries of arrays in a pickle, flattened to names with ``/``;
    anything else in it is refused.
    """
    try:
        with path.open("rb") as file:
            content = _Reader(file).load()
    except Exception as error:  # a damaged pickle raises many kinds
        raise Problem(
            f"{path.name} is not read: {error}.",
            "A pickle can run code; only plain NumPy arrays are taken from one.",
        ) from error
    return _flat(content, "", path)


def _flat(content: Any, name: str, path: Path) -> dict[str, Array]:
    if isinstance(content, np.ndarray) and content.dtype.kind in "fiub":
        return {name: content}
    if isinstance(content, dict):
        flat: dict[str, Array] = {}
        for key, value in content.items():
            flat |= _flat(value, f"{name}/{key}" if name else str(key), path)
        return flat
    raise Problem(
        f"{path.name} holds a {type(content).__name__} at {name or 'its top'}; arrays of numbers"
        " are known."
    )
