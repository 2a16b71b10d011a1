"""The live view: a run is followed while it is written, judged as it grows, and shown in a terminal or on a page."""
