"""Models that come for a check-up: many families, sound or with one thing wrong."""

from torchdoctor.clinic.candidates import broken_beginnings, broken_layers, broken_training  # noqa: F401  they register
from torchdoctor.clinic.candidates.breaking import BROKEN
from torchdoctor.clinic.candidates.candidate import Candidate, Visit
from torchdoctor.clinic.candidates.sound import SOUND

CANDIDATES: dict[str, Candidate] = {item.slug: item for item in (*BROKEN, *SOUND)}

__all__ = ["BROKEN", "CANDIDATES", "SOUND", "Candidate", "Visit"]
