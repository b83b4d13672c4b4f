"""The value of an arithmetic expression, without evaluating it as code."""

import ast
import operator
from collections.abc import Callable

_OPERATORS: dict[type[ast.operator | ast.unaryop], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}


def calculated(equation: str) -> float | None:
    """The value of an expression of numbers, + - * / and parentheses; None where it is anything else."""
    try:
        return _value(ast.parse(equation.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
            return _OPERATORS[type(operation)](_value(left), _value(right))
        case ast.UnaryOp(op=operation, operand=operand) if type(operation) in _OPERATORS:
            return _OPERATORS[type(operation)](_value(operand))
    raise ValueError(f"{ast.dump(node)[:80]} is no arithmetic")
