"""The kernels' own source on a CPU: `pytest tests/emulated` builds the emulator and needs no GPU."""
