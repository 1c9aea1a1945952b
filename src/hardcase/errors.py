"""One error for everything a user can put right: what happened, why it matters, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hardcase.environment import redact, sanitize

FAILED = 1
USAGE = 2
INTERNAL = 3
CANNOT_TELL = 4
NO_SEEDS = 5
INTERRUPTED = 130
UNREAD = 141


class Problem(Exception):  # noqa: N818 - the word users read
    """A failure with a remedy. `str()` gives the form every front end prints after ``error:``.

    Args:
        what: What happened.
        why: Why it matters, or what is known; one sentence each.
        fix: What to do about it.
        code: Exit status of the command line.

    Example:
        >>> import hardcase as hc
        >>> print(hc.Problem("there is no model.", fix="--model zoo:lenet5"))
        there is no model.
          try: --model zoo:lenet5
    """

    def __init__(self, what: str, *why: str, fix: str = "", code: int = USAGE) -> None:
        super().__init__(what, *why)
        self.what = what
        self.why = why
        self.fix = fix
        self.code = code

    def __str__(self) -> str:
        lines = [self.what, *(f"  {line}" for line in self.why)]
        return sanitize(redact("\n".join([*lines, f"  try: {self.fix}"] if self.fix else lines)))


@contextmanager
def reading(what: str, *why: str, fix: str = "") -> Iterator[None]:
    """Turn whatever a reader of others' files raises into a `Problem`: damaged ones raise many
    kinds.

    Example:
        >>> with reading("set.json cannot be read"):
        ...     raise ValueError("no JSON")
        Traceback (most recent call last):
        hardcase.errors.Problem: set.json cannot be read: no JSON.
    """
    try:
        yield
    except Problem:
        raise
    except Exception as error:
        said = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        raise Problem(f"{what}: {said}.", *why, fix=fix) from error


def choice(kind: str, given: str, known: list[str] | tuple[str, ...]) -> Problem:
    """The error for a name that does not exist: it lists the names that do and guesses which was
    meant.
    """
    from difflib import get_close_matches

    spelled = {name.lower(): name for name in known}
    near = get_close_matches(given.lower(), spelled, n=1)
    return Problem(
        f"there is no {kind} {given!r}.",
        f"known: {', '.join(known)}",
        fix=spelled[near[0]] if near else "",
    )
