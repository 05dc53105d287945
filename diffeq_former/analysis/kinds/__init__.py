"""What tools/analyze.py can do, by name: each draws, and writes the numbers behind it.

A kind is a function (trained, folder, *, options) -> figures, as dicts of JSON, that
fills the folder. Its options are the tool's flags of the same names; `sentences` are
made from --text or --file. What is heavy is imported when it is called.
"""

from collections.abc import Callable

from diffeq_former.analysis.kinds.attention import attention
from diffeq_former.analysis.kinds.clustering import clustering
from diffeq_former.analysis.kinds.entropy import entropy
from diffeq_former.analysis.kinds.lyapunov import lyapunov
from diffeq_former.analysis.kinds.pde import pde
from diffeq_former.analysis.kinds.spectra import spectra
from diffeq_former.analysis.kinds.trajectory import trajectory

KINDS: dict[str, Callable[..., list[dict]]] = {
    "spectra": spectra,
    "lyapunov": lyapunov,
    "attention": attention,
    "entropy": entropy,
    "trajectory": trajectory,
    "clustering": clustering,
    "pde": pde,
}
