"""What GPUs have, from the CUDA C++ programming guide, "Technical Specifications per Compute Capability"."""

from __future__ import annotations

MAX_SMEM_BYTES = {
    sm: kib * 1024
    for sm, kib in {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}.items()
}
"""The most shared memory of one CTA, by compute capability times ten."""
