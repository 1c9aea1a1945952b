"""Mean effect beside `imagecorruptions` on photographs, severity by severity."""

import random
import sys
import types

import numpy
import pytest
import torch

from hardcase.corruptions import CORRUPTIONS, corrupt


def peer(monkeypatch):
    """`imagecorruptions`, or a skip with the reason; it still asks for names that numpy, scipy and
    scikit-image dropped.
    """
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
    made = [function(Image.fromarray(image), severity=severity) for image in grid]
    rows = numpy.stack([numpy.array(one, dtype=numpy.float32) for one in made])
    return torch.from_numpy(rows).permute(0, 3, 1, 2) / 255


def photographs(side=224):
    """Crops of the two photographs that come with scikit-learn."""
    datasets = pytest.importorskip("sklearn.datasets")
    pytest.importorskip("PIL", reason="reading photographs needs Pillow")
    whole = [torch.from_numpy(image.copy()) for image in datasets.load_sample_images().images]
    crops = [x[80 : 80 + side, left : left + side] for x in whole for left in (30, 350)]
    return torch.stack(crops).permute(0, 3, 1, 2).float() / 255


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_mean_effect_is_that_of_imagecorruptions(name, monkeypatch):
    found = peer(monkeypatch)
    x = photographs()
    draws = 1 if name == "glass_blur" else 4
    for severity in (1, 3, 5):
        theirs = [corrupted(found, x, name, severity, seed) for seed in range(draws)]
        level, keys = torch.full((len(x),), float(severity)), torch.arange(len(x))
        ours = [corrupt(x, name, level, keys + 10 * i) for i in range(draws)]
        want, got = (float((torch.stack(made) - x).abs().mean()) for made in (theirs, ours))
        assert got == pytest.approx(want, rel=0.12, abs=0.003), severity
