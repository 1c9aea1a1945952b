"""`imagecorruptions` made to run beside today's libraries: it still asks for names that numpy,
scipy and scikit-image dropped."""

import random
import sys
import types

import numpy
import pytest
import torch


def peer(monkeypatch):
    """The package, or a skip with the reason."""
    pytest.importorskip("cv2", reason="imagecorruptions needs opencv-python-headless")
    pytest.importorskip("skimage", reason="imagecorruptions needs scikit-image")
    import scipy.ndimage
    import skimage.filters

    monkeypatch.setattr(numpy, "float_", numpy.float64, raising=False)
    old = types.ModuleType("pkg_resources")
    old.resource_filename = lambda *names: "/".join(names)
    monkeypatch.setitem(sys.modules, "pkg_resources", old)
    moved = types.ModuleType("scipy.ndimage.interpolation")
    moved.map_coordinates = scipy.ndimage.map_coordinates
    monkeypatch.setitem(sys.modules, "scipy.ndimage.interpolation", moved)
    found = pytest.importorskip("imagecorruptions", reason="pip install imagecorruptions")
    inner = sys.modules["imagecorruptions.corruptions"]
    plain = skimage.filters.gaussian

    def gaussian(image, sigma, multichannel=False, **options):
        sigma = tuple(sigma) if isinstance(sigma, numpy.ndarray) else sigma
        return plain(image, sigma=sigma, channel_axis=-1 if multichannel else None, **options)

    monkeypatch.setattr(inner, "gaussian", gaussian)
    return found


def corrupted(found, x, name, severity, seed=0):
    """A batch of images through the peer, one by one, before it cuts values down to whole
    numbers."""
    from PIL import Image

    numpy.random.seed(seed)
    random.seed(seed)
    function = getattr(sys.modules[f"{found.__name__}.corruptions"], name)
    grid = (255 * x).round().byte().permute(0, 2, 3, 1).numpy()
    rows = [
        numpy.array(function(Image.fromarray(image), severity=severity), dtype=numpy.float32)
        for image in grid
    ]
    return torch.from_numpy(numpy.stack(rows)).permute(0, 3, 1, 2) / 255
