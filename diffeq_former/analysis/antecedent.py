"""Share of sentences in which a measure of sensitivity finds the antecedent.

In each sentence of antecedent_sentences.py, the token to which a measure gives the
largest value is compared with the known antecedent. Candidates are the tokens of the
text before the last one, whose prediction is analysed: start tokens belong to no word.
"""

from pathlib import Path

import numpy as np

from diffeq_former.analysis import plotting, token_heatmap
from diffeq_former.analysis.antecedent_sentences import (
    LocatedCase,
    built_in,
    locate,
    read,
)
from diffeq_former.analysis.loaded_model import START
from diffeq_former.analysis.results import write_json
from diffeq_former.analysis.statistics import proportion
from diffeq_former.analysis.token_sensitivity import (
    ROWS,
    leading,
    likeliest,
    padded_states,
    per_token,
)

CHANCE = "any token by chance"
POSITION = "the best fixed position"
PREDICTED = "the model predicts the next word"


def analyze(trained, folder: Path, *, file: str | None = None) -> list[dict]:
    """Write antecedent.json, antecedent.png, and the measures of tokens in tokens.html.

    Args:
      trained: The model.
      folder: The output.
      file: JSON lines to read instead of the built-in sentences.

    Raises:
      UserError: If a sentence is not usable, see antecedent_sentences.py.
    """
    cases = read(Path(file)) if file else built_in()
    where = f"--file={file}, line" if file else "sentence"
    located = [
        locate(case, trained.tokenizer, trained.config.max_len, f"{where} {number}")
        for number, case in enumerate(cases, 1)
    ]
    measured = [_measure(trained, case) for case in located]
    rows = []
    for group in dict.fromkeys(case.group for case in cases):
        members = [m for m in measured if m["group"] == group]
        rows += [{"group": group} | row for row in summarise(members)]
    write_json(folder / "antecedent.json", {"summary": rows, "sentences": measured})
    title = f"{trained.name}: the antecedents of next words"
    token_heatmap.write_page(folder / "tokens.html", title, measured, ROWS)
    _plot(folder / "antecedent.png", rows)
    return rows


def _measure(trained, located: LocatedCase) -> dict:
    tokenizer, last = trained.tokenizer, len(located.ids) - 1
    states_TLD = padded_states(trained, located.ids)
    id_ = likeliest(trained, states_TLD, last)
    values = leading(per_token(trained, states_TLD, last, num_exponents=1))
    words = [tokenizer.decode([i]) for i in located.ids[located.first :]]
    return {
        "group": located.case.group,
        "text": located.case.text,
        "next": located.case.next,
        "tokens": [START] * located.first + words,
        "first": located.first,
        "antecedent": located.positions,
        "predicted": tokenizer.decode([id_]),
        "predicts": id_ == located.next_id,
        **{name: x.tolist() for name, x in values.items()},
    }


def top_token(values, first: int) -> int:
    """Return the position of the largest value, from `first` to the last but one."""
    return first + int(np.argmax(values[first:-1]))


def summarise(sentences: list[dict]) -> list[dict]:
    """Return the share of sentences in which each method finds the antecedent.

    Beside the measures, these are: a token by chance (the mean share of candidates that
    belong to the antecedent); the position, counted from the start or from the end,
    which is right most often in these very sentences, so that no method that knows only
    positions is better; and whether the likeliest next token is the first token of the
    next word.

    Args:
      sentences: Each with a list of values for each name in `ROWS`; `first`, the
        position of the text's first token; `antecedent`, the positions of the
        antecedent's tokens; and `predicts`.
    """

    def found(name):
        return [top_token(s[name], s["first"]) in s["antecedent"] for s in sentences]

    rows = [{"method": ROWS[name]} | proportion(found(name)) for name in ROWS]
    candidates = [range(s["first"], len(s["tokens"]) - 1) for s in sentences]
    shares = [
        len(s["antecedent"]) / len(c)
        for s, c in zip(sentences, candidates, strict=True)
    ]
    longest = max(map(len, candidates))
    at_positions = [
        [
            -len(c) <= place < len(c) and c[place] in s["antecedent"]
            for s, c in zip(sentences, candidates, strict=True)
        ]
        for place in range(-longest, longest)
    ]
    chance = {"mean": float(np.mean(shares)), "low": None, "high": None}
    return [
        *rows,
        {"method": POSITION} | proportion(max(at_positions, key=sum)),
        {"method": CHANCE} | chance | {"count": len(sentences)},
        {"method": PREDICTED} | proportion([s["predicts"] for s in sentences]),
    ]


def _plot(path: Path, rows: list[dict]) -> None:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    groups = list(dict.fromkeys(row["group"] for row in rows))
    with plotting.saved_figure(path, (8, 1.2 + 0.4 * len(methods))) as axes:
        for number, (group, marker) in enumerate(zip(groups, "os", strict=False)):
            for row in (r for r in rows if r["group"] == group):
                y = methods.index(row["method"]) + 0.24 * (
                    number - (len(groups) - 1) / 2
                )
                if row["low"] is not None:
                    axes.plot([row["low"], row["high"]], [y, y], "k-", lw=1)
                face = "black" if number == 0 else "white"
                label = f"{group} ({row['count']} sentences)"
                axes.plot(row["mean"], y, marker, color="black", mfc=face, label=label)
        handles, labels = axes.get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        axes.legend(unique.values(), unique, fontsize=8, loc="best")
        axes.set_yticks(range(len(methods)), methods, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel("share of sentences, with 95 % intervals")
        axes.grid(alpha=0.3)
