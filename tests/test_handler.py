"""cuda/ffi/gemm_ffi.cc: a custom call with corrupted attributes or buffers returns an error, never a crash."""

from __future__ import annotations

import pytest

from tests.handler_calls import listed
from tests.handler_outcomes import Outcomes, check_corruptions, check_listed, outcomes_of

NAMES = [name for name, _ in listed()]

# What the error of each listed call must say; "" for those that the handler accepts.
EXPECTED = {
    "good": "",
    "good with workspace": "",
    "good with bias": "",
    "good with bias in 16 bits": "",
    "good with a bias for the batch": "",
    "good with a bias for each of the batch": "",
    "good with alpha": "",
    "good with alpha in a vector": "",
    "good with alpha and bias": "",
    "kernel": "no kernel is called 'fast'; this build has naive:32x32x1, ",
    "family is no kernel": "no kernel is called 'naive'; this build has",
    "empty kernel": "no kernel is called ''; this build has",
    "old GPU": "kernel 'naive:32x32x1' needs a GPU of sm_80 or newer, this one is sm_75",
    "precision": "no precision is called 'medium'",
    "activation": "no activation is called 'tanh'",
    "kernel of another dtype": "kernel 'wmma_naive:16x16x16' does not multiply float32 x float32 -> float32; it takes",
    "kernel is a number": "Failed to decode all FFI handler operands",
    "dims is a number": "Failed to decode all FFI handler operands",
    "dims of 32 bits": "Failed to decode all FFI handler operands",
    "dims lack a group": "Failed to decode all FFI handler operands",
    "no kernel": "Failed to decode all FFI handler operands|Wrong number of attributes",
    "no dims": "Failed to decode all FFI handler operands|Wrong number of attributes",
    "order too large": "lhs: order [0, 7] is no permutation of 2 dimensions",
    "order huge": "rhs: order [0, 4611686018427387904] is no permutation of 2 dimensions",
    "order negative": "rhs: order [-9223372036854775808, 1] is no permutation of 2 dimensions",
    "order short": "lhs: order [0] does not list 2 dimensions",
    "order empty": "out: order [] does not list 2 dimensions",
    "order twice": "lhs: order [1, 1] is no permutation of 2 dimensions",
    "dimension twice": "lhs: dimension 0 is out of range or used twice, the shape is [4, 5]",
    "dimension huge": "lhs: dimension 4611686018427387904 is out of range or used twice",
    "dimension without role": "rhs: dimension 1 of shape [5, 6] has no role",
    "wrong K": "lhs 4x5 times rhs 7x6 does not give out 4x6",
    "wrong M": "lhs 4x5 times rhs 5x6 does not give out 3x6",
    "wrong N": "lhs 4x5 times rhs 5x6 does not give out 4x7",
    "wrong rank": "out: order [0, 1] is no permutation of 1 dimensions",
    "transposed out": "out is not row-major",
    "dtype of lhs": "the dtype of lhs, rhs or out is not one of its own",
    "dtype of out": "does not multiply float32 x float32 -> bfloat16; it takes float32 x float32 -> float32",
    "good with K split in a cluster": "",
    "good with K split of the last tiles": "",
    "more splits than k-tiles": "cannot split K=320 of the tiles after the first 0 of 6 over 6 CTAs",
    "good with tiles to take": "",
    "no tile left to take": "has 6 tiles, none after the first 6",
    "tiles to take for CTAs that do not stay": "has no tiles that CTAs take",
    "all tiles whole": "cannot split K=320 of the tiles after the first 6 of 6 over 2 CTAs",
    "whole tiles of a kernel whose CTAs do not stay": "splits K of all tiles or of none, not of those after 2",
    "negative number of whole tiles": "cannot split K=320 of the tiles after the first -1 of 6",
    "huge number of whole tiles": "of the tiles after the first 4611686018427387904 of 6",
    "huge number of splits": "of 6 over 4611686018427387904 CTAs",
    "small workspace for the sums": "bytes of workspace, got 131072",
    "split that the kernel cannot": "kernel 'naive:32x32x1' does not split K",
    "split left to the model": "split is no number of whole tiles and of CTAs for each other",
    "negative split": "split is no number of whole tiles and of CTAs for each other",
    "split of one number": "split is no number of whole tiles and of CTAs for each other",
    "split of 32 bits": "Failed to decode all FFI handler operands",
    "no split": "Failed to decode all FFI handler operands|Wrong number of attributes",
    "no operands": "takes 2 or 3 operands and 1 or 2 results, got 0 and 1",
    "one operand": "takes 2 or 3 operands and 1 or 2 results, got 1 and 1",
    "four operands": "takes 2 or 3 operands and 1 or 2 results, got 4 and 1",
    "three results": "takes 2 or 3 operands and 1 or 2 results, got 2 and 3",
    "short bias": "bias is not a vector of N=6 floating-point numbers of 16 or 32 bits",
    "bias of another dtype": "bias is not a vector of N=6 floating-point numbers of 16 or 32 bits",
    "alpha announced and not there": "takes 3 or 4 operands with alpha and 1 or 2 results, got 2 and 1",
    "alpha there and not announced": "bias is not a vector of N=6 floating-point numbers of 16 or 32 bits",
    "five operands": "takes 3 or 4 operands with alpha and 1 or 2 results, got 5 and 1",
    "bias before alpha": "alpha is not one float32 number",
    "two alphas": "alpha is not one float32 number",
    "no element in alpha": "alpha is not one float32 number",
    "alpha of another dtype": "alpha is not one float32 number",
    "alpha in half": "alpha is not one float32 number",
    "bias for a larger batch": "32 bits, nor one for each of the batch of 3",
    "bias for a smaller batch": "32 bits, nor one for each of the batch of 3",
    "bias for each of the batch with another dtype": "32 bits, nor one for each of the batch of 3",
    "short bias after alpha": "bias is not a vector of N=6 floating-point numbers of 16 or 32 bits",
    "has_alpha is a number": "Failed to decode all FFI handler operands",
    "no has_alpha": "Failed to decode all FFI handler operands|Wrong number of attributes",
    "alpha of integers": "fuses alpha, bias and activation with floating-point results only",
    "good without a workspace for copies": "",
    "no workspace": "kernel 'wmma_naive:16x16x16' needs ",
    "small workspace": "bytes of workspace, got 256",
    "workspace of another dtype": "bytes of workspace, got 0",
    "good after all": "",
}


@pytest.fixture(scope="module")
def calls() -> Outcomes:
    """The calls' outcomes, by name or number."""
    return outcomes_of("handler_calls")


def test_every_listed_call_has_an_expectation() -> None:
    assert list(EXPECTED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_listed_call(name: str, calls: Outcomes) -> None:
    check_listed(calls[name]["error"], EXPECTED[name])


def test_random_corruptions(calls: Outcomes) -> None:
    check_corruptions(calls)
