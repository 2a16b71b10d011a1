"""Reports: what was found, as text, Markdown, HTML and JSON; pure functions of a `Report`."""

from __future__ import annotations

from torchdoctor.reports.report import Report

__all__ = ["Report"]
