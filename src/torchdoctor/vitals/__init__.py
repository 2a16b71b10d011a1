"""Measurement: gauges, the hooks and taps that feed them, and the transfer of their numbers to the host."""
