"""Parquet tables, read with pyarrow (extra ``parquet``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchdoctor.errors import SourceError
from torchdoctor.sources.logged import Logged, Wish
from torchdoctor.sources.several import runs_of
from torchdoctor.sources.table import VALUES_LIMIT, Table

MAGIC = b"PAR1"
ROWS_LIMIT = 20_000_000


def recognises(path: Path) -> bool:
    """Whether the file begins like a Parquet file."""
    with path.open("rb") as file:
        return file.read(4) == MAGIC


def read(path: Path, wish: Wish | None = None) -> list[Logged]:
    """The run in a Parquet file: its numeric columns."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise SourceError(
            f"{path} is a Parquet file, and reading it needs pyarrow: pip install 'torchdoctor[parquet]'."
        ) from None
    table = Table()
    try:
        with pq.ParquetFile(path) as file:
            numeric = [
                field.name
                for field in file.schema_arrow
                if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
            ]
            if file.metadata.num_rows > ROWS_LIMIT or file.metadata.num_rows * len(numeric) > VALUES_LIMIT * 4:
                raise SourceError(f"{path} has {file.metadata.num_rows:,} rows, which is too many to read.")
            for batch in file.iter_batches(columns=numeric):
                rows = np.arange(table.rows, table.rows + batch.num_rows)
                for name, cells in zip(batch.schema.names, batch.columns, strict=True):
                    there = ~cells.is_null().to_numpy(zero_copy_only=False)
                    values = cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
                    table.extend(name, rows[there], values[there])
                table.rows += batch.num_rows
    except (pa.ArrowException, OSError, MemoryError) as error:
        said = next(iter(str(error).splitlines()), type(error).__name__)[:200].rstrip(". ")
        raise SourceError(f"{path} is a damaged Parquet file: {said}.") from error
    table.blank = range(table.rows)
    parts = runs_of(table, wish.mapping.values() if wish is not None else ())
    return [part.logged(path, "Parquet", wish, name=name) for name, part in parts]
