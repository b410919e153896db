"""vLLM looks into everything that is loaded; Numba may be."""

import numba
import pytest

from engine.vllm_adapter.llvmlite_handle import hide_dunder_names


def test_the_library_handle_has_no_dictionary_to_look_into() -> None:
    """And is the library handle still, however often an engine is started."""
    from llvmlite.binding import ffi

    for _ in range(2):
        hide_dunder_names()
    assert not hasattr(ffi.lib, "__dict__")
    assert callable(ffi.lib.LLVMPY_GetVersionInfo)
    with pytest.raises(AttributeError):
        _ = ffi.lib.no_such_function
    assert numba.njit(lambda x: x + 1)(1) == 2
