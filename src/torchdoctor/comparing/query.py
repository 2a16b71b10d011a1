"""SQL queries over the runs, findings, settings and curves of a comparison, with DuckDB."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchdoctor.comparing.comparison import Comparison
from torchdoctor.comparing.hyperparameters import Value
from torchdoctor.errors import TorchDoctorError

PLAIN = ("run", "path", "steps", "score", "loss", "best_validation", "best_step", "final", "roughness", "diverged")
RESULTS = ("reached_at", "reached_after", "area", "health", "cause", "verdict", "configuration")
TABLES = """
runs: run, path, steps, score, loss, best_validation, best_step, final, roughness, diverged, reached_at, reached_after,
area, health, cause, verdict, configuration, and a column for each setting (a setting named like another column gets a
trailing _)
findings: run, name, severity, first_step, last_step, message
curves: run, vital, step, value
"""


@dataclass(frozen=True)
class Answer:
    """The result of a query."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict per row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def query(comparison: Comparison, sql: str) -> Answer:
    """Run one query, which sees only the tables: no files, no network, no DuckDB settings."""
    try:
        import duckdb
    except ImportError as error:
        raise TorchDoctorError("--sql needs DuckDB. Install it: pip install 'torchdoctor[compare]'") from error
    with duckdb.connect(":memory:") as connection:
        _fill(connection, comparison)
        for setting in (
            "python_enable_replacements = false",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            connection.execute(f"SET {setting}")
        try:
            found = connection.execute(sql)
            columns = tuple(item[0] for item in found.description or ())
            return Answer(columns, tuple(found.fetchall()))
        except duckdb.Error as error:
            first = str(error).splitlines()[0]
            raise TorchDoctorError(f"the query failed: {first.rstrip('.!')}. The tables:\n{TABLES.strip()}") from error


def _fill(connection: Any, comparison: Comparison) -> None:
    rows = comparison.found["runs"]
    settings = [summary.settings for summary in comparison.summaries]
    columns: dict[str, list[Any]] = {name: [_null(row[name]) for row in rows] for name in (*PLAIN, *RESULTS)}
    for name in dict.fromkeys(name for item in settings for name in item):
        values = [item.get(name) for item in settings]
        unique = name
        while unique.lower() in {taken.lower() for taken in columns}:
            unique += "_"
        columns[unique] = _one_kind(values)
    _create(connection, "runs", columns)
    findings = [(row["run"], *item.values()) for row in rows for item in row["findings"]]
    names = ("run", "name", "severity", "first_step", "last_step", "message")
    _create(connection, "findings", {name: [item[place] for item in findings] for place, name in enumerate(names)})
    connection.execute("CREATE TABLE curves (run VARCHAR, vital VARCHAR, step BIGINT, value DOUBLE)")
    for summary in comparison.summaries:
        for vital, curve in summary.curves.items():
            connection.register("points", {"step": curve.steps, "value": curve.values})
            connection.execute("INSERT INTO curves SELECT ?, ?, step, value FROM points", [summary.run, vital])
            connection.unregister("points")


def _create(connection: Any, table: str, columns: Mapping[str, Sequence[Any]]) -> None:
    kinds = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE"}
    parts = []
    for name, values in columns.items():
        known = {type(value) for value in values if value is not None}
        kind = kinds[int] if known == {int} else kinds[float] if known and known <= {int, float} else "VARCHAR"
        kind = kinds[bool] if known == {bool} else kind
        parts.append(f"{_quoted(name)} {kind}")
    connection.execute(f"CREATE TABLE {table} ({', '.join(parts)})")
    rows = list(zip(*columns.values(), strict=True))
    if rows:
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""').replace("\x00", "") + '"'


def _null(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _one_kind(values: Sequence[Value]) -> list[Any]:
    """Unchanged if all values are numbers or all are flags; else as text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or kinds == {bool}:
        return list(values)
    return [None if value is None else str(value) for value in values]
