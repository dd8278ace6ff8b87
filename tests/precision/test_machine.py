"""Which hardware runs what: every row of the table in docs/precision.md, from capability and versions alone."""

import pytest

from diffrl.precision.choice import Machine, missing, parse_version, uncompilable
from diffrl.precision.engines.native import fp8_scaling
from diffrl.precision.engines.torchao import use_triton_for_nvfp4

CAPABILITIES = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)]
RUNS = {
    ("bfloat16", "torch"): "1111111",
    ("int8", "torch"): "1111111",
    ("int8", "torchao"): "1111111",
    ("int8", "modelopt"): "1111111",
    ("fp8", "torchao"): "0011111",
    ("fp8", "torch"): "0011111",
    ("fp8", "modelopt"): "1111111",
    ("mxfp8", "torchao"): "0000110",
    ("nvfp4", "torchao"): "0000111",
    ("nvfp4", "te"): "0000110",
}
PACKAGES = {"torchao": (0, 18, 0), "modelopt": (0, 47, 0), "te": (2, 9), "mslk": (1, 0)}


def gpu(capability, cuda=(13, 0), packages=PACKAGES):
    return Machine("cuda", "NVIDIA X", capability, cuda, packages)


@pytest.mark.parametrize(("kind", "row"), RUNS.items(), ids=["-".join(kind) for kind in RUNS])
def test_every_row(kind, row):
    found = "".join("0" if missing(*kind, gpu(capability)) else "1" for capability in CAPABILITIES)
    assert found == row


@pytest.mark.parametrize("kind", RUNS, ids=["-".join(kind) for kind in RUNS])
def test_cpus(kind):
    on_cpu = {("bfloat16", "torch"), ("fp8", "torch"), ("fp8", "modelopt")} | {k for k in RUNS if k[0] == "int8"}
    assert (missing(*kind, Machine("cpu", "cpu", packages=PACKAGES)) is None) == (kind in on_cpu)
    old = Machine("cpu", "cpu", packages=PACKAGES, int8_sums=False)
    assert (missing(*kind, old) is None) == (kind in on_cpu - {("int8", "torch"), ("int8", "torchao")})


@pytest.mark.parametrize(
    ("kind", "machine", "expected"),
    [
        (
            ("fp8", "torchao"),
            gpu((8, 6)),
            "fp8 needs an NVIDIA GPU of compute capability 8.9 or more, not NVIDIA X of 8.6",
        ),
        (
            ("nvfp4", "torchao"),
            gpu((9, 0)),
            "nvfp4 needs an NVIDIA GPU of compute capability 10.0 or more, not NVIDIA X of 9.0",
        ),
        (("nvfp4", "torchao"), gpu((10, 0), (12, 6)), "nvfp4 needs a torch built with CUDA 12.8 or more, not 12.6"),
        (("nvfp4", "torchao"), gpu((10, 0), None), "nvfp4 needs a torch built with CUDA 12.8 or more, not none"),
        (
            ("mxfp8", "torchao"),
            gpu((12, 0)),
            "mxfp8 is not for compute capability 12.0 or more: torch multiplies MXFP8 there in some layouts only",
        ),
        (
            ("nvfp4", "te"),
            gpu((12, 0)),
            "nvfp4 is not for compute capability 12.0 or more: transformer-engine claims it and fails (its issue 3217)",
        ),
        (
            ("fp8", "torchao"),
            gpu((9, 0), packages={}),
            "it needs torchao 0.18 or more, and it is not installed: pip install 'diffrl[torchao]'",
        ),
        (
            ("int8", "torchao"),
            gpu((9, 0), packages={"torchao": (0, 17, 2)}),
            "it needs torchao 0.18 or more, and found 0.17.2: pip install 'diffrl[torchao]'",
        ),
        (
            ("nvfp4", "te"),
            gpu((10, 0), packages={"te": (2, 8)}),
            "it needs transformer-engine 2.9 or more, and found 2.8: pip install 'diffrl[te]'",
        ),
        (("fp8", "torch"), Machine("mps", "mps"), "fp8 needs a CPU or a CUDA GPU, not mps"),
        (("nvfp4", "torchao"), Machine("mps", "mps"), "nvfp4 needs a CUDA GPU, not mps"),
    ],
)
def test_refusals_say_what_is_missing(kind, machine, expected):
    assert missing(*kind, machine) == expected


@pytest.mark.parametrize(
    ("machine", "works", "expected"),
    [
        (Machine("cpu", "cpu"), None, "row"),
        (gpu((8, 9)), True, "row"),
        (gpu((8, 9)), False, "tensor"),
        (gpu((9, 0)), None, "row"),
        (gpu((10, 3)), None, "row"),
        (gpu((12, 0)), None, "tensor"),
    ],
)
def test_fp8_scales_rows_where_it_can(machine, works, expected):
    asked = []

    def try_rows():
        asked.append(1)
        return works

    assert fp8_scaling(machine, try_rows) == expected
    assert bool(asked) is (works is not None)


def test_the_fused_nvfp4_kernel_needs_mslk():
    assert use_triton_for_nvfp4(gpu((10, 0)))
    assert not use_triton_for_nvfp4(gpu((12, 0)))
    assert not use_triton_for_nvfp4(gpu((10, 0), packages={"torchao": (0, 18)}))


def test_versions():
    assert parse_version("2.15.0+cu132") == (2, 15, 0)
    assert parse_version("0.18.0.dev20251105") == (0, 18, 0)
    assert parse_version("13.0") == (13, 0)


def test_what_cannot_be_compiled():
    assert uncompilable("nvfp4", "emulated", gpu((8, 0))) == (
        "Triton has no E4M3 below compute capability 8.9, and this is NVIDIA X of 8.0"
    )
    assert uncompilable("nvfp4", "te", gpu((10, 0))) == "transformer-engine keeps its layers out of graphs"
    for kind in (("int8", "emulated", gpu((8, 0))), ("nvfp4", "emulated", gpu((8, 9))), ("int8", "torch", gpu((8, 0)))):
        assert uncompilable(*kind) is None
    assert uncompilable("fp8", "emulated", Machine("cpu", "cpu")) is None
