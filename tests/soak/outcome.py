"""The outcomes that every command line may have, for any input."""

import json

CODES = (0, 2, 75)


def assert_allowed(result) -> None:
    """Exit code 0, 2 or 75, no traceback, and one line that says why, if one does."""
    *lines, last = result.stderr.splitlines() or [""]
    assert result.returncode in CODES, result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    errors = [line for line in [*lines, last] if line.startswith("error: ")]
    assert errors == [last] * (result.returncode == 2), result.stderr
    if errors:
        assert len(last) < 1000, last


def strict_json(line: str):
    """Parses a line of output, in which NaN and Infinity are errors."""

    def fail(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(line, parse_constant=fail)
