"""The paths through a function of an environment: variables that have no value on some path, and entries of `out` that only some write.

Numba gives a variable without a value the value 0, where Python raises UnboundLocalError. The syntax tree is followed with the values of
constants, so that a loop over `range(4)` or over `range(CELLS)` is known to make its turns.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from warprun.environment import KernelFunction

MOST_TURNS = 4096
"""Turns of loops that are followed one by one, in a function; longer loops count as loops of unknown length."""


class Number(NamedTuple):
    """A known integer, `per_actor * i + constant`."""

    constant: int
    per_actor: int = 0


@dataclass(frozen=True)
class _Path:
    """Facts at a point of a function that hold on every path to it."""

    assigned: frozenset[str]
    """Variables that have a value on all paths."""
    known: dict[str, Number]
    """Those of them with the same known value."""
    always: frozenset[Number] = frozenset()
    """Entries of `out` that are written on all paths."""
    sometimes: frozenset[Number] = frozenset()
    """Entries that are written on some path."""


@dataclass
class _Loop:
    breaks: list[_Path | None] = field(default_factory=list)
    continues: list[_Path | None] = field(default_factory=list)


def unassigned(function: KernelFunction) -> dict[str, int]:
    """Return the variables that a function reads where they may have no value, with the first such line; nothing without a source."""
    tree = _tree(function)
    return _Function(function, tree).unassigned if tree else {}


def writes_the_same(function: KernelFunction) -> bool:
    """Return whether every call of a function for an actor writes the same entries of its argument `out`, and reads none of them.

    False also if that is not known: an index or a condition depends on the state, a loop on a parameter, or a helper gets `out`.
    """
    tree = _tree(function)
    return tree is not None and _Function(function, tree).writes_the_same


@cache
def never_written(function: KernelFunction, actor: int, size: int) -> frozenset[int]:
    """Return the entries of `out`, of `size`, that no call of a function for an actor writes, if it `writes_the_same`; else none."""
    tree = _tree(function)
    if tree is None or not (found := _Function(function, tree)).writes_the_same:
        return frozenset()
    written = {entry for end in found.ends for entry in end.always}
    return frozenset(range(size)) - {(entry.constant + entry.per_actor * actor) % size for entry in written}


def _tree(function: KernelFunction) -> ast.FunctionDef | None:
    """Return the syntax tree of a function with the line numbers of its file; None if there is no source, or one of other code."""
    code = function.__code__
    try:
        lines, first = inspect.getsourcelines(function)
        module = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return None
    tree = module.body[0] if len(module.body) == 1 else None
    if not isinstance(tree, ast.FunctionDef):
        return None
    ast.increment_lineno(module, first - 1)
    # The file may have changed since it was imported.
    made = compile(module, code.co_filename, "exec", dont_inherit=True)
    own = [each for each in made.co_consts if isinstance(each, types.CodeType) and each.co_name == code.co_name]
    return tree if code.co_freevars or [each.co_code for each in own] == [code.co_code] else None


class _Function:
    """Follows a function. Statements that kernels do not have count as ones that assign their variables."""

    def __init__(self, function: KernelFunction, tree: ast.FunctionDef) -> None:
        self.globals = function.__globals__
        self.variables = {*function.__code__.co_varnames, *function.__code__.co_cellvars}
        self.unassigned: dict[str, int] = {}
        """Variable that may have no value -> the first line that reads it."""
        self.turns = 0
        self.is_known = True
        """Whether the entries of `out` that are written are known so far."""
        self.loops: list[_Loop] = []
        self.ends: list[_Path] = []
        given = (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs, tree.args.vararg, tree.args.kwarg)
        arguments = [each.arg for each in given if each]
        known = {"i": Number(0, 1)} if "i" in arguments else {}
        end = self.block(tree.body, _Path(frozenset(arguments), known))
        self.ends += [end] if end else []

    @property
    def writes_the_same(self) -> bool:
        return self.is_known and len({entries for end in self.ends for entries in (end.always, end.sometimes)}) <= 1

    # Statements -----------------------------------------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt], path: _Path | None) -> _Path | None:
        """Return the path after statements; None if it never gets there."""
        for statement in statements:
            if path is None:
                return None
            path = self.statement(statement, path)
        return path

    def statement(self, statement: ast.stmt, path: _Path) -> _Path | None:
        match statement:
            case ast.Return(value):
                self.ends.append(self.read(value, path))
                return None
            case ast.Break():
                self.loops[-1].breaks.append(path)
                return None
            case ast.Continue():
                self.loops[-1].continues.append(path)
                return None
            case ast.If(test, body, orelse):
                return self.branch(test, path, lambda p: self.block(body, p), lambda p: self.block(orelse, p))
            case ast.For(target, iterated, body, orelse):
                return self.for_loop(target, iterated, body, orelse, self.read(iterated, path))
            case ast.Match(subject, cases):
                after = self.read(subject, path)
                return _joined([*(self.case(each, after) for each in cases), None if _takes_all(cases[-1]) else after])
            case ast.While(test, body, orelse):
                return self.repeated(test, lambda p: p, statement, orelse, path)
            case ast.Assign(targets, value):
                after = self.read(value, path)
                for target in targets:
                    after = self.assign(target, self.number(value, path), after)
                return after
            case ast.AnnAssign(target, _, value) if value is not None:
                return self.assign(target, self.number(value, path), self.read(value, path))
            case ast.AugAssign(target, _, value):
                before = self.read(ast.copy_location(_loaded(target), target), self.read(value, path))
                return self.assign(target, None, before)
            case ast.Expr(value):
                return self.read(value, path)
            case ast.Pass():
                return path
            case _:
                self.is_known = False
                named = {statement.name} if isinstance(statement, ast.FunctionDef | ast.ClassDef) else set()
                return replace(path, assigned=path.assigned | _stored([statement]) | named)

    def branch(
        self, test: ast.expr, path: _Path, then: Callable[[_Path], _Path | None], otherwise: Callable[[_Path], _Path | None]
    ) -> _Path | None:
        after, known = self.read(test, path), self.truth(test, path)
        if known is not None:
            return then(after) if known else otherwise(after)
        return _joined([then(after), otherwise(after)])

    def case(self, case: ast.match_case, path: _Path) -> _Path | None:
        named = {node.name for node in ast.walk(case.pattern) if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name}
        known = {name: value for name, value in path.known.items() if name not in named}
        return self.block(case.body, self.read(case.guard, replace(path, assigned=path.assigned | named, known=known)))

    def for_loop(self, target: ast.expr, iterated: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], path: _Path) -> _Path | None:
        turns = self.turns_of(iterated, path)
        if turns is None or self.turns + len(turns) > MOST_TURNS:
            return self.repeated(None, lambda p: self.assign(target, None, p), ast.For(target, iterated, body, orelse), orelse, path)
        self.turns += len(turns)
        loop, now = _Loop(), path
        self.loops.append(loop)
        for turn in turns:
            loop.continues = []
            after = _joined([self.block(body, self.assign(target, Number(turn), now)), *loop.continues])
            if after is None:
                break
            now = after
        self.loops.pop()
        return _joined([*loop.breaks, None if turns and after is None else self.block(orelse, now)])

    def repeated(
        self,
        test: ast.expr | None,
        begin: Callable[[_Path], _Path],
        loop_statement: ast.For | ast.While,
        orelse: list[ast.stmt],
        path: _Path,
    ) -> _Path | None:
        """Return the path after a loop of an unknown number of turns; `test` None: that of a `for`."""
        changed = _stored(loop_statement.body)
        start = replace(path, known={name: value for name, value in path.known.items() if name not in changed})
        truth = self.truth(test, start) if test is not None else None
        start = self.read(test, start) if test is not None else start
        if truth is False:
            return self.block(orelse, start)
        loop = _Loop()
        self.loops.append(loop)
        after = _joined([self.block(loop_statement.body, begin(start)), *loop.continues])
        self.loops.pop()
        ends = loop.breaks if truth else [self.block(orelse, _joined([start, after])), *loop.breaks]
        # Turns before the last one may have written what they wrote.
        written = frozenset().union(*(each.sometimes for each in (after, *loop.breaks) if each))
        end = _joined(ends)
        return end and replace(end, sometimes=end.sometimes | written)

    # Expressions ----------------------------------------------------------------------------------------------------------

    def read_all(self, nodes: Iterable[ast.AST], path: _Path) -> _Path:
        for node in nodes:
            path = self.read(node, path)
        return path

    def read(self, node: ast.AST | None, path: _Path) -> _Path:
        """Return the path after an expression."""
        match node:
            case None | ast.Lambda():
                return path
            case ast.Name(name, ast.Load()):
                if name in self.variables and name not in path.assigned:
                    self.unassigned.setdefault(name, node.lineno)
                self.is_known &= name != "out"
                return path
            case ast.NamedExpr(target, value):
                return self.assign(target, self.number(value, path), self.read(value, path))
            case ast.IfExp(test, body, orelse):
                after = self.branch(test, path, lambda p: self.read(body, p), lambda p: self.read(orelse, p))
                assert after is not None
                return after
            case ast.BoolOp(_, [first, *others]):
                after = self.read(first, path)
                self.read_all(others, after)
                return after
            case _:
                return self.read_all(ast.iter_child_nodes(node), path)

    def assign(self, target: ast.expr, value: Number | None, path: _Path) -> _Path:
        match target:
            case ast.Name(name):
                known = {each: number for each, number in path.known.items() if each != name}
                return replace(path, assigned=path.assigned | {name}, known=known | ({name: value} if value else {}))
            case ast.Tuple(parts) | ast.List(parts):
                for part in parts:
                    path = self.assign(part, None, path)
                return path
            case ast.Subscript(ast.Name("out"), at):
                after, entry = self.read(at, path), self.number(at, path)
                self.is_known &= entry is not None
                written = frozenset() if entry is None else frozenset({entry})
                return replace(after, always=after.always | written, sometimes=after.sometimes | written)
            case _:
                return self.read_all(ast.iter_child_nodes(target), path)

    # Values ---------------------------------------------------------------------------------------------------------------

    def number(self, node: ast.expr, path: _Path) -> Number | None:
        """Return the integer that an expression is, if it is known."""
        match node:
            case ast.Constant(int() as value):
                return Number(int(value))
            case ast.Name(name) if name in self.variables:
                return path.known.get(name)
            case ast.Name(name):
                constant = self.globals.get(name)
                return Number(constant) if type(constant) is int else None
            case ast.Attribute(ast.Name(name), attribute) if name not in self.variables:
                constant = getattr(self.globals.get(name), attribute, None)
                return Number(constant) if type(constant) is int else None
            case ast.UnaryOp(ast.USub(), operand):
                inner = self.number(operand, path)
                return inner and Number(-inner.constant, -inner.per_actor)
            case ast.BinOp(left, operation, right):
                return _combined(operation, self.number(left, path), self.number(right, path))
            case _:
                return None

    def truth(self, test: ast.expr, path: _Path) -> bool | None:
        """Return whether a condition holds, if that is known."""
        match test:
            case ast.Constant(value):
                return bool(value)
            case ast.Compare(left, [operation], [right]):
                a, b = self.number(left, path), self.number(right, path)
                compare = _COMPARISONS.get(type(operation))
                return compare(a.constant, b.constant) if compare and a and b and a.per_actor == b.per_actor == 0 else None
            case _:
                return None

    def turns_of(self, iterated: ast.expr, path: _Path) -> range | None:
        """Return the turns of a loop over a `range`, if they are known."""
        match iterated:
            case ast.Call(ast.Name("range"), given, []) if "range" not in self.globals:
                numbers = [self.number(each, path) for each in given]
                limits = [number.constant for number in numbers if number and not number.per_actor]
                return range(*limits) if len(limits) == len(given) and limits[2:] != [0] else None
            case _:
                return None


_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def _combined(operation: ast.operator, a: Number | None, b: Number | None) -> Number | None:
    if a is None or b is None:
        return None
    if isinstance(operation, ast.Add):
        return Number(a.constant + b.constant, a.per_actor + b.per_actor)
    if isinstance(operation, ast.Sub):
        return Number(a.constant - b.constant, a.per_actor - b.per_actor)
    if isinstance(operation, ast.Mult) and not (a.per_actor and b.per_actor):
        return Number(a.constant * b.constant, a.per_actor * b.constant + b.per_actor * a.constant)
    if a.per_actor or b.per_actor or b.constant == 0:
        return None
    if isinstance(operation, ast.FloorDiv):
        return Number(a.constant // b.constant)
    return Number(a.constant % b.constant) if isinstance(operation, ast.Mod) else None


def _joined(paths: Iterable[_Path | None]) -> _Path | None:
    """Return what is known where several paths meet."""
    there = [path for path in paths if path is not None]
    if not there:
        return None
    first = there[0]
    return _Path(
        frozenset.intersection(*(path.assigned for path in there)),
        {name: value for name, value in first.known.items() if all(path.known.get(name) == value for path in there)},
        frozenset.intersection(*(path.always for path in there)),
        frozenset.union(*(path.sometimes for path in there)),
    )


def _takes_all(case: ast.match_case) -> bool:
    """Return whether a case of `match` is taken whatever the value is."""
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None


def _stored(statements: Iterable[ast.AST]) -> frozenset[str]:
    """Return the variables that statements assign."""
    return frozenset(
        node.id for each in statements for node in ast.walk(each) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


def _loaded(target: ast.expr) -> ast.expr:
    """Return the expression that reads what is assigned to `target`."""
    match target:
        case ast.Name(name):
            return ast.Name(name, ast.Load())
        case ast.Subscript(value, at):
            return ast.Subscript(value, at, ast.Load())
        case _:
            return target
