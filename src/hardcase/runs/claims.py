"""The claims of a stored run: of its seeds as they were given, of its findings where they moved."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hardcase.campaign.claims import CLAIM_KINDS, Claims
from hardcase.data.streams import ImageSet
from hardcase.errors import Problem
from hardcase.runs.folder import Store
from hardcase.runs.verify import CLAIMS, keep_beside, read_beside
from hardcase.spaces.appearance import Appearance
from hardcase.tensors import decode, encode_all

if TYPE_CHECKING:
    from hardcase.runs.results import Run


def keep_claims(store: Store, images: ImageSet) -> None:
    """Store what is claimed of the seeds of a run, unless it is there."""
    whole = images.images()
    claims = Claims.of(whole)
    if claims is None or read_beside(store, CLAIMS) is not None:
        return
    stored: dict[str, Any] = {}
    boxes = zip(whole.id, claims.kind.tolist(), claims.box.tolist())
    stored["claims"] = {
        name: " ".join([CLAIM_KINDS[kind], *(f"{side:.9g}" for side in box)])
        for name, kind, box in boxes
    }
    if claims.mask.shape[1]:
        masks = encode_all(claims.mask[:, None] * 255)
        stored["masks"] = {
            name: base64.b64encode(mask).decode() for name, mask in zip(whole.id, masks)
        }
    keep_beside(store, CLAIMS, stored)


def seed_claims(run: Run) -> Claims | None:
    """What is claimed of every seed of a run, in their order; None where they are classified."""
    if not run.record.get("claims"):
        return None
    stored = read_beside(run.store, CLAIMS) or {}
    names = run.seeds["id"].to_pylist()
    try:
        rows = [_claim(stored["claims"][name]) for name in names]
        masks = torch.zeros(len(names), 0, 0, dtype=torch.uint8)
        if stored.get("masks"):
            masks = torch.stack([_mask(stored["masks"], name) for name in names])
    except (LookupError, TypeError, ValueError, RuntimeError, Problem) as error:
        raise Problem(
            f"{run.folder} does not say what its seeds claim: {CLAIMS} is damaged or missing.",
            fix=f"hardcase resume {run.folder}, which writes it anew",
        ) from error
    kind = torch.tensor([row[0] for row in rows])
    label = torch.from_numpy(run.seeds["label"].to_numpy().copy()).long()
    box = torch.tensor([row[1] for row in rows])
    return Claims(kind, label, box, masks, torch.ones_like(kind, dtype=torch.bool))


def _claim(text: str) -> tuple[int, list[float]]:
    kind, *sides = text.split(" ")
    box = [float(side) for side in sides]
    if len(box) != 4:
        raise ValueError(text)
    return CLAIM_KINDS.index(kind), box


def _mask(masks: Mapping[str, str], name: str) -> Tensor:
    return (decode(base64.b64decode(masks[name]))[0] > 0).byte()


def finding_claims(run: Run) -> Claims | None:
    """What is claimed of every finding: the claim of its seed, where the image moved it."""
    claims = seed_claims(run)
    if claims is None:
        return None
    rows = torch.tensor([run.seed_rows[name] for name in run.findings["seed"].to_pylist()]).long()
    unmoved = claims.take(rows)
    code = run.codes()
    if code is None or not len(rows):
        return unmoved
    space = Appearance.from_record(run.record["space"])
    places = space.places(code)
    if places is None:
        return unmoved
    return unmoved.moved(places)
