"""Networks that make images, and how they are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.generators.adapters import (
        CachedCodes as CachedCodes,
        Coder as Coder,
        Decoder as Decoder,
        Inverted as Inverted,
        UserGenerator as UserGenerator,
        coder as coder,
    )
    from hardcase.generators.build import (
        build_generator as build_generator,
        load_generator as load_generator,
        trained_generator as trained_generator,
    )
    from hardcase.generators.gan import Gan as Gan
    from hardcase.generators.quality import fresh as fresh
    from hardcase.generators.vae import Vae as Vae
    from hardcase.generators.vqvae import VqVae as VqVae

__getattr__, __dir__, __all__ = lazy(__name__)
