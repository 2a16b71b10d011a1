"""Measuring: gauges, the hooks and taps that feed them, and the way of their numbers to the host."""
