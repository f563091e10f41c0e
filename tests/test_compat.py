"""jaxgemm/_compat.py and the package's source as text: what it may use of JAX and Python, what its docs say."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AxisType

import jaxgemm
from jaxgemm import _compat
from tests.helpers import ROOT

PACKAGE = ROOT / "jaxgemm"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# All that jaxgemm uses of JAX's private modules. A name may be added here only with a test that fails without it.
PRIVATE_NAMES = {
    "jax._src.ad_checkpoint.primal_left_tangent_right",
    "jax._src.checkify.error_checks",
    "jax._src.checkify.nan_error_check",
    "jax._src.dispatch.prim_requires_devices_during_lowering",
    "jax._src.interpreters.batching.get_sharding_for_vmap",
    "jax._src.interpreters.mlir._lowerings",
    "jax._src.interpreters.mlir._platform_specific_lowerings",
    "jax._src.interpreters.remat.reduce_precision",
    "jax._src.interpreters.remat.rules",
    "jax._src.lax.parallel.psum_invariant_p",
    "jax._src.lax.parallel.psum_p",
}
FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "code", "codeop", "imp"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "breakpoint"}

every_source = pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(full name, name it is bound to) of everything that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names)


def dotted(node: ast.AST) -> str:
    """ "a.b.c" of an attribute access, "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) and dotted(node.value) else ""


def private_names(tree: ast.AST) -> set[str]:
    """What a file uses of ``jax._src``: names within modules, with the modules' full names."""
    bound = {alias: name for name, alias in imports(tree) if "_src" in name.split(".")}
    used: set[str] = set()
    for node in ast.walk(tree):
        head, _, rest = dotted(node).partition(".")
        if head in bound and rest:
            used.add(f"{bound[head]}.{rest.split('.')[0]}")
        elif "_src" in dotted(node).split("."):
            used.add(dotted(node))
    unused = {name for name in bound.values() if not any(u.startswith(name) for u in used)}
    return used | unused


def test_the_package_has_sources() -> None:
    assert {"__init__.py", "_compat.py", "_matmul.py", "_primitives.py"} <= {path.name for path in SOURCES}


@every_source
def test_private_names_of_jax(path: Path) -> None:
    text = path.read_text()
    if path.name == "_compat.py":
        assert private_names(ast.parse(text)) == PRIVATE_NAMES
    else:
        assert private_names(ast.parse(text)) == set()
        assert not re.search(r"\b_src\b", text)


def test_private_names_are_found() -> None:
    text = "from jax._src import core as c\nimport jax._src.lax\nimport jax\nc.typeof(1)\njax._src.api.jit"
    assert private_names(ast.parse(text)) == {
        "jax._src.core.typeof",
        "jax._src.api.jit",
        "jax._src.api",
        "jax._src",
        "jax._src.lax",
    }


@every_source
def test_no_code_from_data(path: Path) -> None:
    tree = ast.parse(path.read_text())
    modules = {name.split(".")[0] for name, _ in imports(tree)}
    assert not modules & FORBIDDEN_MODULES
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & FORBIDDEN_CALLS
    assert not any(
        isinstance(node, ast.Call) and dotted(node.func) in ("os.system", "os.popen") for node in ast.walk(tree)
    )


@every_source
def test_everything_is_annotated(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        where = f"{path.name}:{node.lineno} {node.name}"
        assert node.returns is not None, where
        named = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        for arg in [*named, node.args.vararg, node.args.kwarg]:
            assert arg is None or arg.arg in ("self", "cls") or arg.annotation is not None, f"{where}: {arg.arg}"


@every_source
def test_every_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


PUBLIC = {name: getattr(jaxgemm, name) for name in jaxgemm.__all__ if not name.startswith("__")}


@pytest.mark.parametrize("name", [name for name, value in PUBLIC.items() if inspect.isfunction(value)])
def test_public_functions_are_documented(name: str) -> None:
    function = PUBLIC[name]
    signature = inspect.signature(function)
    text = inspect.getdoc(function) or ""
    sections = dict(zip(*[iter(re.split(r"^(Args|Returns|Raises):\n", text, flags=re.M)[1:])] * 2, strict=True))
    assert "Returns" in sections
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty, parameter
        assert re.search(rf"(^|[ *`,]){parameter.name}[,:=]", sections["Args"], re.M), (
            f"{parameter.name} is not documented"
        )
    if signature.parameters:
        assert re.search(r"(TypeError|ValueError)", sections["Raises"])


@pytest.mark.parametrize("name", [name for name, value in PUBLIC.items() if inspect.isclass(value)])
def test_public_classes_are_documented(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert text
    for field in getattr(PUBLIC[name], "__dataclass_fields__", {}):
        assert re.search(rf"\b{field}:", text), field


def test_all_is_sorted_and_complete() -> None:
    assert jaxgemm.__all__ == sorted(jaxgemm.__all__)
    visible = {name for name, value in vars(jaxgemm).items()
               if not name.startswith("_") and not inspect.ismodule(value) and name != "extend_path"}  # fmt: skip
    assert visible == set(PUBLIC)
    assert re.fullmatch(r"\d+\.\d+\.\d+", jaxgemm.__version__)


def test_private_names_do_what_compat_says() -> None:
    context = SimpleNamespace(module_context=SimpleNamespace(axis_context=SimpleNamespace()))
    assert _compat.device_count(context) is None
    assert not _compat.is_manual(context) and not _compat.is_fully_manual(context)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu"))
    assert _compat.has_explicit_axes(mesh)
    assert not _compat.has_explicit_axes(
        jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu"))
    )
    assert _compat.static_sizes((1, 2)) and not _compat.static_sizes((1, *jax.export.symbolic_shape("m")))


@pytest.mark.parametrize("check_vma", [False, True])
def test_psum_is_made_of_these_primitives(check_vma: bool) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu"))
    spec = jax.sharding.PartitionSpec
    add = jax.shard_map(
        lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=spec("x"), out_specs=spec(), check_vma=check_vma
    )
    (mapped,) = jax.make_jaxpr(add)(np.ones(8)).eqns
    assert mapped.params["jaxpr"].eqns[-1].primitive is _compat.psum_primitives()[check_vma]


def test_lowering_rules_are_those_that_were_registered() -> None:
    primitive = Primitive("test")

    def everywhere(ctx: Any) -> Any: ...

    def on_cuda(ctx: Any) -> Any: ...

    mlir.register_lowering(primitive, everywhere)
    assert _compat.lowering_rule(primitive, "cuda") is everywhere
    mlir.register_lowering(primitive, on_cuda, platform="cuda")
    assert _compat.lowering_rule(primitive, "cuda") is on_cuda
    assert _compat.lowering_rule(primitive, "cpu") is everywhere


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        (None, None),
        ("highest", (lax.Precision.HIGHEST,) * 2),
        (("default", lax.Precision.HIGH), (lax.Precision.DEFAULT, lax.Precision.HIGH)),
        ("BF16_BF16_F32", lax.DotAlgorithmPreset.BF16_BF16_F32),
        (lax.DotAlgorithmPreset.TF32_TF32_F32, lax.DotAlgorithmPreset.TF32_TF32_F32),
    ],
)
def test_canonical_precision(given: Any, canonical: Any) -> None:
    assert _compat.canonical_precision(given) == canonical
