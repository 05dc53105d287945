"""What looks at the model on the way."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Judges:
    """Called when an evaluation, a sample or an analysis is due."""

    # (params, should_stop=...) -> figures, among them "loss"; None: it was to stop
    evaluate: Callable[..., dict[str, float] | None]
    # params -> generated text; None: no samples
    sample: Callable[[dict], str] | None
    # params -> figures, none if they cannot be had; None: no analyses
    analyse: Callable[[dict], dict[str, float]] | None = None
