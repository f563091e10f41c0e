"""Programs compiled by XLA for an H200, which need not be there, and what they launch.

JAX's CUDA plugin compiles for a described GPU. The description, ``h200_target_config.txtpb``, was written once on an
H200 (driver 580.159.04, CUDA 13.0, jax 0.11.2):
``jax._src.lib.xla_client.get_topology_for_devices(jax.devices()).target_config``.

Where there is no GPU, the plugin wants ``JAX_PLATFORMS=cpu``: else it looks for CUDA's libraries, of which compiling
needs none, and is not registered without them.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxgemm
from jaxgemm._native import GEMM_TARGET, MIXED_TARGET
from tests.helpers import struct

TARGET_CONFIG = Path(__file__).parent / "h200_target_config.txtpb"
OPTIONS = {"xla_gpu_autotune_level": 0}  # which would run kernels


@functools.cache
def devices(count: int) -> list[Any]:
    """So many H200 to compile for.

    Raises:
      NotImplementedError: JAX has no plugin for CUDA.
    """
    topology = topologies.get_topology_desc(
        platform="cuda", topology=f"1x1x{count}", target_config=TARGET_CONFIG.read_text()
    )
    return list(topology.devices)


@functools.cache
def can_compile() -> bool:
    """Whether JAX has a plugin that compiles for CUDA."""
    try:
        return bool(devices(1))
    except NotImplementedError:
        return False


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...], kind: AxisType = AxisType.Auto) -> Mesh:
    """A mesh of H200."""
    return Mesh(np.array(devices(math.prod(shape))).reshape(shape), names, axis_types=(kind,) * len(names))


def on_mesh(mesh: Mesh, tree: Any, spec: PartitionSpec = PartitionSpec()) -> Any:  # noqa: B008 (immutable)
    """The abstract arrays of ``tree``, sharded."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)), tree)


@dataclass(frozen=True)
class Instruction:
    """One line of an optimised program.

    ``launch`` is what a GPU does for it: the target of a custom call, or the opcode; of a fusion around a custom call,
    which slices operands and results of the call by their addresses, "sliced " and the call's target; empty if nothing.
    """

    opcode: str
    shape: str
    launch: str
    text: str

    @property
    def elements(self) -> int:
        """Of the largest array of the result."""
        sizes = re.findall(r"\w+\[([\d,]*)\]", self.shape)
        return max((math.prod(map(int, filter(None, size.split(",")))) for size in sizes), default=0)


# What launches nothing: values, other views of them, and loops, whose bodies are looked at.
_NOTHING = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call"}
_LINE = re.compile(r"^ +(?:ROOT )?%[\w.\-]+ = (?P<shape>.+?) (?P<opcode>[a-z][\w\-]*)\(")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')


class Program:
    """An optimised program: its instructions outside of fusions."""

    def __init__(self, text: str) -> None:
        self.text = text
        bodies = {m[1]: m[2].splitlines() for m in re.finditer(r"^(?:ENTRY )?%(\S+) .*\{\n((?: .*\n)+)\}", text, re.M)}
        inside = set(re.findall(r" (?:fusion|fusion-start)\(.*?\bcalls=%([\w.\-]+)", text))
        inside |= set(re.findall(r" (?!call\()[a-z\-]+\(.*?\bto_apply=%([\w.\-]+)", text))  # of reductions
        assert "ENTRY" in text and inside <= set(bodies), "the program's text was not understood"
        self.instructions: list[Instruction] = []
        for name, lines in bodies.items():
            if name in inside:
                continue
            for line in lines:
                found = _LINE.match(line)
                assert found, f"not understood: {line}"
                opcode = found["opcode"]
                launch = "" if opcode in _NOTHING or opcode.endswith("-done") else opcode.removesuffix("-start")
                if launch == "custom-call":
                    launch = _targets([line])[0]
                elif launch == "fusion":
                    (called,) = re.findall(r"\bcalls=%([\w.\-]+)", line)
                    if targets := _targets(bodies[called]):
                        (launch,) = (f"sliced {target}" for target in targets)
                self.instructions.append(Instruction(opcode, found["shape"], launch, line.strip()))

    @property
    def launches(self) -> dict[str, int]:
        """How often the text has each launch."""
        return dict(Counter(i.launch for i in self.instructions if i.launch))

    @property
    def calls(self) -> list[str]:
        """The lines that call our kernels, those in fusions that slice too."""
        return [line for line in self.text.splitlines() if set(_targets([line])) & {GEMM_TARGET, MIXED_TARGET}]

    def others(self, elements: int) -> list[str]:
        """What is launched besides our kernels and has a result of so many elements or more."""
        ours = {GEMM_TARGET, MIXED_TARGET, f"sliced {GEMM_TARGET}", f"sliced {MIXED_TARGET}"}
        return [i.text for i in self.instructions if i.launch and i.launch not in ours and i.elements >= elements]


def _targets(lines: list[str]) -> list[str]:
    return [target for line in lines for target in _TARGET.findall(line)]


def compiled(function: Callable[..., Any], *operands: Any) -> Program:
    """The program of ``function`` for an H200, or for those of the operands' mesh."""
    leaves = jax.tree.leaves(operands)
    if all(getattr(x, "sharding", None) is None for x in leaves):
        operands = on_mesh(mesh_of((1,), ("all",)), operands)
    lowered = jax.jit(lambda *xs: function(*xs)).lower(*operands)
    text = lowered.compile(compiler_options=OPTIONS).as_text()
    assert text is not None
    return Program(text)


bf16 = functools.partial(struct, dtype=jnp.bfloat16)


def quantized(k: int, n: int, *stack: int, group_size: int = 128) -> Any:
    """Abstract 4-bit weights (*stack, K, N)."""
    quantize: Callable[..., Any] = functools.partial(jaxgemm.quantize, group_size=group_size)
    for _ in stack:
        quantize = jax.vmap(quantize)
    return jax.eval_shape(quantize, bf16((*stack, k, n)))


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """(cotangent, operands) -> the result and the cotangents of all operands."""

    def both(cotangent: Any, *primals: Any) -> Any:
        out, transposed = jax.vjp(function, *primals)
        return out, transposed(cotangent)

    return both


LAYOUTS = {"NN": ((1,), (0,)), "NT": ((1,), (1,)), "TN": ((0,), (0,)), "TT": ((0,), (1,))}
LAYERS, SQUARE = 8, 512 * 512

needs_compiler = pytest.mark.skipif(
    not can_compile(), reason="needs a CUDA GPU, or JAX's plugin for it and JAX_PLATFORMS=cpu"
)


def dot(layout: str, **params: Any) -> Callable[..., Any]:
    return functools.partial(jaxgemm.dot_general, dimension_numbers=(LAYOUTS[layout], ((), ())), **params)


def layers(function: Callable[..., Any], **params: Any) -> Callable[..., Any]:
    """A scan over stacked weights: function(x, weights of a layer) is x of the next one."""
    return lambda weights, x: lax.scan(lambda x, w: (function(x, w), None), x, weights, **params)[0]


def block(x: Any, w: Any) -> Any:
    return jaxgemm.matmul(jaxgemm.matmul(x, w[0], activation="gelu"), w[1])


def copies(program: Program) -> list[str]:
    """What moves the weights of a layer, packed ones as well; not the zeros into which gradients are written."""
    return [line for line in program.others(SQUARE // 2) if " fusion()" not in line]
