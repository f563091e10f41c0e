"""Checkpoints of quantised models: their tensors as :class:`jaxgemm.QuantizedMatrix`, and back."""

from jaxgemm._quant import from_codes
from jaxgemm.formats._awq import from_awq, to_awq
from jaxgemm.formats._checkpoint import CheckpointError, load_safetensors
from jaxgemm.formats._compressed_tensors import from_compressed_tensors, to_compressed_tensors
from jaxgemm.formats._gptq import from_gptq, to_gptq

__all__ = [
    "CheckpointError",
    "from_awq",
    "from_codes",
    "from_compressed_tensors",
    "from_gptq",
    "load_safetensors",
    "to_awq",
    "to_compressed_tensors",
    "to_gptq",
]
