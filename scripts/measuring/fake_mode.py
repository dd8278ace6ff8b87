"""A dispatch mode inside of fake tensors: PyTorch computes shapes alone, and what is asked of them can be watched."""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


class FakeMode(TorchDispatchMode):
    """Enters a FakeTensorMode with itself; subclasses define __torch_dispatch__.

    Attributes:
        fake: the mode that makes tensors fake.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)

    def __enter__(self):
        """Enter both modes: PyTorch does not look for a driver as long as the fake one is there."""
        self.fake.__enter__()
        return super().__enter__()

    def __exit__(self, *problem):
        """Leave both."""
        super().__exit__(*problem)
        self.fake.__exit__(*problem)
