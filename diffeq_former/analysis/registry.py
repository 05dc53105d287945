"""The analyses of a trained model, by the name that tools/analyze.py takes.

Each analysis is a module with a function

    analyze(model, folder, *, options...) -> rows

that writes its values and plots into `folder` and returns the rows of a table as
JSON-serialisable dicts. Its options are the flags of the same names; `sentences` come
from --text or --file. An analysis is imported when it is used, as importing JAX takes
seconds.
"""

import importlib
from collections.abc import Callable

_MODULES = {
    "spectra": "spectra_over_depth",
    "lyapunov": "token_sensitivity",
    "antecedent": "antecedent",
    "adversarial": "adversarial",
    "attention": "attention_maps",
    "induction": "induction",
    "entropy": "entropy",
    "trajectory": "trajectory",
    "clustering": "clustering",
    "pde": "pde",
}
KINDS = tuple(_MODULES)


def load(kind: str) -> Callable[..., list[dict]]:
    """Return the `analyze` function of one of the `KINDS`."""
    return importlib.import_module(f"{__package__}.{_MODULES[kind]}").analyze
