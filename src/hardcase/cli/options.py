"""What verbs share: the flags they take, how file, flags and ``--set`` become a single
configuration, and how results are printed: they go to standard output, everything else to standard
error.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_type_hints

import typer

from hardcase.environment import Redacting, redact, sanitize

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hardcase.config import Config
    from hardcase.runs.results import Run


class ProgressStyle(StrEnum):
    auto = "auto"
    live = "live"
    plain = "plain"
    none = "none"


class Format(StrEnum):
    text = "text"
    json = "json"


class Split(StrEnum):
    train = "train"
    test = "test"


class Row(NamedTuple):
    """The help of a flag, the name of its value, further names, and the least number that it
    takes."""

    help: str
    metavar: str | None = None
    names: tuple[str, ...] = ()
    least: int | None = None

    def option(self, panel: str | None = None) -> Any:
        """The flag for typer; `takes` gives it its name."""
        return typer.Option(
            *self.names,
            metavar=self.metavar,
            help=self.help,
            rich_help_panel=panel,
            min=self.least,
        )


PANELS: Mapping[str, Mapping[str, Row]] = {
    "": {
        "model": Row("zoo:NAME, file.py:factory, weights@file.py:factory, timm:NAME ..."),
        "data": Row("mnist5k, mnist, fashion, cifar10, folder:PATH, npz:PATH, parquet:PATH ..."),
        "method": Row("See: hardcase list methods; by default natural. none: measure alone."),
    },
    "Campaign": {
        "task": Row("What the model answers: classes, tags, boxes or masks.", "TASK"),
        "claims": Row("absent: also claim of each image that a class is not in it.", "WHICH"),
        "images": Row("Images to search from; 60.", "N"),
        "split": Row("Which split the images come from."),
        "seed": Row("Random seed.", "N"),
        "peer": Row("Another model to compare with. Repeatable.", "MODEL"),
        "judge_features": Row("Network whose features judge the failures. Repeatable.", "MODEL"),
        "witness": Row("A network that must keep the label. Repeatable.", "MODEL|default|none"),
        "baseline": Row("A baseline model: compared on the same samples.", "MODEL|RUN"),
        "map": Row("Fill a map of two or three features with failures.", "A,B[:CELLS]"),
        "generator": Row("Generator whose latent space is searched.", "KIND[:NAME|PATH]"),
        "target": Row("Targeted search: only this predicted class counts as a failure.", "CLASS"),
        "criterion": Row("Coverage criterion that guides the search or is measured.", "NAME[:k=v]"),
        "criteria": Row("Report coverage of the images alone and with the failures.", "A,B:k=v"),
        "conditions": Row("What the model must stand: a profile or a file.", "NAME|FILE|none"),
        "limits": Row("A file whose [limits] replace those of hardcase.toml.", "FILE.toml"),
        "samples": Row("Random samples of the conditions per image; 4.", "N", least=1),
        "measure": Row(
            "Images that are measured; as many as a minute is enough for.",
            "all|N",
        ),
        "oracle": Row("label, disagreement, non-finite, any, regression.", "KIND"),
        "keep": Row("first, best, best-per-label, all, or so many failures per image.", "WHICH"),
        "settings": Row("Any setting, e.g. method.population=30", "KEY=VALUE", ("--set",)),
        "allow_low_accuracy": Row("Accept a model near chance, or a generator that loses labels."),
        "trust_pickle": Row("Load weights that need unpickling, which can run code."),
        "trust": Row("Allow what the run folder names: code, pickles, paths, addresses."),
        "dry_run": Row("Check everything, estimate time and memory, search nothing."),
        "allow_changes": Row("Go on although ingredients have changed: into a new folder."),
    },
    "Budget": {
        "queries": Row("Query budget per image.", "N"),
        "gradients": Row("Gradient budget per image.", "N"),
        "total_queries": Row("Total query budget, divided over the images.", "N"),
        "total_gradients": Row("Total gradient budget, divided over the images.", "N"),
        "findings": Row("Stop at the end of the round that reaches this many failures.", "N"),
        "time": Row("Stop after the step in which the time is up.", "10m"),
    },
    "Hardware": {
        "device": Row("auto (a GPU where there is one), cpu, cuda, cuda:1, mps."),
        "precision": Row("Arithmetic on a GPU: strict, tf32 or bf16. Failures are strict.", "KIND"),
        "batch_size": Row("Images in one call of a network. Changes no result.", "N|auto"),
        "workers": Row("Worker processes. Changes no result.", "N"),
        "cluster": Row("auto, ray://... or local:2.", "WHERE"),
        "offline": Row("Use no network."),
    },
    "Output": {
        "out": Row("Where to write.", "DIR"),
        "show": Row("Open the page in the browser.", names=("--open",)),
        "progress": Row("live needs a terminal; plain is a line every 30 s."),
        "format": Row("json: the result alone on standard output."),
        "quiet": Row("Print only the result.", names=("-q", "--quiet")),
        "verbose": Row("Print more; tracebacks of internal errors.", names=("-v", "--verbose")),
    },
}
"""The shared flags, by the heading under which ``--help`` shows them."""


def shared(name: str) -> Any:
    """A flag of `PANELS`; the configuration file is an argument."""
    if name == "config":
        text = "A TOML file; hardcase.toml of this folder if there is one. Flags override it."
        return typer.Argument(metavar="CONFIG", help=text)
    panel, row = next((panel, rows[name]) for panel, rows in PANELS.items() if name in rows)
    return row.option(panel or None)


AsFormat = Annotated[
    Format, typer.Option("--format", help="json: the result alone on standard output.")
]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")]
OneRun = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


def require_folders(*folders: Path) -> None:
    """Tell of folders that do not exist, before anything is imported to read them."""
    from hardcase.errors import HardcaseError

    for folder in folders:
        if folder.exists():
            continue
        fix = "the folder given to --out"
        runs = sorted(Path("runs").glob("*/run.json"), key=lambda path: path.stat().st_mtime)
        if runs:
            fix = shown(runs[-1].parent)
        raise HardcaseError(f"{folder} is not a run folder: it does not exist.", fix=fix)


@dataclass(frozen=True, kw_only=True)
class CampaignFlags:
    """The flags of a campaign; each sets the key of the configuration with its name."""

    config: Path | None = None
    model: str | None = None
    data: str | None = None
    method: str | None = None
    task: str | None = None
    claims: str | None = None
    images: int | None = None
    split: Split | None = None
    seed: int | None = None
    peer: list[str] | None = None
    judge_features: list[str] | None = None
    witness: list[str] | None = None
    baseline: list[str] | None = None
    map: str | None = None
    generator: str | None = None
    target: str | None = None
    criterion: str | None = None
    criteria: str | None = None
    conditions: str | None = None
    limits: Path | None = None
    samples: int | None = None
    measure: str | None = None
    oracle: str | None = None
    keep: str | None = None
    settings: list[str] | None = None
    allow_low_accuracy: bool = False
    trust_pickle: bool = False
    queries: int | None = None
    gradients: int | None = None
    total_queries: int | None = None
    total_gradients: int | None = None
    findings: int | None = None
    time: str | None = None
    device: str | None = None
    precision: str | None = None
    batch_size: str | None = None
    workers: int | None = None
    cluster: str | None = None
    offline: bool = False


@dataclass(frozen=True, kw_only=True)
class Flags(CampaignFlags):
    """The flags that verbs share; a flag that the verb does not have keeps its default."""

    trust: bool = False
    dry_run: bool = False
    allow_changes: bool = False
    out: Path | None = None
    show: bool = False
    progress: ProgressStyle = ProgressStyle.auto
    format: Format = Format.text
    quiet: bool = False
    verbose: bool = False

    @property
    def json(self) -> bool:
        """Whether the result is printed as JSON."""
        return self.format == Format.json

    @property
    def place(self) -> str:
        """The requested device, if it exists; by default a GPU if available."""
        from hardcase.tensors import usable_device

        return usable_device(self.device or "auto")

    @property
    def log(self) -> Callable[[str], None]:
        """Where notes about the result go: to standard error, or nowhere with ``-q``."""
        return (lambda text: None) if self.quiet else note


SAYS = ("format", "quiet", "verbose")
FOREIGN = ("trust", "allow_changes")
WATCHED = ("progress", *SAYS)
CAMPAIGN = tuple(field.name for field in fields(CampaignFlags))
"""Groups of flags for `takes`."""

Verb = Callable[..., None]


def takes(*names: str, first: Sequence[str] = (), **own: Row) -> Callable[[Verb], Any]:
    """Add to a verb the shared flags `names`, which reach it as its parameter `flags`, and
    its `own` flags. With `first`, ``--help`` shows those and ``--help-all`` the rest."""

    def decorate(verb: Verb) -> Callable[..., Callable[[], None]]:
        parameters = []
        for parameter in signature(verb, eval_str=True).parameters.values():
            hint = parameter.annotation
            if parameter.name in own:
                hint = _flag(parameter.name, Annotated[hint, own[parameter.name].option()])
            if parameter.name != "flags":
                parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hint))
        named = signature(verb, eval_str=True).parameters.items()
        folders = [name for name, parameter in named if parameter.annotation in (OneRun, Runs)]
        kinds = get_type_hints(Flags)
        for name in names:
            hint = Annotated[kinds[name], shared(name)]
            hint = _flag(name, hint, hidden=bool(first) and name not in first)
            parameters.append(
                Parameter(
                    name, Parameter.KEYWORD_ONLY, default=getattr(Flags, name), annotation=hint
                )
            )
        if first:
            parameters.append(_HELP_ALL)

        @wraps(verb)
        def called(**given: Any) -> Callable[[], None]:
            """What the command line then does."""
            given.pop(_HELP_ALL.name, None)
            for name in folders:
                value = given[name]
                require_folders(*(value if isinstance(value, list) else [value]))
            flags = Flags(**{name: given.pop(name) for name in names})
            if "verbose" in names:
                logging_to(verbose=flags.verbose, quiet=flags.quiet)
            return partial(verb, **given, flags=flags)

        # typer reads these two attributes, which functions do not declare
        called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        return called

    return decorate


def _flag(name: str, hint: Any, *, hidden: bool = False) -> Any:
    """A type with its option, under the name of the field or parameter; `hidden` from
    ``--help``."""
    kind, option = get_args(hint)
    option.hidden = option.hidden or hidden
    # typer keeps the first name of an option as its default
    if isinstance(option, typer.models.OptionInfo) and not isinstance(option.default, str):
        option.param_decls = (f"--{name.replace('_', '-')}",)
    return Annotated[kind, option]


def _show_all(context: Any, asked: bool) -> bool:
    """Print the help with all flags, those that ``--help`` leaves out too."""
    if asked:
        for parameter in context.command.params:
            parameter.hidden = False
        typer.echo(context.get_help())
        raise typer.Exit
    return asked


_HELP_ALL = Parameter(
    "help_all",
    Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--help-all",
            is_eager=True,
            callback=_show_all,
            help="Show all flags; every key for --set is in docs/reference/configuration.md.",
        ),
    ],
)


class Notes(logging.Handler):
    """Writes what is logged as a note, so that it stands above a screen instead of within it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            note(self.format(record))
        except Exception:  # whatever it is, it must not end the command
            self.handleError(record)


def logging_to(*, verbose: bool, quiet: bool) -> None:
    """Show what the library logs: everything with ``-v``, only errors with ``-q``."""
    level = logging.ERROR if quiet else logging.WARNING
    handler = Notes()
    handler.setFormatter(Redacting("note: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    if not verbose:
        logging.getLogger("py.warnings").setLevel(logging.ERROR)


PROJECT = Path("hardcase.toml")
_KEYS = {"peer": "peers", "witness": "witnesses"}
"""Flags that may be repeated have the singular as their name; all others the key that they set."""


def resolve(
    flags: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
    *,
    choose: Callable[[str], None] | None = None,
) -> Config:
    """The configuration that these flags (a command's parameters by name) ask for.

    They override ``--limits``, which overrides the named file and `defaults`. If the user names
    no method and `choose` is set, the method is chosen by what the model offers, and `choose`
    receives its name and the reason.
    """
    from hardcase.config import chosen_method
    from hardcase.request import Request, flag_values, typed_settings

    file = _file(flags.get("config"))
    request = Request().ask(defaults or {}, "default").ask(file, "hardcase.toml")
    method = flags.get("method")
    if method is not None and method != _method(file):  # options belong to the method of the file
        request.forget("method")
    if flags.get("limits") is not None:
        request.ask(_limits(flags["limits"]), "--limits", f"--limits {flags['limits']}")
    for flag, value in flags.items():
        if value is None or value is False or value == [] or flag == "limits":  # 0 was given
            continue
        name = _KEYS.get(flag, flag)
        request.ask(flag_values(name, value), "flag", f"--{flag.replace('_', '-')}")
    for settings in typed_settings(flags.get("settings") or []):
        request.ask(settings, "flag")
    undecided = request.asks_for("model.name") and not request.asks_for("method.name")
    if choose is not None and undecided:
        name, why = chosen_method(request.values)
        request.ask({"method": name}, "default")
        choose(why)
    return request.config(stored=file.get("given"))


def _limits(path: Path) -> dict[str, Any]:
    """What the section ``[limits]`` of a file says."""
    from hardcase.config import limits_in, read
    from hardcase.errors import HardcaseError

    values = read(path)
    limits_in(values)  # what is wrong is told with the file's own names
    if not values.get("limits"):
        raise HardcaseError(f"{path} has no limits.", fix="a section [limits] with risk = 0.1, say")
    return {"limits": values["limits"]}


def _file(named: Path | None) -> dict[str, Any]:
    from hardcase.config import read

    if named is None and PROJECT.is_file():
        logging.getLogger(__name__).warning("settings come from %s", PROJECT)
        return read(PROJECT)
    if named is None:
        return {}
    if not named.is_dir():
        return read(named)
    from hardcase.runs.folder import Store
    from hardcase.runs.identity import require

    values = Store(named).settings()
    require(values, named)  # a run folder grants no rights, also where it is run anew
    return values


def _method(values: Mapping[str, Any]) -> Any:
    method = values.get("method")
    return method.get("name") if isinstance(method, Mapping) else method


WIDE = 160
"""Columns of a table that is not shown on a terminal."""


class Silence:
    """Ends a silence of a command: `FIRST` seconds after its start without a line, or `LATER`
    seconds after a line, it says that the command is at work, then after twice as long, and so on
    up to `LONGEST`.

    While a screen or lines of progress show a run, `held` keeps it quiet.
    """

    FIRST = 3.0
    LATER = 10.0
    LONGEST = 30.0

    def __init__(self) -> None:
        self.held = False
        self.heard()

    def heard(self) -> None:
        """A line was written, which says what is done from then on."""
        self.since = monotonic()
        self.patience = self.LATER

    @contextmanager
    def ended(self, verb: str) -> Iterator[None]:
        """Watch over a command with this verb while it lasts; over none if it is empty."""
        if not verb:
            yield
            return
        self.heard()
        self.patience = self.FIRST
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(verb, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, verb: str, over: threading.Event) -> None:
        began = monotonic()
        while not over.wait(self.FIRST / 10):
            if self.held:
                self.since = monotonic()
            elif monotonic() - self.since >= self.patience:
                longer = min(2 * self.patience, self.LONGEST)
                doing = "loading PyTorch and other libraries" if _imports() else "at work"
                note(f"{clock(monotonic() - began)} {verb}: {doing}")  # which is heard
                self.patience = longer


def _imports() -> bool:
    """Whether a module is being imported."""
    specs = (getattr(module, "__spec__", None) for module in [*sys.modules.values()])
    return any(getattr(spec, "_initializing", False) for spec in specs)


silence = Silence()
"""That of this process."""


def print_line(text: str) -> None:
    """A result."""
    silence.heard()
    typer.echo(_wrapped(sanitize(redact(text)), terminal=sys.stdout.isatty()))


def note(text: str) -> None:
    """A remark on the result; above the progress display, if any."""
    silence.heard()
    clean = sanitize(redact(text))
    if _above is not None:
        _above(clean)
    else:
        typer.echo(_wrapped(clean, terminal=sys.stderr.isatty()), err=True)


_above: Callable[[str], None] | None = None


def show_above(write: Callable[[str], None] | None) -> None:
    """From now on `write` takes notes, for a screen that would be torn by other lines; None: nobody
    does.
    """
    global _above
    _above = write


_ALIGNED = re.compile(r"\s*(?:\S(?:.{0,24}?\S)?\s{2,})*")
"""What stands before the text of a line: an indent, or names and the gaps after them."""


def _wrapped(text: str, *, terminal: bool) -> str:
    """The text with its lines broken between words where a terminal would break them within."""
    if not terminal:
        return text
    width = get_terminal_size().columns
    lines = []
    for line in text.splitlines():
        if len(line) <= width:
            lines.append(line)
            continue
        head = _ALIGNED.match(line)
        hanging = " " * min(len(head[0]) if head else 0, width // 2)
        lines += wrap(
            line,
            width,
            subsequent_indent=hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


_words: list[str] = []
"""What the user has typed after ``hardcase``."""


def begin(words: Sequence[str]) -> None:
    """A command begins: it may do what its words say."""
    from hardcase.errors import set_consent_check

    _words[:] = words
    set_consent_check(None)


def guard_folder() -> None:
    """A run folder is opened: from now on this command runs no code and talks to no server but
    those that the user has named or allowed before."""
    from hardcase.errors import set_consent_check
    from hardcase.runs.identity import consent_of

    set_consent_check(consent_of(_words))


def opened(folder: Path) -> Run:
    """A stored run; first print the notes of its verification."""
    from hardcase.runs.results import Run

    guard_folder()
    run = Run(folder)
    for text in run.verification.notes:
        note(f"note: {shown(folder)}: {text}")
    return run


def answer(flags: Flags, value: Any, *parts: str | Table, quiet: str | None = None) -> None:
    """The result of a verb: `value` with ``--format json``, else lines and tables; with ``-q`` the
    line `quiet` instead, if set."""
    if flags.json:
        as_json(value)
    elif flags.quiet and quiet is not None:
        show(quiet)
    else:
        show(*parts)


def show(*parts: str | Table) -> None:
    """Lines and tables of a result."""
    for part in parts:
        if not isinstance(part, str):
            console().print(part)
        elif part:
            print_line(part)


def as_json(value: Any) -> None:
    typer.echo(redact(json.dumps(value, indent=2, ensure_ascii=False, default=str)))


def console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, markup=False, highlight=False)


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A light table; numbers lean right, the first column never breaks."""

    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title or None,
        box=SIMPLE_HEAD,
        title_justify="left",
        header_style="bold",
        pad_edge=False,
    )
    for i, name in enumerate(columns):
        numeric = bool(rows) and all(
            isinstance(row[i], int | float) or row[i] is None for row in rows
        )
        table.add_column(
            name, justify="right" if numeric else "left", no_wrap=i == 0, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    return table


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], title: str = "") -> Table:
    """A light table of columns of `rows`."""
    return grid(title, columns, [[row[name] for name in columns] for row in rows])


def facts(pairs: Mapping[str, Any]) -> str:
    """Aligned lines of ``name value``."""
    width = max(map(len, pairs), default=0)
    return "\n".join(f"{name:<{width}}  {cell(value)}" for name, value in pairs.items())


def cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return sanitize(str(value))


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def clock(seconds: float) -> str:
    """1:02:03"""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def shown(path: object) -> str:
    """A path as it can be pasted into a shell."""
    from shlex import quote

    return quote(str(path))


def rate(value: Mapping[str, Any]) -> str:
    """A rate of a JSON file with its counts and its 95 % interval: 29 of 57 = 50.9 % (38.3 to
    63.4)."""
    from hardcase.statistics import Rate

    return str(Rate.from_json(value))
