"""Benchmarks: one shape list, one driver, results per device and what is rendered from them."""
