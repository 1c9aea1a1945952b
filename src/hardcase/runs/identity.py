"""The identity of a campaign: a digest of every ingredient that failures depend on, stored when it
begins and compared when it goes on; and consent to what its settings name.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hardcase.cache import cache_folder, write_atomically
from hardcase.campaign.record import Campaign
from hardcase.data.files import ImageSet
from hardcase.environment import VERSION, one_line
from hardcase.errors import HardcaseError, Refused
from hardcase.models.load import WHOLE
from hardcase.models.subject import Subject
from hardcase.plain import source_files
from hardcase.tensors import TILE
from hardcase.types import Budget, Model

FREE = (
    *("workers", "cluster", "batch_size", "device", "offline", "trust_pickle"),
    *("samples", "measure", "limits"),
)
"""Settings that are about where a run computes and whom it trusts, not about what it finds."""
STOPS = ("time", "findings")
"""Limits of a budget that end a run earlier and change nothing in what was searched before."""
MACHINE = ("device", "tile", "precision", "hardcase", "torch")
"""Ingredients that belong to the machine and to what is installed there."""
NONE = "none"
NAMED = 3
"""Settings that an error names of those that differ; it counts the others."""
SETTING = "setting "
ANOTHER = "a new --out, or --allow-changes: a new run from the same images"


@dataclass(frozen=True, slots=True)
class Identity:
    """Every ingredient by its name.

    Example:
        >>> then = Identity({"model": "1a2b", "images": "3c4d"})
        >>> then.differences(Identity({"model": "ffff", "images": "3c4d"}))
        ['model']
    """

    parts: Mapping[str, str]

    @property
    def digest(self) -> str:
        """A digest of all ingredients."""
        return short(json.dumps(dict(sorted(self.parts.items()))).encode())

    def to_json(self) -> dict[str, Any]:
        return {"digest": self.digest, "parts": dict(self.parts)}

    @staticmethod
    def from_json(stored: Any) -> Identity | None:
        """What was stored; None if nothing was, or something else than an identity."""
        match stored:
            case {"parts": dict(parts), "digest": digest}:
                if all(isinstance(text, str) for text in (*parts, *parts.values())):
                    identity = Identity(parts)
                    if identity.digest == digest:
                        return identity
        return None

    def only(self, names: Iterable[str]) -> Identity:
        """A choice of the ingredients, as far as they were stored."""
        return Identity({name: self.parts[name] for name in names if name in self.parts})

    def differences(self, now: Identity, *, but: Iterable[str] = ()) -> list[str]:
        """The names of ingredients that are not the same `now`; of settings, which."""
        words = []
        settings = []
        for name in dict.fromkeys([*self.parts, *now.parts]):
            then, today = self.parts.get(name, NONE), now.parts.get(name, NONE)
            if name in {*but} or then == today:
                continue
            if name.startswith(SETTING):
                settings.append(name.removeprefix(SETTING))
            elif name in MACHINE:
                words.append(f"{name} ({today}, then {then})")
            else:
                words.append(name)
        if settings:
            # what follows from other settings says less than they do
            settings.sort(key=lambda name: name.startswith("method parts"))
            named = ", ".join(settings[:NAMED])
            more = len(settings) - NAMED
            words.append(f"settings ({named}{f' and {more} more' if more > 0 else ''})")
        return words


def identity_of(
    campaign: Campaign,
    images: ImageSet,
    config: str,
    budget: Budget,
    *,
    ingredients: Mapping[str, str],
    **sizes: int,
) -> Identity:
    """The identity of a run that starts from `images`; `ingredients` are digests that only the
    caller knows, `sizes` those of shards and rounds.
    """
    card = campaign.method.details.get("generator") or {}
    values = tomllib.loads(config)
    settings = {
        **{name: value for name, value in values.items() if name not in FREE},
        "budget": {f.name: getattr(budget, f.name) for f in fields(budget) if f.name not in STOPS},
        **sizes,
        "seed": campaign.seed,
        "keep": str(campaign.keep),
        "margin": campaign.margin,
        "method parts": dict(_scalars(campaign.method, 6)),
    }
    others = {
        f"{role} {i}": short(f"{model.hash} {_class_sources(model)}".encode())
        for role, models in (("peer", campaign.peers), ("witness", campaign.witnesses))
        for i, model in enumerate(models, 1)
    }
    return Identity(
        {
            **parts_of(campaign.subject, images, campaign.subject.device.type),
            **others,
            "generator": str(card.get("weights", NONE)),
            **ingredients,
            **{f"{SETTING}{name}": str(value) for name, value in _leaves(settings)},
            "tile": str(campaign.tile or TILE),
            "precision": str(values.get("precision", "strict")),
        }
    )


def parts_of(
    subject: Model | None = None, seeds: ImageSet | None = None, device: str = ""
) -> dict[str, str]:
    """The ingredients of the arguments: of the model its weights and the source of its user-defined
    classes; of the images their pixels and labels, their names and those of the classes; of the
    device the machine that computes, and the installed versions.
    """
    parts = dict[str, str]()
    if subject is not None:
        parts |= {"model": subject.hash, "classes of the model": _class_sources(subject)}
    if seeds is not None:
        names = short(json.dumps([seeds.id, seeds.classes]).encode())
        parts |= {"images": seeds.hash, "images' names": names}
    if device:
        parts |= {"device": device, "hardcase": VERSION, "torch": metadata.version("torch")}
    return parts


def run_digest(record: Mapping[str, Any]) -> str:
    """The identity of a run's run, by which its verdicts know it."""
    identity = Identity.from_json(record.get("identity"))
    return identity.digest if identity else ""


def stored_identity(record: Mapping[str, Any]) -> Identity | None:
    """Return every ingredient that a run has stored, those of its search among them; None if it
    stored none.
    """
    first = Identity.from_json(record.get("identity"))
    search = (record.get("phases") or {}).get("search") or {}
    then = Identity.from_json(search.get("identity"))
    if first is None or then is None:
        return first
    return Identity({**first.parts, **then.parts})


def judge_identity(judge: Any, entry: Mapping[str, Any]) -> Identity:
    """The identity of a judge, of which run.json says `entry`; it belongs to the verdicts."""
    facts = ("data", "members", "rules", "calibration", "encoders")
    kind = judge if inspect.isroutine(judge) else type(judge)
    foreign = kind.__module__.partition(".")[0] != "hardcase"
    return Identity(
        {
            "judge": str(entry.get("name", NONE)),
            "judge's weights": str(entry.get("weights", NONE)),
            "judge's source": short(_source(kind).encode()) if foreign else NONE,
            **{
                f"judge's {name}": short(
                    json.dumps(entry.get(name), sort_keys=True, default=str).encode()
                )
                for name in facts
            },
            "hardcase": VERSION,
            "torch": metadata.version("torch"),
        }
    )


def require_same(
    then: Identity | None, now: Identity, *, but: Iterable[str] = (), fix: str = "a new --out"
) -> None:
    """Raise the problem that names every ingredient that differs, if any was stored."""
    changed = then.differences(now, but=but) if then else []
    if changed:
        be = {1: "is not the one"}.get(len(changed), "are not those")
        raise Refused(
            f"the {', the '.join(changed)} {be} this run began with.",
            "Failures of two different runs would be mixed.",
            fix=fix,
        )


# --- source text


def _class_sources(model: Model) -> str:
    """A digest of the source of a network's user-defined classes; torch's and ours are
    versioned."""
    inner: Any = model
    while not isinstance(inner, Subject):
        if not hasattr(inner, "model"):
            return NONE
        inner = inner.model
    kinds = {type(module) for module in inner.net.modules()}
    user_classes = [k for k in kinds if k.__module__.partition(".")[0] not in ("torch", "hardcase")]
    texts = "\0".join(sorted(filter(None, map(_source, user_classes))))
    return short(texts.encode()) if texts else NONE


def _source(kind: Any) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError, SyntaxError, IndexError):
        return ""  # typed at a prompt, or of a file that is digested by its name


def short(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]


def digest_of(facts: Any) -> str:
    """Return a digest of facts that JSON can hold."""
    return short(json.dumps(facts, sort_keys=True, default=str).encode())


def _scalars(value: Any, depth: int, name: str = "") -> Iterator[tuple[str, str]]:
    """Numbers and words in a tree of dataclasses, by their place in it; no tensors."""
    if isinstance(value, str | int | float | bool):
        yield name, str(value)
    elif is_dataclass(value) and not isinstance(value, type) and depth:
        yield f"{name} is", type(value).__name__
        for field in fields(value):
            if not field.name.startswith("_") and field.name != "details":
                inner = getattr(value, field.name, None)
                yield from _scalars(inner, depth - 1, f"{name}.{field.name}".strip("."))
    elif isinstance(value, tuple | list) and len(value) <= 64 and depth:
        for i, item in enumerate(value):
            yield from _scalars(item, depth - 1, f"{name}.{i}")
    elif value is not None and not isinstance(value, torch.Tensor):
        yield f"{name} is", type(value).__name__


# --- consent
# A run folder grants no rights: whatever its files name (code, pickles, addresses, paths) is only
# used if the same was started from this account before, or the user says ``--trust``.

_CODE = re.compile(r"\.py(?!\w)")
_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_HUB = re.compile(r"(hf|timm|torchvision):")


class _Right(NamedTuple):
    """What a setting would do with the user's rights, and a digest of what would be run."""

    what: str
    content: str = ""
    role: str = ""

    def __str__(self) -> str:
        role = f" (as {self.role})" * bool(self.role)
        return one_line(f"{self.what}{role}")


def rights(values: Mapping[str, Any]) -> list[_Right]:
    """What these settings would execute, unpickle, write or talk to; nothing of it is done here.

    Example:
        >>> [str(right) for right in rights({"model": "zoo:lenet5", "cluster": "ray://host:1"})]
        ['send code to the cluster ray://host:1']
    """
    named: list[tuple[str, str | Path]] = [*_code(values)]
    loaders = metadata.entry_points(group="hardcase.loader").names
    for key, value in _leaves(values):
        text = str(value)
        weights, _, rest = text.rpartition("@")
        executable = not weights and Path(rest).suffix in WHOLE
        if executable or (weights and values.get("trust_pickle")):
            named.append((key, _place(weights or rest)))
        if _ADDRESS.match(text):
            named.append((key, text))
        elif _HUB.match(rest) or rest.partition(":")[0] in loaders:
            named.append((key, rest))
    needed = [_right_to(thing)._replace(role=key) for key, thing in named]
    cluster = str(values.get("cluster") or "auto")
    if cluster != "auto" and not cluster.startswith("local"):
        needed.append(_Right(f"send code to the cluster {cluster}"))
    return list(dict.fromkeys(needed))


def _right_to(thing: str | Path) -> _Right:
    """The right to run a file that can hold code, to talk to an address or a hub, or to fetch a
    network by its name (``fetch:NAME``).
    """
    if isinstance(thing, Path):
        path = thing.expanduser().absolute()
        verb = "run the Python file {}" if path.suffix == ".py" else "load {}, which can run code"
        return _Right(verb.format(path), _content(path))
    if thing.startswith("fetch:"):
        return _Right(f"fetch {thing[6:]}")
    if _ADDRESS.match(thing):
        return _Right(f"send images to {thing}")
    if _HUB.match(thing):
        return _Right(f"ask the hub for {thing}")
    return _Right(f"load {thing}, which can run code")


def code_digests(values: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the source text that settings name, by their role."""
    found: dict[str, list[str]] = {}
    for key, path in _code(values):
        found.setdefault(f"{key} source", []).append(_content(path))
    return {name: "+".join(digests) for name, digests in found.items()}


def same_source(
    record: Mapping[str, Any], config: Any, uses: tuple[str, ...] | None = None
) -> None:
    """Refuse source text of a configuration (of the settings that a verb `uses`) that differs from
    the run's, before any of it runs.
    """
    then = stored_identity(record)
    values = config.model_dump()
    now = code_digests({key: value for key, value in values.items() if uses is None or key in uses})
    if then is not None:  # what a later phase names is stored when that phase begins
        present = Identity({name: one for name, one in now.items() if name in then.parts})
        require_same(then.only(present.parts), present, fix=ANOTHER)


def remember(values: Mapping[str, Any]) -> None:
    """Record that this user started these settings, which were named on the command line."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(HardcaseError, OSError):  # without a cache, going on asks again
        for right in (*rights(values), *_fetching([str(values.get("data"))])):
            path = _record(right)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(0o700)
            entry = {"allowed": now, "right": right.what}
            write_atomically(path, json.dumps(entry, indent=1).encode(), flush=False)


def require(values: Mapping[str, Any], folder: Path, *, trusted: bool = False) -> None:
    """Raise, saying what would be done, unless the user allowed it: before, or now by
    ``--trust``.
    """
    wanted = [right for right in rights(values) if not _allowed(right)]
    if wanted and not trusted:
        raise _not_allowed(f"{folder} was not started from this account as it is now", wanted)
    if wanted:
        remember(values)


def consent_of(words: Sequence[str]) -> Callable[[str | Path], None]:
    """A check that raises unless the user has named a file or an address on the command line
    (`words`), or has allowed it before; `errors.require_consent` calls it, whatever the origin of
    the name.
    """
    words_given = [*words, *(word.partition("=")[2] for word in words)]
    stated = (*rights({"words": words_given, "trust_pickle": True}), *_fetching(words_given))
    named = {right.what for right in stated}

    def leave(thing: str | Path) -> None:
        right = _right_to(thing)
        if right.what not in named and not _allowed(right):
            raise _not_allowed("a run folder names what this account has not allowed", [right])

    return leave


def _fetching(words: Iterable[str]) -> list[_Right]:
    """The right to fetch data sets that are named by single words."""
    return [_right_to(f"fetch:{word}") for word in words if re.fullmatch(r"[\w.-]+", word)]


def _allowed(right: _Right) -> bool:
    """Whether this account has allowed it; a record that others can write says nothing."""
    path = _record(right)
    try:
        record, folder = os.lstat(path), os.lstat(path.parent)
    except OSError:
        return False
    owned = not hasattr(os, "getuid") or {record.st_uid, folder.st_uid} == {os.getuid()}
    return owned and stat.S_ISREG(record.st_mode) and not folder.st_mode & 0o022


def _not_allowed(what: str, wanted: Sequence[_Right]) -> HardcaseError:
    return HardcaseError(
        f"{what}, and going on would",
        *(f"- {right}" for right in wanted),
        "A run folder of others can hold anything.",
        fix="--trust, if you trust whoever made it and have read what it names",
    )


def _record(right: _Right) -> Path:
    """Where it is written that the user has allowed this, with this content."""
    name = short(f"{right.what}\0{right.content}".encode())
    return cache_folder() / "consent" / f"{name}.json"


def _code(values: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """The Python files that settings name, wherever in them."""
    for key, value in _leaves(values):
        for piece in dict.fromkeys([str(value), *str(value).split(",")]):
            named = _CODE.search(piece.rpartition("@")[2])
            if named:
                yield key, _place(piece.rpartition("@")[2][: named.end()].strip())


def _place(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:  # the home of nobody
        return Path(text).absolute()


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """What stands in a tree of settings, by its place; a name stands for its section."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            place = f"{key}.{name}".strip(".")
            yield from _leaves(inner, place.removesuffix(".name"))
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value, 1):
            yield from _leaves(inner, f"{key} {i}".strip())
    elif value is not None:
        yield key, value


def _content(path: Path) -> str:
    """A digest of a file, and of the modules that it imports if it is Python's."""
    files = [path]
    if path.suffix == ".py":
        files = source_files(path)
    with suppress(OSError, ValueError):
        if path.is_file():
            return short(b"\0".join(file.read_bytes() for file in files))
    return NONE
