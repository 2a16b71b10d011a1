"""The settings: one frozen dataclass, from keywords, a dict or a TOML file; a misspelled key is an error.

>>> Settings.load({"preset": "paper"}).preset
'paper'
>>> Settings.load({"presett": "paper"})
Traceback (most recent call last):
...
torchdoctor.errors.SettingsError: unknown setting 'presett'. Did you mean 'preset'?
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from torchdoctor.errors import SettingsError, did_you_mean
from torchdoctor.records import SEVERITIES, Severity

CHOICES = {
    "preset": ("default", "paper"),
    "rule": ("either", "fixed", "adaptive"),
    "sinks_from": SEVERITIES,
}


JUDGING = ("preset", "rule", "select", "ignore", "thresholds")
"""The settings that affect which findings are made."""


@dataclass(frozen=True)
class Settings:
    """How a run is watched and judged."""

    preset: str = "default"
    """"default": scale-independent, and silent on healthy runs; "paper": the fixed and adaptive rules of the paper."""
    rule: str = "either"
    """Which rules of the preset "paper" are used: "either", "fixed" or "adaptive"."""
    overhead: float = 0.01
    """Share of training time that expensive measurements may take; they are sampled less often to stay within it."""
    sample_every: int = 50
    """Steps between two samples of the per-tensor vitals (norms of gradients, weights and updates)."""
    curvature: float = 0.0
    """Share of training time that may be spent on measuring the curvature of the loss along a step; 0 turns it off.
    Each measurement takes about as long as two steps, needs memory for four copies of the weights meanwhile, and needs
    `loss_fn`. 0.02 means one measurement every 125 steps. The training itself stays bit-identical."""
    report_every: int | None = None
    """Validations per phase report; 0: no phase reports; None: 3 with the preset "paper", else 0."""
    select: tuple[str, ...] = ()
    """Look only for these findings, given by name, code or letters of the code; empty: all findings."""
    ignore: tuple[str, ...] = ()
    """Do not look for these findings, given in the same way."""
    quiet: bool = False
    """Do not log findings as they are made."""
    sinks: tuple[str, ...] = field(default=(), repr=False)  # an address may contain a secret
    """Where to send the findings of a live run: "tensorboard:runs/exp", "slack:$SLACK_URL", "wandb" and so on."""
    sinks_from: Severity = "warning"
    """The lowest severity that is sent there: "info", "warning" or "critical"."""
    thresholds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Changed thresholds by finding: {"gradient-explosion": {"ratio": 20}}."""
    origin: ClassVar[str] = ""
    """The file that they were read from, for error messages; forgotten by `dataclasses.replace`."""

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise SettingsError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
        _check_number("overhead", self.overhead, 0, 1)
        _check_number("curvature", self.curvature, 0, 1)
        _check_whole("sample_every", self.sample_every, 1)
        if self.report_every is not None:
            _check_whole("report_every", self.report_every, 0)
        if not isinstance(self.quiet, bool):
            raise SettingsError(f"quiet must be true or false, not {self.quiet!r}.")
        for name in ("select", "ignore", "sinks"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        _check_thresholds(self.thresholds)

    @classmethod
    def load(cls, given: Settings | Mapping[str, Any] | str | Path | None = None) -> Settings:
        """Settings from a `Settings`, a dict or a TOML file; for None, from the nearest configuration file, if any."""
        if isinstance(given, Settings):
            return given
        if given is None:
            nearest = _nearest()
            return cls() if nearest is None else cls.load(nearest)
        if isinstance(given, str | Path):
            found = cls._from(_read_toml(Path(given)), f" in {given}")
            object.__setattr__(found, "origin", str(given))
            return found
        if isinstance(given, Mapping):
            return cls._from(given)
        raise SettingsError(
            f"settings must be a Settings, a dict or the path of a TOML file, not {type(given).__name__}."
        )

    def judging(self) -> dict[str, Any]:
        """The non-default settings that affect which findings are made, as plain data for the journal.

        >>> Settings(preset="paper", ignore=("loss-plateau",), quiet=True).judging()
        {'preset': 'paper', 'ignore': ['loss-plateau']}
        """
        plain = Settings()
        changed = {name: getattr(self, name) for name in JUDGING if getattr(self, name) != getattr(plain, name)}
        return {name: list(value) if isinstance(value, tuple) else _plain(value) for name, value in changed.items()}

    @classmethod
    def _from(cls, values: Mapping[str, Any], origin: str = "") -> Settings:
        known = {item.name for item in fields(cls)}
        for key in values:
            if key not in known:
                raise SettingsError(f"unknown setting {key!r}{origin}. {did_you_mean(str(key), known)}")
        try:
            return cls(**values)
        except SettingsError as error:
            if origin:
                raise SettingsError(f"{str(error).removesuffix('.')}{origin}.") from error
            raise


def _plain(value: Any) -> Any:
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _names(setting: str, given: object) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(item, str) for item in names):
        raise SettingsError(f"{setting} must be a list of names, not {type(given).__name__}.")
    return tuple(names)


def _check_thresholds(given: object) -> None:
    if not isinstance(given, Mapping) or not all(isinstance(item, Mapping) for item in given.values()):
        raise SettingsError(
            "thresholds must map findings to their thresholds, "
            f"as in {{'gradient-explosion': {{'ratio': 20}}}}, not {given!r}."
        )


def _check_whole(name: str, value: object, low: int) -> None:
    _check_number(name, value, low, 1_000_000)
    if not isinstance(value, int):
        raise SettingsError(f"{name} must be a whole number, not {value!r}.")


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise SettingsError(f"{name} must be a number from {low} to {high}, not {value!r}.")


def _read_toml(path: Path) -> Mapping[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}.") from error
    if path.name != "pyproject.toml":
        return content
    tools = content.get("tool", {})
    table = tools.get("torchdoctor", {}) if isinstance(tools, Mapping) else {}
    if not isinstance(table, Mapping):
        raise SettingsError(f"tool.torchdoctor in {path} must be a table of settings, not {table!r}.")
    return table


def _nearest() -> Path | None:
    """The nearest torchdoctor.toml, or pyproject.toml with [tool.torchdoctor], in the current folder or a parent."""
    try:
        folders = [Path.cwd(), *Path.cwd().parents]
    except OSError:  # the current folder was deleted
        return None
    for folder in folders:
        project = folder / "pyproject.toml"
        try:
            if (folder / "torchdoctor.toml").is_file():
                return folder / "torchdoctor.toml"
            if project.is_file() and "[tool.torchdoctor" in project.read_text(encoding="utf-8"):
                return project
        except (OSError, UnicodeDecodeError):
            continue
    return None
