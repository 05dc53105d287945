"""The states of sentences, for kinds that look at them."""

import numpy as np


def states_of(trained, sentence) -> np.ndarray:
    """Of every token, before the first step and after each: [T + 1, L, D]."""
    from diffeq_former.analysis import depth

    x_LD = depth.embed(trained.config, trained.ends, np.asarray(sentence.ids))
    return np.asarray(depth.states(trained.config, trained.table, x_LD))


def depths(trained) -> np.ndarray:
    """The time, as a share of depth, of each of these states."""
    return np.linspace(0, 1, trained.config.num_layers + 1)


def over_sentences(values: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The mean over sentences at each time, and its 95 % confidence interval."""
    from diffeq_former.analysis.statistics import interval

    found = [interval(at_time) for at_time in np.array(values).T]
    return {key: [x[key] for x in found] for key in ("mean", "low", "high")}


def plot_over_depth(axes, times_T, mean_T, figures: dict) -> None:
    """A line, in the band of its confidence interval, if there is one."""
    axes.plot(times_T, mean_T, "k-", label="mean")
    if None not in figures["low"]:
        label = "95 % confidence interval"
        low, high = figures["low"], figures["high"]
        axes.fill_between(times_T, low, high, color="0.8", label=label)
    axes.set_xlabel("time t (share of depth)")
    axes.grid(alpha=0.3)
