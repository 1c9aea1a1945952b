"""Networks that make images, and how they are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.generators.adapters import Coder, Inverted, coder
    from hardcase.generators.build import build_generator, load_generator, trained_generator
    from hardcase.generators.gan import Gan
    from hardcase.generators.quality import fresh
    from hardcase.generators.staged import Decoder, Recalled, Supplied
    from hardcase.generators.vae import Vae
    from hardcase.generators.vqvae import VqVae

__getattr__, __dir__, __all__ = lazy(__name__)
