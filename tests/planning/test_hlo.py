"""The text of programs: what is executed how often, and what it sends."""

import pytest

from diffeq_former.planning.collectives import collectives, sent_bytes
from diffeq_former.planning.cycles import cycles_by_scope
from diffeq_former.planning.hlo import Program

SIZES = {"data": 2, "fsdp": 2, "sequence": 1, "tensor": 2}

# A TPU's loop of three steps. Two fusions start and end an all-gather over fsdp, and a
# third computes meanwhile; a sum over data is scattered.
TPU = """
%gather.start (p: f32[4]) -> f32[8] {
  %all-gather.1 = f32[8]{0:T(128)} all-gather(%p), channel_id=7, \
replica_groups={{0,2},{1,3},{4,6},{5,7}}, dimensions={0}
}
%gather.compute (p: f32[4]) -> f32[8] {
  %all-gather.2 = f32[8]{0:T(128)} all-gather(%p), channel_id=7, \
replica_groups={{0,2},{1,3},{4,6},{5,7}}, dimensions={0}
}
%gather.end (p: f32[4]) -> f32[8] {
  %all-gather.3 = f32[8]{0:T(128)} all-gather(%p), channel_id=7, \
replica_groups={{0,2},{1,3},{4,6},{5,7}}, dimensions={0}
}
%all-reduce-scatter.1 (p: f32[16]) -> f32[8] {
  %all-reduce.1 = f32[16]{0} all-reduce(%p), channel_id=8, replica_groups=[4,2]<=\
[2,4]T(1,0), to_apply=%add
}
%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %fusion.1 = f32[8]{0} fusion(%x), kind=kCustom, calls=%gather.start
  %fusion.2 = f32[8]{0} fusion(%x), kind=kCustom, calls=%gather.compute, \
metadata={op_name="jit(f)/attention/while/loss/head/dot"}, "estimated_cycles":"10"
  %fusion.3 = f32[8]{0} fusion(%x), kind=kCustom, calls=%gather.end
  %fusion.4 = f32[8]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
}
%compare (p: s32[]) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(3)
}
%condition (p: (s32[], f32[4])) -> pred[] {
  %zero = s32[] constant(0)
  ROOT %fusion.5 = pred[] fusion(%p), kind=kLoop, calls=%compare
}
%short (p: f32[]) -> f32[] {
  ROOT %p = f32[] parameter(0)
}
%long (p: f32[]) -> f32[] {
  %copy.1 = f32[] copy(%p), "estimated_cycles":"5"
  ROOT %all-reduce.2 = (f32[4]{0}, bf16[4]{0}) all-reduce(%p, %q), \
replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_1'}
}
ENTRY %main (p: f32[4]) -> f32[4] {
  %while.1 = (s32[], f32[4]) while(%t), condition=%condition, body=%body
  %conditional.1 = f32[] conditional(%c, %a, %a), branch_computations={%short, %long}
}
"""

# The start of a GPU's collective has operands and results; work follows one of them.
GPU = """
ENTRY %main (p: f32[4]) -> f32[4] {
  %reduce-scatter-start = ((f32[16]{0}, bf16[4]{0}), (f32[8]{0}, bf16[2]{0})) \
reduce-scatter-start(%p, %q), replica_groups={{0,4},{1,5},{2,6},{3,7}}, "is_sync":false
  %fusion.1 = f32[8]{0} fusion(%x), kind=kLoop, calls=%none
  %reduce-scatter-done = (f32[8]{0}, bf16[2]{0}) \
reduce-scatter-done(%reduce-scatter-start)
  %all-gather-start = (f32[4]{0}, f32[8]{0}) all-gather-start(%p), \
replica_groups=mesh['a'=2,'b'=2,'c'=2], device_ids=([2,2,2]T(2,1,0)) {'a'}
  ROOT %all-gather-done = f32[8]{0} all-gather-done(%all-gather-start)
}
%none (p: f32[]) -> f32[] {
  ROOT %p = f32[] parameter(0)
}
"""


def test_a_program_of_a_tpu():
    found = collectives(Program(TPU), SIZES)
    assert sent_bytes(found, "kind", "axes", "overlapped") == {
        ("all-gather", ("fsdp",), True): 3 * 8 * 4 / 2,
        ("reduce-scatter", ("data",), False): 3 * 16 * 4 / 2,
        ("all-reduce", ("tensor",), False): 4 * (4 + 2),
    }
    assert [x.dtypes for x in found] == ["f32", "f32", "bf16+f32"]


def test_estimated_cycles_are_of_the_innermost_scope():
    assert cycles_by_scope(Program(TPU)) == {"head": 30, "other": 5}


def test_a_program_of_a_gpu():
    found = collectives(Program(GPU), SIZES)
    assert sent_bytes(found, "kind", "axes", "overlapped") == {
        ("reduce-scatter", ("data",), True): (16 * 4 + 4 * 2) / 2,
        ("all-gather", ("tensor",), False): 8 * 4 / 2,
    }


def test_a_loop_that_ends_for_reasons_unknown():
    text = TPU.replace("constant(3)", "parameter(0)")
    with pytest.raises(ValueError, match="unknown trip count of a loop: %while.1 = "):
        collectives(Program(text), SIZES)
