"""NVFP4 by its short name; see `diffrl.functional.formats.nvfp4`."""

from diffrl.functional.formats.nvfp4 import NVFP4, dequantize_nvfp4, fake_quantize_nvfp4, quantize_nvfp4

__all__ = ["NVFP4", "dequantize_nvfp4", "fake_quantize_nvfp4", "quantize_nvfp4"]
