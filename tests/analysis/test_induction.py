"""Scores of constructed induction heads, of chance, and against dense algebra."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from cases import TINY, mesh_of, params_of, shapes_of

from diffeq_former.analysis import depth, induction, statistics
from diffeq_former.analysis.loaded_model import LoadedModel
from diffeq_former.config import Stabilisers
from diffeq_former.data.tokenizers import ByteTokenizer
from diffeq_former.errors import UserError

RANDOM = np.random.default_rng(0)
V, REPEAT = 5, 4
IDS = np.array([0, 1, 2, 3, 4, 1, 2, 3, 4])  # a start token and four, repeated
P = len(IDS)
# States hold one-hot vectors of the token, of the token before, and of the position.
TOKEN, BEFORE, POSITION = slice(0, V), slice(V, 2 * V), slice(2 * V, 2 * V + P)
SHARP = 50.0


def with_induction_head(sign: float):
    """A previous-token head followed by an induction head that writes sign * token."""
    c = dataclasses.replace(
        TINY,
        weights="layer_table",
        solver="lie_trotter",
        num_layers=2,
        d_model=2 * V + P,
        num_heads=1,
        vocab_size=V,
        max_len=P,
        stabilisers=Stabilisers(1.0, "none"),
    )
    is_shape = {"is_leaf": lambda x: isinstance(x, tuple)}
    params = jax.tree.map(np.zeros, shapes_of(c), **is_shape)
    params["final_norm"]["scale"] += 1
    params["embedding"]["token"][:, TOKEN] = np.eye(V)
    params["embedding"]["position"][:, POSITION] = np.eye(P)
    qkv_LDKH = params["weights"]["qkv"]["kernel"][:, :, :, 0]
    out_LHD = params["weights"]["attention_out"]["kernel"][:, 0]
    sharp = SHARP * c.head_size**0.5
    qkv_LDKH[0, POSITION, 0, :P] = sharp * np.eye(P)
    qkv_LDKH[0, POSITION, 1, :P] = np.eye(P, k=1)  # position j is found from j + 1
    qkv_LDKH[1, TOKEN, 0, :V] = sharp * np.eye(V)
    qkv_LDKH[1, BEFORE, 1, :V] = np.eye(V)
    qkv_LDKH[:, TOKEN, 2, :V] = np.eye(V)
    out_LHD[0, :V, BEFORE] = np.eye(V)
    out_LHD[1, :V, TOKEN] = sign * np.eye(V)
    return LoadedModel("constructed", c, params, None, mesh_of())


@pytest.mark.parametrize("sign, copies", [(1.0, 1), (-1.0, 0)])
def test_a_constructed_induction_head_scores_1(sign, copies):
    model = with_induction_head(sign)
    arguments = (model.config, model.table, model.outer, IDS, np.arange(V))
    maps, ranks = induction.observe(*arguments)
    scores = induction.prefix_matching(np.asarray(maps), REPEAT)
    np.testing.assert_allclose(scores, [[0], [1]], atol=1e-6)
    assert induction.copying(maps, ranks, REPEAT)[1] == pytest.approx(copies)
    found = induction.eigenvalue_statistics(model.config, model.table, model.outer)
    assert found["full_ov_sum"][1] == pytest.approx(sign)
    assert found["ov_sum"][1] == pytest.approx(sign)


def test_chance_of_even_and_of_random_attention():
    """By symmetry, random scores give each visible token the same weight on average."""
    L = 12
    scores = RANDOM.normal(size=(50, 80, L, L))
    maps = np.exp(np.where(np.tri(L, dtype=bool), scores, -np.inf))
    maps /= maps.sum(-1, keepdims=True)
    even = np.tri(L) / np.arange(1, L + 1)[:, None]
    chance = np.mean([1 / (i + 1) for i in range(6, L)])
    found = induction.prefix_matching(even[None, None], 6)
    np.testing.assert_allclose(found, chance)
    found = induction.prefix_matching(maps, 6)
    assert found.mean() == pytest.approx(chance, rel=0.02) and found.std() > 0.01
    found = induction.copying(maps, RANDOM.random(maps.shape), 6)
    assert found.mean() == pytest.approx(0.5, abs=0.01) and found.std() > 0.01


@pytest.fixture(scope="module", params=["gpt", "llama"])
def model(request):
    """The llama has shared key-value heads, an untied head and several stages."""
    other = {"num_heads": 4, "num_kv_heads": 2, "solver": "midpoint"}
    c = dataclasses.replace(
        TINY, block=request.param, **other if request.param == "llama" else {}
    )
    return LoadedModel("run", c, params_of(c), None, mesh_of())


def test_ranks_are_those_of_values_through_the_output_projection(model):
    """By einsums over the weights of each step, from the maps and the states."""
    c, outer, ids = model.config, model.outer, RANDOM.integers(0, 32, 8)
    reference = RANDOM.permutation(32)[:20]
    observed = induction.observe(c, model.table, outer, ids, reference)
    maps, ranks = map(np.asarray, observed)
    states = depth.states(c, model.table, depth.embed(c, outer, ids))
    final, step = outer["final_norm"], 1
    weights = jax.tree.map(lambda w: np.asarray(w[step, 0], float), model.table)
    x = np.asarray(states[step], float)

    def norm(x, scale):
        x = x - x.mean(-1, keepdims=True) if c.block == "gpt" else x
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + c.norm_eps) * scale

    y = norm(x, weights["norm_1"]["scale"]) + weights["norm_1"].get("shift", 0)
    if c.block == "gpt":
        values = y @ weights["qkv"]["kernel"][:, 2, 1] + weights["qkv"]["bias"][2, 1]
        unembedding = outer["embedding"]["token"].T
    else:
        values = y @ weights["value"]["kernel"][:, 1 // 2]
        unembedding = outer["head"]["kernel"]
    written = maps[step, 1] @ values @ weights["attention_out"]["kernel"][1]
    added_LV = norm(written, final["scale"]) @ unembedding
    for i, j in np.ndindex(8, 8):
        others = [added_LV[i, k] for k in reference if k != ids[j]]
        expected = np.mean(np.array(others) < added_LV[i, ids[j]])
        assert ranks[step, 1, i, j] == pytest.approx(expected, abs=1e-6)
    assert ranks[step, 1].min() < 0.2 and ranks[step, 1].max() > 0.8


def test_eigenvalues_of_the_full_circuit_are_those_of_the_dense_matrix(model):
    """V x V, at the first stage of a step."""
    c, outer = model.config, model.outer
    found = induction.eigenvalue_statistics(c, model.table, outer)
    assert {x.shape for x in found.values()} == {(c.num_layers, c.num_heads)}
    out = np.asarray(model.table["attention_out"]["kernel"][2, 0, 1], float)
    if c.block == "gpt":
        value = model.table["qkv"]["kernel"][2, 0, :, 2, 1]
        unembedding = outer["embedding"]["token"].T
    else:
        value = model.table["value"]["kernel"][2, 0, :, 0]
        unembedding = outer["head"]["kernel"]
    dense = np.linalg.eigvals(outer["embedding"]["token"] @ value @ out @ unembedding)
    expected = dense.sum().real / np.abs(dense).sum()
    assert found["full_ov_sum"][2, 1] == pytest.approx(expected, abs=1e-5)
    shares = found["qk_positive_share"], found["ov_positive_share"]
    np.testing.assert_array_equal(found["least_positive_share"], np.minimum(*shares))


def of_bytes(**changes):
    c = dataclasses.replace(TINY, vocab_size=258, **changes)
    return LoadedModel("run", c, params_of(c), ByteTokenizer(), mesh_of())


def test_sequences_repeat_tokens_that_differ():
    model = of_bytes()
    [start] = model.tokenizer.before
    sampled = induction.sample(model)
    assert sampled.repeat == 3 and len(set(sampled.reference_K)) == 256
    assert len(sampled.repeated) == len(sampled.unrepeated) == induction.NUM_SEQUENCES
    for ids, other in zip(sampled.repeated, sampled.unrepeated, strict=True):
        assert ids[0] == other[0] == start and len(set(ids[1:4])) == 3
        np.testing.assert_array_equal(ids[4:], ids[1:4])
        np.testing.assert_array_equal(other[1:4], ids[1:4])
    others = [other[4:] for other in sampled.unrepeated]
    assert not np.array_equal(others, [ids[4:] for ids in sampled.repeated])


def test_a_context_without_room_for_a_repeat_is_refused():
    with pytest.raises(UserError, match="reads at most 4 tokens: .* at least 5"):
        induction.sample(of_bytes(max_len=4))


def test_models_of_other_shapes_stand_beside_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(induction, "NUM_SEQUENCES", 2)
    monkeypatch.setattr(statistics, "_RESAMPLES", 20)
    beside = of_bytes(weights="layer_table", solver="lie_trotter", num_layers=2)
    rows = induction.analyze(of_bytes(), tmp_path, beside=beside)
    found = json.loads((tmp_path / "induction.json").read_text())
    for role, shape in (("run", (3, 2)), ("beside", (2, 2))):
        for values in (found[role]["scores"], found[role]["eigenvalues"]):
            assert {np.shape(x) for x in values.values()} == {shape}
    assert [row["role"] for row in rows] == ["run"] * 6 + ["beside"] * 6
    best = rows[6]
    scores = found["beside"]["scores"]["prefix_matching"]
    assert best["largest"] == scores[best["step"] - 1][best["head"]] == np.max(scores)
