"""Vector registers: GROUP doubles as one value, of which every lane is computed alike.

Numba's own loops become registers of half the width that a processor with AVX-512 has, and keep one sum in one of them.
Written with these, a kernel says what is in which register. In Python a register is a row of GROUP doubles; compiled, a
value of LLVM's vector type.

A register is as wide as the processor's: twice as wide it would be two of them, and what a kernel holds at once would
not fit. So sums are added in another order where registers are wider, and bits differ: the fingerprint knows the
processor.
"""

import operator
from collections.abc import Callable
from typing import Any, cast

import llvmlite.binding
import numba
import numba.extending
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, typing

from stream_ocpdl.ocpdl.arrays import Array, BigArray, Indices
from stream_ocpdl.ocpdl.compiled import kernel


def has_wide_registers() -> bool:
    """Whether the processor that is compiled for has AVX-512."""
    config: Any = numba.config
    features = config.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten()
    return "+avx512f" in str(features).split(",")


WIDE = has_wide_registers()
"""Registers are 32 of eight doubles, and each operation may leave lanes out; else 16 of four doubles."""

GROUP = 8 if WIDE else 4
"""Doubles of a register: one of AVX-512, one of AVX2, two of NEON."""


def take(a: Array, m: int, k: int) -> Array:
    """a[m, k], of an array (…, n, GROUP)."""
    return np.array(a[m, k])


def put(a: Array, m: int, k: int, v: Array) -> None:
    """a[m, k] = v."""
    a[m, k] = v


def load(x: BigArray, i: int) -> Array:
    """GROUP numbers from place i on of an array in C order, counted flat; as doubles."""
    return np.array(x.reshape(-1)[i : i + GROUP], np.float64)


def load_some(x: BigArray, i: int, k: int) -> Array:
    """The first k of them (all, if k is more), and zeros; what is behind is not read."""
    lanes, count = np.zeros(GROUP), min(max(k, 0), GROUP)
    lanes[:count] = x.reshape(-1)[i : i + count]
    return lanes


def store(x: BigArray, i: int, v: Array) -> None:
    """GROUP numbers to place i on of an array in C order, counted flat."""
    x.reshape(-1)[i : i + GROUP] = v


def store_some(x: BigArray, i: int, k: int, v: Array) -> None:
    """The first k of them (all, if k is more)."""
    count = min(max(k, 0), GROUP)
    x.reshape(-1)[i : i + count] = v[:count]


def prefetch(x: BigArray, i: int) -> None:
    """Bring the cache line with place i of an array in C order, counted flat, into the second cache."""


def turn_square(x: Array, i: int, stride: int, out: Array, j: int, step: int) -> None:
    """GROUP rows of GROUP numbers, from place i of x on and `stride` apart → columns, from place j on, `step` apart."""
    for k in range(GROUP):
        out.reshape(-1)[j + k : j + k + GROUP * step : step] = x.reshape(-1)[i + k * stride : i + k * stride + GROUP]


def take_each(x: Array, rows: Indices, i: int, columns: Indices, j: int) -> Array:
    """GROUP numbers of x, lane l from place rows[i + l] + columns[j + l]; all counted flat."""
    places = rows.reshape(-1)[i : i + GROUP] + columns.reshape(-1)[j : j + GROUP]
    return np.array(x.reshape(-1)[places])


def spread(x: float) -> Array:
    """The same number in each lane."""
    return np.full(GROUP, x)


def larger(a: Array, b: Array) -> Array:
    """b where a < b, else a: a NaN in a stays, as it does in Python's max(a, b)."""
    return np.where(a < b, b, a)


def smaller(a: Array, b: Array) -> Array:
    """b where a > b, else a."""
    return np.where(a > b, b, a)


def above(a: Array, b: Array) -> Array:
    """1 where a > b, else 0."""
    return np.where(a > b, 1.0, 0.0)


def some(a: Array) -> bool:
    """Whether a lane is above zero."""
    return bool(np.any(a > 0.0))


def below(a: Array, b: Array) -> int:
    """A number whose bit j says whether lane j of a is below that of b."""
    return int(np.sum((a < b) << np.arange(GROUP)))


def fma(a: Array, b: Array, c: Array) -> Array:
    """ab + c, rounded once."""
    return a * b + c


def lane(a: Array, j: int) -> float:
    """One of the lanes."""
    return float(a[j])


def total(a: Array) -> float:
    """The sum of the lanes, by halves."""
    while a.size > 1:
        a = a[: a.size // 2] + a[a.size // 2 :]
    return float(a[0])


class Lanes(types.Type):
    """Numba's name for such a register."""

    def __init__(self) -> None:
        super().__init__("Lanes")


LANES, ARRAY, INDEX = Lanes(), types.Array, types.intp
REGISTER = ir.VectorType(ir.DoubleType(), GROUP)
ZERO, ONE = ir.Constant(REGISTER, [0.0] * GROUP), ir.Constant(REGISTER, [1.0] * GROUP)
NUMBA: Any = numba.extending
NUMBA.register_model(Lanes)(lambda manager, kind: NUMBA.models.PrimitiveModel(manager, kind, REGISTER))


def instruction(function: Any, result: Any, kinds: tuple[Any, ...], emit: Callable[..., Any]) -> None:
    """Compiled, a function of lanes is what `emit` writes with LLVM's builder."""
    names: Any = typing
    wanted = {LANES: Lanes, ARRAY: ARRAY}

    def chosen(*args: Any) -> Any:
        if any(isinstance(arg, ARRAY) and arg.layout != "C" for arg in args):
            return None
        if all(isinstance(arg, wanted.get(kind, types.Number)) for arg, kind in zip(args, kinds, strict=True)):
            return names.signature(
                result, *(arg if kind is ARRAY else kind for arg, kind in zip(args, kinds, strict=True))
            )
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given = (
            context.make_array(which)(context, builder, arg) if kind is ARRAY else arg
            for which, arg, kind in zip(sig.args, args, kinds, strict=True)
        )
        written = emit(builder, *given)
        return context.get_dummy_value() if result == types.none else written

    by_arity: dict[int, Any] = {  # Numba looks at the names of arguments
        1: lambda a: chosen(a),
        2: lambda a, b: chosen(a, b),
        3: lambda a, b, c: chosen(a, b, c),
        4: lambda a, b, c, d: chosen(a, b, c, d),
        5: lambda a, b, c, d, e: chosen(a, b, c, d, e),
        6: lambda a, b, c, d, e, f: chosen(a, b, c, d, e, f),
    }
    NUMBA.type_callable(function)(lambda _: by_arity[len(kinds)])
    NUMBA.lower_builtin(function, *kinds)(lower)


def address(builder: Any, a: Any, m: Any, k: Any) -> Any:
    """Where a[m, k] begins."""
    row = builder.add(builder.mul(m, builder.extract_value(a.shape, 1)), k)
    return builder.bitcast(builder.gep(a.data, [builder.mul(row, row.type(GROUP))]), REGISTER.as_pointer())


def broadcast(builder: Any, x: Any) -> Any:
    """A number in each lane."""
    nothing, zeros = ir.Constant(REGISTER, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), GROUP), [0] * GROUP)
    return builder.shuffle_vector(builder.insert_element(nothing, x, ir.IntType(32)(0)), nothing, zeros)


def compare(builder: Any, sign: str, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
    """Lane by lane one or the other."""
    return builder.select(builder.fcmp_ordered(sign, a, b), then, otherwise)


def not_zero(builder: Any, bits: Any) -> Any:
    """Whether a bit is set."""
    number = builder.bitcast(bits, ir.IntType(GROUP))
    return builder.icmp_unsigned("!=", number, number.type(0))


def emit_below(builder: Any, a: Any, b: Any) -> Any:
    """`below`."""
    return builder.zext(builder.bitcast(builder.fcmp_ordered("<", a, b), ir.IntType(GROUP)), ir.IntType(64))


def called(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """What one of LLVM's own functions says."""
    kind, names = ir.FunctionType(result, [arg.type for arg in args]), cast(Any, cgutils)
    return builder.call(names.get_or_insert_function(builder.module, kind, name), args)


def if_else(builder: Any, condition: Any) -> Any:
    """A branch that is nearly always taken."""
    return builder.if_else(condition, likely=True)


def place(builder: Any, x: Any, i: Any) -> tuple[Any, Any, str]:
    """Where x[i] begins, counted flat; the type of a register full of what is there, and LLVM's name for it."""
    kind = x.data.type.pointee
    register, name = ir.VectorType(kind, GROUP), f"v{GROUP}{'f64' if kind == ir.DoubleType() else 'f32'}"
    return builder.bitcast(builder.gep(x.data, [i]), register.as_pointer()), register, name


def first_lanes(builder: Any, k: Any) -> Any:
    """Which lanes are below k."""
    each = ir.VectorType(k.type, GROUP)
    count = builder.insert_element(ir.Constant(each, ir.Undefined), k, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), GROUP), [0] * GROUP)
    count = builder.shuffle_vector(count, count, zeros)
    return builder.icmp_signed("<", ir.Constant(each, list(range(GROUP))), count)


def emit_load(builder: Any, x: Any, i: Any) -> Any:
    """`load`."""
    pointer, register, _ = place(builder, x, i)
    lanes = builder.load(pointer, align=4)
    return lanes if register == REGISTER else builder.fpext(lanes, REGISTER)


def emit_load_some(builder: Any, x: Any, i: Any, k: Any) -> Any:
    """`load_some`."""
    if WIDE:
        return emit_load_masked(builder, x, i, k)
    with if_else(builder, builder.icmp_signed(">=", k, k.type(GROUP))) as (then, otherwise):
        with then:
            whole, there = emit_load(builder, x, i), builder.block
        with otherwise:
            few, here = emit_load_masked(builder, x, i, k), builder.block
    lanes = builder.phi(REGISTER)
    lanes.add_incoming(whole, there)
    lanes.add_incoming(few, here)
    return lanes


def emit_load_masked(builder: Any, x: Any, i: Any, k: Any) -> Any:
    """The same without a branch."""
    pointer, register, name = place(builder, x, i)
    nothing = ir.Constant(register, [0.0] * GROUP)
    args = (pointer, ir.IntType(32)(4), first_lanes(builder, k), nothing)
    lanes = called(builder, f"llvm.masked.load.{name}.p0", register, *args)
    return lanes if register == REGISTER else builder.fpext(lanes, REGISTER)


def emit_store(builder: Any, x: Any, i: Any, v: Any) -> Any:
    """`store`."""
    pointer, register, _ = place(builder, x, i)
    return builder.store(v if register == REGISTER else builder.fptrunc(v, register), pointer, align=4)


def emit_store_some(builder: Any, x: Any, i: Any, k: Any, v: Any) -> None:
    """`store_some`; where registers are narrow, to leave lanes out takes ten times as long."""
    if WIDE:
        emit_store_masked(builder, x, i, k, v)
        return
    with if_else(builder, builder.icmp_signed(">=", k, k.type(GROUP))) as (then, otherwise):
        with then:
            emit_store(builder, x, i, v)
        with otherwise:
            emit_store_masked(builder, x, i, k, v)


def emit_store_masked(builder: Any, x: Any, i: Any, k: Any, v: Any) -> Any:
    """The same without a branch."""
    pointer, register, name = place(builder, x, i)
    lanes = v if register == REGISTER else builder.fptrunc(v, register)
    args = (lanes, pointer, ir.IntType(32)(4), first_lanes(builder, k))
    return called(builder, f"llvm.masked.store.{name}.p0", ir.VoidType(), *args)


def emit_turn_square(builder: Any, x: Any, i: Any, stride: Any, out: Any, j: Any, step: Any) -> None:
    """`turn_square`: rows change places with each other by single lanes, then by pairs, then by fours."""
    rows = [emit_load(builder, x, builder.add(i, builder.mul(stride, stride.type(k)))) for k in range(GROUP)]
    kind, size = ir.VectorType(ir.IntType(32), GROUP), 1
    while size < GROUP:
        low = ir.Constant(kind, [k if not k & size else GROUP + k - size for k in range(GROUP)])
        high = ir.Constant(kind, [k + size if not k & size else GROUP + k for k in range(GROUP)])
        for k in (k for k in range(GROUP) if not k & size):
            pair = rows[k], rows[k + size]
            rows[k], rows[k + size] = (builder.shuffle_vector(*pair, places) for places in (low, high))
        size *= 2
    for k, row in enumerate(rows):
        emit_store(builder, out, builder.add(j, builder.mul(step, step.type(k))), row)


def emit_take_each(builder: Any, x: Any, rows: Any, i: Any, columns: Any, j: Any) -> Any:
    """`take_each`: lane by lane, for what was written lane by lane cannot be read at once so soon."""
    lanes = ir.Constant(REGISTER, ir.Undefined)
    for k in range(GROUP):
        row, column = (
            builder.load(builder.gep(places.data, [builder.add(first, first.type(k))]))
            for places, first in ((rows, i), (columns, j))
        )
        number = builder.load(builder.gep(x.data, [builder.add(row, column)]))
        lanes = builder.insert_element(lanes, number, ir.IntType(32)(k))
    return lanes


def emit_rounded(builder: Any, v: Any, x: Any) -> Any:
    """v as it will be when it is read again from x."""
    register = ir.VectorType(x.data.type.pointee, GROUP)
    return v if register == REGISTER else builder.fpext(builder.fptrunc(v, register), REGISTER)


def emit_prefetch(builder: Any, x: Any, i: Any) -> Any:
    """`prefetch`: for reading, of locality 2, of data."""
    pointer = builder.bitcast(builder.gep(x.data, [i]), ir.IntType(8).as_pointer())
    return called(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, *(ir.IntType(32)(k) for k in (0, 2, 1)))


def emit_fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """`fma`."""
    return called(builder, f"llvm.fma.v{GROUP}f64", REGISTER, a, b, c)


def emit_total(builder: Any, v: Any) -> Any:
    """`total`."""
    size = GROUP
    while size > 1:
        size //= 2
        kind = ir.VectorType(ir.IntType(32), size)
        low, high = (ir.Constant(kind, list(range(start, start + size))) for start in (0, size))
        v = builder.fadd(builder.shuffle_vector(v, v, low), builder.shuffle_vector(v, v, high))
    return builder.extract_element(v, ir.IntType(32)(0))


instruction(load, LANES, (ARRAY, INDEX), emit_load)
instruction(load_some, LANES, (ARRAY, INDEX, INDEX), emit_load_some)
instruction(store, types.none, (ARRAY, INDEX, LANES), emit_store)
instruction(store_some, types.none, (ARRAY, INDEX, INDEX, LANES), emit_store_some)
instruction(prefetch, types.none, (ARRAY, INDEX), emit_prefetch)
instruction(turn_square, types.none, (ARRAY, INDEX, INDEX, ARRAY, INDEX, INDEX), emit_turn_square)
instruction(take_each, LANES, (ARRAY, ARRAY, INDEX, ARRAY, INDEX), emit_take_each)
instruction(fma, LANES, (LANES, LANES, LANES), emit_fma)
instruction(total, types.float64, (LANES,), emit_total)
instruction(lane, types.float64, (LANES, INDEX), lambda b, a, j: b.extract_element(a, j))
instruction(take, LANES, (ARRAY, INDEX, INDEX), lambda b, a, m, k: b.load(address(b, a, m, k), align=8))
instruction(
    put, types.none, (ARRAY, INDEX, INDEX, LANES), lambda b, a, m, k, v: b.store(v, address(b, a, m, k), align=8)
)
instruction(spread, LANES, (types.float64,), broadcast)
instruction(larger, LANES, (LANES, LANES), lambda b, x, y: compare(b, "<", x, y, y, x))
instruction(smaller, LANES, (LANES, LANES), lambda b, x, y: compare(b, ">", x, y, y, x))
instruction(above, LANES, (LANES, LANES), lambda b, x, y: compare(b, ">", x, y, ONE, ZERO))
instruction(some, types.boolean, (LANES,), lambda b, x: not_zero(b, b.fcmp_ordered(">", x, ZERO)))
instruction(below, INDEX, (LANES, LANES), emit_below)
instruction(operator.add, LANES, (LANES, LANES), lambda b, x, y: b.fadd(x, y))
instruction(operator.sub, LANES, (LANES, LANES), lambda b, x, y: b.fsub(x, y))
instruction(operator.mul, LANES, (LANES, LANES), lambda b, x, y: b.fmul(x, y))
instruction(operator.truediv, LANES, (LANES, LANES), lambda b, x, y: b.fdiv(x, y))


@kernel
def aligned(m: int, n: int) -> Array:
    """Memory for (m, n) registers that begins with a cache line, so that none is read from two."""
    raw = np.empty((m * n + 1) * GROUP)
    skip = -(raw.ctypes.data // 8) % GROUP
    return raw[skip : skip + m * n * GROUP].reshape(m, n, GROUP)
