"""Settings of a block of code. They are part of what ``jax.jit`` knows a compiled program by: under other ones it
compiles anew, and under these finds its program again, in every thread by itself.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

import jax

TUNING = ("on", "shipped", "off")


@dataclasses.dataclass(frozen=True)
class Options:
    """What :func:`options` sets; None for what it leaves as it is elsewhere."""

    install: bool | None = None
    tuning: str | None = None
    peer_sums: bool | None = None


_context = jax.make_user_context(Options())


def current() -> Options:
    """The options that hold in this thread."""
    return _context.value


@contextlib.contextmanager
def options(*, install: bool | None = None, tuning: str | None = None, peer_sums: bool | None = None) -> Iterator[None]:
    """Within ``with jaxgemm.options(...):``, settings of the programs that are compiled in this thread.

    A function from ``jax.jit`` is compiled for each setting that it is called under. Blocks nest; the inner one counts.

    Args:
      install: whether JAX's own products take our kernels where they were measured to be faster, as after
        :func:`jaxgemm.install`. None for what the block around, or that function, says.
      tuning: which tuning tables count: "on" for all, "shipped" for those that come with jaxgemm, "off" for none. None
        for what the block around, or the environment variable ``JAXGEMM_TUNING``, says.
      peer_sums: whether the parts of a product whose K is split over all GPUs of a program are added up by a kernel of
        jaxgemm's own, where they are few and the GPUs reach each other's memory, or by XLA's all-reduce
        (docs/sharding.md). True for such sums of ``jax.lax.psum``, too, and over up to eight GPUs. None for what the
        block around says; where none does, of products over two.

    Returns:
      A context manager.

    Raises:
      TypeError: ``install`` or ``peer_sums`` is no bool.
      ValueError: ``tuning`` is none of these words.
    """
    for name, value in (("install", install), ("peer_sums", peer_sums)):
        if value is not None and not isinstance(value, bool):
            raise TypeError(f"{name}={value!r} is not True, False or None")
    if tuning is not None and tuning not in TUNING:
        raise ValueError(f"tuning={tuning!r} is none of {', '.join(map(repr, TUNING))}, or None")
    if install:
        from jaxgemm._install import register

        register()
    if peer_sums:
        from jaxgemm import _peer_sums

        _peer_sums.register()
    given = {"install": install, "tuning": tuning, "peer_sums": peer_sums}
    changes = {name: value for name, value in given.items() if value is not None}
    with _context(dataclasses.replace(current(), **changes)):
        yield
