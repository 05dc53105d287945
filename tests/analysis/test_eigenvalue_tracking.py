"""Paths and jumps of eigenvalues of flows that are known."""

import contextlib
import dataclasses

import numpy as np
import pytest
from cases import TINY

from diffeq_former.analysis import plotting, spectra_plots
from diffeq_former.analysis.eigenvalue_tracking import jumps, largest_jumps, track
from diffeq_former.analysis.spectra import BANDS, eigenvalues

RANDOM = np.random.default_rng(0)
TIMES = np.linspace(0, 1, 61)


def shuffled(values_TM):
    return RANDOM.permuted(values_TM, axis=1)


def paths_of(values_TM):
    """The tracked paths, in the order in which they start."""
    paths_TM = track(values_TM)
    for found, given in zip(paths_TM, values_TM, strict=True):
        np.testing.assert_array_equal(np.sort(found), np.sort(given))
    return paths_TM[:, np.lexsort((paths_TM[0].imag, paths_TM[0].real))]


def test_paths_that_cross_stay_straight():
    """Of diag(t, 1 - t, 2), whose first two meet at 1/2, with a time to either side."""
    expected = np.stack([TIMES, 1 - TIMES, np.full_like(TIMES, 2)], 1) + 0j
    for keep in (slice(None), TIMES != 0.5):
        found = paths_of(shuffled(expected[keep]))
        np.testing.assert_allclose(found, expected[keep], atol=1e-12)


def test_a_rotation_is_followed_through_half_a_turn():
    """There its two eigenvalues meet at -1."""
    angles = np.pi * (0.3 + 1.1 * TIMES)
    cos, sin = np.cos(angles), np.sin(angles)
    turn_T22 = np.moveaxis(np.array([[cos, -sin], [sin, cos]]), -1, 0)
    found = paths_of(
        shuffled(eigenvalues((turn_T22, np.broadcast_to(np.eye(2), (2, 2)))))
    )
    expected = np.exp(1j * np.outer(angles, [-1, 1]))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_jump_has_its_size_in_any_order():
    before = np.array([1, 2 + 1j, 2 - 1j, -3])
    after = before + [0.1, 0.2j, -0.2j, -0.4]
    found = largest_jumps(
        shuffled(before[None])[:, None], shuffled(after[None])[:, None]
    )
    np.testing.assert_allclose(found, [[0.4]])


@dataclasses.dataclass
class Flow:
    """QK has the eigenvalues t and -2; those of OV jump from 1 and 4 to 1 and 2."""

    is_continuous: bool
    config = dataclasses.replace(TINY, d_model=2, num_heads=1, num_layers=8)
    jump_at = 0.5

    def times(self, num_times):
        return np.arange(1, 9) / 8

    def weights_at(self, times_T):
        kernel_TDKNH = np.zeros((len(times_T), 2, 3, 1, 2))
        kernel_TDKNH[:, 0, 0, 0, 0] = times_T * np.sqrt(2)
        kernel_TDKNH[:, 1, 0, 0, 1] = -2 * np.sqrt(2)
        kernel_TDKNH[:, :, 1:, 0] = np.eye(2)[:, None]
        kernel_TDKNH[:, 1, 2, 0, 1] = np.where(times_T < self.jump_at, 4, 2)
        out_TNHD = np.broadcast_to(np.eye(2), (len(times_T), 1, 2, 2))
        return {"qkv": {"kernel": kernel_TDKNH}, "attention_out": {"kernel": out_TNHD}}


def test_jumps_shrink_with_the_spacing_where_the_flow_is_continuous():
    found = jumps(Flow(True))
    steps = [x["steps"] for x in found]
    assert steps == [*(0.5**n for n in range(10, 0, -1)), 1, 2, 4]
    for x in found:
        assert x["spacing"] == x["steps"] / 8
        assert x["qk"]["mean"] == pytest.approx(x["spacing"] / 2)
        assert x["qk"]["largest"] == pytest.approx(x["spacing"] / 2)
        assert x["ov"]["largest"] == pytest.approx(2 / 4)
    of_step = found[steps.index(1)]
    assert of_step["ov"]["mean"] == pytest.approx(2 / 4 / 7)


def test_without_weights_between_the_times_of_the_grid_only_these_are_compared():
    found = jumps(Flow(False))
    assert [x["steps"] for x in found] == [1, 2, 4]
    assert found == [x for x in jumps(Flow(True)) if x["steps"] >= 1]


def test_a_single_step_has_no_neighbour(monkeypatch):
    monkeypatch.setattr(Flow, "times", lambda self, num_times: np.ones(1))
    assert jumps(Flow(True)) == []


def summary(name, scale, times):
    times = np.asarray(times)
    bands = np.outer(np.linspace(0, scale, len(BANDS)), times)
    per_head = np.outer(times, [1, scale])
    values = {"magnitude": bands, "real_part": bands - 1, "largest": per_head}
    return {
        "name": name,
        "times": times,
        "grid": times[1::2],
        "jumps": [],
        **dict.fromkeys(("qk", "ov", "ff"), values | {"positive_share": per_head / 9}),
    }


def test_compared_panels_share_their_scales(tmp_path, monkeypatch):
    plotting.require_matplotlib()
    from matplotlib import pyplot

    grids, times = [], np.arange(1, 9) / 8
    found = {"run": summary("a", 1, times), "beside": summary("b", 7, times[1::2])}

    @contextlib.contextmanager
    def recorded(path, size, **subplots):
        figure, axes = pyplot.subplots(figsize=size, **subplots)
        grids.append(axes)
        yield axes
        pyplot.close(figure)

    monkeypatch.setattr(plotting, "saved_figure", recorded)
    spectra_plots.plot_bands(found, tmp_path)
    spectra_plots.plot_heads(found, tmp_path)
    paths = {
        (role, name): np.outer(found[role]["times"], [1, scale + 1j])
        for role, scale in (("run", 2), ("beside", 5))
        for name in ("qk", "ov")
    }
    spectra_plots.plot_paths(found, paths, 0, tmp_path)
    bands, heads, tracked = grids
    for row in bands:
        limits = [axes.get_ylim() for axes in row]
        assert limits[0] == limits[1] != limits[2] == limits[3]
        assert limits[0][1] >= 7
    for row in heads:
        assert row[0].images[0].get_clim() == row[1].images[0].get_clim()
    for row in tracked:
        assert row[0].get_ylim() == row[1].get_ylim() and row[0].get_ylim()[1] >= 5
        assert {axes.get_xlim() for axes in row} == {(0, 1)}


def test_jumps_of_zero_and_of_a_single_step_are_plotted(tmp_path):
    """On linear axes, as a logarithm has no zero."""
    plotting.require_matplotlib()
    found = {"run": summary("a", 1, [1.0]), "beside": summary("b", 1, [1.0])}
    none = {"mean": 0.0, "largest": 0.0}
    found["beside"]["jumps"] = [{"steps": 1, "spacing": 0.5, "qk": none, "ov": none}]
    spectra_plots.plot_jumps(found, tmp_path / "jumps.png")
    assert (tmp_path / "jumps.png").exists()
