"""``python -m torchdoctor``."""

from __future__ import annotations

from torchdoctor.cli import main

if __name__ == "__main__":
    main()
