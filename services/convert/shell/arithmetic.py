"""The value of `$((...))`, on whole numbers as a shell has them."""

import ast
import operator
import re
from collections.abc import Callable

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda left, right: int(left / right) if left * right < 0 else left // right,
    ast.Mod: lambda left, right: left - right * int(left / right),
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_COMPARED: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_MAX_POWER = 64


def calculated(expression: str, value_of: Callable[[str], str]) -> int:
    """The value of an expression whose variables `value_of` knows.

    Raises:
        ValueError: it holds something else than whole numbers and their operators.
    """
    text = re.sub(r"\$\{?(\w+)\}?", r"\1", expression.strip())
    text = text.replace("&&", " and ").replace("||", " or ")
    text = re.sub(r"!(?!=)", " not ", text)
    text = re.sub(r"(?<!/)/(?!/)", "//", text)
    choice = re.fullmatch(r"([^?]+)\?([^:]+):(.+)", text)
    if choice:
        text = f"({choice[2]}) if ({choice[1]}) else ({choice[3]})"
    text = re.sub(r"\b0+(?=\d)", "", text)
    try:
        return int(_value(ast.parse(text.strip() or "0", mode="eval").body, value_of))
    except (SyntaxError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(f"{expression.strip()!r} cannot be calculated") from error


def _value(node: ast.expr, value_of: Callable[[str], str]) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.Name):
        return _number(node.id, value_of)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left, value_of), _value(node.right, value_of)
        if isinstance(node.op, ast.Pow | ast.LShift) and not 0 <= right <= _MAX_POWER:
            raise ValueError(f"{right} is too large a power")
        return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, value_of)
        return int(not value) if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BoolOp):
        values = [_value(each, value_of) != 0 for each in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
        compare = _COMPARED[type(node.ops[0])]
        return int(compare(_value(node.left, value_of), _value(node.comparators[0], value_of)))
    if isinstance(node, ast.IfExp):
        return _value(node.body if _value(node.test, value_of) else node.orelse, value_of)
    raise ValueError(f"{ast.unparse(node)!r} is no arithmetic")


def _number(name: str, value_of: Callable[[str], str]) -> int:
    text = value_of(name).strip()
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"[\w\s+*/()-]+", text) and text != name:
        return calculated(text, value_of)
    raise ValueError(f"{name}={text!r} is no whole number")
