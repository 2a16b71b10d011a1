"""The live view: follows a run while it is written, examines it, and shows it in a terminal or on a page."""
