"""How sure the model would be of the next token if depth ended earlier."""

from pathlib import Path

import numpy as np

from diffeq_former.analysis import plotting
from diffeq_former.analysis.kinds.files import write_json
from diffeq_former.analysis.kinds.states import (
    depths,
    over_sentences,
    plot_over_depth,
    states_of,
)
from diffeq_former.analysis.token_heatmap import plain_text


def entropy(trained, folder: Path, *, sentences) -> list[dict]:
    """Writes entropy.json (per token and averaged) and entropy.png."""
    from diffeq_former.analysis.entropy import entropies

    of_sentences = [
        np.asarray(entropies(trained.config, trained.ends, states_of(trained, s)))
        for s in sentences
    ]
    times, averaged = depths(trained), [x.mean(1) for x in of_sentences]
    figures = over_sentences(averaged)
    measured = [
        {"text": s.text, "tokens": s.tokens, "entropy": x}
        for s, x in zip(sentences, of_sentences, strict=True)
    ]
    numbers = {"unit": "nats", "times": times, "mean": figures, "sentences": measured}
    write_json(folder / "entropy.json", numbers)
    _draw(folder / "entropy.png", times, measured[0], figures)
    return [
        {"time": float(t), "entropy": float(mean), "sentences": len(sentences)}
        for t, mean in zip(times, figures["mean"], strict=True)
    ]


def _draw(path: Path, times, first: dict, figures: dict) -> None:
    width = max(9.6, 5 + 0.3 * len(first["tokens"]))
    with plotting.drawn(path, (width, 4), ncols=2) as (left, right):
        plot_over_depth(left, times, figures["mean"], figures)
        left.set_ylabel("entropy of the logit lens (nats)")
        left.legend()
        image = right.imshow(
            first["entropy"], aspect="auto", origin="lower", cmap=plotting.COLOURS
        )
        labels = [plain_text(token) for token in first["tokens"]]
        right.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
        right.set(xlabel="token of the first sentence", ylabel="steps of depth")
        right.figure.colorbar(image, ax=right, label="entropy (nats)")
