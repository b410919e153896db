"""Numba beside vLLM: as soon as anything in the process imports it, vLLM 0.32 cannot start on a CPU.

Its `triton_utils/dispatcher.py` reads the `__dict__` of whatever any loaded module holds. llvmlite's library handle
makes up a C function for every name that it is asked for, that one too (`binding/ffi.py`, `_lib_wrapper.__getattr__`),
and what comes back is no dictionary. No C function has such a name.
"""

import sys
from typing import Any


def hide_dunder_names() -> None:
    """Let llvmlite's handle, where there is one, have no attributes but C functions."""
    ffi = sys.modules.get("llvmlite.binding.ffi")
    kind = type(ffi.lib) if ffi is not None else None
    if kind is None or kind.__getattr__.__module__ == __name__:
        return
    find = kind.__getattr__

    def function(handle: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return find(handle, name)

    kind.__getattr__ = function
