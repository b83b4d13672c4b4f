"""Operators by name: those that are there, those of plug-ins, and functions by their dotted path."""

import inspect
from collections.abc import Callable
from importlib import import_module

from services.config.operators import RESERVED
from services.trainer.pipeline.operators import BUILT_IN
from services.trainer.pipeline.outcome import Operator, OperatorFailed

_OPERATORS: dict[str, Operator] = dict(BUILT_IN)


def register_operator(name: str) -> Callable[[Operator], Operator]:
    """A decorator for plug-ins: adds an operator, or replaces one of the same name.

    An operator is a pure function of the experiences of one group and of the `args` of the configuration. It returns an
    `Outcome`. What it leaves out is in the ledger as `filtered:<name>`.

    Raises:
        ValueError: the name is a rule of the ledger's own.
    """
    if name in RESERVED:
        raise ValueError(f"an operator cannot be named {name!r}: the ledger has a rule of that name")

    def add(operator: Operator) -> Operator:
        _OPERATORS[name] = operator
        return operator

    return add


def operator_named(name: str) -> Operator:
    """The operator of that name, or the function at that dotted path (`package.module.function`).

    Raises:
        OperatorFailed: there is none.
    """
    if name in _OPERATORS:
        return _OPERATORS[name]
    module, dot, function = name.rpartition(".")
    if not dot:
        raise OperatorFailed(f"there is no operator {name!r}: known are {', '.join(sorted(_OPERATORS))}")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise OperatorFailed(f"operator {name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise OperatorFailed(f"operator {name!r} is {type(found).__name__}, and no function")
    operator: Operator = found
    return operator


def check_arguments(name: str, operator: Operator, arguments: dict[str, object]) -> None:
    """Raises `OperatorFailed` where the operator does not take these arguments."""
    try:
        inspect.signature(operator).bind((), **arguments)
    except TypeError as error:
        raise OperatorFailed(f"operator {name!r} does not take args {sorted(arguments)}: {error}") from error
