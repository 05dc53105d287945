"""Measures of clusters, of tokens whose groups are known."""

import json

import numpy as np
import pytest

from diffeq_former.analysis import clustering


def test_counts_and_dispersion_of_known_groups():
    angles = np.radians([0, 2, 4, 90, 92, 180])
    u = np.stack([np.cos(angles), np.sin(angles), 0 * angles], -1)
    states = np.stack([u, 5 * u, np.tile(u[:1], (6, 1))])
    np.testing.assert_array_equal(clustering.num_clusters(states), [3, 3, 1])
    around = np.stack([u[:1], -u[:1]], 1)
    np.testing.assert_allclose(clustering.dispersion(around), 1)
    np.testing.assert_allclose(clustering.dispersion(states)[2], 0, atol=1e-12)


def test_a_long_chain_is_one_cluster_and_the_threshold_is_a_distance():
    """A chain from token 0 to token 1 through all others; then links too long."""
    order = np.append([0, 39], 1 + np.random.default_rng(0).permutation(38))
    counts = []
    for chord in (0.099, 0.101):
        angles = 2 * np.arcsin(chord / 2) * order
        states = np.stack([np.cos(angles), np.sin(angles), 0 * angles], -1)[None]
        counts += clustering.num_clusters(states).tolist()
    assert counts == [1, 40]


def test_half_time_is_the_first_with_half_of_the_clusters():
    times = np.array([0, 0.1, 0.4, 1])
    assert clustering.half_time(np.array([40, 21, 20, 25]), times) == 0.4
    assert clustering.half_time(np.array([40, 21, 21, 21]), times) == np.inf


def test_three_axes_keep_all_that_three_dimensions_have():
    random = np.random.default_rng(0)
    flat = random.normal(size=(5, 4, 3)) @ random.normal(size=(3, 9))
    projected = clustering.in_three(flat)
    assert projected.shape == (5, 4, 3)
    gaps = [
        np.linalg.norm(v[0][:, None] - v[-1][None], axis=-1) for v in (flat, projected)
    ]
    np.testing.assert_allclose(*gaps, rtol=1e-9)


def test_the_median_seed_and_differences_between_the_same_seeds():
    """Tokens at angles of 90 degrees: 1, 2 and 4 clusters, then each one fewer."""
    u = np.array([[1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]], float)
    ends = {1: u[[0, 0, 0, 0]], 2: u[[0, 0, 0, 1]], 3: u[[0, 0, 1, 2]], 4: u}
    runs = [
        clustering._Runs([np.stack([u, ends[n]]) for n in counts], np.array([0, 1]))
        for counts in ((4, 1, 2), (3, 1, 1))
    ]
    first, other = (run.summary(runs[0]) for run in runs)
    np.testing.assert_array_equal(runs[0].typical(runs[0]), runs[0].states[2])
    np.testing.assert_array_equal(runs[1].typical(runs[0]), runs[1].states[2])
    assert first["difference"] is None
    assert other["difference"]["mean"] == pytest.approx(-2 / 3)
    assert first["at the end"]["clusters"]["mean"] == pytest.approx(7 / 3)
    assert first["half time"] == 1 and other["half time"] == 1
    np.testing.assert_allclose(first["mean"]["dispersion"][0], 1)


def test_polynomials_are_rows_beside_the_first(monkeypatch, tmp_path):
    states = np.random.default_rng(0).normal(size=(2, 3, 4, 16))
    monkeypatch.setattr(clustering, "_of_model", lambda *_: list(states))
    for name in ("_plot_trajectories", "_plot_clusters"):
        monkeypatch.setattr(clustering, name, lambda *_: None)
    model = type("Model", (), {"name": "run"})
    options = {"polynomials": ["(1+t)^1", "(t/T)^3"], "normalisation": "none"}
    rows = clustering.analyze(
        model, tmp_path, num_seeds=2, horizon=2.0, step_size=0.1, **options
    )
    kinds = [(row["weights"], row.get("beta")) for row in rows]
    assert kinds == [
        *(("random", "(1+t)^1"), ("random", "(t/T)^3")),
        *(("identity", "(1+t)^1"), ("identity", "(t/T)^3"), ("heads of run", None)),
    ]
    assert ["difference" in row for row in rows] == [False, True, False, True, False]
    values = json.loads((tmp_path / "clustering.json").read_text())
    assert values["step size"] == pytest.approx(0.1) and values["horizon"] == 2
    for run in values["runs"][:4]:
        assert run["time"][-1] == pytest.approx(1) and len(run["time"]) == 21
    arrays = np.load(tmp_path / "ways.npz")
    assert arrays["random"].shape == (2, 21, 40, 3)
    assert arrays["model"].shape == (1, 3, 4, 3)
