"""The front-end benchmark's own parts."""

import tomllib

from bench.frontend import as_toml


def test_a_configuration_survives_being_written() -> None:
    """TOML out of a table reads back as that table."""
    table = {"a": 1, "s": {"t": True, "x": ["u", "v"], "deep": {"f": 0.5}}, "z": {"n": "é\n"}}
    assert tomllib.loads(as_toml(table)) == table
