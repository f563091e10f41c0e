"""Sums over all GPUs of a program by a kernel of jaxgemm's own, in the place of XLA's all-reduce (cuda/peers).

They are for what few tokens of a product with split K need: parts so small that the time goes into getting started. XLA
starts its all-reduce from the host, between two CUDA graphs; the kernel is part of the graph that the products are in.
"""

import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from jaxgemm import _compat, _options
from jaxgemm._native import PEER_SUM_TARGET, _core

RUN_ON = 2
"""GPUs that the kernel has added up on. Sums over more, which the emulator alone has executed, are to be asked for."""
_ANY = 1 << 30


def most_gpus() -> int:
    """Over how many GPUs at most the options that hold here leave sums to the kernel."""
    return {False: 0, True: _ANY, None: RUN_ON}[_options.current().peer_sums]


@functools.lru_cache
def _reach(ordinals: tuple[int, ...]) -> bool:
    return _core.peers_reach(list(ordinals))


def gpus(ctx: Any, axes: Collection[str], aval: Any, most: int) -> list[int] | None:
    """CUDA's numbers of the GPUs that add up parts of this shape over mesh axes, if the kernel can.

    They have to be all devices of the program: then the order in which it has them does not matter, of which a compiled
    program that is kept would tell another process nothing. And they are of this process and reach each other's memory.

    Args:
      ctx: the context of a lowering rule, of one device's program.
      axes: mesh axes to add up over.
      aval: a part.
      most: GPUs that may do so, of :func:`most_gpus`.
    """
    mesh = _compat.concrete_mesh(ctx)
    if mesh is None or mesh.size > most or not _compat.static_sizes(aval.shape) or _compat.is_export(ctx):
        return None
    if any(size > 1 and name not in axes for name, size in mesh.shape.items()):
        return None
    devices = list(mesh.devices.flat)
    client = getattr(devices[0], "client", None)  # what programs are compiled for ahead of time has none
    if client is None or not set(devices) <= set(client.local_devices()):
        return None
    ordinals = sorted(device.local_hardware_id for device in devices)
    dtype = np.dtype(aval.dtype).name
    if dtype not in _core.dtypes() or _core.why_no_peer_sum(ordinals, dtype, int(np.prod(aval.shape))):
        return None
    return ordinals if _reach(tuple(ordinals)) else None


def lower(ctx: Any, x: Any, ordinals: list[int]) -> Any:
    """The call of the kernel for :func:`gpus`."""
    return jax.ffi.ffi_lowering(PEER_SUM_TARGET)(ctx, x, devices=np.array(ordinals, np.int64))


_PLATFORM = "cuda"


@functools.cache
def register() -> None:
    """Puts our rule in the place of those that lower ``lax.psum`` for CUDA now, which it asks whenever it is not to
    act: that is where ``options(peer_sums=True)`` does not hold, and for all sums that the kernel is not made for.
    """
    for primitive in _compat.psum_primitives():
        _compat.requires_devices_during_lowering(primitive)
        own = _compat.lowering_rule(primitive, _PLATFORM)
        mlir.register_lowering(primitive, functools.partial(_lower_psum, own), platform=_PLATFORM)


def _lower_psum(own: Callable[..., Any], ctx: Any, *xs: Any, axes: Any, **params: Any) -> Any:
    whole = params.get("axis_index_groups") is None and all(isinstance(axis, str) for axis in axes)
    if _options.current().peer_sums is True and whole and len(xs) == 1:
        ordinals = gpus(ctx, axes, ctx.avals_in[0], _ANY)
        if ordinals is not None:
            return lower(ctx, xs[0], ordinals)
    return own(ctx, *xs, axes=axes, **params)
