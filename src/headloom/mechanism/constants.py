"""Tensors of a module that are no parameters: they follow from its sizes, as positions do."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

__all__ = ["WithConstants"]


class WithConstants(nn.Module):
    """A module that holds such tensors as buffers, which no state dict has.

    They are worked out anew where weights are loaded: a module that was made on the device ``meta``
    has no numbers, and one that was emptied after that has those that memory happened to hold.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(_loaded)  # type: ignore[no-untyped-call]

    @abstractmethod
    def constants(self) -> dict[str, Tensor]:
        """The tensors by their names."""

    def hold_constants(self) -> None:
        """Put their numbers where they are held: beside the parameters, in the same type."""
        for name, numbers in self.constants().items():
            held = self._buffers.get(name)
            if held is not None and held.shape == numbers.shape and not held.is_meta:
                held.copy_(numbers)
                continue
            beside = next(self.parameters())
            numbers = numbers.to(device=beside.device, dtype=beside.dtype)
            self.register_buffer(name, numbers, persistent=False)


def _loaded(module: WithConstants, keys: object) -> None:
    """What torch calls when a module and those in it have been given weights."""
    module.hold_constants()
