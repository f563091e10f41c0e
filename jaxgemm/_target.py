"""The GPU that a program is lowered for."""

import functools

import jax

from jaxgemm._native import _core

# The oldest GPU that any kernel runs on.
OLDEST_SM = min(kernel.min_sm for kernel in _core.kernels())

# Without a GPU at hand (export, cross-lowering) the choice of a kernel must hold on every supported GPU: what sm_86 can
# run, all can, the older sm_80 too, which gives a CTA more shared memory (cuda/registry.cc, max_smem_bytes()).
PORTABLE_SM = 86


@functools.cache
def attached_gpu() -> tuple[int, str] | None:
    """(compute capability times ten, name) of the attached CUDA GPU with the lowest one; None without a GPU."""
    try:
        devices = jax.devices("cuda")
    except RuntimeError:
        return None
    gpus = []
    for device in devices:
        major, minor = str(device.compute_capability).split(".")
        gpus.append((10 * int(major) + int(minor), str(device.device_kind)))
    return min(gpus)


def target_sm() -> int:
    """Compute capability times ten to choose kernels for.

    Raises:
      RuntimeError: the attached GPU is older than any kernel supports.
    """
    gpu = attached_gpu()
    if gpu is None:
        return PORTABLE_SM
    sm, name = gpu
    if sm < OLDEST_SM:
        raise RuntimeError(
            f"jaxgemm needs a GPU of compute capability {OLDEST_SM / 10} or newer, {name} has {sm / 10}: "
            "use jnp.matmul on this machine"
        )
    return sm


def device_kind(sm: int) -> str | None:
    """Name of the attached GPU that kernels are chosen for; None if there is none, or not one of ``sm`` / 10."""
    gpu = attached_gpu()
    return gpu[1] if gpu is not None and gpu[0] == sm else None
